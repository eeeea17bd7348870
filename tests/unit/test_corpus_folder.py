"""The folder of all versions: which is current, sources added by hand, and what changed between two versions."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.corpus.build.build import build
from jobs.corpus.errors import CorpusDamaged, NoSuchVersion
from jobs.corpus.folder import CorpusFolder, difference
from jobs.corpus.manifest import CorpusManifest
from jobs.corpus.options import CorpusOptions, CorpusRule
from jobs.corpus.read.sources import Files
from tests.lab.night import share


def made(root: Path, name: str, texts: dict[str, str], **options: Any) -> CorpusManifest:
    """A corpus of texts by file name."""
    source = root / name / "mine"
    source.mkdir(parents=True)
    for file, text in texts.items():
        (source / file).write_text(text)
    return build([Files(source)], root / "corpus", {}, shard_bytes=300, **options)


@pytest.fixture
def folder(tmp_path: Path) -> CorpusFolder:
    return CorpusFolder(tmp_path / "corpus")


def test_an_empty_folder_has_nothing(folder: CorpusFolder) -> None:
    assert (folder.current().version, folder.kept(), folder.versions(), folder.added()) == ("", set(), [], ())
    with pytest.raises(NoSuchVersion, match="there is no corpus yet: none has been built here"):
        folder.open("")


def test_the_current_version_and_the_one_before_stay(folder: CorpusFolder, tmp_path: Path) -> None:
    one, two = (made(tmp_path, name, {"a": name}).version for name in ("one", "two"))
    for version in (one, two, two):
        folder.make_current(version, "recipe")
    assert (folder.current().version, folder.current().before) == (two, one)
    assert folder.kept() == {one, two} == set(folder.versions())
    assert folder.find(one[:6]) == one
    with pytest.raises(NoSuchVersion, match=f"no corpus zz: here are .*{one}"):
        folder.find("zz")
    folder.delete(one)
    folder.delete(one)
    folder.delete("../corpus")
    assert folder.versions() == [two]
    assert folder.open(two, verify=True).version == two


def test_what_a_kill_left_of_a_deletion_goes_with_the_next(folder: CorpusFolder, tmp_path: Path) -> None:
    version = made(tmp_path, "one", {"a": "text"}).version
    (folder.root / version).rename(folder.root / f".going-{version}")
    assert folder.versions() == []
    folder.delete(version)
    assert not list(folder.root.glob(".going-*"))


def test_sources_are_added_once_and_dropped(folder: CorpusFolder) -> None:
    assert folder.change_added(add=["/a", "/b", "/a"]) == ("/a", "/b")
    assert folder.change_added(add=["/b", "/c"], drop=["/a"]) == ("/b", "/c") == folder.added()


@pytest.mark.parametrize("content", ["{", "[1]", '"text"'])
def test_a_damaged_list_of_sources_is_told(folder: CorpusFolder, content: str) -> None:
    folder.root.mkdir()
    (folder.root / "sources.json").write_text(content)
    with pytest.raises(CorpusDamaged, match=r"sources\.json cannot be trusted"):
        folder.added()


def test_a_damaged_pointer_is_told(folder: CorpusFolder) -> None:
    folder.root.mkdir()
    (folder.root / "current.json").write_text("[]")
    with pytest.raises(CorpusDamaged, match=r"current\.json cannot be trusted"):
        folder.current()


def rows(manifest: CorpusManifest) -> dict[str, tuple[bool, Any]]:
    return {
        row["text"]: (shard is manifest.held_out, row["stage"])
        for shard in (*manifest.train, manifest.held_out)
        for row in map(json.loads, (manifest.folder / shard.name).read_text().splitlines())
    }


@settings(max_examples=share(20), deadline=None)
@given(
    old=st.integers(1, 40),
    gone=st.integers(0, 40),
    new=st.integers(0, 40),
    seeds=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_a_difference_is_what_the_rows_say(
    old: int, gone: int, new: int, seeds: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("difference")
    texts = [f"{number} {random.Random(number).random()}" for number in range(old + new)]
    one = made(root, "one", {f"f{n}": text for n, text in enumerate(texts[:old])}, held_out_fraction=0.3, seed=seeds[0])
    kept = texts[min(gone, old + new - 1) :]
    rule = CorpusOptions(rules=(CorpusRule(path="*/f1*", stage="stage_1"),))
    two = made(
        root,
        "two",
        {f"f{texts.index(text)}": text for text in kept},
        held_out_fraction=0.3,
        seed=seeds[1],
        options=rule,
    )
    before, after = rows(one), rows(two)
    both = set(before) & set(after)
    found = difference(one, two)
    assert found.same == len(both)
    assert sum(found.added.values()) == len(set(after) - both)
    assert sum(found.removed.values()) == len(set(before) - both)
    assert set(found.added) | set(found.removed) <= {"mine"}
    assert found.now_held_out == sum(after[text][0] and not before[text][0] for text in both)
    assert found.now_trained == sum(before[text][0] and not after[text][0] for text in both)
    assert found.retagged == sum(before[text][1] != after[text][1] for text in both)
    assert set(found.parameters) == {"rules"} | ({"seed"} if seeds[0] != seeds[1] else set())
    assert difference(two, two).same == two.rows
