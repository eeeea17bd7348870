"""The elements of one huge JSON array, one at a time; a damaged element costs itself, not its neighbours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from jobs.corpus.findings import Kind
from jobs.corpus.read.lenient_json import DECODER, wants_more

_CHUNK_CHARACTERS = 1 << 16
# How many different beginnings of records are remembered.
_FIRST_KEYS = 16
_BETWEEN = re.compile(r"[\s,]*")
_FIRST_KEY = re.compile(r'\{\s*("(?:[^"\\]|\\.){0,200}")\s*:')
# The beginning of a record may be cut by the end of the buffer; this much of it is kept.
_OVERLAP_CHARACTERS = 1024


class TextStream(Protocol):
    """What elements are read from: about `size` characters at a time, an empty string at the end."""

    def read(self, size: int, /) -> str:
        """Read on."""
        ...


@dataclass(frozen=True, slots=True)
class Damage:
    """An element (or the end of the array) that could not be read."""

    kind: Kind
    detail: str


class ArrayReader:
    """Iterates over (number of the element, its value or the damage); holds about one element in memory."""

    def __init__(self, stream: TextStream, max_record_characters: int) -> None:
        self._stream = stream
        self._limit = max_record_characters
        self._buffer = ""
        self._position = 0
        self._first_keys: set[str] = set()

    def __iter__(self) -> Iterator[tuple[int, Any | Damage]]:
        self._fill()
        self._position = self._buffer.find("[") + 1
        number = 0
        while self._skip_space():
            number += 1
            if self._buffer[self._position] == "]":
                self._position += 1
                if not self._skip_space():
                    return
                detail = "the array ends, but the file goes on; going on at the next record"
                value: Any | Damage = Damage(Kind.BAD_JSON, detail)
            else:
                value = self._element()
                # Past the beginning of a damaged record, else it would be found as the next one.
                self._position += isinstance(value, Damage)
            yield number, value
            if isinstance(value, Damage) and not self._resume():
                return
        yield number + 1, Damage(Kind.HALF_LINE, "the array is not closed")

    def _element(self) -> Any | Damage:
        while True:
            try:
                value, end = DECODER.raw_decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if not wants_more(error, len(self._buffer)):
                    return Damage(Kind.BAD_JSON, f"{error.msg}; going on at the next record")
                if len(self._buffer) - self._position >= self._limit:
                    return Damage(Kind.OVERSIZED, f"over {self._limit} characters; left out")
                if not self._fill():
                    return Damage(Kind.HALF_LINE, f"{error.msg}; the file ends inside the record")
            except RecursionError:
                return Damage(Kind.TOO_DEEP, "nested too deeply to read")
            except ValueError as error:
                return Damage(Kind.BAD_JSON, str(error))
            else:
                # A number at the end of the buffer may go on in the next chunk.
                if end < len(self._buffer) or not self._fill():
                    found = _FIRST_KEY.match(self._buffer, self._position)
                    if found and len(self._first_keys) < _FIRST_KEYS:
                        self._first_keys.add(found[1])
                    self._position = end
                    return value

    def _resume(self) -> bool:
        """Move to the beginning of the next record; False if there is none.

        Exports write all records alike, so the next one begins with a key that good ones began with.
        """
        keys = "|".join(map(re.escape, sorted(self._first_keys)))
        beginning = re.compile(rf"\{{\s*(?:{keys})\s*:" if keys else r"\{")
        while (found := beginning.search(self._buffer, self._position)) is None:
            self._position = max(self._position, len(self._buffer) - _OVERLAP_CHARACTERS)
            if not self._fill():
                return False
        self._position = found.start()
        return True

    def _skip_space(self) -> bool:
        """Move to the next character that is neither space nor comma; False at the end of the file."""
        while True:
            if found := _BETWEEN.match(self._buffer, self._position):
                self._position = found.end()
            if self._position < len(self._buffer):
                return True
            if not self._fill():
                return False

    def _fill(self) -> bool:
        """Drop what is behind us and read on; doubling keeps repeated attempts at one record linear."""
        rest = self._buffer[self._position :]
        more = self._stream.read(max(_CHUNK_CHARACTERS, len(rest)))
        if more:
            self._buffer, self._position = rest + more, 0
        return bool(more)
