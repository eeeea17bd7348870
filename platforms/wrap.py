"""Wrappers around a platform with the same interface: timeouts, call events, redaction, lazy creation.

Wrappers never retry: the platform's client retries reads, as it knows how long to wait, and the next cycle reads again.
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
RecordEvent = Callable[[str, Mapping[str, object]], None]  # takes the event's name and its fields

# These calls may move much data, or wait until it is ready. Their timeout is longer by the factor.
_TRANSFERS = frozenset({"launch", "collect", "orphans", "sweep"})
_TRANSFER_FACTOR = 10


def in_background(name: str, work: Callable[[], _Answer]) -> Future[_Answer]:
    """Run ``work`` in a daemon thread of this ``name``; return the future of its result or exception."""
    future: Future[_Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _forwarder(action: str) -> Any:
    """Return the method ``action`` of the interface, which passes its call to ``_call``."""

    def method(self: "Wrapper", *arguments: Any, **options: Any) -> Any:
        return self._call(action, partial(getattr(self._inner, action), *arguments, **options))

    return method


class Wrapper:
    """Passes every call to ``_call``, which a subclass may override. Platform and Extends describe the methods."""

    launch, find, stop, read_quota = map(_forwarder, ("launch", "find", "stop", "read_quota"))
    collect, orphans, sweep, extend = map(_forwarder, ("collect", "orphans", "sweep", "extend"))

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
        """Make one call of the interface, named ``action``, and return its answer; a subclass may add to this."""
        del action
        return call()


class Guarded(Wrapper):
    """Limits every call to ``seconds`` of real time, or ten times that if it moves data; then raises Unreachable.

    A hung call cannot be ended, so it stays in its thread. While ``hung_max`` calls hang, further calls raise at once
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
        note: RecordEvent,
        seconds: float = 60.0,
        hung_max: int = 8,
        redact: Callable[[str], str] = str,
    ) -> None:
        super().__init__(inner, platform)
        self._stopwatch = stopwatch
        self._note = note
        self._seconds = seconds
        self._call_slots = threading.BoundedSemaphore(hung_max)
        self._redact = redact

    def _clean(self, answer: Any) -> Any:
        if isinstance(answer, Observed):
            return replace(answer, detail=self._redact(answer.detail))
        if isinstance(answer, Mapping):
            return {key: self._clean(value) for key, value in answer.items()}
        return [self._clean(value) for value in answer] if isinstance(answer, list | tuple) else answer

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
        if not self._call_slots.acquire(blocking=False):
            raise Unreachable(self._platform, action, "too many calls hang", "Restart the daemon if this persists")

        def work() -> Any:
            try:
                return call()
            finally:
                self._call_slots.release()

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
        self._lock = threading.Lock()
        self._adapter: Platform | None = None
        self._adapter_mark = ""

    @property
    def _inner(self) -> Platform:
        """The adapter for the current files. Raises Misconfigured."""
        with self._lock:
            return self._newest(reload=False)[0]

    @property
    def capabilities(self) -> Capabilities:
        """The platform's features; the previous ones, or none, while it cannot be used or is being created."""
        if self._adapter is None and self._lock.acquire(blocking=False):
            try:
                self._newest(reload=False)
            except PlatformError:
                return Capabilities()
            finally:
                self._lock.release()
        return Capabilities() if self._adapter is None else self._adapter.capabilities

    def open(self, *, reload: bool = False) -> str:
        """Create the adapter if there is none, if its files changed, or with ``reload``; its caches start empty.

        Returns the mark that belongs to the adapter. Raises PlatformError while it cannot be created.
        """
        with self._lock:
            return self._newest(reload=reload)[1]

    def _newest(self, *, reload: bool) -> tuple[Platform, str]:
        """Return the adapter and its mark. The caller holds the lock."""
        mark = self._mark()
        if self._adapter is None or reload or mark != self._adapter_mark:
            # If creation fails with the new files, the old adapter is not used any more: a person removed its files.
            self._adapter_mark = ""
            try:
                self._adapter = self._make()
            except PlatformError:
                raise
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                raise Misconfigured(self._platform, "load", why, "See: schedctl doctor") from error
            self._adapter_mark = mark
        return self._adapter, mark
