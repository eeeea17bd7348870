"""Secrets: which settings hold one, and how text is cleaned of them.

The daemon's credentials come from files and the environment, not from settings; but a database address may
carry a password, and people put tokens where they should not.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK = "[secret]"
# Shorter values are words: hiding them would blacken every line and protect nothing.
LENGTH_MIN = 6

_SECRET_NAME = re.compile(r"(password|passwd|secret|token|credential|api_?key|access_?key|private_?key)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?P<before>[a-zA-Z][\w+.-]*://[^/\s:@]*:)(?P<password>[^@/\s]+)(?=@)")


class Redactor:
    """Replaces secrets in text, also where they were encoded for a URL, for JSON or with base64."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= LENGTH_MIN for form in _forms(secret)}
        # Longest first, so that no secret survives inside a longer one.
        words = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, words))) if words else None

    def __call__(self, text: str) -> str:
        """Return ``text`` with every secret replaced by ``[secret]``."""
        return text if self._pattern is None else self._pattern.sub(MARK, text)


def is_secret(key: str) -> bool:
    """Return whether a setting's dotted key may hold a secret."""
    return key == "database_url" or _SECRET_NAME.search(key.rpartition(".")[2]) is not None


def hidden(key: str, text: str) -> str:
    """Return what may be shown of a secret setting: a database address without its password, else nothing."""
    return _ADDRESS.sub(rf"\g<before>{MARK}", text) if key == "database_url" else MARK


def passwords(address: str) -> list[str]:
    """Return the passwords inside an address, as written and decoded."""
    found = [match["password"] for match in _ADDRESS.finditer(address)]
    return sorted({*found, *map(unquote, found)})


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield quote(secret, safe="")
    yield quote(secret)
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield repr(secret)[1:-1]
    raw = secret.encode()
    # Inside a longer base64 text the secret may begin at any of three places of a group; the characters that
    # also depend on its neighbours are left out.
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode()
        whole = encoded[(0, 2, 3)[before] : (before + len(raw)) * 8 // 6]
        if len(whole) >= LENGTH_MIN:
            yield whole
            yield whole.replace("+", "-").replace("/", "_")
