"""What the S3 store adds to the promises of every store: no part is left behind, and errors say what to do."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platforms.artifacts.base import StoreError, StoreUnreachable, open_store
from platforms.artifacts.s3.store import S3Store

if TYPE_CHECKING:
    from typing import Protocol

    class S3Server(Protocol):
        """See tests/conftest.py."""

        endpoint: str
        conditional_writes: bool

        def client(self) -> Any: ...  # noqa: D102
        def new_bucket(self) -> str: ...  # noqa: D102
        def options(self, **more: str) -> dict[str, str]: ...  # noqa: D102


PART_BYTES = 5 << 20  # the smallest that S3 takes

# Uploads a file and dies, as by kill -9, when it has sent so many parts.
DYING_UPLOAD = """
import os, sys
from pathlib import Path
from platforms.artifacts.s3.client import connect
from platforms.artifacts.s3.store import S3Store
endpoint, bucket, source, parts, conditional = sys.argv[1:]
client = connect("s3", region="us-east-1", endpoint=endpoint)
send, sent = client.upload_part, []
def upload_part(**words):
    if words["PartNumber"] > int(parts):
        while len(sent) < int(parts):
            pass
        os._exit(9)
    answer = send(**words)
    sent.append(words["PartNumber"])
    return answer
client.upload_part = upload_part
store = S3Store(client, bucket, conditional=conditional == "True", part_bytes=5 << 20)
store.create("big", Path(source))
"""


class Failing:
    """A client that fails at one part, or runs something else before it completes an upload; it passes the rest on."""

    def __init__(self, client: Any, part: int = 0, before_completion: Callable[[], object] = lambda: None) -> None:
        self._client, self._part, self._before_completion = client, part, before_completion

    def upload_part(self, **words: Any) -> Any:
        """Fail, or pass on."""
        if words["PartNumber"] == self._part:
            raise OSError("the disk is gone")
        return self._client.upload_part(**words)

    def complete_multipart_upload(self, **words: Any) -> Any:
        """Run the other thing, and pass on."""
        self._before_completion()
        return self._client.complete_multipart_upload(**words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of four parts."""
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(3 * PART_BYTES + 1000))
    return path


@pytest.fixture
def cut_off(s3_server: "S3Server", source: Path) -> Callable[[int], str]:
    """Send a number of parts of the file in a process that dies then; return the bucket."""

    def run(parts: int) -> str:
        bucket = s3_server.new_bucket()
        words = [s3_server.endpoint, bucket, source, parts, s3_server.conditional_writes]
        command = [sys.executable, "-c", DYING_UPLOAD, *map(str, words)]
        assert subprocess.run(command, check=False).returncode == 9
        return bucket

    return run


def store_of(server: "S3Server", client: Any, bucket: str) -> S3Store:
    return S3Store(client, bucket, conditional=server.conditional_writes, part_bytes=PART_BYTES)


def uploads_in(server: "S3Server", bucket: str) -> list[Any]:
    """Return the uploads under way; rclone says that there is no such upload when there is none."""
    with suppress(server.client().exceptions.NoSuchUpload):
        return list(server.client().list_multipart_uploads(Bucket=bucket).get("Uploads", []))
    return []


@pytest.mark.parametrize("parts", [0, 2])
def test_an_upload_that_was_killed_is_no_object_and_is_sent_again(
    s3_server: "S3Server", cut_off: Callable[[int], str], source: Path, tmp_path: Path, parts: int
) -> None:
    bucket = cut_off(parts)
    store = store_of(s3_server, s3_server.client(), bucket)
    assert store.size("big") is None
    assert list(store.keys("")) == []
    source.write_bytes(os.urandom(3 * PART_BYTES + 1000))  # no part of the first may get into this one
    assert store.create("big", source)
    store.fetch("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_what_a_killed_upload_left_is_swept(s3_server: "S3Server", cut_off: Callable[[int], str], source: Path) -> None:
    bucket = cut_off(2)
    assert len(uploads_in(s3_server, bucket)) == 1
    store = store_of(s3_server, s3_server.client(), bucket)
    assert store.create("big", source)
    assert store.sweep(0.0) == 0
    assert store.sweep(float("inf")) == 1
    assert uploads_in(s3_server, bucket) == []
    assert store.size("big") == source.stat().st_size


@pytest.mark.parametrize("part", [1, 4])
def test_an_upload_that_fails_leaves_no_parts(s3_server: "S3Server", source: Path, part: int) -> None:
    bucket = s3_server.new_bucket()
    store = store_of(s3_server, Failing(s3_server.client(), part), bucket)
    with pytest.raises(StoreUnreachable, match="the disk is gone"):
        store.create("big", source)
    assert store.size("big") is None
    assert uploads_in(s3_server, bucket) == []


def test_of_two_uploads_the_first_to_end_counts_and_the_other_leaves_nothing(
    moto_s3: "S3Server", source: Path, tmp_path: Path
) -> None:
    bucket, first = moto_s3.new_bucket(), tmp_path / "first"
    first.write_bytes(os.urandom(PART_BYTES + 1))
    ahead = store_of(moto_s3, moto_s3.client(), bucket)
    store = store_of(moto_s3, Failing(moto_s3.client(), 0, lambda: ahead.create("big", first)), bucket)
    assert not store.create("big", source)
    store.fetch("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == first.read_bytes()
    assert uploads_in(moto_s3, bucket) == []


def test_only_old_uploads_below_the_prefix_are_given_up(moto_s3: "S3Server") -> None:
    bucket, client = moto_s3.new_bucket(), moto_s3.client()
    store = S3Store(client, bucket, prefix="uff/")
    other = client.create_multipart_upload(Bucket=bucket, Key="other/big")["UploadId"]
    client.create_multipart_upload(Bucket=bucket, Key="uff/big")
    assert store.sweep(0.0) == 0
    assert store.sweep(float("inf")) == 1
    assert [upload["UploadId"] for upload in uploads_in(moto_s3, bucket)] == [other]


def test_a_wrong_secret_says_what_to_correct(
    rclone_s3: "S3Server", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = rclone_s3.options()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = open_store("s3", tmp_path, options)
    with pytest.raises(StoreError, match=r"SignatureDoesNotMatch.*credentials"):
        store.read("a")


def test_a_bucket_that_is_not_there_says_so(moto_s3: "S3Server", tmp_path: Path) -> None:
    store = open_store("s3", tmp_path, {**moto_s3.options(), "bucket": "nowhere-at-all"})
    for action in (lambda: store.put("a", b""), lambda: list(store.keys("")), lambda: store.read("a")):
        with pytest.raises(StoreError, match="no bucket nowhere-at-all") as refused:
            action()
        assert not isinstance(refused.value, StoreUnreachable)


def test_a_server_that_is_gone_is_unreachable_rather_than_empty(
    moto_s3: "S3Server", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platforms.artifacts.s3.client._ATTEMPTS", 1)
    store = open_store("s3", tmp_path, {**moto_s3.options(), "endpoint": "http://127.0.0.1:9"})
    (tmp_path / "file").write_bytes(b"x")
    for action in (
        lambda: store.create("a", tmp_path / "file"),
        lambda: store.put("a", b""),
        lambda: store.read("a"),
        lambda: store.fetch("a", tmp_path / "copy"),
        lambda: store.size("a"),
        lambda: list(store.keys("")),
        lambda: store.delete("a"),
    ):
        with pytest.raises(StoreUnreachable):
            action()
    assert not (tmp_path / "copy").exists()


def test_what_others_put_beside_our_keys_is_not_ours(moto_s3: "S3Server", tmp_path: Path) -> None:
    options = moto_s3.options(prefix="uff/")
    client = moto_s3.client()
    for name in ("other/a", "uff/", "uff/a b", "uff/.hidden", "uffa"):
        client.put_object(Bucket=options["bucket"], Key=name, Body=b"")
    store = open_store("s3", tmp_path, options)
    store.put("a", b"1")
    assert list(store.keys("")) == ["a"]
