"""A bucket that outlives the emulator: what moto holds in memory is written to a folder as well.

A key is a path below the folder, so that what is left can be looked at with any tool, and read as a directory store.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from platforms.emulators.sagemaker.cloud import ACCOUNT

if TYPE_CHECKING:
    from pathlib import Path

_TEMPORARY = ".tmp-"


class KeptBucket:
    """The objects of ``bucket``, in moto's memory and below ``folder``; both change before a request is answered."""

    def __init__(self, bucket: str, folder: Path) -> None:
        self._bucket = bucket
        self._folder = folder
        self._turn = threading.Lock()

    def attach(self) -> None:
        """Give moto's empty bucket what an earlier emulator left in the folder; keep all further changes. Call once."""
        from moto.s3.models import s3_backends

        backend: Any = s3_backends[ACCOUNT]["aws"]
        put, delete = backend.put_object, backend.delete_object
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._folder.rglob("*")):
            if path.name.startswith(_TEMPORARY):
                path.unlink(missing_ok=True)
            elif path.is_file():
                put(self._bucket, path.relative_to(self._folder).as_posix(), path.read_bytes())

        def put_object(bucket_name: str, key_name: str, value: bytes, *words: Any, **options: Any) -> Any:
            if bucket_name != self._bucket:
                return put(bucket_name, key_name, value, *words, **options)
            with self._turn:
                self._write(key_name, value)
                return put(bucket_name, key_name, value, *words, **options)

        def delete_object(bucket_name: str, key_name: str, *words: Any, **options: Any) -> Any:
            if bucket_name != self._bucket:
                return delete(bucket_name, key_name, *words, **options)
            with self._turn:
                self._path(key_name).unlink(missing_ok=True)
                return delete(bucket_name, key_name, *words, **options)

        # Every way to make or remove an object ends in one of these two: PUT, signed forms, multipart, copies.
        backend.put_object, backend.delete_object = put_object, delete_object

    def _write(self, key: str, value: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{_TEMPORARY}{os.urandom(6).hex()}")
        temporary.write_bytes(value)
        temporary.replace(path)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not all(parts) or not {".", ".."}.isdisjoint(parts):
            raise ValueError(f"the key {key!r} cannot be a path")
        return self._folder.joinpath(*parts)
