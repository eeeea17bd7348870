"""`schedctl corpus` as a user types it: from nothing to two versions, what changed, and what is wrong."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.spec import Mixture
from scheduler.store import jobs
from scheduler.store.engine import Database
from tests.integration.cli.conftest import NOW, Schedctl, spec

SOURCE = "text"
RULES = f"""
[corpus]
sources = ["{SOURCE}"]
held_out_clusters = 4
[[corpus.rules]]
path = "{SOURCE}/early/*"
stage = "stage_1"
domains = ["ufm"]
"""
WORDS = {"ufm": ["node", "balance"], "ucm": ["content"]}


@pytest.fixture
def text(home: Path) -> Path:
    """Settings with a source of 60 texts and a rule; two keywords lists."""
    (home / "config.toml").write_text((home / "config.toml").read_text().replace("[clock]", f"{RULES}\n[clock]"))
    domains = "".join(f"{name} = {json.dumps(words)}\n" for name, words in WORDS.items())
    (home / "models.toml").write_text(f"[domains]\n{domains}" + (home / "models.toml").read_text())
    folder = home / SOURCE
    (folder / "early").mkdir(parents=True)
    for number in range(60):
        words = f"Node {number} " + ("has content " if number % 20 == 0 else "")
        (folder / ("early" if number < 5 else ".") / f"{number}.md").write_text(words + f"and {number**4} " * 30)
    return folder


@pytest.fixture
def two(text: Path, database: Database, schedctl: Schedctl) -> tuple[str, str]:
    """Two versions, the second of other texts; ufm trains on the first one."""
    first = schedctl("corpus", "build", "--json").document["corpus"]["version"]
    with database.write() as tx:
        jobs.add(tx, spec("ufm", mixture=Mixture(corpus=first)), NOW)
        jobs.add(tx, spec("bare"), NOW)
    (text / "59.md").unlink()
    (text / "new.md").write_text("A new text.")
    return first, schedctl("corpus", "build", "--json").document["corpus"]["version"]


def test_before_one_is_built_the_command_to_build_it_is_named(
    text: Path, database: Database, schedctl: Schedctl
) -> None:
    for words in (("corpus", "show"), ("corpus", "diff"), ("corpus", "show", "3f2a")):
        assert schedctl(*words).code == 5
    assert "Build it: schedctl corpus build" in schedctl("corpus", "show").err
    assert schedctl("corpus", "verify", "--json").document == {"versions": []}


def test_a_build_tells_how_far_it_is_and_what_it_made(text: Path, database: Database, schedctl: Schedctl) -> None:
    made = schedctl("corpus", "build")
    assert made.code == 0
    assert made.out.startswith("Corpus ")
    assert "60 texts" in made.out
    assert "measures the sources\n" in made.err
    assert "writing the corpus, 80 % done\n" in made.err
    again = schedctl("corpus", "build", "--json")
    assert again.document["before"] == again.document["corpus"]["version"]
    assert again.err == ""


def test_a_version_is_shown_with_shares_overlap_keywords_and_users(two: tuple[str, str], schedctl: Schedctl) -> None:
    first, second = two
    shown = schedctl("corpus", "show")
    assert f"{second}, the current one" in shown.out
    assert "node 98 %" in shown.out
    assert "also ucm" in shown.out.lower()
    document = schedctl("corpus", "show", first[:8], "--json").document
    corpus = document["corpus"]
    assert corpus["version"] == first
    assert corpus["shares"]["stage"]["stage_1"]["texts"] == 5
    assert corpus["shares"]["domain"]["ufm"]["texts"] == corpus["domains"]["ufm"] >= 5
    assert corpus["held_out_clusters"] == corpus["held_out"]["rows"] == 4
    assert corpus["keywords"]["ucm"] == {"content": 3}
    assert [
        (one["version"], one["current"], one["jobs"])
        for one in sorted(document["versions"], key=lambda v: v["current"])
    ] == [
        (first, False, ["ufm"]),
        (second, True, []),
    ]
    assert all(one["built_at"] == NOW for one in document["versions"])
    assert document["as_set"] is True


def test_what_changed_is_counted(two: tuple[str, str], schedctl: Schedctl) -> None:
    found = schedctl("corpus", "diff", "--json").document["difference"]
    assert {name: found[name] for name in ("old", "new", "same", "added", "removed", "retagged", "parameters")} == {
        "old": two[0],
        "new": two[1],
        "same": 59,
        "added": {SOURCE: 1},
        "removed": {SOURCE: 1},
        "retagged": 0,
        "parameters": {},
    }
    backwards = schedctl("corpus", "diff", two[1][:6], two[0][:6])
    assert "added          1: 1 of text" in backwards.out


def test_jobs_stay_and_are_told_how_to_change_over(two: tuple[str, str], schedctl: Schedctl) -> None:
    assert (
        "ufm stays on another version. To change over: schedctl queue update ufm --corpus newest"
        in schedctl("corpus", "build").err
    )
    assert f"full corpus, version {two[0]}" in schedctl("queue", "show", "ufm").out
    document = schedctl("queue", "update", "ufm", "--corpus", "newest", "--json").document
    assert (document["job"]["spec"]["mixture"]["corpus"], document["changed"]) == (two[1], True)
    assert f"the same corpus as before: {two[1]}" in schedctl("queue", "update", "ufm", "--corpus", two[1][:5]).out
    assert schedctl("queue", "update", "ufm", "--corpus", "zzz").code == 5
    assert schedctl("queue", "update", "bare", "--corpus", "newest").code == 6
    assert schedctl("queue", "update", "ufm", "--corpus", "newest", "--code", ".").code == 2


def test_a_job_that_renews_by_update_needs_no_option(two: tuple[str, str], schedctl: Schedctl) -> None:
    assert schedctl("queue", "update", "ufm").code == 2, "it has no code, and keeps its corpus"
    assert schedctl("queue", "edit", "ufm", "--set", "mixture.renew=update").code == 0
    assert f"version {two[0]}" in schedctl("queue", "show", "ufm").out
    assert f"other corpus: {two[1]}" in schedctl("queue", "update", "ufm").out
    again = schedctl("queue", "update", "ufm", "--corpus", two[0])
    assert f"other corpus: {two[0]}" in again.out, "and what a person names counts in any case"
    wrong = schedctl("queue", "edit", "ufm", "--set", "mixture.renew=always")
    assert (wrong.code, 'write "restart" or "update"' in wrong.err) == (3, True)


def test_a_version_that_is_not_there_is_told_when_a_job_names_it(
    two: tuple[str, str], home: Path, schedctl: Schedctl
) -> None:
    table = 'name = "late"\nrole = "manager"\ncommand = ["{python}"]\ntarget_step = 5\nsteps_per_hour = 5\n'
    (home / "late.toml").write_text(table + f'mixture = {{ corpus = "{"0" * 16}" }}\n')
    assert "there is no such version of the corpus here" in schedctl("queue", "add", str(home / "late.toml")).err
    assert schedctl("corpus", "verify").code == 9


def test_sources_are_added_and_dropped(text: Path, home: Path, database: Database, schedctl: Schedctl) -> None:
    extra = home / "extra.txt"
    assert schedctl("corpus", "add", str(extra)).code == 3, "there is no such file"
    extra.write_text("More text.")
    assert schedctl("corpus", "add", str(extra), "--json").document == {
        "sources": [str(text), str(extra)],
        "changed": True,
    }
    assert schedctl("corpus", "add", str(extra), "--json").document["changed"] is False
    assert set(schedctl("corpus", "build", "--json").document["corpus"]["shares"]["source"]) == {SOURCE, "extra.txt"}
    assert schedctl("corpus", "show", "--json").document["as_set"] is True
    assert schedctl("corpus", "drop", str(extra)).code == 0
    assert "Settings or sources have changed since it was built" in schedctl("corpus", "show").err
    refused = schedctl("corpus", "drop", str(text))
    assert (refused.code, "config.toml" in refused.err) == (6, True)
    assert schedctl("corpus", "drop", "elsewhere").code == 5


def test_damage_is_found_and_changes_nothing(two: tuple[str, str], home: Path, schedctl: Schedctl) -> None:
    assert schedctl("corpus", "verify").code == 0
    shard = home / "state" / "artifacts" / "corpus" / two[0] / "heldout.jsonl"
    shard.write_bytes(shard.read_bytes().replace(b"Node", b"Mode", 1))
    found = schedctl("corpus", "verify", "--json")
    assert found.code == 9
    verdicts: list[dict[str, Any]] = json.loads(found.out)["versions"]
    assert {one["version"]: one["good"] for one in verdicts} == {two[0]: False, two[1]: True}
    assert "heldout.jsonl" in next(one["why"] for one in verdicts if not one["good"])
    assert schedctl("corpus", "verify", two[1]).code == 0


def test_a_rule_that_cannot_be_followed_is_an_error(
    text: Path, home: Path, database: Database, schedctl: Schedctl
) -> None:
    settings = home / "config.toml"
    settings.write_text(settings.read_text().replace('domains = ["ufm"]', 'domains = ["udm"]'))
    wrong = schedctl("corpus", "build")
    assert wrong.code == 3
    assert "a rule's domain is 'udm', but must be one of ucm, ufm" in wrong.err
    settings.write_text(
        settings.read_text()
        .replace("[clock]", '[[corpus.rules]]\ncommand = ["false"]\n[clock]', 1)
        .replace("udm", "ufm")
    )
    failed = schedctl("corpus", "build", "--json")
    assert failed.code == 3
    assert "the rule's command 'false' failed: it ended with status 1" in failed.error["message"]
    assert schedctl("corpus", "show").code == 5


def test_a_test_set_is_looked_for_in_a_corpus(two: tuple[str, str], text: Path, home: Path, schedctl: Schedctl) -> None:
    leaked = (text / "7.md").read_text()
    lines = [{"id": "seen", "prompt": leaked}, {"id": "unseen", "prompt": "Name every bridge over the river Pegnitz."}]
    file = home / "items.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = schedctl("corpus", "leaks", str(file))
    assert done.code == 0, done.err
    assert f"saw 1 of 2 items (1 exact) in corpus {two[1]}" in done.out
    assert "text/7.md" in done.out
    document = schedctl("corpus", "leaks", str(file), "--corpus", two[0], "--json").document["leaks"]
    assert (document["items"], document["seen"], document["share"]) == (2, 1, 0.5)
    assert document["corpora"][0]["items"] == {"seen": {"kind": "exact", "source": "text/7.md"}}
    assert schedctl("corpus", "leaks", str(file), "--corpus", "ffff").code == 5
    assert schedctl("corpus", "leaks", str(file), "--model", "ufm").code == 6
    file.write_text("no JSON\n")
    bad = schedctl("corpus", "leaks", str(file))
    assert bad.code == 3
    assert "items.jsonl, line 1" in bad.err


def test_a_version_is_searched_for_personal_data(
    text: Path, home: Path, database: Database, schedctl: Schedctl
) -> None:
    assert schedctl("corpus", "build").code == 0
    clean = schedctl("corpus", "scan")
    assert (clean.code, clean.out.split()[2:5]) == (0, ["holds", "no", "secrets"])
    (text / "notes.txt").write_text("Dear Anna, my new number is +49 30 901820-33, from Monday on.\n")
    assert schedctl("corpus", "build").code == 0
    refused = schedctl("corpus", "scan")
    assert refused.code == 6
    assert "it holds 1 personal value: " in refused.err
    assert "(phone number)" in refused.err
    assert "901820" not in refused.err
    allowed = schedctl("corpus", "scan", "--allow-secrets")
    assert allowed.code == 0
    assert schedctl("corpus", "scan").code == 0


JUDGED = """
[[jobs]]
name = "judged"
role = "manager"
command = ["train"]
target_step = 100
steps_per_hour = 10
mixture = {}
evaluation = { command = ["score"], set = "items.jsonl" }
gates = [{ metric = "a", kind = "threshold", minimum = 0.5 }]
"""


def test_a_build_leaves_out_items_of_the_models_files_and_what_weights_say(
    text: Path, home: Path, database: Database, schedctl: Schedctl
) -> None:
    settings, models = home / "config.toml", home / "models.toml"
    models.write_text(models.read_text() + JUDGED)
    (home / "items.jsonl").write_text(json.dumps({"id": "seen", "prompt": (text / "7.md").read_text()}))
    weights = '[[corpus.weights]]\npath = "*/8.md"\nweight = 0\n[clock]'
    settings.write_text(settings.read_text().replace("[clock]", weights, 1))
    built = schedctl("corpus", "build", "--json").document["corpus"]
    assert built["findings"] == {"sampled_out": 1, "test_item": 1}
    assert built["rows"] == 58
    assert schedctl("corpus", "show", "--json").document["as_set"]
    settings.write_text(settings.read_text().replace("[corpus]", "[corpus]\ndecontaminate = false", 1))
    assert not schedctl("corpus", "show", "--json").document["as_set"]
    assert schedctl("corpus", "build", "--json").document["corpus"]["findings"] == {"sampled_out": 1}


def test_a_version_is_exported_with_its_descriptions(
    two: tuple[str, str], home: Path, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = schedctl("corpus", "export", str(home / "out"), "--corpus", two[0], "--json")
    assert done.document["version"] == two[0]
    assert done.document["files"] == ["train-00000.jsonl", "heldout.jsonl", "README.md", "croissant.json"]
    described = json.loads((home / "out" / "croissant.json").read_text())
    for one in described["distribution"][:2]:
        assert one["sha256"] == hashlib.sha256((home / "out" / one["contentUrl"]).read_bytes()).hexdigest()
    assert f"# Corpus {two[0]}" in (home / "out" / "README.md").read_text()
    again = schedctl("corpus", "export", str(home / "out"))
    assert (again.code, "not an empty folder" in again.err) == (6, True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    without = schedctl("corpus", "export", str(home / "tables"), "--parquet")
    assert without.code == 6
    assert "pip install pyarrow" in without.err
    assert not (home / "tables").exists()
