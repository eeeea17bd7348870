"""Finds secrets in a database address.

An address is a URL ``scheme://user:password@host/name?sslpassword=...``, whose password may contain characters that
should be encoded, or libpq's list of ``name=value``. Any other text counts as a secret as a whole.
"""

import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus

from config.secret import is_secret
from jobs.payload.redact import MARK

# The text that may follow the "@" after a password: hosts, the database's name, well-formed parameters.
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[\w.,:%-]*)(/[^@?]*)?(\?([^=&?@]+=[^&@]*(&|$))*)?", re.ASCII)
_PARAMETER = re.compile(r"(?=[?&;]([^=&?;]+)=([^&]*))")
_WORD = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)(?:[^\s\\]|\\.)*|)(?=\s|$)", re.DOTALL)
_URL = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")  # a password in the list may contain "://" as well
_PIECES = re.compile(r"[@/:?#&=\s]")


def shown_address(address: str) -> str:
    """Return an address with its secrets replaced, for display."""
    text, end = "", 0
    for first, last in _spans(address):
        if first >= end:
            text += address[end:first] + MARK
        end = max(end, last)
    return text + address[end:]


def hidden(key: str, text: str) -> str:
    """Return a secret setting for display: a database address without its secrets, or only a mark."""
    return shown_address(text) if key == "database_url" else MARK


def address_secrets(address: str) -> set[str]:
    """Return the secrets in an address: as written, decoded, and in pieces that error messages may contain."""
    secrets: set[str] = set()
    for first, last in _spans(address):
        written = address[first:last]
        bare = re.sub(r"\\(.)", r"\1", written.removeprefix("'").removesuffix("'"), flags=re.DOTALL)
        secrets |= {written, bare, unquote(written), unquote_plus(written)}
        # A library may treat an unencoded "@" as the end of the password and report the rest as an unknown host.
        secrets |= {piece for piece in _PIECES.split(written) if piece != written}
    return secrets - {""}


def password_file(address: str) -> str:
    """Return the password file that an address names; "" if it names none."""
    named = re.search(r"(?:^|[?&;\s])passfile\s*=\s*('(?:[^'\\]|\\.)*'|[^&;\s]*)", address)
    return unquote(named[1].strip("'")) if named else ""


def _spans(address: str) -> list[tuple[int, int]]:
    return sorted(_url_spans(address) if _URL.match(address) else _list_spans(address))


def _url_spans(address: str) -> Iterator[tuple[int, int]]:
    begin = address.index("://") + 3
    colon = address.find(":", begin)
    ends = [match.start() for match in re.finditer("@", address) if match.start() > colon]
    if colon >= 0 and ends and "/" not in address[begin:colon]:
        # If the rest is not a valid address, the password contains an "@" and ends at the last one.
        last = ends[0] if _PLACE.fullmatch(address, ends[0] + 1) else ends[-1]
        yield colon + 1, last
        begin = last
    for match in _PARAMETER.finditer(address, begin):
        if is_secret(unquote(match[1])):
            yield match.span(2)


def _list_spans(address: str) -> Iterator[tuple[int, int]]:
    place, spans = 0, []
    text = address.rstrip()
    while place < len(text):
        match = _WORD.match(text, place)
        if match is None:
            yield 0, len(address)
            return
        if is_secret(match[1]):
            spans.append(match.span(2))
        place = match.end()
    yield from spans
