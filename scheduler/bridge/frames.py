"""Frames: four bytes of length, the most significant first, then so many bytes of a JSON object in UTF-8."""

from __future__ import annotations

import json
import math
import os
import select
from threading import Lock
from typing import Any

FRAME_MAX_BYTES = 64 << 20
_HEAD_BYTES = 4
_READ_BYTES = 1 << 16  # what a pipe holds
_LOOKS = 40  # about a tenth of a millisecond


class TooLong(Exception):
    """A frame is longer than any may be: where the next begins cannot be known any more."""


class Unreadable(Exception):
    """A frame holds no JSON object; the next one may."""


class FrameReader:
    """Reads frames from a descriptor.

    A program that asks one question after the other asks the next at once, and to sleep and be woken takes longer than
    an answer. So the reader polls a few times before it waits, and lets other threads run in between.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._held, self._at = b"", 0  # what was read, and where what was not yet returned begins

    def frame(self) -> bytes | None:
        """Return the next frame's bytes, None at the end of input, in the middle of a frame too. Raises TooLong."""
        head = self._take(_HEAD_BYTES)
        if head is None:
            return None
        size = int.from_bytes(head)
        if size > FRAME_MAX_BYTES:
            raise TooLong(f"a frame of {size} bytes was announced, {FRAME_MAX_BYTES} are the most. The connection ends")
        return self._take(size)

    def _take(self, count: int) -> bytes | None:
        length = len(self._held) - self._at
        if length < count:
            parts = [self._held[self._at :]]
            while length < count:
                part = self._read()
                if not part:
                    return None
                parts.append(part)
                length += len(part)
            self._held, self._at = b"".join(parts), 0
        self._at += count
        return self._held[self._at - count : self._at]

    def _read(self) -> bytes:
        for _ in range(_LOOKS):
            if self._poll.poll(0):
                break
            os.sched_yield()
        return os.read(self._descriptor, _READ_BYTES)


def object_of(body: bytes) -> dict[str, Any]:
    """Return the object that a frame holds. Raises Unreadable: no UTF-8, no JSON, NaN, half a surrogate, no object."""
    try:
        decoded = _DECODER.decode(body.decode())
        if b"\\u" in body:
            # Half a surrogate pair is no text: nothing else could write it.
            json.dumps(decoded, ensure_ascii=False).encode()
    except RecursionError:
        raise Unreadable("this frame is no JSON: it is nested too deeply") from None
    except UnicodeError:
        raise Unreadable("this frame is no JSON: its text is no UTF-8") from None
    except ValueError as error:
        raise Unreadable(f"this frame is no JSON: {str(error)[:200]}") from None
    if not isinstance(decoded, dict):
        raise Unreadable("this frame is JSON, but no object")
    return decoded


class Writer:
    """Writes frames to a descriptor, each whole, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()

    def write(self, body: bytes) -> None:
        """Write one frame, and wait for the reader as long as it takes. Raises OSError when it has gone, TooLong."""
        if len(body) > FRAME_MAX_BYTES:
            raise TooLong(f"an answer of {len(body)} bytes fits no frame: ask for less at a time")
        frame = len(body).to_bytes(_HEAD_BYTES) + body
        with self._lock:
            written = os.write(self._descriptor, frame)
            if written < len(frame):
                rest = memoryview(frame)[written:]
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _number(word: str) -> float:
    if math.isinf(number := float(word)):
        raise ValueError(f"{word[:50]} is beyond every number that an answer could hold")
    return number


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_no_number)
