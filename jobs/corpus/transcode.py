"""UTF-16 files as UTF-8, so that everything after it deals with one kind of file."""

from __future__ import annotations

import codecs
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


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
