"""Manifests come from platforms: whatever the bytes are, the answer is a manifest or BadManifest."""

import json
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.payload.store.manifest import (
    BadManifest,
    Component,
    Manifest,
    blob_key,
    manifest_key,
    parse_manifest,
    split_key,
)
from jobs.payload.store.publish import restore
from tests.lab.border import oddities

KEY = manifest_key("ufm", 500, 3)
DIGEST = "0" * 64

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def document(**changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "job": "ufm",
        "step": 500,
        "attempt": 3,
        "run": "uff-ufm-0003",
        "lane": 0,
        "parent": None,
        "created_at": 1_700_000_000,
        "trained_seconds": 60,
        "components": [{"name": "weights.npz", "sha256": DIGEST, "bytes": 10}],
        "metrics": {"loss": 2.5},
        **changes,
    }


def parse(**changes: Any) -> Manifest:
    return parse_manifest(KEY, json.dumps(document(**changes)).encode())


def refuse_or_parse(key: str, data: bytes) -> Manifest | None:
    """Anything but BadManifest escapes and fails the test."""
    with suppress(BadManifest):
        return parse_manifest(key, data)
    return None


def test_a_good_manifest_is_read_whole() -> None:
    parent = manifest_key("ufm", 400, 2)
    components = [
        {"name": "optimiser/adam.npz", "sha256": "a" * 64, "bytes": 7},
        {"name": "w", "sha256": DIGEST, "bytes": 5},
    ]
    found = parse(parent=parent, components=components, metrics={"loss": 1, "note": "text", "best": True})
    assert found == Manifest(
        job="ufm",
        step=500,
        attempt=3,
        run="uff-ufm-0003",
        lane=0,
        parent=parent,
        created_at=1_700_000_000,
        trained_seconds=60,
        components=(Component("optimiser/adam.npz", "a" * 64, 7), Component("w", DIGEST, 5)),
        metrics={"loss": 1.0},
    )
    assert found.size == 12


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert refuse_or_parse(KEY, data) is None


@given(values)
def test_any_json_is_refused(value: object) -> None:
    assert refuse_or_parse(KEY, json.dumps(value).encode()) is None


@given(st.sampled_from(sorted(document())), values)
def test_any_value_of_any_field_is_refused_or_read(field: str, value: object) -> None:
    found = refuse_or_parse(KEY, json.dumps(document(**{field: value})).encode())
    if found is not None:
        assert (found.job, found.step, found.attempt) == ("ufm", 500, 3)
        assert found.components


@given(st.sampled_from(["name", "sha256", "bytes"]), values)
def test_any_value_in_a_component_is_refused_or_read(field: str, value: object) -> None:
    component = {"name": "w", "sha256": DIGEST, "bytes": 1, field: value}
    found = refuse_or_parse(KEY, json.dumps(document(components=[component])).encode())
    if found is not None:
        assert found.components[0].bytes >= 0


@given(st.sampled_from(sorted(document())))
def test_a_missing_field_is_refused_unless_it_may_be_left_out(field: str) -> None:
    body = document()
    del body[field]
    found = refuse_or_parse(KEY, json.dumps(body).encode())
    assert (found is not None) == (field in {"parent", "metrics"})


@given(st.integers(0, 400))
def test_half_a_manifest_is_refused(cut: int) -> None:
    data = json.dumps(document()).encode()
    if cut < len(data):
        assert refuse_or_parse(KEY, data[:cut]) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 2}, "not a manifest of format 1"),
        ({"job": "ucm"}, "differ from its name"),
        ({"step": 501}, "differ from its name"),
        ({"attempt": 4}, "differ from its name"),
        ({"step": -1}, "step -1 is not within"),
        ({"step": True}, "step True is not a whole number"),
        ({"step": 500.0}, "step 500.0 is not a whole number"),
        ({"components": []}, "0 components"),
        ({"components": [{"name": "w", "sha256": DIGEST, "bytes": 1}] * 2}, "named twice"),
        ({"parent": "jobs/ufm/blobs/x"}, "parent is not a manifest's name"),
        ({"parent": 5}, "wrong type"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadManifest, match=why):
        parse(**changes)


@pytest.mark.parametrize("metrics", [5, None, ["loss"], {"loss": 10**400}, {"loss": "low"}, {"": 1.0}])
def test_metrics_that_say_nothing_cost_no_checkpoint(metrics: Any) -> None:
    assert parse(metrics=metrics).metrics == {}


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/../../x",
        "..",
        ".",
        "",
        "a//b",
        "a/",
        "-hidden",
        "a\\b",
        "a\0b",
        "a/b/c/d/e/f/g/h/i",
        "ä",
    ],
)
def test_a_component_cannot_point_out_of_its_folder(name: str) -> None:
    with pytest.raises(BadManifest, match="component name"):
        parse(components=[{"name": name, "sha256": DIGEST, "bytes": 1}])


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "../" + "0" * 61])
def test_a_digest_is_64_small_hex_digits(digest: str) -> None:
    with pytest.raises(BadManifest, match="digest of 'w'"):
        parse(components=[{"name": "w", "sha256": digest, "bytes": 1}])


@pytest.mark.parametrize(
    "key",
    [
        "",
        "jobs/ufm/manifests/5-3.json",
        "jobs/../manifests/000000000500-000003.json",
        "jobs/ufm/manifests/000000000500-000003.json.tmp",
    ],
)
def test_what_is_not_named_as_a_manifest_is_none(key: str) -> None:
    assert split_key(key) is None
    with pytest.raises(BadManifest, match="not a manifest's name"):
        parse_manifest(key, b"{}")


def test_deep_nesting_is_refused() -> None:
    assert refuse_or_parse(KEY, b"[" * 200_000) is None


steps = st.integers(0, 10**12 - 1)
attempts = st.integers(0, 10**6 - 1)


@given(steps, attempts)
def test_a_key_reads_back(step: int, attempt: int) -> None:
    assert split_key(manifest_key("uff-main", step, attempt)) == ("uff-main", step, attempt)


@given(st.lists(st.tuples(steps, attempts), max_size=8))
def test_names_sort_by_step_and_then_by_attempt(pairs: list[tuple[int, int]]) -> None:
    keys = [manifest_key("ufm", step, attempt) for step, attempt in pairs]
    assert sorted(keys) == [manifest_key("ufm", step, attempt) for step, attempt in sorted(pairs)]


def test_blobs_lie_beside_the_manifests() -> None:
    assert blob_key("ufm", DIGEST) == f"jobs/ufm/blobs/{DIGEST}"


# What a careful enemy writes.
SUBTLE = [
    ({"components": [{"name": "w\n", "sha256": DIGEST, "bytes": 1}]}, "a name that ends in a line break"),
    ({"components": [{"name": "w", "sha256": DIGEST + "\n", "bytes": 1}]}, "a digest that ends in a line break"),
    ({"created_at": 2**63}, "a count that no database column holds"),
    ({"run": ["x"]}, "a run that is no text"),
]


@pytest.mark.parametrize("changes", [changes for changes, _ in SUBTLE], ids=[name for _, name in SUBTLE])
def test_subtle_nonsense_is_refused(changes: dict[str, Any]) -> None:
    assert refuse_or_parse(KEY, json.dumps(document(**changes)).encode()) is None


@pytest.mark.parametrize("key", [KEY + "\n", KEY.replace("0", "\N{ARABIC-INDIC DIGIT ZERO}")])
def test_a_key_has_nothing_but_ascii_digits(key: str) -> None:
    assert split_key(key) is None


class OneManifest:
    """A store of one manifest and no component."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, _key: str) -> bytes:
        """Return the manifest."""
        return self.data

    def fetch(self, key: str, _path: Path) -> str:
        """Fail."""
        raise FileNotFoundError(key)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_agent_and_the_daemon_find_the_same_fault_with_any_manifest(seed: int) -> None:
    """One reader that is stricter than the other restores what is not recorded, or records what cannot be restored."""
    data = oddities.document(Random(seed), document())
    try:
        parse_manifest(KEY, data)
        said = "component weights.npz is missing"
    except BadManifest as error:
        said = error.why
    with TemporaryDirectory() as folder:
        restored = restore(OneManifest(data), "ufm", [KEY], Path(folder) / "resume")  # type: ignore[arg-type]
    [(key, why)] = restored.bad
    assert key == KEY
    assert why == said or (why.startswith("component ") and said.startswith("component "))
