"""Wrappers around a platform with the same interface: timeouts, call events, redaction, lazy creation.

They never retry: the platform's client retries reads, as it knows how long to wait, and then the next cycle does.
After a launch without an answer the daemon looks for the session by its key.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from platforms.base import Capabilities, Misconfigured, Observed, Platform, PlatformError, Unreachable

_Answer = TypeVar("_Answer")
Note = Callable[[str, Mapping[str, object]], None]  # event name and its fields

_TRANSFERS = frozenset({"launch", "collect", "orphans", "sweep"})  # may move much data, or wait until it is ready:
_TRANSFER_FACTOR = 10  # their timeout is this many times as long


def in_background(name: str, work: Callable[[], _Answer]) -> Future[_Answer]:
    """Run ``work`` in a daemon thread of this ``name``; return the future of its result or exception."""
    future: Future[_Answer] = Future()

    def settle() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            future.set_exception(error)

    threading.Thread(target=settle, name=name, daemon=True).start()
    return future


def _passed_on(action: str) -> Any:
    """Return a method of the interface that passes its call to ``_call``."""

    def method(self: "Wrapper", *words: Any, **more: Any) -> Any:
        return self._call(action, partial(getattr(self._inner, action), *words, **more))

    return method


class Wrapper:
    """Passes every call to ``_call``, which a subclass may override. See Platform and Extends for each."""

    launch, find, stop, read_quota = map(_passed_on, ("launch", "find", "stop", "read_quota"))
    collect, orphans, sweep, extend = map(_passed_on, ("collect", "orphans", "sweep", "extend"))

    def __init__(self, inner: Platform, platform: str) -> None:
        self._wrapped = inner
        self._platform = platform

    @property
    def _inner(self) -> Platform:
        """The wrapped platform."""
        return self._wrapped

    @property
    def capabilities(self) -> Capabilities:
        """See Platform.capabilities; not cached, because they may change."""
        return self._inner.capabilities

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """See Platform.logs. All pieces are read before the first is returned."""
        yield from self._call("logs", lambda: list(self._inner.logs(key, offset, limit_bytes)))

    def _call(self, action: str, call: Callable[[], Any]) -> Any:
        """Make one call of the interface, named ``action``, in the wrapper's way."""
        del action
        return call()


class Guarded(Wrapper):
    """Limits every call to ``seconds`` of real time, ten times that where data move; then raises Unreachable.

    A hung call cannot be ended, only left in its thread. While ``hung_max`` of them hang, further calls raise at once
    instead of piling up. Secrets are removed from the texts of errors and of the platform before these are shortened or
    stored. ``note`` gets the outcome of every call: event ``platform.call`` with platform, action, outcome, why,
    seconds. ``stopwatch`` returns monotonic real seconds.
    """

    def __init__(
        self,
        inner: Platform,
        platform: str,
        *,
        stopwatch: Callable[[], float],
        note: Note,
        seconds: float = 60.0,
        hung_max: int = 8,
        redact: Callable[[str], str] = str,
    ) -> None:
        super().__init__(inner, platform)
        self._stopwatch = stopwatch
        self._note = note
        self._seconds = seconds
        self._turns = threading.BoundedSemaphore(hung_max)
        self._redact = redact

    def _clean(self, answer: Any) -> Any:
        if isinstance(answer, Observed):
            return replace(answer, detail=self._redact(answer.detail))
        if isinstance(answer, Mapping):
            return {key: self._clean(one) for key, one in answer.items()}
        return [self._clean(one) for one in answer] if isinstance(answer, list | tuple) else answer

    def _call(self, action: str, call: Callable[[], Any]) -> Any:
        began, outcome, why = self._stopwatch(), "ok", ""
        try:
            return self._clean(self._bounded(action, call))
        except PlatformError as error:
            error.why = self._redact(error.why)
            error.args = tuple(self._redact(str(word)) for word in error.args)
            outcome, why = type(error).__name__.lower(), error.why
            raise
        except BaseException as error:
            outcome, why = "crashed", type(error).__name__
            raise
        finally:
            seconds = round(self._stopwatch() - began, 6)
            data = {"platform": self._platform, "action": action, "outcome": outcome, "why": why, "seconds": seconds}
            self._note("platform.call", data)

    def _bounded(self, action: str, call: Callable[[], Any]) -> Any:
        """Make a call in a separate thread and wait for it until its timeout."""
        if not self._turns.acquire(blocking=False):
            raise Unreachable(self._platform, action, "too many calls hang", "Restart the daemon if it stays so")

        def work() -> Any:
            try:
                return call()
            finally:
                self._turns.release()

        seconds = self._seconds * (_TRANSFER_FACTOR if action in _TRANSFERS else 1)
        answer = in_background(f"{self._platform} {action}", work)
        if wait([answer], seconds).not_done:
            raise Unreachable(self._platform, action, f"no answer within {seconds:g} s")
        return answer.result()


# A pool that cannot be used, because its credentials, a library or a folder are missing, does not affect the others,
# and a replaced token takes effect without a command. Until the adapter can be created, each call raises the error;
# like any call without an answer, it proves nothing about sessions.
class LatePlatform(Wrapper):
    """A platform that ``make`` creates; ``mark`` returns a text that changes when it must be created again.

    ``make`` raises PlatformError. Both must be quick and must not call the platform.
    """

    def __init__(self, platform: str, make: Callable[[], Platform], mark: Callable[[], str]) -> None:
        self._platform = platform
        self._make = make
        self._mark = mark
        self._turn = threading.Lock()
        self._adapter: Platform | None = None
        self._made_of = ""

    @property
    def _inner(self) -> Platform:
        """The adapter for the current files. Raises Misconfigured."""
        with self._turn:
            return self._newest(reload=False)[0]

    @property
    def capabilities(self) -> Capabilities:
        """The platform's features; those it had before, or none, while it cannot be used or is being created."""
        if self._adapter is None and self._turn.acquire(blocking=False):
            try:
                self._newest(reload=False)
            except PlatformError:
                return Capabilities()
            finally:
                self._turn.release()
        return Capabilities() if self._adapter is None else self._adapter.capabilities

    def open(self, *, reload: bool = False) -> str:
        """Create the adapter if there is none, if its files changed, or with ``reload``; its caches start empty.

        Returns the mark it was created with. Raises PlatformError while it cannot be created.
        """
        with self._turn:
            return self._newest(reload=reload)[1]

    def _newest(self, *, reload: bool) -> tuple[Platform, str]:
        """Return the adapter and its mark. The caller holds the lock."""
        mark = self._mark()
        if self._adapter is None or reload or mark != self._made_of:
            # If creation fails with the new files, the old adapter is not used any more: a person removed its files.
            self._made_of = ""
            try:
                self._adapter = self._make()
            except PlatformError:
                raise
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                raise Misconfigured(self._platform, "load", why, "See: schedctl doctor") from error
            self._made_of = mark
        return self._adapter, mark
