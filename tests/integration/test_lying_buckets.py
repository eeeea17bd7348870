"""Buckets that lie about a job's inputs: refused under the name of the object, and nothing of them is stored."""

from __future__ import annotations

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from jobs.inputs.folder import TreeError
from jobs.spec import Input
from platforms.artifacts.base import StoreError, StoreUnreachable, open_store
from platforms.artifacts.directory import DirectoryStore
from platforms.artifacts.s3 import store as bucket_store
from platforms.artifacts.s3.store import PART_BYTES
from scheduler.service.requests.stored import take_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from scheduler.store.engine import Database

BODY = b"of a bucket"
TAG = '"5d41402abc4b2a76b9719d911017c592"'
HONEST = {"Content-Length": str(len(BODY)), "ETag": TAG}


@pytest.fixture
def take(
    aws_credentials: None, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], None]:
    """Takes the input ``s3://bucket/tests`` at an endpoint; whatever comes of it, a refusal has stored nothing."""
    store = DirectoryStore(tmp_path / "store")
    monkeypatch.setenv("AWS_REGION", "us-east-1")

    def run(endpoint: str, bucket: str) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        try:
            take_input(database, store, Input("tests", f"s3://{bucket}/tests"), 2_000_000_000, print)
        except (StoreError, TreeError):
            assert list(store.keys("")) == []
            raise

    return run


class Bucket:
    """A server of one object: ``listed`` is what its listing says of it, ``head`` and ``body`` what it hands out."""

    def __init__(self) -> None:
        self.listed = f"<Size>{len(BODY)}</Size><ETag>{TAG}</ETag>"
        self.head, self.body = dict(HONEST), BODY
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(HONEST, b"")

            def do_GET(self) -> None:
                if urlsplit(self.path).path.rstrip("/") == "/lies":
                    page = (
                        f"<ListBucketResult><Contents><Key>tests/a</Key>{bucket.listed}</Contents></ListBucketResult>"
                    )
                    self.answer({"Content-Length": str(len(page)), "Content-Type": "text/xml"}, page.encode())
                else:
                    self.answer(bucket.head, bucket.body)

            def answer(self, head: Mapping[str, str], body: bytes) -> None:
                self.send_response(200)
                for name, text in head.items():
                    self.send_header(name, text)
                self.end_headers()
                with suppress(OSError):  # who refuses reads no further
                    self.wfile.write(body)
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    made = Bucket()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("listed", "head", "body"),
    [
        (f"<Size>5</Size><ETag>{TAG}</ETag>", {}, BODY),
        (f"<Size>{PART_BYTES + 1}</Size><ETag>{TAG}</ETag>", {}, BODY),
        (f"<Size>{PART_BYTES + 1}</Size><ETag>{TAG}</ETag>", {"Content-Length": str(PART_BYTES + 1)}, BODY),
        ("", {"ETag": '"another"'}, BODY),
        ("", {"ETag": None}, BODY),
        ("", {"Content-Length": None}, BODY),
        ("", {}, BODY[:-1]),
        ("", {}, b""),
        ("", {"x-amz-checksum-crc32": "AAAAAA=="}, BODY),
    ],
    ids=["longer", "no parts", "whole for part", "other tag", "no tag", "no length", "short", "empty", "checksum"],
)
def test_an_object_that_is_not_what_was_listed_is_refused(
    bucket: Bucket, take: Callable[[str, str], None], listed: str, head: dict[str, str | None], body: bytes
) -> None:
    bucket.listed = listed or bucket.listed
    bucket.head = {name: text for name, text in {**HONEST, **head}.items() if text is not None}
    bucket.body = body
    with pytest.raises(StoreError, match="s3://lies/tests/a"):
        take(bucket.endpoint, "lies")


@pytest.mark.parametrize(
    "listed", [f"<ETag>{TAG}</ETag>", f"<Size>-1</Size><ETag>{TAG}</ETag>", f"<Size>{1 << 70}</Size>"]
)
def test_a_listing_without_sizes_is_refused(bucket: Bucket, take: Callable[[str, str], None], listed: str) -> None:
    bucket.listed = listed
    with pytest.raises((TreeError, StoreError), match="s3://lies/tests"):
        take(bucket.endpoint, "lies")


def test_what_is_as_it_was_listed_is_taken(bucket: Bucket, take: Callable[[str, str], None]) -> None:
    take(bucket.endpoint, "lies")


@pytest.mark.parametrize("body", [BODY[:-1], b""])
def test_a_store_that_sends_less_than_it_says_gives_nothing(
    bucket: Bucket, aws_credentials: None, tmp_path: Path, body: bytes
) -> None:
    options = {"bucket": "lies", "endpoint": bucket.endpoint, "region": "us-east-1", "create_only": "client"}
    store = open_store("s3", tmp_path / "notes", options)
    assert store.read("a") == BODY
    bucket.body = body
    with pytest.raises(StoreUnreachable, match="a:"):
        store.read("a")
    with pytest.raises(StoreUnreachable, match="a:"):
        store.fetch("a", tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("change", [b"OF A BUCKET", b"another, longer text", None], ids=["same size", "longer", "gone"])
def test_an_object_that_changes_after_the_listing_is_refused(
    s3_server: Any, take: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, change: bytes | None
) -> None:
    """A folder of two states was never anybody's data."""
    name, client = s3_server.new_bucket(), s3_server.client()
    for key in ("tests/a", "tests/b"):
        client.put_object(Bucket=name, Key=key, Body=BODY)
    listed = bucket_store._listed

    def then_changed(*words: Any) -> Any:
        found = listed(*words)
        if change is None:
            client.delete_object(Bucket=name, Key="tests/b")
        else:
            client.put_object(Bucket=name, Key="tests/b", Body=change)
        return found

    monkeypatch.setattr(bucket_store, "_listed", then_changed)
    with pytest.raises(StoreError, match=f"s3://{name}/tests/b"):
        take(s3_server.endpoint, name)
