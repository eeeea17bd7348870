"""The blob store in an S3 bucket.

S3 creates objects atomically, so atomic writes need no extra work. A conditional write creates an object only if it
does not exist. A server that ignores the condition needs ``create_only = "client"``; the store then checks before it
writes, which protects against other threads of this process but not against other machines.
"""

import base64
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from jobs.inputs.folder import TreeError
from jobs.payload.store.tree import LIMITS, BadListing, Entry, check_room, encode_listing
from jobs.payload.whole_file import replace_below
from platforms.artifacts.base import Grant, Missing, StoreError, StoreUnreachable, check_key, check_prefix, is_key
from platforms.artifacts.s3.client import CONTENDED, EXISTS, NO_UPLOAD, S3Options, code_of, connect, translated
from platforms.options import Written, read_declared

PART_BYTES = 16 << 20
_PARTS_MAX = 10_000  # limit of S3
_PARALLEL = 4
_PIECE_BYTES = 1 << 20
_CONTENTION_TRIES = 5
_FULL = {errno.ENOSPC, errno.EDQUOT}
_POST_BYTES_MAX = 5 << 30  # limit of one request to S3
_SECONDS_MAX = 7 * 86_400  # longest validity of a signature
_REGION = "us-east-1"  # if none is set; S3's error about another region names the right one
_PROGRESS_BYTES = 1 << 30  # progress is reported after this many bytes


@dataclass(frozen=True, kw_only=True)
class S3StoreOptions(S3Options):
    """``create_only`` is ``client`` for servers that ignore conditional writes."""

    create_only: Annotated[str, Written(words=("server", "client"), remedy="Write server or client")] = "server"


def load(root: Path, options: Mapping[str, str]) -> "S3Store":
    """Return the store that ``options`` describe. It keeps no files on this machine. Raises StoreError."""
    del root
    refuse = partial(StoreError, "open", "artifacts.options")
    read = read_declared(S3StoreOptions, options, refuse, "docs/inside/store.md")
    try:
        client = read.client()
    except ImportError as error:
        raise refuse(str(error), "Install the extra for AWS: uff-scheduler[aws]") from error
    except Exception as error:
        from botocore.exceptions import BotoCoreError

        if isinstance(error, BotoCoreError | ValueError):
            raise refuse(str(error), "Correct profile, credentials, region or endpoint") from error
        raise
    return S3Store(client, read.bucket, prefix=read.prefix, conditional=read.create_only == "server")


@dataclass
class S3Store:
    """Objects below ``prefix`` of ``bucket``. Any number of processes may share it."""

    client: Any
    bucket: str
    prefix: str = ""
    conditional: bool = True
    part_bytes: int = PART_BYTES
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def create(self, key: str, source: Path | bytes) -> bool:
        """Write ``key`` unless it exists; return whether this call wrote it."""
        check_key("create", key)
        if isinstance(source, Path) and not source.is_file():
            raise StoreError("create", key, f"the source file {source} does not exist")
        with translated("create", key, self.bucket), nullcontext() if self.conditional else self._lock:
            # S3 checks a condition only after it has received the file, so look first.
            if (isinstance(source, Path) or not self.conditional) and self._size(key) is not None:
                return False
            for _ in range(_CONTENTION_TRIES):
                created = self._create(key, source)
                if created is not None:
                    return created
        raise StoreUnreachable("create", key, "other programs write the same key at the same time")

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a small object. Raises StoreUnreachable; the value is then the old or the new one."""
        check_key("write", key)
        with translated("write", key, self.bucket):
            self._put(key, data)

    def read(self, key: str, limit_bytes: int = 1 << 24) -> bytes:
        """Return an object's bytes. Raises Missing, and StoreError when it is larger than ``limit_bytes``."""
        check_key("read", key)
        with translated("read", key, self.bucket):
            answer = self.client.get_object(Bucket=self.bucket, Key=self._name(key))
            with closing(answer["Body"]) as body:
                if answer["ContentLength"] > limit_bytes:
                    raise StoreError("read", key, f"it is larger than {limit_bytes} bytes")
                return bytes(body.read())

    def fetch(self, key: str, target: Path) -> None:
        """Copy an object into the file ``target``, which is created atomically. Raises Missing, StoreError."""
        check_key("fetch", key)
        with translated("fetch", key, self.bucket):
            head = self.client.head_object(Bucket=self.bucket, Key=self._name(key))
            size, tag = head["ContentLength"], head["ETag"]
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                replace_below(
                    target.parent,
                    target.name,
                    lambda sink: download(self.client, self.bucket, self._name(key), size, tag, sink.fileno()),
                )
            except OSError as error:
                if error.errno in _FULL:
                    raise StoreError("fetch", key, str(error), "Make room on that disk") from error
                raise

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None if it does not exist."""
        check_key("measure", key)
        with translated("measure", key, self.bucket):
            return self._size(key)

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with ``prefix``, sorted. ``prefix`` ends with '/' or is empty."""
        check_prefix(prefix)
        with translated("list", prefix, self.bucket):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._name(prefix))
            listed = [entry["Key"].removeprefix(self.prefix) for page in pages for entry in page.get("Contents", ())]
        yield from sorted(filter(is_key, listed))

    def delete(self, key: str) -> bool:
        """Remove an object; return whether it existed."""
        check_key("delete", key)
        with translated("delete", key, self.bucket):
            exists = self._size(key) is not None
            if exists:
                self.client.delete_object(Bucket=self.bucket, Key=self._name(key))
            return exists

    def sweep(self, older_than: float) -> int:
        """Abort uploads that began before ``older_than`` (real UTC seconds) and are incomplete; return how many.

        Their parts cost money and belong to no key.
        """
        from botocore.exceptions import ClientError

        pages = self.client.get_paginator("list_multipart_uploads")
        with translated("sweep", self.prefix, self.bucket):
            try:
                uploads = pages.paginate(Bucket=self.bucket, Prefix=self.prefix).search("Uploads[]")
                old = [each for each in uploads if each and each["Initiated"].timestamp() < older_than]
            except ClientError as error:
                if code_of(error) not in NO_UPLOAD:  # rclone's error if there are no uploads
                    raise
                return 0
            for each in old:
                self.client.abort_multipart_upload(Bucket=self.bucket, Key=each["Key"], UploadId=each["UploadId"])
        return len(old)

    def payload_address(self, grant: Grant) -> dict[str, Any]:
        """Return signed addresses, which expire, so that platforms get no secret."""
        folders = {folder: list(self.keys(f"{folder}/")) for folder in grant.folders}
        seconds = min(grant.lasts_seconds, _SECONDS_MAX)
        with translated("sign", f"runs/{grant.run}", self.bucket):
            return {
                "kind": "presigned",
                "posts": [
                    self._post(below, seconds)
                    for below in (f"runs/{grant.run}/", *(f"jobs/{job}/" for job in grant.jobs))
                ],
                "gets": {key: self._get(key, seconds) for key in grant.reads},
                "folders": {
                    folder: {key.removeprefix(f"{folder}/"): self._get(key, seconds) for key in keys}
                    for folder, keys in folders.items()
                },
            }

    def _get(self, key: str, seconds: int) -> str:
        parameters = {"Bucket": self.bucket, "Key": self._name(key)}
        return str(self.client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=seconds))

    def _post(self, below: str, seconds: int) -> dict[str, Any]:
        signed = self.client.generate_presigned_post(
            self.bucket,
            f"{self.prefix}{below}${{filename}}",
            Conditions=[
                ["content-length-range", 0, _POST_BYTES_MAX],
                ["starts-with", "$x-amz-checksum-sha256", ""],
                ["starts-with", "$x-amz-checksum-algorithm", ""],
            ],
            ExpiresIn=seconds,
        )
        fields = {name: text for name, text in signed["fields"].items() if name != "key"}
        return {"below": below, "url": signed["url"], "prefix": self.prefix, "fields": fields}

    def _name(self, key: str) -> str:
        return f"{self.prefix}{key}"

    def _size(self, key: str) -> int | None:
        try:
            with translated("measure", key, self.bucket):
                return int(self.client.head_object(Bucket=self.bucket, Key=self._name(key))["ContentLength"])
        except Missing:
            return None

    def _create(self, key: str, source: Path | bytes) -> bool | None:
        """Return whether the key was free and is now ours; None if another writer was active at the same moment."""
        from botocore.exceptions import ClientError

        conditions = {"IfNoneMatch": "*"} if self.conditional else {}
        try:
            if isinstance(source, Path) and source.stat().st_size > self.part_bytes:
                upload(self.client, self.bucket, self._name(key), source, conditions, self.part_bytes)
            else:
                self._put(key, source.read_bytes() if isinstance(source, Path) else source, conditions)
        except ClientError as error:
            if code_of(error) in EXISTS:
                return False
            if code_of(error) in CONTENDED:
                return None
            raise
        return True

    def _put(self, key: str, data: bytes, conditions: Mapping[str, str] | None = None) -> None:
        self.client.put_object(
            Bucket=self.bucket, Key=self._name(key), Body=data, ChecksumSHA256=sha256_base64(data), **(conditions or {})
        )


# Large objects, transferred in several parts at a time.
def fetch_folder(source: str, target: Path, report: Callable[[str], None] = lambda _progress: None) -> None:
    """Copy all objects below ``s3://bucket/prefix`` into the new folder ``target``.

    Credentials, region and endpoint come from AWS's usual chain and variables. ``report`` receives progress texts.
    Raises TreeError for keys that do not form a folder, StoreError, OSError.
    """
    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _REGION
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    try:
        client = connect("s3", region=region, endpoint=endpoint, profile=os.environ.get("AWS_PROFILE", ""))
    except ImportError as error:
        raise StoreError("open", source, str(error), "Install the extra for AWS: uff-scheduler[aws]") from error
    with translated("list", source, bucket):
        tags = _listed(client, bucket, prefix)
    entries = tuple(sorted(tags))
    try:
        encode_listing(entries, LIMITS)
    except BadListing as error:
        raise TreeError(source, str(error), "Give a prefix whose keys are plain paths") from None
    if not entries:
        raise TreeError(source, "there are no objects below it", "Check bucket and prefix")
    target.mkdir(parents=True)
    check_room(target, entries)
    done = reported = 0
    for entry in entries:
        place, key = target / entry.path, f"{prefix}{entry.path}"
        place.parent.mkdir(parents=True, exist_ok=True)
        with translated("fetch", f"s3://{bucket}/{key}", bucket), place.open("xb") as sink:
            download(client, bucket, key, entry.bytes, tags[entry], sink.fileno())
        done += entry.bytes
        if done - reported >= _PROGRESS_BYTES:
            reported = done
            report(f"fetched {done / 1e9:.1f} GB")


def _listed(client: Any, bucket: str, prefix: str) -> dict[Entry, str]:
    """Return the objects below a prefix with their ETags, without folder markers (keys that end in a slash)."""
    result: dict[Entry, str] = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", ()):
            if not item["Key"].endswith("/"):
                result[Entry(item["Key"].removeprefix(prefix), "file", "", item.get("Size", -1))] = item.get("ETag", "")
        if len(result) > LIMITS.files:
            break  # the listing is rejected then
    return result


def sha256_base64(data: bytes) -> str:
    """Return a digest in S3's format."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def upload(
    client: Any, bucket: str, name: str, source: Path, conditions: Mapping[str, str], part_bytes: int = PART_BYTES
) -> None:
    """Upload the file ``source`` as the object ``name``, several parts at a time; on failure remove all parts.

    ``conditions`` apply to the request that creates the object; s3transfer cannot pass them. Raises ClientError,
    BotoCoreError, OSError.
    """
    size = source.stat().st_size
    part_bytes = max(part_bytes, -(-size // _PARTS_MAX))
    target = {"Bucket": bucket, "Key": name}
    target["UploadId"] = client.create_multipart_upload(**target, ChecksumAlgorithm="SHA256")["UploadId"]

    def send(number: int) -> Mapping[str, Any]:
        with source.open("rb") as stream:
            stream.seek((number - 1) * part_bytes)
            data = stream.read(part_bytes)
        sent = client.upload_part(**target, PartNumber=number, Body=data, ChecksumSHA256=sha256_base64(data))
        # Servers that do not store SHA-256 digests refuse to complete an upload that names them.
        return {"PartNumber": number, **{key: sent[key] for key in ("ETag", "ChecksumSHA256") if key in sent}}

    try:
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="upload") as threads:
            parts = list(threads.map(send, range(1, -(-size // part_bytes) + 1)))
        client.complete_multipart_upload(**target, MultipartUpload={"Parts": parts}, **conditions)
    except Exception:
        with suppress(Exception):  # a sweep removes the parts that cannot be removed now
            client.abort_multipart_upload(**target)
        raise


def download(client: Any, bucket: str, name: str, size: int, tag: str, target: int) -> None:
    """Write the object of this size and tag into the file descriptor ``target``, several parts at a time.

    Raises OSError for a response about another object or of another length, ClientError (``PreconditionFailed`` if the
    object was replaced), BotoCoreError.
    """
    bare_tag = tag.strip('"')  # some servers list it without the quotes
    starts: Sequence[int] = range(0, size, PART_BYTES) or (0,)

    def fetch(start: int) -> None:
        wanted = min(PART_BYTES, size - start)
        span = {"Range": f"bytes={start}-{start + wanted - 1}"} if len(starts) > 1 else {}
        answer = client.get_object(Bucket=bucket, Key=name, IfMatch=f'"{bare_tag}"', **span)
        with closing(answer["Body"]) as body:
            length, answer_tag = answer.get("ContentLength"), str(answer.get("ETag")).strip('"')
            if (length, answer_tag) != (wanted, bare_tag):  # some servers ignore conditions
                raise OSError(f"got {length} bytes of the object {answer_tag} instead of {wanted} of {bare_tag}")
            for piece in body.iter_chunks(_PIECE_BYTES):
                start += os.pwrite(target, piece, start)

    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="download") as threads:
        list(threads.map(fetch, starts))
