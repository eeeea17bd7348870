"""Large objects, sent and fetched in several parts at a time."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from jobs.inputs.folder import TreeError
from jobs.payload.store.listing import BadListing, Entry, encode_listing
from jobs.payload.store.tree import LIMITS, check_room
from platforms.artifacts.base import StoreError
from platforms.artifacts.s3.client import connect, translated

_REGION = "us-east-1"  # a bucket of another region says so itself
_TELL_BYTES = 1 << 30
PART_BYTES = 16 << 20
_PARTS_MAX = 10_000  # S3's limit
_PARALLEL = 4
_PIECE_BYTES = 1 << 20


def fetch_folder(source: str, target: Path, tell: Callable[[str], None] = lambda _progress: None) -> None:
    """Copy all objects below ``s3://bucket/prefix`` into the new folder ``target``.

    Credentials, region and endpoint are those of AWS's usual chain and variables. ``tell`` hears how far it is. Raises
    TreeError for what cannot be a folder, StoreError, OSError.
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
        if done - reported >= _TELL_BYTES:
            reported = done
            tell(f"fetched {done / 1e9:.1f} GB")


def _listed(client: Any, bucket: str, prefix: str) -> dict[Entry, str]:
    """Return the tags of what lies below a prefix; a key that ends in a slash stands for a folder and holds nothing."""
    result: dict[Entry, str] = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", ()):
            if not item["Key"].endswith("/"):
                entry = Entry(item["Key"].removeprefix(prefix), "file", "", item.get("Size", -1))
                result[entry] = item.get("ETag", "")
        if len(result) > LIMITS.files:
            break  # its listing is refused
    return result


def sha256_base64(data: bytes) -> str:
    """Return a digest as S3 wants it."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def upload(
    client: Any, bucket: str, name: str, source: Path, conditions: Mapping[str, str], part_bytes: int = PART_BYTES
) -> None:
    """Send the file ``source`` as the object ``name``, several parts at a time; leave no part of one that failed.

    ``conditions`` go with the request that makes the object appear, for which s3transfer knows none. Raises
    ClientError, BotoCoreError, OSError.
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
        # Servers that do not keep sha256 digests refuse to complete an upload by them.
        return {"PartNumber": number, **{key: sent[key] for key in ("ETag", "ChecksumSHA256") if key in sent}}

    try:
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="upload") as threads:
            parts = list(threads.map(send, range(1, -(-size // part_bytes) + 1)))
        client.complete_multipart_upload(**target, MultipartUpload={"Parts": parts}, **conditions)
    except Exception:
        with suppress(Exception):  # a sweep removes what cannot be removed now
            client.abort_multipart_upload(**target)
        raise


def download(client: Any, bucket: str, name: str, size: int, tag: str, target: int) -> None:
    """Write the object of this size and tag into the file descriptor ``target``, several parts at a time.

    Raises OSError for an answer about another object or of another length, ClientError (``PreconditionFailed`` when the
    object is another one), BotoCoreError.
    """
    bare = tag.strip('"')  # as some servers list it
    starts: Sequence[int] = range(0, size, PART_BYTES) or (0,)

    def fetch(start: int) -> None:
        wanted = min(PART_BYTES, size - start)
        span = {"Range": f"bytes={start}-{start + wanted - 1}"} if len(starts) > 1 else {}
        answer = client.get_object(Bucket=bucket, Key=name, IfMatch=f'"{bare}"', **span)
        with closing(answer["Body"]) as body:
            length, came = answer.get("ContentLength"), str(answer.get("ETag")).strip('"')
            if (length, came) != (wanted, bare):  # not all servers know conditions
                raise OSError(f"{length} bytes of the object {came} came in place of {wanted} of {bare}")
            for piece in body.iter_chunks(_PIECE_BYTES):
                start += os.pwrite(target, piece, start)

    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="download") as threads:
        list(threads.map(fetch, starts))
