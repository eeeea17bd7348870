"""What the S3 store adds to the promises of every store: uploads that survive a crash, errors that say what to do."""

import os
import subprocess
import sys
from collections.abc import Callable
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
endpoint, bucket, uploads, source, parts, conditional = sys.argv[1:]
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
store = S3Store(client, bucket, Path(uploads), conditional=conditional == "True", part_bytes=5 << 20)
store.create("big", Path(source))
"""


class Counted:
    """A client that counts the parts it sends, and passes everything on."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.parts: list[int] = []

    def upload_part(self, **words: Any) -> Any:
        """Count, and pass on."""
        self.parts.append(words["PartNumber"])
        return self._client.upload_part(**words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of four parts."""
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(3 * PART_BYTES + 1000))
    return path


@pytest.fixture
def cut_off(s3_server: "S3Server", source: Path, tmp_path: Path) -> Callable[[int], str]:
    """Send a number of parts of the file in a process that dies then; return the bucket."""

    def run(parts: int) -> str:
        bucket = s3_server.new_bucket()
        words = [s3_server.endpoint, bucket, tmp_path / "uploads", source, parts, s3_server.conditional_writes]
        command = [sys.executable, "-c", DYING_UPLOAD, *map(str, words)]
        assert subprocess.run(command, check=False).returncode == 9
        return bucket

    return run


def counted_store(server: "S3Server", bucket: str, uploads: Path) -> tuple[Counted, S3Store]:
    client = Counted(server.client())
    return client, S3Store(client, bucket, uploads, conditional=server.conditional_writes, part_bytes=PART_BYTES)


@pytest.mark.parametrize("parts", [0, 2])
def test_an_upload_that_was_killed_goes_on_with_the_parts_that_are_missing(
    s3_server: "S3Server", cut_off: Callable[[int], str], source: Path, tmp_path: Path, parts: int
) -> None:
    bucket = cut_off(parts)
    client, store = counted_store(s3_server, bucket, tmp_path / "uploads")
    assert store.size("big") is None
    assert store.create("big", source)
    assert sorted(client.parts) == list(range(parts + 1, 5))
    store.fetch("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert list((tmp_path / "uploads").iterdir()) == []


def test_an_upload_of_another_file_starts_anew(
    s3_server: "S3Server", cut_off: Callable[[int], str], source: Path, tmp_path: Path
) -> None:
    """The parts of the file that was there before must not get into the one that is there now."""
    bucket = cut_off(2)
    source.write_bytes(os.urandom(3 * PART_BYTES + 1000))
    client, store = counted_store(s3_server, bucket, tmp_path / "uploads")
    assert store.create("big", source)
    assert sorted(client.parts) == [1, 2, 3, 4]
    store.fetch("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_an_upload_that_the_server_forgot_starts_anew(
    s3_server: "S3Server", cut_off: Callable[[int], str], source: Path, tmp_path: Path
) -> None:
    bucket = cut_off(2)
    for upload in s3_server.client().list_multipart_uploads(Bucket=bucket)["Uploads"]:
        s3_server.client().abort_multipart_upload(Bucket=bucket, Key="big", UploadId=upload["UploadId"])
    client, store = counted_store(s3_server, bucket, tmp_path / "uploads")
    assert store.create("big", source)
    assert sorted(client.parts) == [1, 2, 3, 4]


def test_an_upload_that_somebody_else_has_finished_meanwhile_is_dropped(
    s3_server: "S3Server", cut_off: Callable[[int], str], source: Path, tmp_path: Path
) -> None:
    bucket = cut_off(2)
    _, elsewhere = counted_store(s3_server, bucket, tmp_path / "elsewhere")
    assert elsewhere.create("big", source)
    client, store = counted_store(s3_server, bucket, tmp_path / "uploads")
    assert not store.create("big", source)
    assert client.parts == []
    assert s3_server.client().list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


def test_uploads_that_nobody_resumed_are_given_up_with_their_parts(
    moto_s3: "S3Server", source: Path, tmp_path: Path
) -> None:
    """Only below our prefix, only those that began before; and the note about it goes as well."""
    bucket, client = moto_s3.new_bucket(), moto_s3.client()
    store = S3Store(client, bucket, tmp_path / "uploads", prefix="uff/", part_bytes=PART_BYTES)
    other = client.create_multipart_upload(Bucket=bucket, Key="other/big")["UploadId"]
    upload = store._uploader._begun("uff/big", source)
    store._uploader._write(store._uploader._record("uff/big"), upload)
    assert store.sweep(0.0) == 0
    assert store.sweep(float("inf")) == 1
    left = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [entry["UploadId"] for entry in left] == [other]
    assert list((tmp_path / "uploads").iterdir()) == []
    assert store.create("big", source)


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
