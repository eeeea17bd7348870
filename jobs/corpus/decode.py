"""Bytes to text: UTF-8 first, then what the file declares, then what Western systems used to write."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# The notation of PEP 263, which editors understand in any kind of file.
_DECLARED = re.compile(rb"coding[:=][ \t]*([-\w.]+)")
# Tab, newline, form feed and carriage return are layout; the other control characters are noise or binary data.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BINARY_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, the encoding that worked, and how many undecodable sequences became U+FFFD."""

    text: str
    encoding: str
    replaced: int = 0


def declared_encoding(head: bytes) -> str | None:
    """The encoding named in the first two lines of a file, if Python knows it as a text encoding."""
    for line in head.split(b"\n", 2)[:2]:
        if found := _DECLARED.search(line):
            try:
                name = codecs.lookup(found[1].decode("ascii")).name
                b"".decode(name)
            except (LookupError, UnicodeError):
                return None
            return name
    return None


def decode(data: bytes, declared: str | None = None) -> Decoded:
    """Decode `data`; never fails, because latin-1 reads anything.

    Bytes that are not UTF-8 are either UTF-8 with damage (then the damage is replaced) or an old eight-bit
    encoding (then every non-ASCII byte is a letter). Whichever explains more of the non-ASCII bytes wins.
    """
    if data.startswith(codecs.BOM_UTF8):
        tail = decode(data[len(codecs.BOM_UTF8) :], declared)
        return Decoded(tail.text, "utf-8-sig" if tail.encoding == "utf-8" else tail.encoding, tail.replaced)
    try:
        return Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        pass  # an ordinary case: the encodings below are tried in turn
    if declared and declared != "utf-8":
        try:
            return Decoded(data.decode(declared), declared)
        except (UnicodeError, ValueError):
            pass  # the declaration is wrong; go on as if there were none
    mended = data.decode("utf-8", errors="replace")
    replaced = mended.count("\ufffd")
    good = sum(1 for character in mended if character > "\x7f") - replaced
    if good >= replaced:
        return Decoded(mended, "utf-8", replaced)
    try:
        return Decoded(data.decode("cp1252"), "cp1252")
    except UnicodeDecodeError:
        return Decoded(data.decode("latin-1"), "latin-1")


def looks_binary(head: bytes) -> bool:
    """Whether the first kilobytes of a file are data rather than text (UTF-16 with its mark is text)."""
    if head.startswith(UTF16_MARKS):
        return False
    controls = len(_CONTROL.findall(head.decode("latin-1")))
    return controls > _BINARY_SHARE * len(head)


def clean(text: str) -> tuple[str, int, int]:
    """Unify line ends, drop control characters, replace lone surrogates.

    Returns the text, the number of control characters dropped and of surrogates replaced.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    controls = surrogates = 0
    # ASCII text can hold no surrogate, and the search for both is the slow part of reading.
    if not text.isascii():
        text, surrogates = _SURROGATE.subn("\ufffd", text)
    text, controls = _CONTROL.subn("", text)
    return text, controls, surrogates
