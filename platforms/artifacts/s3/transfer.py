"""Large objects in parts: uploads that go on where a crash cut them off, downloads of several parts at a time."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs.inputs.folder import TreeError
from jobs.payload.bounds import read_json
from jobs.payload.store.listing import BadListing, Entry, encode_listing
from jobs.payload.store.tree import LIMITS, check_room
from platforms.artifacts.base import StoreError
from platforms.artifacts.s3.client import NO_UPLOAD, code_of, connect, translated
from platforms.plain_file import write_whole

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


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload under way, as it is written down before its first part is sent.

    ``file_bytes`` and ``changed_ns`` tell whether the file is still the one that the upload was begun with.
    """

    upload_id: str
    part_bytes: int
    file_bytes: int
    changed_ns: int


def sha256_base64(data: bytes) -> str:
    """Return a digest as S3 wants it."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


class Uploader:
    """Sends files to ``bucket`` in parts. ``records`` is a folder of this machine that survives crashes."""

    def __init__(self, client: Any, bucket: str, records: Path, part_bytes: int = PART_BYTES) -> None:
        self._client = client
        self._bucket = bucket
        self._records = records
        self._part_bytes = part_bytes

    def send(self, name: str, source: Path, conditions: Mapping[str, str]) -> None:
        """Send ``source`` as the object ``name``; parts that an earlier try sent whole are not sent again.

        ``conditions`` go with the request that makes the object appear. Raises ClientError, BotoCoreError, OSError.
        """
        from botocore.exceptions import ClientError

        record = self._record(name)
        upload = self._resumed(record, source)
        if upload is not None:
            try:
                self._complete(name, source, upload, self._sent(name, upload), conditions)
            except ClientError as error:
                if code_of(error) not in NO_UPLOAD:
                    raise
            else:
                record.unlink(missing_ok=True)
                return
        upload = self._begun(name, source)
        self._write(record, upload)
        self._complete(name, source, upload, {}, conditions)
        record.unlink(missing_ok=True)

    def abort(self, name: str) -> None:
        """Forget an upload whose object has come into being otherwise, with its parts in the bucket."""
        record = self._record(name)
        upload = self._read(record)
        if upload is not None:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload.upload_id)
            record.unlink(missing_ok=True)

    def sweep(self, prefix: str, older_than: float) -> int:
        """Give up uploads below ``prefix`` that began before ``older_than`` (UTC seconds); return how many.

        Their parts cost money and no key names them. Raises ClientError, BotoCoreError, OSError.
        """
        from botocore.exceptions import ClientError

        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix)
        try:
            uploads = [upload for page in pages for upload in page.get("Uploads", ())]
        except ClientError as error:
            if code_of(error) not in NO_UPLOAD:  # what rclone says when there is none
                raise
            return 0
        old = [upload for upload in uploads if upload["Initiated"].timestamp() < older_than]
        for upload in old:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])
            record = self._record(upload["Key"])
            stored = self._read(record)
            if stored is not None and stored.upload_id == upload["UploadId"]:
                record.unlink(missing_ok=True)
        return len(old)

    def _begun(self, name: str, source: Path) -> Upload:
        stat = source.stat()
        part_bytes = max(self._part_bytes, -(-stat.st_size // _PARTS_MAX))
        answer = self._client.create_multipart_upload(Bucket=self._bucket, Key=name, ChecksumAlgorithm="SHA256")
        return Upload(answer["UploadId"], part_bytes, stat.st_size, stat.st_mtime_ns)

    def _resumed(self, record: Path, source: Path) -> Upload | None:
        upload, stat = self._read(record), source.stat()
        if upload is None or (upload.file_bytes, upload.changed_ns) != (stat.st_size, stat.st_mtime_ns):
            return None
        return upload

    def _sent(self, name: str, upload: Upload) -> dict[int, Mapping[str, Any]]:
        pages = self._client.get_paginator("list_parts").paginate(
            Bucket=self._bucket, Key=name, UploadId=upload.upload_id
        )
        return {part["PartNumber"]: part for page in pages for part in page.get("Parts", ())}

    def _complete(
        self,
        name: str,
        source: Path,
        upload: Upload,
        sent: Mapping[int, Mapping[str, Any]],
        conditions: Mapping[str, str],
    ) -> None:
        numbers = range(1, -(-upload.file_bytes // upload.part_bytes) + 1)
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="upload") as threads:
            parts = list(threads.map(lambda number: self._part(name, source, upload, number, sent), numbers))
        self._client.complete_multipart_upload(
            Bucket=self._bucket, Key=name, UploadId=upload.upload_id, MultipartUpload={"Parts": parts}, **conditions
        )

    def _part(
        self, name: str, source: Path, upload: Upload, number: int, sent: Mapping[int, Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Send one part unless it is there with the same content; return how it is named when completing."""
        with source.open("rb") as stream:
            stream.seek((number - 1) * upload.part_bytes)
            data = stream.read(upload.part_bytes)
        digest, there = sha256_base64(data), sent.get(number)
        if there is None or not _same(there, digest, data):
            there = self._client.upload_part(
                Bucket=self._bucket,
                Key=name,
                UploadId=upload.upload_id,
                PartNumber=number,
                Body=data,
                ChecksumSHA256=digest,
            )
        # Servers that do not keep sha256 digests refuse to be told about them.
        checked = {"ChecksumSHA256": there["ChecksumSHA256"]} if "ChecksumSHA256" in there else {}
        return {"PartNumber": number, "ETag": there["ETag"], **checked}

    def _record(self, name: str) -> Path:
        return self._records / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def _read(self, record: Path) -> Upload | None:
        try:
            return Upload(**read_json(record.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            return None  # cut off while it was written: the upload was not yet begun

    def _write(self, record: Path, upload: Upload) -> None:
        self._records.mkdir(parents=True, exist_ok=True)
        write_whole(record, json.dumps(asdict(upload)), sync=True)


def _same(there: Mapping[str, Any], digest: str, data: bytes) -> bool:
    """Return whether a part in the bucket holds ``data``: by its sha256, or by the md5 that its tag is without one."""
    if there.get("Size") != len(data):
        return False
    if "ChecksumSHA256" in there:
        return bool(there["ChecksumSHA256"] == digest)
    return str(there["ETag"]).strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()


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
