"""Read compressed files and UTF-16 files as streams of uncompressed UTF-8, in constant memory."""

import codecs
import io
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any, BinaryIO

from ..errors import MissingLibrary

# Modules are imported when they are needed: some builds of Python lack bz2 and lzma.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstandard"}
_EXTRAS = {"pyarrow": "parquet", "zstandard": "zstd"}  # by library: the extra of our own package that installs it
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BLOCK = 1 << 10  # compressed bytes; zstandard turns these into 32 MiB at most
_LINE_REST_BYTES = 1 << 16  # a block is extended to its line end if that is within these bytes


def decompressed(file: io.BufferedReader, name: str) -> io.BufferedReader:
    """Return a stream of a file's contents; reading damaged contents raises EOFError. Raises MissingLibrary."""
    suffix = next((suffix for suffix in COMPRESSED if name.lower().endswith(suffix)), None)
    return file if suffix is None else io.BufferedReader(_Contents(file, suffix, library(COMPRESSED[suffix], name)))


def library(module: str, name: str) -> Any:
    """Return a module that the file ``name`` needs. Raises MissingLibrary."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        extra = f" (on the scheduler's machine: its extra {_EXTRAS[package]})" if package in _EXTRAS else ""
        raise MissingLibrary(
            f"{name} cannot be read without {package}, which is not installed here: pip install {package}{extra}, or "
            "name it in the requirements of the job"
        ) from None


class _Contents(io.RawIOBase):
    """A stream of the uncompressed contents of a file."""

    def __init__(self, file: BinaryIO, suffix: str, module: Any) -> None:
        if suffix == ".zst":
            self._blocks = _frames(file, module)
        else:
            self._blocks = iter(partial(module.open(file, "rb").read1, io.DEFAULT_BUFFER_SIZE), b"")
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer`` and return the number of bytes, 0 at the end. Raises EOFError where the file is damaged."""
        try:
            self._rest = self._rest or memoryview(next((block for block in self._blocks if block), b""))
        except Exception as error:  # each library has its own errors for damaged data
            if getattr(error, "errno", None) is not None:  # an error of the disk, not of the data
                raise
            raise EOFError from None
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _frames(file: Any, zstandard: Any) -> Iterator[bytes]:
    """Yield the contents of zstandard frames. Raises EOFError if the last is cut off: the library ignores that."""
    frame, rest = None, b""
    while block := rest or file.read(_BLOCK):
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(block)
        frame, rest = (None, frame.unused_data) if frame.eof else (frame, b"")
    if frame is not None:
        raise EOFError


class Utf16AsUtf8(io.RawIOBase):
    """A UTF-16 file with byte order mark as a UTF-8 stream; `replaced` counts broken characters so far."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.replaced = 0
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""
        self._ended = False

    def readable(self) -> bool:
        """Return True: BufferedReader requires it."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` from the next piece of the file and return the number of bytes, 0 at the end."""
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


def is_utf16(file: io.BufferedReader) -> bool:
    """Return whether a file begins with a byte order mark of UTF-16."""
    return file.peek(2).startswith(_UTF16)


def read_block(file: io.BufferedReader, size: int) -> bytes:
    """Return about `size` bytes. They end at a line end if one is near, and never inside a UTF-8 sequence."""
    data = file.read(size)
    if not data.endswith(b"\n"):
        data += file.readline(_LINE_REST_BYTES)
    while data and not data.endswith(b"\n") and (ahead := file.peek(1)[:1]) and 0x80 <= ahead[0] < 0xC0:
        data += file.read(1)
    return data


def is_text(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8. Half of a character (a lone surrogate) cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
