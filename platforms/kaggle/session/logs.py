"""Kaggle's logs: JSON objects in an array when a session is over, as server-sent events while it runs."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_MARK = "##uff-scheduler##"
_END = "END_OF_LOG"
_LINE_CHARACTERS_MAX = 1 << 20
_SECONDS_MAX = 1e11


@dataclass(slots=True)
class SessionLog:
    """The payload's own output, freed of our marked lines and of what Kaggle adds after the end.

    ``session_id`` and ``hears`` are what the kernel reported of itself. ``began`` is when it started by its own clock
    (scheduled UTC seconds), ``ended_after`` the seconds from then to its last word. None: it did not tell.
    """

    session_id: int | None = None
    hears: bool | None = None
    began: float | None = None
    ended_after: float | None = None
    _over: bool = False
    _partial: dict[str, str] = field(default_factory=dict)

    def feed(self, entries: Iterable[Any]) -> Iterator[bytes]:
        """Take in log entries, oldest first; yield the payload's output."""
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("data"), str):
                continue
            stream, time = str(entry.get("stream_name")), entry.get("time")
            text = self._partial.pop(stream, "") + entry["data"]
            *lines, rest = text.split("\n")
            if rest:
                if len(rest) > _LINE_CHARACTERS_MAX:
                    lines, rest = [*lines, rest], ""
                else:
                    self._partial[stream] = rest
            for line in lines:
                yield from self._line(line, time)

    def rest(self) -> Iterator[bytes]:
        """Yield the beginnings of lines that were never ended."""
        for stream in sorted(self._partial):
            if not self._over and not self._partial[stream].startswith(_MARK):
                yield self._partial[stream].encode()

    def _line(self, line: str, time: Any) -> Iterator[bytes]:
        if self._over:
            return  # nbconvert's words
        if not line.startswith(_MARK):
            yield f"{line}\n".encode()
            return
        try:
            document = json.loads(line.removeprefix(_MARK))
        except (ValueError, RecursionError):
            return
        if not isinstance(document, dict):
            return
        if "begins" in document and self.session_id is None:
            match = re.search(r"(\d{1,18})$", str(document.get("container", "")), re.ASCII)
            self.session_id = int(match[1]) if match else None
            if (at := _seconds(document.get("at"))) is not None:
                self.began = at - (_seconds(time) or 0.0)
        elif "hears" in document and self.hears is None:
            self.hears = document["hears"] is True
        elif "ends" in document:
            self.ended_after, self._over = _seconds(time), True
        elif "trouble" in document:
            yield f"bootstrap: {document['trouble']}\n".encode()


def _seconds(value: Any) -> float | None:
    """Return a number of seconds that can be one; None for whatever else came."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _SECONDS_MAX:
        return None
    return float(value)


def entries_of(text: str | bytes) -> list[Any]:
    """Return the entries of a finished log; of one that was cut, those that are whole; of what is no JSON, nothing."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return list(_salvaged(text if isinstance(text, str) else text.decode(errors="replace")))
    return found if isinstance(found, list) else []


def _salvaged(text: str) -> Iterator[Any]:
    """Yield what can be read of a broken array: Kaggle begins a line with each entry."""
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            yield json.loads(line.strip().strip("[],"))


def entries_from(stream: Iterable[tuple[str, bytes]]) -> Iterator[list[Any]]:
    """Yield groups of entries from a log stream of either kind; ends with the log, or when the stream does."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = ""
    for kind, piece in stream:
        text += decoder.decode(piece)
        if "event-stream" not in kind:
            continue  # an array is read when it is whole
        *lines, text = text.split("\n")
        events = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        if _END in events:
            yield [entry for event in events[: events.index(_END)] for entry in entries_of(f"[{event}]")]
            return
        yield [entry for event in events for entry in entries_of(f"[{event}]")]
    yield entries_of(text)
