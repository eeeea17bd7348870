"""What a key is, for every store alike."""

from __future__ import annotations

import re

from platforms.artifacts.base import StoreError

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,199}){0,15}", re.ASCII)


def check_key(action: str, key: str) -> None:
    """Raise StoreError unless ``key`` is a key."""
    if not _KEY.fullmatch(key):
        raise StoreError(action, repr(key), "a key is plain words of A-Z a-z 0-9 . _ - joined by '/'")


def check_prefix(prefix: str) -> None:
    """Raise StoreError unless ``prefix`` is one."""
    if prefix and not (prefix.endswith("/") and _KEY.fullmatch(prefix[:-1])):
        raise StoreError("list", prefix, "a prefix is empty, or a key followed by one '/'")


def is_key(key: str) -> bool:
    """Tell whether what somebody else may have put into the store has a name of ours."""
    return bool(_KEY.fullmatch(key))
