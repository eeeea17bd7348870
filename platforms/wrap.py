"""Wrappers that implement the platform port around another platform: deadline, rate limit, retry, notes.

Order, from the inside: the deadline bounds one call, the rate limit spaces calls, the retry repeats reads,
the notes see what came of it. Launches are never repeated here: a launch without an answer is the daemon's
to find again by key.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from platforms.base import PlatformError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from platforms.artifacts.base import BlobStore
    from platforms.base import LaunchRequest, Observed, Platform, QuotaReading

    Note = Callable[[str, Mapping[str, object]], None]  # event name and its fields

_Answer = TypeVar("_Answer")
_READS = frozenset({"find", "logs", "read_quota", "strays"})
_TRANSFERS = frozenset({"launch", "collect", "strays", "sweep"})  # may move much data, or wait for it to be ready:
_TRANSFER_FACTOR = 10  # they get this many times as long


class Wrapper(ABC):
    """Passes every call on through ``_call``, which a subclass overrides."""

    def __init__(self, inner: Platform, platform: str) -> None:
        self._inner = inner
        self._platform = platform
        self.capabilities = inner.capabilities

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """See Platform.launch."""
        return self._call("launch", partial(self._inner.launch, request, now))

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """See Platform.find."""
        return self._call("find", partial(self._inner.find, keys, now))

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """See Platform.stop."""
        self._call("stop", partial(self._inner.stop, key, now, force=force))

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """See Platform.logs. Everything is read before the first piece is handed on."""
        yield from self._call("logs", lambda: list(self._inner.logs(key, offset, limit_bytes)))

    def read_quota(self, now: int) -> Sequence[QuotaReading]:
        """See Platform.read_quota."""
        return self._call("read_quota", partial(self._inner.read_quota, now))

    def collect(self, key: str, into: BlobStore, now: int) -> None:
        """See Platform.collect."""
        self._call("collect", partial(self._inner.collect, key, into, now))

    def strays(self, known: Collection[str], now: int) -> Sequence[Observed]:
        """See Platform.strays."""
        return self._call("strays", partial(self._inner.strays, known, now))

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """See Platform.sweep."""
        return self._call("sweep", partial(self._inner.sweep, over, now))

    @abstractmethod
    def _call(self, action: str, call: Callable[[], _Answer]) -> _Answer:
        """Make one call of the port, named ``action``, in the wrapper's way."""


class Deadline(Wrapper):
    """Gives every call at most ``seconds`` of real time, ten times that where data move; then raises Unreachable.

    A hung call cannot be ended, only left behind in its thread. While ``hung_max`` of them hang, further
    calls raise at once instead of piling up.
    """

    def __init__(self, inner: Platform, platform: str, *, seconds: float, hung_max: int = 8) -> None:
        super().__init__(inner, platform)
        self._seconds = seconds
        self._seats = threading.BoundedSemaphore(hung_max)

    def _call(self, action: str, call: Callable[[], _Answer]) -> _Answer:
        if not self._seats.acquire(blocking=False):
            raise Unreachable(self._platform, action, "too many calls hang", "Restart the daemon if it stays so")
        answers: list[_Answer] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                answers.append(call())
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                errors.append(error)
            finally:
                self._seats.release()

        seconds = self._seconds * (_TRANSFER_FACTOR if action in _TRANSFERS else 1)
        worker = threading.Thread(target=work, name=f"{self._platform} {action}", daemon=True)
        worker.start()
        worker.join(seconds)
        if errors:
            raise errors[0]
        if not answers:
            raise Unreachable(self._platform, action, f"no answer within {seconds:g} s")
        return answers[0]


class RateLimit(Wrapper):
    """Lets calls begin at least ``interval_seconds`` of real time apart; callers wait for their turn."""

    def __init__(
        self,
        inner: Platform,
        platform: str,
        *,
        interval_seconds: float,
        stopwatch: Callable[[], float],
        pause: Callable[[float], object],
    ) -> None:
        super().__init__(inner, platform)
        self._interval_seconds = interval_seconds
        self._stopwatch = stopwatch
        self._pause = pause
        self._turn = threading.Lock()
        self._free_at = stopwatch()

    def _call(self, action: str, call: Callable[[], _Answer]) -> _Answer:
        del action
        with self._turn:
            present = self._stopwatch()
            begins = max(present, self._free_at)
            self._free_at = begins + self._interval_seconds
        if begins > present:
            self._pause(begins - present)
        return call()


class Retry(Wrapper):
    """Repeats a read that got no answer, up to ``tries`` times in all, with a pause that doubles each time.

    Only Unreachable is repeated, and only for find, logs, read_quota and strays.
    """

    def __init__(
        self,
        inner: Platform,
        platform: str,
        *,
        tries: int,
        pause_seconds: float,
        pause: Callable[[float], object],
    ) -> None:
        super().__init__(inner, platform)
        self._tries = tries
        self._pause_seconds = pause_seconds
        self._pause = pause

    def _call(self, action: str, call: Callable[[], _Answer]) -> _Answer:
        repeats = self._tries - 1 if action in _READS else 0
        for repeat in range(repeats):
            try:
                return call()
            except Unreachable:
                self._pause(self._pause_seconds * 2**repeat)
        return call()


class Noted(Wrapper):
    """Tells ``note`` what came of every call: event ``platform.call`` with platform, action, outcome, why, seconds."""

    def __init__(self, inner: Platform, platform: str, *, note: Note, stopwatch: Callable[[], float]) -> None:
        super().__init__(inner, platform)
        self._note = note
        self._stopwatch = stopwatch

    def _call(self, action: str, call: Callable[[], _Answer]) -> _Answer:
        began, outcome, why = self._stopwatch(), "ok", ""
        try:
            return call()
        except PlatformError as error:
            outcome, why = type(error).__name__.lower(), error.why
            raise
        except BaseException as error:
            outcome, why = "crashed", type(error).__name__
            raise
        finally:
            fields = {
                "platform": self._platform,
                "action": action,
                "outcome": outcome,
                "why": why,
                "seconds": round(self._stopwatch() - began, 6),
            }
            self._note("platform.call", fields)


def wrap(
    inner: Platform,
    platform: str,
    *,
    stopwatch: Callable[[], float],
    note: Note,
    deadline_seconds: float = 60.0,
    interval_seconds: float = 0.0,
    tries: int = 3,
    pause_seconds: float = 1.0,
) -> Platform:
    """Return ``inner`` under all four wrappers. ``stopwatch`` gives monotonic real seconds."""
    pause = threading.Event().wait
    bounded = Deadline(inner, platform, seconds=deadline_seconds)
    spaced = RateLimit(bounded, platform, interval_seconds=interval_seconds, stopwatch=stopwatch, pause=pause)
    repeated = Retry(spaced, platform, tries=tries, pause_seconds=pause_seconds, pause=pause)
    return Noted(repeated, platform, note=note, stopwatch=stopwatch)
