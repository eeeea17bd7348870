"""TIKI compliance: the form of a specification, and what it says of code."""

import pytest

from jobs.payload.scorers.tiki import BadYaml, check_spec, read_yaml

SPEC = """
id: store
name: Store
version: 1.10
module: Elias.Store
functions: [put, get/2]
code_ref: lib/store.py#L1
metadata:
  dependencies: [disk]
  performance: {p95_ms: 5}
  inputs: [values]
  outputs: [values]
  failure_modes: []
  tags: []
children:
  - id: disk
    name: Disk
    version: 1.0.0
    module: Elias.Disk
    functions:
      - name: write
    code_ref: lib/disk.py
    metadata:
      dependencies:
      performance:
      inputs:
      outputs:
      failure_modes:
      tags:
"""
CODE = {
    "lib/store.py": "def put(values, value):\n    return values\n\ndef get(values, place):\n    return values[place]\n",
    "lib/disk.py": "def write(data):\n    return data\n",
}


def test_a_specification_that_keeps_to_the_form_and_its_code_is_worth_one() -> None:
    found = check_spec(SPEC, CODE)
    assert (found.score, found.faults) == (1.0, [])
    assert found.total > 30


@pytest.mark.parametrize(
    ("was", "becomes", "fault"),
    [
        ("id: disk", "id: store", "document.id: is the id of another component too"),
        ("version: 1.10", "version: latest", "document.version: is not like 1.10"),
        ("module: Elias.Store\n", "", "document.module: is missing"),
        ("functions: [put, get/2]", "functions: put", "document.functions: is not a list of names"),
        ("functions: [put, get/2]", "functions: [put, drop]", "document.functions: drop is not in lib/store.py"),
        ("code_ref: lib/store.py#L1", "code_ref: lib/gone.py", "document.code_ref: 'lib/gone.py' does not exist"),
        ("dependencies: [disk]", "dependencies: [cloud]", "document.metadata.dependencies: cloud is not known"),
        ("tags: []", "tags: none", "document.metadata.tags: is missing or not a list"),
        ("code_ref: lib/store.py#L1", "code_ref: lib/store.py\nauthor: me", "keys that TIKI does not know: author"),
        ("name: Disk", "name:", "document.children[0].name: is missing"),
    ],
)
def test_each_fault_costs_and_is_named(was: str, becomes: str, fault: str) -> None:
    assert was in SPEC
    found = check_spec(SPEC.replace(was, becomes), CODE)
    assert 0.5 < found.score < 1.0
    assert any(fault in told for told in found.faults), found.faults


def test_other_components_may_be_known_from_elsewhere() -> None:
    assert check_spec(SPEC.replace("[disk]", "[cloud]"), CODE, names=["cloud"]).score == 1.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id: a\nid: b\n", "line 2: the key 'id' occurs twice"),
        ("a: &x [1]\nb: *x\n", "line 1: anchors and aliases"),
        ("a: !!python/object/apply:os.system [ls]\n", "the tag"),
        ("a: 1\n---\nb: 2\n", "a second document"),
        ("[" * 3_000, "nested deeper than 50"),
        ("a:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 60)), "nested deeper than 50"),
        ("a: " + "x" * (1 << 20), "more than 1,048,576 bytes"),
        ("? [a]\n: b\n", "a key is a text"),
        ("a: [1\n", "not YAML"),
        ("a: \x00", "not YAML"),
    ],
)
def test_what_means_more_than_it_says_is_not_read(text: str, why: str) -> None:
    with pytest.raises(BadYaml, match=why):
        read_yaml(text)
    assert check_spec(text, {}).score == 0.0


def test_texts_stay_texts() -> None:
    said = {"version": "1.10", "on": "yes", "day": "2026-11-23", "none": "null", "list": ["1", ""]}
    assert read_yaml("version: 1.10\non: yes\nday: 2026-11-23\nnone: null\nlist: [1, '']\n") == said


@pytest.mark.parametrize("text", ["", "just a text", "- a\n- b\n"])
def test_what_is_no_table_is_worth_nothing(text: str) -> None:
    assert check_spec(text, {}).score == 0.0
