"""Bytes to text. UTF-8 is tried first, then what the file declares, then cp1252 or latin-1; UTF-16 needs its mark."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
NOT_UTF8, BROKEN_ENCODING = "not_utf8", "broken_encoding"
_LINE_REST_BYTES = 1 << 16


class RecordFault(NamedTuple):
    """What is wrong with text or a record: a constant, here or of the reader, and a description."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, its encoding, and the number of undecodable sequences replaced by U+FFFD."""

    text: str
    encoding: str
    replaced: int = 0

    @property
    def faults(self) -> tuple[RecordFault, ...]:
        """What is wrong with it, if anything."""
        if self.replaced:
            return (RecordFault(BROKEN_ENCODING, f"{self.replaced} broken sequences replaced"),)
        return () if self.encoding.startswith("utf-8") else (RecordFault(NOT_UTF8, f"read as {self.encoding}"),)


def decode(data: bytes, declared: str | None = None) -> Decoded:
    """Decode `data`; never fails, because latin-1 decodes anything.

    Bytes that are not UTF-8 are either damaged UTF-8 (the damage is replaced) or an old eight-bit encoding (every
    non-ASCII byte is a character). The one that explains more of the non-ASCII bytes is used.
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
    except ValueError:  # UnicodeError is a subclass; some encodings raise others
        return None


class Utf16AsUtf8(io.RawIOBase):
    """A UTF-16 file with byte order mark as a UTF-8 stream; `replaced` counts broken characters so far."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.replaced = 0
        self._read = read
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""
        self._ended = False

    def readable(self) -> bool:
        """Return True, for BufferedReader."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` from the next piece of the file."""
        target = memoryview(buffer).cast("B")
        while not self._ready and not self._ended:
            data = self._read(io.DEFAULT_BUFFER_SIZE)
            self._ended = not data
            text = self._decoder.decode(data, final=self._ended)
            self.replaced += text.count("\ufffd")
            self._ready = text.encode("utf-8")
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def read_block(file: io.BufferedReader, size: int) -> bytes:
    """Return about `size` bytes, up to a line end if one is near, never inside a UTF-8 sequence."""
    data = file.read(size)
    if not data.endswith(b"\n"):
        data += file.readline(_LINE_REST_BYTES)
    while data and not data.endswith(b"\n") and (ahead := file.peek(1)[:1]) and 0x80 <= ahead[0] < 0xC0:
        data += file.read(1)
    return data
