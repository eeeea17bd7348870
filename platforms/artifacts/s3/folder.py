"""A folder of any bucket, brought to this machine: what a job names as an input ``s3://bucket/prefix``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs.inputs.folder import TreeError
from jobs.payload.store.listing import BadListing, Entry, encode_listing
from jobs.payload.store.tree import LIMITS, check_room
from platforms.artifacts.base import StoreError
from platforms.artifacts.s3.client import connect, translated
from platforms.artifacts.s3.transfer import download

_REGION = "us-east-1"  # a bucket of another region says so itself
_TELL_BYTES = 1 << 30


def fetch_folder(source: str, target: Path, tell: Callable[[str], None] = lambda _told: None) -> None:
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
    done = told = 0
    for entry in entries:
        place, key = target / entry.path, f"{prefix}{entry.path}"
        place.parent.mkdir(parents=True, exist_ok=True)
        with translated("fetch", f"s3://{bucket}/{key}", bucket), place.open("xb") as sink:
            download(client, bucket, key, entry.bytes, tags[entry], sink.fileno())
        done += entry.bytes
        if done - told >= _TELL_BYTES:
            told = done
            tell(f"fetched {done / 1e9:.1f} GB")


def _listed(client: Any, bucket: str, prefix: str) -> dict[Entry, str]:
    """Return the tags of what lies below a prefix; a key that ends in a slash stands for a folder and holds nothing."""
    found: dict[Entry, str] = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", ()):
            if not item["Key"].endswith("/"):
                entry = Entry(item["Key"].removeprefix(prefix), "file", "", item.get("Size", -1))
                found[entry] = item.get("ETag", "")
        if len(found) > LIMITS.files:
            break  # its listing is refused
    return found
