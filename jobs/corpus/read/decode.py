"""Bytes to text: UTF-8 first, then what the file declares, then what Western systems used to write; and UTF-16."""

from __future__ import annotations

import codecs
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.corpus.findings import Kind

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# The notation of PEP 263, which editors understand in any kind of file.
_DECLARED = re.compile(rb"coding[:=][ \t]*([-\w.]+)")
# Tab, line ends and form feed are layout; the other control characters are noise or binary data.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BINARY_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, the encoding that worked, and how many undecodable sequences became U+FFFD."""

    text: str
    encoding: str
    replaced: int = 0

    @property
    def oddity(self) -> tuple[Kind, str] | None:
        """What there is to report about it."""
        if self.replaced:
            return Kind.BROKEN_ENCODING, f"{self.replaced} broken sequences replaced"
        if not self.encoding.startswith("utf-8"):
            return Kind.NOT_UTF8, f"read as {self.encoding}"
        return None


def declared_encoding(head: bytes) -> str | None:
    """The encoding named in the first two lines of a file, if Python knows it as a text encoding."""
    for line in head.split(b"\n", 2)[:2]:
        if match := _DECLARED.search(line):
            try:
                name = codecs.lookup(match[1].decode("ascii")).name
                b"".decode(name)
            except (LookupError, UnicodeError):
                return None
            return name
    return None


def decode(data: bytes, declared: str | None = None) -> Decoded:
    """Decode `data`; never fails, because latin-1 reads anything.

    Bytes that are not UTF-8 are either UTF-8 with damage (then the damage is replaced) or an old eight-bit
    encoding (then every non-ASCII byte is a character). Whichever explains more of the non-ASCII bytes wins.
    """
    if data.startswith(codecs.BOM_UTF8):
        tail = decode(data[len(codecs.BOM_UTF8) :], declared)
        return Decoded(tail.text, "utf-8-sig" if tail.encoding == "utf-8" else tail.encoding, tail.replaced)
    for encoding in ("utf-8", declared):
        if encoding and (text := _strictly(data, encoding)) is not None:
            return Decoded(text, encoding)
    lenient = data.decode("utf-8", errors="replace")
    replaced = lenient.count("\ufffd")
    good = sum(1 for character in lenient if character > "\x7f") - replaced
    if good >= replaced:
        return Decoded(lenient, "utf-8", replaced)
    if (text := _strictly(data, "cp1252")) is not None:
        return Decoded(text, "cp1252")
    return Decoded(data.decode("latin-1"), "latin-1")


def _strictly(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except ValueError:  # UnicodeError is one; some declared encodings raise others
        return None


def looks_binary(head: bytes) -> bool:
    """Whether the first kilobytes of a file are data rather than text."""
    controls = len(_CONTROL.findall(head.decode("latin-1")))
    return controls > _BINARY_SHARE * len(head)


def clean(text: str) -> tuple[str, int, int]:
    """Unify line ends, drop control characters, replace lone surrogates.

    Returns the text, the number of control characters dropped and of surrogates replaced.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    surrogates = 0
    if not text.isascii():
        text, surrogates = _SURROGATE.subn("\ufffd", text)
    text, controls = _CONTROL.subn("", text)
    return text, controls, surrogates


class Utf16AsUtf8(io.RawIOBase):
    """Reads a UTF-16 file with byte order mark; `replaced` counts broken characters met so far."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.replaced = 0
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""
        self._ended = False

    def readable(self) -> bool:
        """Say so to BufferedReader."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` as far as the next piece of the file goes."""
        target = memoryview(buffer).cast("B")
        while not self._ready and not self._ended:
            data = self._file.read(io.DEFAULT_BUFFER_SIZE)
            self._ended = not data
            text = self._decoder.decode(data, final=self._ended)
            self.replaced += text.count("\ufffd")
            self._ready = text.encode("utf-8")
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
