"""Building: sources, duplicates, tags, versions, and what a crash leaves behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.corpus.build.build import BuildProgress, build
from jobs.corpus.errors import BadParameter, CorpusDamaged, CorpusError
from jobs.corpus.manifest import CorpusManifest, open_corpus
from jobs.corpus.options import CorpusOptions
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
