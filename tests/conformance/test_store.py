"""What every artifact store promises, by the words of platforms/artifacts/base.py."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from platforms.artifacts.base import BlobStore, Grant, Missing, StoreError

HOSTILE = [
    "", "/", ".", "..", "/etc/passwd", "a/../b", "../a", "a//b", "a/", "/a", ".a", "a/.b", "a b", "a\nb", "a\0b",
    "a\\b", "ä", "a" * 300, "a*", "~", "-rf", "a/" * 40 + "a",
]  # fmt: skip


def test_create_writes_once(store: BlobStore) -> None:
    assert store.create("jobs/ufm/blobs/aa", b"first")
    assert not store.create("jobs/ufm/blobs/aa", b"second")
    assert store.read("jobs/ufm/blobs/aa") == b"first"


def test_create_takes_a_file(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "weights"
    source.write_bytes(bytes(range(256)) * 10_000)
    assert store.create("weights", source)
    assert store.size("weights") == 2_560_000
    store.fetch("weights", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_create_of_a_file_that_is_gone_is_an_error_and_writes_nothing(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        store.create("weights", tmp_path / "nowhere")
    assert store.size("weights") is None


def test_of_many_creators_at_once_one_wins_whole(store: BlobStore) -> None:
    values = [bytes([number]) * 200_000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda value: store.create("a/b/c", value), values))
    assert sum(won) == 1
    assert store.read("a/b/c") == values[won.index(True)]


def test_put_writes_and_replaces(store: BlobStore) -> None:
    store.put("runs/one/lane-0/heartbeat.json", b"{}")
    store.put("runs/one/lane-0/heartbeat.json", b'{"seq": 1}')
    assert store.read("runs/one/lane-0/heartbeat.json") == b'{"seq": 1}'
    assert list(store.keys("")) == ["runs/one/lane-0/heartbeat.json"]


def test_what_is_not_there_is_missing(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(Missing):
        store.read("a")
    with pytest.raises(Missing):
        store.fetch("a", tmp_path / "copy")
    assert store.size("a") is None
    assert not store.delete("a")
    assert list(store.keys("a/")) == []
    assert not (tmp_path / "copy").exists()


def test_a_prefix_is_no_object(store: BlobStore, tmp_path: Path) -> None:
    store.put("a/b", b"1")
    with pytest.raises(Missing):
        store.read("a")
    assert store.size("a") is None
    assert not store.delete("a")
    assert store.read("a/b") == b"1"


def test_read_refuses_more_than_its_limit(store: BlobStore) -> None:
    store.put("a", b"12345")
    assert store.read("a", limit_bytes=5) == b"12345"
    with pytest.raises(StoreError) as refused:
        store.read("a", limit_bytes=4)
    assert not isinstance(refused.value, Missing)


def test_an_empty_object_is_an_object(store: BlobStore) -> None:
    assert store.create("a", b"")
    assert store.read("a") == b""
    assert store.size("a") == 0


def test_keys_come_sorted_and_by_prefix(store: BlobStore) -> None:
    for key in ("b/2", "a/z", "b/1", "b/10/x", "bb/1", "c"):
        store.put(key, b"")
    assert list(store.keys("")) == ["a/z", "b/1", "b/10/x", "b/2", "bb/1", "c"]
    assert list(store.keys("b/")) == ["b/1", "b/10/x", "b/2"]
    assert list(store.keys("b/10/")) == ["b/10/x"]


def test_delete_removes_once_and_makes_room_to_create_again(store: BlobStore) -> None:
    store.create("a/b", b"1")
    assert store.delete("a/b")
    assert not store.delete("a/b")
    assert store.create("a/b", b"2")


def test_sweeping_touches_nothing_that_has_a_key(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1_000)
    store.create("a/b", tmp_path / "file")
    store.put("c", b"1")
    assert store.sweep(float("inf")) == 0
    assert list(store.keys("")) == ["a/b", "c"]


@pytest.mark.parametrize("key", HOSTILE)
def test_a_hostile_key_is_refused_by_every_action(store: BlobStore, tmp_path: Path, key: str) -> None:
    for action in (
        lambda: store.create(key, b"x"),
        lambda: store.put(key, b"x"),
        lambda: store.read(key),
        lambda: store.fetch(key, tmp_path / "copy"),
        lambda: store.size(key),
        lambda: store.delete(key),
    ):
        with pytest.raises(StoreError) as refused:
            action()
        assert not isinstance(refused.value, Missing)
    if key not in {"", "a/"}:  # those two are prefixes
        with pytest.raises(StoreError):
            list(store.keys(key))


def test_the_address_for_payloads_is_plain_json(store: BlobStore) -> None:
    store.put("corpus/v1/train.jsonl", b"{}")
    address = store.payload_address(Grant("run-1", ("ufm",), ("jobs/ufm/blobs/aa",), ("corpus/v1",), 60))
    assert address["kind"]
    assert json.loads(json.dumps(address)) == address
