"""Background tasks: slow work that outlasts the patience of whoever asked; of each name at most one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Found = TypeVar("_Found")


class Unfinished(Exception):
    """The task goes on; ``told`` says how far it has come. Ask again later."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told


@dataclass
class _Task(Generic[_Found]):
    told: str = "just begun"
    over: threading.Event = field(default_factory=threading.Event)
    found: list[_Found] = field(default_factory=list)
    error: BaseException | None = None


class BackgroundTasks(Generic[_Found]):
    """The tasks of one adapter, which any thread may ask for. What they do must be safe to cut short and repeat."""

    def __init__(self) -> None:
        self._running: dict[str, _Task[_Found]] = {}
        self._turn = threading.Lock()

    def run(self, name: str, work: Callable[[Callable[[str], None]], _Found], patience_seconds: float) -> _Found:
        """Return what ``work`` returns, or raise what it raises, once it is over; joins an task of that name.

        ``work`` is handed a function that it tells how far it has come. Raises Unfinished when ``patience_seconds``
        (real) pass before.
        """
        with self._turn:
            task = self._running.get(name)
            if task is None:
                task = self._running[name] = _Task()
                threading.Thread(target=self._work, args=(task, work), name=f"task {name}", daemon=True).start()
        if not task.over.wait(max(0.0, patience_seconds)):
            raise Unfinished(task.told)
        with self._turn:
            if self._running.get(name) is task:
                del self._running[name]
        if task.error is not None:
            raise task.error
        return task.found[0]

    @staticmethod
    def _work(task: _Task[_Found], work: Callable[[Callable[[str], None]], _Found]) -> None:
        def tell(told: str) -> None:
            task.told = told

        try:
            task.found.append(work(tell))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread of whoever asks
            task.error = error
        finally:
            task.over.set()
