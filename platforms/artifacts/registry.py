"""The table of artifact stores: an explicit name for each, loaded only when the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import cast

from platforms.artifacts.base import BlobStore, StoreError

Loader = Callable[[Path, Mapping[str, str]], BlobStore]

# kind -> "module:function" with the signature Loader.
_LOADERS: Mapping[str, str] = {
    "directory": "platforms.artifacts.directory:load",
    "s3": "platforms.artifacts.s3.store:load",
}


def open_store(kind: str, root: Path, options: Mapping[str, str]) -> BlobStore:
    """Return the store of a kind; ``root`` is a folder of this machine that belongs to it.

    Raises StoreError for an unknown kind, a bad option or a missing library.
    """
    address = _LOADERS.get(kind)
    if address is None:
        raise StoreError("open", kind, "there is no such kind of store", f"Known kinds: {', '.join(sorted(_LOADERS))}")
    module, function = address.split(":")
    return cast("Loader", getattr(import_module(module), function))(root, options)
