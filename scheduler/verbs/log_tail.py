"""Read the end of a session's output in pieces, cache it, and remove terminal control characters."""

import re
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Thread

from platforms.base import PlatformError
from scheduler.clock import stopwatch
from scheduler.core.run import Ended
from scheduler.store import runs
from scheduler.verbs.source import Source

_KEPT_BYTES = 256 << 10  # the end of each log that is cached
_PIECE_BYTES = 1 << 20  # of one call of the platform
_READ_MAX_BYTES = 16 << 20  # of one request; a longer log is read over several requests
_TAILS_MAX = 32  # logs in the cache
_LOOK_AGAIN_SECONDS = 1.5  # between two reads of the same log
_TERMINAL_COMMAND = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?)")


@dataclass(frozen=True, slots=True)
class Log:
    """Output of a session from byte ``offset`` on. The request for what follows has ``after`` = ``next``.

    ``cut``: earlier text is left out. ``ended``: the log is complete. ``why``: why the log cannot be read, or empty.
    """

    key: str
    offset: int
    next: int
    text: str
    cut: bool
    ended: bool
    why: str


@dataclass(frozen=True, slots=True)
class _TailState:
    """The last bytes of one log, from byte ``base`` on. ``whole``: the session has ended and everything was read."""

    base: int = 0
    data: bytes = b""
    whole: bool = False
    why: str = ""

    @property
    def end(self) -> int:
        """The offset after the last byte read."""
        return self.base + len(self.data)


@dataclass(slots=True)
class _Tail:
    """The cached state of one log. One thread at a time reads it and replaces ``state``; ``read`` is set when idle."""

    state: _TailState = field(default_factory=_TailState)
    read: Event = field(default_factory=Event)
    read_at: float | None = None


class LogTails:
    """A cache of recently requested tails. Each log is read by one thread, at most every 1.5 seconds."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tails: OrderedDict[str, _Tail] = OrderedDict()
        self._lock = Lock()
        self._redact = source.app.redact

    def read(self, key: str, after: int = 0, patience_seconds: float = 5.0) -> Log:
        """Return the output of a run from the line that contains byte ``after``. Raises UnknownRun.

        While the session runs, only complete lines are returned, because half a secret would not be recognised.
        If the platform does not answer within ``patience_seconds``, reading goes on in the background.
        """
        with self._source.read() as tx:
            run = runs.get(tx, key)
        with self._lock:
            tail = self._tails.setdefault(key, _Tail())
            self._tails.move_to_end(key)
            while len(self._tails) > _TAILS_MAX:
                self._tails.popitem(last=False)
            at = stopwatch()
            first = tail.read_at is None
            idle = first or tail.read.is_set()
            if idle and not tail.state.whole and (first or at - (tail.read_at or 0.0) >= _LOOK_AGAIN_SECONDS):
                tail.read_at = at
                tail.read.clear()
                # The run was read before its log, so that output printed just before its end is not missed.
                words = (tail, run.pool, key, isinstance(run.state, Ended))
                Thread(target=self._read_on, args=words, daemon=True).start()
        answered = tail.read.wait(patience_seconds)
        return self._answer(tail.state, key, after, answered=answered)

    def _read_on(self, tail: _Tail, pool: str, key: str, ended: bool) -> None:  # noqa: FBT001 - a thread's argument
        """Read new output of a log into ``tail``; an error of the platform becomes the reason in its state."""
        try:
            if pool not in self._source.pools:
                tail.state = replace(tail.state, why=f"{pool} is no longer configured")
                return
            platform = self._source.app.platforms[pool]
            read, over = 0, False
            while read < _READ_MAX_BYTES and not over:
                state = tail.state
                fresh = b"".join(platform.logs(key, state.end, _PIECE_BYTES))
                kept = (state.data + fresh)[-_KEPT_BYTES:]
                over = len(fresh) < _PIECE_BYTES
                tail.state = _TailState(state.end + len(fresh) - len(kept), kept, whole=ended and over)
                read += len(fresh)
        except (PlatformError, OSError) as error:
            tail.state = replace(tail.state, why=str(error))
        finally:
            tail.read.set()

    def _answer(self, state: _TailState, key: str, after: int, *, answered: bool) -> Log:
        end = state.end if state.whole else state.base + state.data.rfind(b"\n") + 1
        # A tail that was cut starts in the middle of a line, and that line is not shown.
        first = state.base if state.base == 0 else state.base + (state.data.find(b"\n") + 1 or len(state.data))
        start = first if after > state.end else max(first, min(after, end))
        if start < state.end:  # readers may ask for any byte; they get its line from the beginning
            start = max(first, state.base + state.data.rfind(b"\n", 0, start - state.base) + 1)
        part = state.data[start - state.base : max(start, end) - state.base]
        return Log(
            key=key,
            offset=start,
            next=start + len(part),
            text=self._redact(printable(part.decode("utf-8", "replace"))),
            cut=start > after,
            ended=state.whole,
            why=state.why or ("" if answered else "the platform has not answered yet"),
        )


def printable(text: str) -> str:
    """Return lines without terminal escape sequences, control characters and bidirectional marks.

    A line that overwrites itself, such as a progress bar, is shown in its last state.
    """
    text = _TERMINAL_COMMAND.sub("", text.replace("\r\n", "\n"))
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join("".join(c for c in line if c == "\t" or c.isprintable()) for line in lines)
