"""Tags and what is held out: keywords by their rarity, rules of people, enough texts to judge a model by."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.corpus.build.build import build
from jobs.corpus.errors import BadParameter, CorpusError
from jobs.corpus.manifest import CorpusManifest, content_version, open_corpus
from jobs.corpus.mixture import mixture
from jobs.corpus.options import CorpusOptions, CorpusRule
from jobs.corpus.read.sources import Files
from jobs.nouns.values import BadValue

DOMAINS = {"urm": ["resource", "memory", "gpu"], "uim": ["interface", "api"]}
SIX = {
    "ufm": ["federation", "node", "load", "balance", "coordinate", "distribute"],
    "ucm": ["content", "format", "extract", "process", "pipeline", "convert"],
    "urm": ["resource", "memory", "gpu", "optimize", "schedule", "allocate"],
    "ulm": ["learn", "adapt", "improve", "quality", "methodology", "assess"],
}


def rows(manifest: CorpusManifest) -> list[dict[str, Any]]:
    files = [*manifest.train, manifest.held_out]
    return [json.loads(line) for file in files for line in (manifest.folder / file.name).read_text().splitlines()]


def records(path: Path, *found: dict[str, Any]) -> Files:
    path.write_text("".join(json.dumps(record) + "\n" for record in found))
    return Files(path)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> CorpusManifest:
    """480 texts of a project in which every keyword is everyday: each is in a sixth to a half of all texts."""
    chance = random.Random(7)
    root = tmp_path_factory.mktemp("project")
    everyday = {word: chance.uniform(1 / 6, 1 / 2) for words in SIX.values() for word in words}
    for number in range(480):
        held = [word for word, share in everyday.items() if chance.random() < share]
        filler = [f"w{chance.randrange(10_000)}" for _ in range(chance.randrange(20, 2_000))]
        (root / f"{number}.md").write_text(" ".join(chance.sample(held + filler, len(held) + len(filler))))
    return build([Files(root)], root.parent / "project-out", SIX, held_out_fraction=0.05, held_out_wanted=200)


def test_everyday_words_mark_no_third_of_a_project(project: CorpusManifest) -> None:
    """By the plain share of its keywords, 0.3, each domain would have 43 to 67 % of these texts."""
    texts = [row["text"] for row in rows(project)]
    plain = {
        name: sum(sum(w in text for w in words) >= 0.3 * len(words) for text in texts) for name, words in SIX.items()
    }
    assert min(plain.values()) > 200
    assert all(20 < count < 160 for count in project.domains.values()), project.domains


def test_a_project_holds_out_enough_to_judge_by(project: CorpusManifest) -> None:
    assert project.rows == 480
    assert project.held_out_clusters == project.held_out.rows == 48
    total = project.train_text_bytes + project.held_out.text_bytes
    assert project.held_out.text_bytes <= 0.15 * total


def test_shares_and_overlap_are_what_the_rows_say(project: CorpusManifest) -> None:
    found = rows(project)
    assert project.shares["source"] == {
        "project0": {"texts": 480, "bytes": sum(len(row["text"]) for row in found), "held_out": 48}
    }
    for name, count in project.domains.items():
        assert project.shares["domain"][name]["texts"] == count
        for other, both in project.overlap.get(name, {}).items():
            assert both == sum({name, other} <= set(row["domains"]) for row in found)
    assert project.shares["domain"]["none"]["texts"] == sum(not row["domains"] for row in found)
    assert project.keywords["urm"]["gpu"] == sum(" gpu" in f" {row['text']}" for row in found)


def test_a_rare_keyword_marks_and_a_common_one_does_not(tmp_path: Path) -> None:
    texts = [{"text": f"resource {n} " + ("gpu " if n < 3 else "") + ("memory" if n % 2 else "")} for n in range(100)]
    manifest = build([records(tmp_path / "r.jsonl", *texts)], tmp_path / "out", DOMAINS)
    assert {row["text"] for row in rows(manifest) if "urm" in row["domains"]} == {t["text"] for t in texts[:3]}
    assert manifest.keywords["urm"] == {"gpu": 3, "memory": 50, "resource": 100}


def test_a_domain_of_one_word_has_every_text_that_holds_it(tmp_path: Path) -> None:
    texts = [{"text": f"text {n} {'gpu' if n % 3 else 'cpu'}"} for n in range(60)]
    manifest = build([records(tmp_path / "r.jsonl", *texts)], tmp_path / "out", {"urm": ["gpu"]})
    assert manifest.domains == {"urm": 40}


def test_rules_tag_by_path_and_key(tmp_path: Path) -> None:
    (tmp_path / "mine" / "stage_1").mkdir(parents=True)
    (tmp_path / "mine" / "stage_1" / "fast.ex").write_text("a gpu")
    (tmp_path / "mine" / "notes.md").write_text("an api")
    source = records(
        tmp_path / "mine" / "rows.jsonl",
        {"text": "one", "phase": 2, "owner": {"team": "uim"}},
        {"text": "two", "phase": 9, "owner": {"team": "sales"}},
        {"text": "three", "kind": "draft", "stage": "stage_1"},
    )
    options = CorpusOptions(
        rules=(
            CorpusRule(path="mine/stage_1/*", stage="stage_3"),
            CorpusRule(path="*.md", domains=()),
            CorpusRule(key="kind", equals="draft", stage="stage_4", domains=("urm", "uim")),
            CorpusRule(key="phase", stage="stage_{value}"),
            CorpusRule(key="owner.team", domains=("{value}",)),
        )
    )
    manifest = build([Files(source.path.parent)], tmp_path / "out", DOMAINS, options=options)
    tags = {row["text"]: (row["stage"], row["domains"]) for row in rows(manifest)}
    assert tags == {
        "a gpu": ("stage_3", ["urm"]),
        "an api": (None, []),
        "one": ("stage_2", ["uim"]),
        "two": (None, []),
        "three": ("stage_4", ["uim", "urm"]),
    }
    assert manifest.findings == {"unknown_stage": 1, "bad_tag": 1}
    details = [json.loads(line)["detail"] for line in manifest.findings_path.read_text().splitlines()]
    assert "there is no domain sales; not used" in details


def test_a_command_tags_what_no_other_rule_spoke_of(tmp_path: Path) -> None:
    program = tmp_path / "tag.py"
    program.write_text(
        "import hashlib, json, os, sys\n"
        "assert not [name for name in os.environ if 'SECRET' in name]\n"
        "for line in sys.stdin:\n"
        "    row = json.loads(line)\n"
        "    if row['text'] == 'silent': continue\n"
        "    print(json.dumps({'id': row['id'], 'stage': 'stage_1', 'domains': ['uim']}))\n"
        "apart = hashlib.sha256(b'apart').hexdigest()[:32]\n"  # of a text that it is not asked about
        "print(json.dumps({'id': apart, 'stage': 'stage_1'}))\n"
        'print(\'no json\'); print(\'{"id": "strange", "stage": "stage_1"}\')\n'
    )
    texts: list[dict[str, Any]] = [{"text": "silent"}, {"text": "loud", "phase": 4}, {"text": "plain"}]
    options = CorpusOptions(
        rules=(
            CorpusRule(command=(sys.executable, str(program)), path="r.*"),
            CorpusRule(key="phase", stage="stage_{value}"),
        )
    )
    sources = [records(tmp_path / "r.jsonl", *texts), records(tmp_path / "apart.jsonl", {"text": "apart"})]
    manifest = build(sources, tmp_path / "out", DOMAINS, options=options)
    tags = {row["text"]: (row["stage"], row["domains"]) for row in rows(manifest)}
    asked = {"silent": (None, []), "loud": ("stage_4", ["uim"]), "plain": ("stage_1", ["uim"])}
    assert tags == {**asked, "apart": (None, [])}
    assert manifest.findings == {"bad_tag": 3}
    assert not list((tmp_path / "out").glob(".building-*"))


@pytest.mark.parametrize(
    ("program", "seconds", "why"),
    [
        ("import sys; sys.exit('no such model')", 600, "it ended with status 1 and wrote: no such model"),
        ("import threading; threading.Event().wait()", 1, "it was not done after 1 s"),
    ],
)
def test_a_command_that_fails_stops_the_build_and_leaves_nothing(
    tmp_path: Path, program: str, seconds: int, why: str
) -> None:
    options = CorpusOptions(rules=(CorpusRule(command=(sys.executable, "-c", program), limit_seconds=seconds),))
    source = records(tmp_path / "r.jsonl", {"text": "one"})
    with pytest.raises(CorpusError, match=why):
        build([source], tmp_path / "out", {}, options=options)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"path": "*"},
        {"stage": "stage_1"},
        {"path": "*", "stage": "stage_9"},
        {"path": "*", "stage": "stage_{value}"},
        {"key": "k", "equals": "v", "stage": "stage_{value}"},
        {"path": "*", "equals": "v", "stage": "stage_1"},
        {"command": ("tag",), "stage": "stage_1"},
    ],
)
def test_a_rule_that_says_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        CorpusRule(**fields)


def test_a_rule_for_a_domain_without_keywords_is_refused(tmp_path: Path) -> None:
    options = CorpusOptions(rules=(CorpusRule(path="*", domains=("udm",)),))
    with pytest.raises(BadParameter, match="a rule's domain is 'udm', but must be one of uim, urm"):
        build([records(tmp_path / "r.jsonl", {"text": "one"})], tmp_path / "out", DOMAINS, options=options)


def test_a_corpus_of_an_older_version_stays_what_it_is(tmp_path: Path) -> None:
    texts = [{"text": f"gpu {n}"} for n in range(30)]
    made = build([records(tmp_path / "r.jsonl", *texts)], tmp_path / "out", DOMAINS)
    listing = made.folder / "corpus.json"
    fields = {k: v for k, v in json.loads(listing.read_text()).items() if k not in {"shares", "overlap", "keywords"}}
    del fields["held_out_clusters"]
    fields |= {"format": 1}
    fields["version"] = content_version(fields)
    old = made.folder.rename(made.folder.parent / fields["version"])
    (old / "corpus.json").write_text(json.dumps(fields))
    opened = open_corpus(old, verify=True)
    assert (opened.train, opened.held_out, opened.domains) == (made.train, made.held_out, made.domains)
    assert opened.shares == {}
    assert mixture(opened, "urm", "urm", 0.3).held_out == made.held_out
