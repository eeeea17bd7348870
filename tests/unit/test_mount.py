"""Where a platform put what it holds: found by its files under any layout, believed by their sizes."""

import hashlib
from pathlib import Path

import pytest

from jobs.payload.store.transport import DirectoryTransport
from jobs.payload.store.tree import LIMITS, BadListing, Entry, MountPlace, encode_listing, find_mounted

SOURCE = "kaggle-model:org/tiny/pyTorch/base/2"
ENTRIES = [Entry("a/words", "file", "", 5), Entry("config.json", "file", "", 2)]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Where the listing is, in the store that ``find`` asks."""
    data = encode_listing(ENTRIES, LIMITS, kind="kaggle", source=SOURCE)
    found = f"kaggle/{hashlib.sha256(data).hexdigest()}"
    (tmp_path / "store" / found).mkdir(parents=True)
    (tmp_path / "store" / found / "listing.json").write_bytes(data)
    return found


def find(tmp_path: Path, prefix: str) -> MountPlace:
    roots = [tmp_path / "input", tmp_path / "elsewhere"]
    return find_mounted(DirectoryTransport(tmp_path / "store"), prefix, tmp_path / "cache" / "it", roots)


def put(folder: Path, words: str = "words") -> Path:
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "words").write_text(words)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("layout", ["tiny/pytorch/base/2", "models/org/tiny/pytorch/base/2", "a", ""])
def test_it_is_found_wherever_it_lies(tmp_path: Path, prefix: str, layout: str) -> None:
    wanted = put(tmp_path / "input" / layout)
    assert find(tmp_path, prefix) == MountPlace(SOURCE, wanted)


def test_of_two_versions_with_files_of_the_same_sizes_the_name_decides(tmp_path: Path, prefix: str) -> None:
    put(tmp_path / "input" / "models/org/tiny/pytorch/base/1")
    wanted = put(tmp_path / "input" / "models/org/tiny/pytorch/base/2")
    assert find(tmp_path, prefix).folder == wanted
    (tmp_path / "input" / "models/org/tiny/pytorch/base/2").rename(tmp_path / "input" / "x")
    (tmp_path / "input" / "models/org/tiny/pytorch/base/1").rename(tmp_path / "input" / "y")
    with pytest.raises(BadListing, match="may be any of"):
        find(tmp_path, prefix)


def test_what_is_not_there_or_of_another_size_is_not_used(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(FileNotFoundError, match="is not attached to this session"):
        find(tmp_path, prefix)
    folder = put(tmp_path / "input" / "tiny", "other words")
    with pytest.raises(BadListing, match="a/words does not have the size"):
        find(tmp_path, prefix)
    (folder / "a" / "words").write_text("words")
    (folder / "config.json").unlink()
    with pytest.raises(BadListing, match=r"config\.json does not have the size"):
        find(tmp_path, prefix)
