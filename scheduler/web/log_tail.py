"""Log tail: the end of what sessions printed, read on from where it was left. Nothing in it steers a screen."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from config.describe import secrets
from config.secret import Redactor
from platforms.base import PlatformError
from scheduler.clock import stopwatch
from scheduler.core.run import Ended
from scheduler.store import runs
from scheduler.web.shapes import Log

if TYPE_CHECKING:
    from platforms.base import Platform
    from scheduler.web.source import Source

_KEPT_BYTES = 256 << 10
_PIECE_BYTES = 1 << 20
_READ_MAX_BYTES = 16 << 20  # per request: a long log is caught up with over several
_TAILS_MAX = 32
_LOOK_AGAIN_SECONDS = 1.5
_TERMINAL_COMMAND = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?)")


@dataclass(slots=True)
class _Tail:
    """The last bytes of one log: ``data`` begins at byte ``base``."""

    lock: Lock = field(default_factory=Lock)
    base: int = 0
    data: bytes = b""
    read_at: float | None = None
    whole: bool = False  # the session has ended and everything was read
    why: str = ""


class LogTails:
    """The tails that were asked for lately. Platforms are asked at most every second and a half."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._platforms: dict[str, Platform] = {}
        self._tails: OrderedDict[str, _Tail] = OrderedDict()
        self._lock = Lock()
        self._redact = Redactor(secrets(source.app.settings))

    def read(self, key: str, after: int = 0) -> Log:
        """Return what a run printed from byte ``after`` on, whole lines as long as it goes on. Raises UnknownRun."""
        with self._source.read() as tx:
            run = runs.get(tx, key)
        ended = isinstance(run.state, Ended)
        with self._lock:
            tail = self._tails.setdefault(key, _Tail())
            self._tails.move_to_end(key)
            while len(self._tails) > _TAILS_MAX:
                self._tails.popitem(last=False)
        with tail.lock:
            at = stopwatch()
            if not tail.whole and (tail.read_at is None or at - tail.read_at >= _LOOK_AGAIN_SECONDS):
                tail.read_at = at
                self._read_on(tail, run.pool, key, ended=ended)
            return self._answer(tail, key, after)

    def _read_on(self, tail: _Tail, pool: str, key: str, *, ended: bool) -> None:
        if pool not in self._source.pools:
            tail.why = f"{pool} is no longer configured"
            return
        try:
            platform = self._platforms.get(pool)
            if platform is None:
                platform = self._platforms[pool] = self._source.app.platform(pool)
            taken = 0
            while taken < _READ_MAX_BYTES:
                end = tail.base + len(tail.data)
                fresh = b"".join(platform.logs(key, end, _PIECE_BYTES))
                kept = (tail.data + fresh)[-_KEPT_BYTES:]
                tail.base, tail.data = end + len(fresh) - len(kept), kept
                taken += len(fresh)
                if len(fresh) < _PIECE_BYTES:
                    # The state was read before the log: what is printed before a session ends is never missed.
                    tail.whole = ended
                    break
            tail.why = ""
        except (PlatformError, OSError) as error:
            tail.why = str(error)

    def _answer(self, tail: _Tail, key: str, after: int) -> Log:
        start = max(tail.base, after) if after <= tail.base + len(tail.data) else tail.base
        found = tail.data[start - tail.base :]
        if not tail.whole:
            found = found[: found.rfind(b"\n") + 1]
        if start == tail.base > 0:
            # Cut in the middle of a line: it is not shown.
            skipped = found.find(b"\n") + 1
            start, found = start + skipped, found[skipped:]
        return Log(
            key=key,
            offset=start,
            next=start + len(found),
            text=printable(self._redact(found.decode("utf-8", "replace"))),
            cut=start > after,
            ended=tail.whole,
            why=tail.why,
        )


def printable(text: str) -> str:
    """Return lines without terminal commands, control characters and marks that turn the direction of writing.

    A line that overwrites itself, as progress bars do, is shown as it was last.
    """
    text = _TERMINAL_COMMAND.sub("", text.replace("\r\n", "\n"))
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join("".join(c for c in line if c == "\t" or c.isprintable()) for line in lines)
