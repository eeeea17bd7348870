"""One background thread, one task at a time, so that slow input and output never stops the event loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Worker:
    """Runs a task beside the event loop; ``wake`` is called, from the thread, when it has ended."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._then: Callable[[Any], None] | None = None
        self._result: Any = None
        self._ended = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether a task runs or its result was not collected yet."""
        return self._thread is not None

    def start(self, task: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run ``task``; ``then`` gets its value, or the exception it raised, in ``collect``."""
        self._ended.clear()
        self._then = then
        # A daemon thread: a store that hangs must not keep the session from ending.
        self._thread = threading.Thread(target=self._run, args=(task,), daemon=True)
        self._thread.start()

    def collect(self) -> None:
        """Hand over the result if the task has ended."""
        if self._thread is not None and self._then is not None and self._ended.is_set():
            self._thread.join()
            self._thread = None
            self._then(self._result)

    def _run(self, task: Callable[[], Any]) -> None:
        try:
            self._result = task()
        except Exception as error:  # noqa: BLE001 - handed to the loop, which knows what it means
            self._result = error
        self._ended.set()
        self._wake()
