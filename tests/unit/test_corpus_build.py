"""Building: sources, duplicates, tags, versions, and what a crash leaves behind."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from jobs.corpus.build.build import BuildProgress, build
from jobs.corpus.errors import BadParameter, CorpusDamaged, CorpusError
from jobs.corpus.leaks import ItemIndex
from jobs.corpus.manifest import CorpusManifest, open_corpus
from jobs.corpus.options import CorpusOptions, SourceWeight
from jobs.corpus.read.records import split_text
from jobs.corpus.read.sources import Files, Stdlib, parse_source
from jobs.payload.bounded_file import open_regular

DOMAINS = {"urm": ["resource", "memory", "gpu"], "uim": ["interface", "api"]}


def rows(manifest: CorpusManifest) -> list[dict[str, Any]]:
    files = [*manifest.train, manifest.held_out]
    return [json.loads(line) for file in files for line in (manifest.folder / file.name).read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small folder with text, code, records, and things that are neither."""
    root = tmp_path / "mine"
    (root / "stage_3").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "stage_3" / "fast.ex").write_text("defmodule Fast do\nend\n")
    (root / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nname = 'M\xfcller'\n")
    (root / "wide.txt").write_text("wide \u00fc text", encoding="utf-16")
    (root / "notes.md").write_text("GPU memory is a resource.\r\nSee the API.\r\n")
    (root / "settings.json").write_text('{\n  "key": "not an episode"\n}\n')
    (root / "episodes.ndjson").write_text('{"text": "an episode"}\n')
    (root / "picture.png").write_bytes(bytes(range(256)))
    (root / "empty.txt").write_bytes(b"")
    (root / ".git" / "config").write_text("hidden")
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to(root)
    return root


def test_a_folder_is_read_by_what_its_files_are(folder: Path, tmp_path: Path) -> None:
    manifest = build([Files(folder)], tmp_path / "out", DOMAINS)
    by_source = {row["source"]: row for row in rows(manifest)}
    assert {source: row["text"] for source, row in by_source.items()} == {
        "mine/stage_3/fast.ex": "defmodule Fast do\nend\n",
        "mine/latin.py": "# -*- coding: latin-1 -*-\nname = 'M\u00fcller'\n",
        "mine/wide.txt": "wide \u00fc text",
        "mine/notes.md": "GPU memory is a resource.\nSee the API.\n",
        "mine/settings.json": '{\n  "key": "not an episode"\n}\n',
        "mine/episodes.ndjson": "an episode",
    }
    assert by_source["mine/stage_3/fast.ex"]["stage"] == "stage_3"
    assert by_source["mine/notes.md"]["domains"] == ["uim", "urm"]
    assert manifest.domains == {"uim": 1, "urm": 1}
    assert manifest.stages == {"none": 5, "stage_3": 1}
    assert manifest.findings == {"binary": 1, "empty_text": 1, "not_utf8": 2, "skipped": 3}


def test_a_name_that_is_no_text_is_survived(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "in") + b"/\xff.txt")).write_text("text")
    (row,) = rows(build([Files(tmp_path / "in")], tmp_path / "out", {}))
    assert row["source"] == "in/?.txt"


def test_the_corpus_is_no_source_of_itself(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("text")
    first = build([Files(tmp_path)], tmp_path / "out", {})
    assert build([Files(tmp_path)], tmp_path / "out", {}) == first


def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    for name in ("good.txt", "bad.txt"):
        (tmp_path / "in" / name).write_text(name)

    def refuse(path: Path) -> Any:
        if path.name == "bad.txt":
            raise PermissionError(13, "Permission denied")
        return open_regular(path)

    monkeypatch.setattr("jobs.corpus.read.sources.open_regular", refuse)
    manifest = build([Files(tmp_path / "in")], tmp_path / "out", {})
    assert [row["text"] for row in rows(manifest)] == ["good.txt"]
    assert manifest.findings == {"unreadable": 1}


def test_the_standard_library_is_a_source_within_its_budget(tmp_path: Path) -> None:
    manifest = build([Stdlib(400_000)], tmp_path, {})
    assert 200_000 < manifest.train_text_bytes + manifest.held_out.text_bytes <= 400_000
    assert all(row["source"].startswith("stdlib:") for row in rows(manifest))


def test_building_again_changes_nothing(folder: Path, tmp_path: Path) -> None:
    first = build([Files(folder)], tmp_path / "out", DOMAINS)
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    assert build([Files(folder)], tmp_path / "out", DOMAINS) == first
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([".lock", first.version])


def test_other_text_or_parameters_make_another_version(folder: Path, tmp_path: Path) -> None:
    first = build([Files(folder)], tmp_path / "out", DOMAINS)
    other_seed = build([Files(folder)], tmp_path / "out", DOMAINS, seed=1)
    (folder / "more.txt").write_text("more")
    more_text = build([Files(folder)], tmp_path / "out", DOMAINS)
    assert len({first.version, other_seed.version, more_text.version}) == 3


def test_which_copy_of_a_text_stays_does_not_depend_on_order(tmp_path: Path) -> None:
    copies = ['{"text": "same", "stage": "stage_1"}\n', '{"text": " same ", "stage": "stage_4"}\n']
    source = tmp_path / "episodes.jsonl"
    versions = set()
    for order in (1, -1):
        source.write_text("".join(copies[::order]))
        versions.add(build([Files(source)], tmp_path / "out", {}).version)
    assert len(versions) == 1


def test_near_duplicates_share_a_cluster_and_stay(tmp_path: Path) -> None:
    words = [f"word{n}" for n in range(300)]
    texts = [" ".join(words), " ".join([*words[:150], "changed", *words[151:]]), " ".join(reversed(words))]
    source = tmp_path / "episodes.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    manifest = build([Files(source)], tmp_path / "out", {})
    cluster = {row["text"]: row["cluster"] for row in rows(manifest)}
    assert cluster[texts[0]] == cluster[texts[1]] != cluster[texts[2]]
    assert (manifest.clusters, manifest.near_duplicates) == (2, 1)


def test_a_domain_of_some_size_has_something_held_out(tmp_path: Path) -> None:
    records = [{"text": f"plain {n} " + f"filler{n} " * 20} for n in range(600)]
    records += [{"text": f"gpu memory {n} " + f"other{n} " * 20} for n in range(12)]
    source = tmp_path / "episodes.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    manifest = build([Files(source)], tmp_path / "out", DOMAINS)
    held_out = (manifest.folder / manifest.held_out.name).read_text().splitlines()
    assert any("urm" in json.loads(row)["domains"] for row in held_out)


def test_a_record_that_names_its_manager_belongs_to_it(tmp_path: Path) -> None:
    source = tmp_path / "episodes.jsonl"
    source.write_text('{"text": "nothing about it", "manager_focus": "URM"}\n{"text": "capital gpus"}\n')
    tags = {row["text"]: row["domains"] for row in rows(build([Files(source)], tmp_path / "out", DOMAINS))}
    assert tags == {"nothing about it": ["urm"], "capital gpus": ["urm"]}


def test_long_text_is_cut_at_pauses_and_loses_nothing() -> None:
    text = "".join(f"def f{n}():\n    return {n}\n\n\n" for n in range(200)) + "x" * 5000
    parts = list(split_text(text, 1000))
    assert "".join(part for _, part in parts) == text
    assert max(len(part) for _, part in parts) == 1000
    assert all(part.startswith("def") for _, part in parts[:5])
    assert all(text.split("\n")[line].startswith(part.split("\n")[0]) for line, part in parts[:5])


def test_progress_tells_every_phase(folder: Path, tmp_path: Path) -> None:
    seen: list[BuildProgress] = []
    many = [json.dumps({"text": f"text {n}"}) for n in range(600)]
    (folder / "many.jsonl").write_text("\n".join(many))
    build([Files(folder)], tmp_path / "out", DOMAINS, progress=seen.append)
    assert [*dict.fromkeys(step.phase for step in seen)] == ["reading", "clustering", "writing"]


def test_a_changed_file_or_manifest_is_noticed(folder: Path, tmp_path: Path) -> None:
    manifest = build([Files(folder)], tmp_path / "out", DOMAINS)
    assert open_corpus(manifest.folder, verify=True) == manifest
    shard = manifest.folder / manifest.train[0].name
    shard.write_bytes(shard.read_bytes().replace(b"Fast", b"Slow"))
    with pytest.raises(CorpusDamaged, match="train-00000"):
        open_corpus(manifest.folder, verify=True)
    listing = manifest.folder / "corpus.json"
    listing.write_text(listing.read_text().replace('"seed": 0', '"seed": 7'))
    with pytest.raises(CorpusDamaged, match="does not match its version"):
        open_corpus(manifest.folder)


def test_user_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere is neither a file nor a folder\. Check the path"):
        parse_source(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="no usable text in empty"):
        build([Files(tmp_path / "empty")], tmp_path / "out", {})
    with pytest.raises(BadParameter, match=r"held_out_fraction is 0\.9"):
        build([Stdlib()], tmp_path / "out", {}, held_out_fraction=0.9)
    with pytest.raises(BadParameter, match="relevance is 0"):
        CorpusOptions(relevance=0)
    assert parse_source("stdlib") == Stdlib()


def test_an_error_in_mid_build_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    def fail(progress: BuildProgress) -> None:
        if progress.phase == "writing":
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        build([Files(folder)], tmp_path / "out", DOMAINS, progress=fail)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


def test_a_kill_in_mid_build_leaves_no_half_corpus(folder: Path, tmp_path: Path, repository: Path) -> None:
    program = """
import sys
from pathlib import Path
from jobs.corpus.build.build import build
from jobs.corpus.read.sources import Files
def stop(progress):
    if progress.phase == "writing":
        print("writing", flush=True)
        sys.stdin.read()
build([Files(Path(sys.argv[1]))], Path(sys.argv[2]), {}, progress=stop)
"""
    command = [sys.executable, "-c", program, str(folder), str(tmp_path / "out")]
    with subprocess.Popen(command, cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.kill()
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert len(left) == 2
    assert not list((tmp_path / "out").glob("[0-9a-f]*"))
    manifest = build([Files(folder)], tmp_path / "out", {})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".lock", manifest.version}


ITEMS = [
    f"The ferry number {n} crosses river {n * 7} at noon, carrying {n * 13} bees and a clock to Fürth."
    for n in range(5)
]


def test_texts_that_hold_items_of_test_sets_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    lines = [json.dumps({"id": f"ferry-{n}", "prompt": text}) for n, text in enumerate(ITEMS)]
    (tmp_path / "set" / "items.jsonl").write_text("\n".join(lines))
    texts = [f"Town {n} has {n * 3} bridges, {n * 5} mills and {n + 9} gates." for n in range(80)]
    leaky = [ITEMS[3].upper(), f"As they say: {ITEMS[1]} And so on."]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*leaky, *texts]))
    sources = [Files(tmp_path / "in.jsonl")]
    plain = build(sources, tmp_path / "out", {})
    clean = build(sources, tmp_path / "out", {}, test_sets=[tmp_path / "set", tmp_path / "absent.jsonl"])
    assert plain.rows == 82
    assert {row["text"] for row in rows(clean)} == set(texts)
    assert clean.findings == {"test_item": 2, "unreadable": 1}
    found = [json.loads(line) for line in clean.findings_path.read_text().splitlines()]
    assert [(one["source"], one["line"], one["detail"]) for one in found] == [
        ("in.jsonl", 1, "holds the test item ferry-3 of set; left out"),
        ("in.jsonl", 2, "holds the test item ferry-1 of set; left out"),
        ("absent.jsonl", 0, "a test set that no text was compared with: No such file or directory"),
    ]
    assert list(clean.parameters["test_sets"].values()) == ["set"]
    assert "test_sets" not in plain.parameters
    assert "weights" not in plain.parameters  # versions of corpora that were built before are the same


def test_what_is_left_holds_no_item_for_the_leak_check_either(tmp_path: Path) -> None:
    """Near the number of texts from which on a passage is boilerplate, held-out texts must not make the difference."""
    item = ITEMS[0]
    (tmp_path / "items.jsonl").write_text(json.dumps({"id": "ferry", "prompt": item}))
    part = " ".join(item.split()[:12])
    for copies in (15, 21, 25, 60):
        texts = [f"{part} {n} {n * n} {n + 1} {n + 2}" for n in range(copies)]
        texts += [f"Town {n} has {n * 3} bridges." for n in range(300)]
        (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        sources = [Files(tmp_path / "in.jsonl")]
        clean = build(sources, tmp_path / "out", {}, held_out_fraction=0.1, test_sets=[tmp_path / "items.jsonl"])
        trained = [(str(n), row["text"]) for n, row in enumerate(rows(clean)[: -clean.held_out.rows])]
        assert not ItemIndex({"ferry": item}).seen_in(trained), copies


def test_sets_of_the_same_name_and_ids_are_all_compared(tmp_path: Path) -> None:
    sets = [tmp_path / name / "items.jsonl" for name in ("ufm", "ucm")]
    for path, item in zip(sets, ITEMS, strict=False):
        path.parent.mkdir()
        path.write_text(json.dumps({"id": "1", "prompt": item}))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*ITEMS[:2], "a town"]))
    clean = build([Files(tmp_path / "in.jsonl")], tmp_path / "out", {}, test_sets=sets)
    assert [row["text"] for row in rows(clean)] == ["a town"]


def test_copies_do_not_decide_what_is_boilerplate(tmp_path: Path) -> None:
    """Copies differ in metadata; whether one replaces another depends on their order, the version must not."""
    (tmp_path / "items.jsonl").write_text(json.dumps({"id": "ferry", "prompt": ITEMS[0]}))
    part = " ".join(ITEMS[0].split()[:12])
    records = [{"text": f"{part} {n} {n * n} {n + 1} {n + 2}", "note": "a"} for n in range(40)]
    records += [{**records[0], "note": "b"}, {"text": "a town"}]
    made = []
    for order in (records, records[::-1]):
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in order))
        made.append(build([Files(tmp_path / "in.jsonl")], tmp_path / "out", {}, test_sets=[tmp_path / "items.jsonl"]))
    assert [one.rows for one in made] == [1, 1]


def test_weights_and_caps_choose_texts_by_their_content(tmp_path: Path) -> None:
    for folder in ("books", "code", "rest"):
        (tmp_path / folder).mkdir()
        for n in range(200):
            (tmp_path / folder / f"{n}.txt").write_text(f"{folder} text {n:04} of the series")
    sources = [Files(tmp_path / folder) for folder in ("books", "code", "rest")]
    weights = (SourceWeight("books/*", 0.25), SourceWeight("code/*", max_bytes=1_000), SourceWeight("*/1*"))
    options = CorpusOptions(weights=weights)
    made = build(sources, tmp_path / "out", {}, options=options)
    counts = {name: one["texts"] for name, one in made.shares["source"].items()}
    size = len("code text 0000 of the series")
    assert counts["code"] == 1_000 // size
    assert 30 <= counts["books"] <= 70
    assert counts["rest"] == 200
    assert made.findings == {"sampled_out": 600 - made.rows}
    assert build(sources[::-1], tmp_path / "other", {}, options=options).version == made.version
    (tmp_path / "books" / "more.txt").write_text("one more book")
    more = build(sources, tmp_path / "out", {}, options=options)
    assert {row["id"] for row in rows(made)} <= {row["id"] for row in rows(more)}


@pytest.mark.parametrize("wrong", [{"weight": -1.0}, {"weight": 9.0}, {"max_bytes": -1}])
def test_weights_that_no_text_can_have_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(SourceWeight).validate_python({"path": "*", **wrong})


def test_a_card_and_a_croissant_file_say_what_a_version_holds(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "LICENSE").write_text("MIT License\n\nCopyright Ann\n")
    (tmp_path / "code" / "a.py").write_text("# SPDX-License-Identifier: Apache-2.0\nprint(1)\n")
    (tmp_path / "code" / "b.py").write_text("print('a | b')\n")
    lines = [{"text": "one", "license": "CC-BY-4.0"}, {"text": "two", "license": "CC-BY-4.0"}, {"text": "three"}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    sources = [Files(tmp_path / "code"), Files(tmp_path / "in.jsonl")]
    options = CorpusOptions(weights=(SourceWeight("*"),))
    made = build(sources, tmp_path / "out", DOMAINS, shard_bytes=256, options=options)
    card = (made.folder / "README.md").read_text()
    assert "| code | 3 |" in card
    assert "Apache-2.0 (1), MIT License (1)" in card
    assert "none named (1), CC-BY-4.0 (2)" in card
    assert "| weight of * | 1 |" in card
    document = json.loads((made.folder / "croissant.json").read_text())
    assert document["license"] == ["Apache-2.0", "CC-BY-4.0", "MIT License"]
    files = {one["name"]: one for one in document["distribution"] if one["@type"] == "cr:FileObject"}
    assert set(files) == {path.name for path in made.folder.glob("*.jsonl")} - {"findings.jsonl"}
    for name, one in files.items():
        assert one["sha256"] == hashlib.sha256((made.folder / name).read_bytes()).hexdigest()
    row = rows(made)[0]
    for record_set in document["recordSet"]:
        columns = {field["source"]["extract"]["column"] for field in record_set["field"]}
        assert columns <= row.keys()
        # The reference reader, mlcroissant, refuses identifiers with white space, and sources that name no file.
        named = {value["@id"] for field in record_set["field"] for value in field["source"].values() if "@id" in value}
        assert named <= {one["@id"] for one in document["distribution"]}
        assert not [name for name in named if re.search(r"\s", name)]
    (made.folder / "README.md").unlink()  # as a version that an older release built
    assert build(sources, tmp_path / "out", DOMAINS, shard_bytes=256, options=options) == made
    assert (made.folder / "README.md").read_text() == card
