"""Errands: slow work that goes on when whoever asked for it has stopped waiting; of each name at most one at a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Found = TypeVar("_Found")


class Unfinished(Exception):
    """The errand goes on; ``told`` says how far it has come. Ask again later."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told


@dataclass
class _Errand(Generic[_Found]):
    told: str = "just begun"
    over: threading.Event = field(default_factory=threading.Event)
    found: list[_Found] = field(default_factory=list)
    error: BaseException | None = None


class Errands(Generic[_Found]):
    """The errands of one adapter, which any thread may ask for. What they do must be safe to cut short and repeat."""

    def __init__(self) -> None:
        self._running: dict[str, _Errand[_Found]] = {}
        self._turn = threading.Lock()

    def run(self, name: str, work: Callable[[Callable[[str], None]], _Found], patience_seconds: float) -> _Found:
        """Return what ``work`` returns, or raise what it raises, once it is over; joins an errand of that name.

        ``work`` is handed a function that it tells how far it has come. Raises Unfinished when ``patience_seconds``
        (real) pass before.
        """
        with self._turn:
            errand = self._running.get(name)
            if errand is None:
                errand = self._running[name] = _Errand()
                threading.Thread(target=self._work, args=(errand, work), name=f"errand {name}", daemon=True).start()
        if not errand.over.wait(max(0.0, patience_seconds)):
            raise Unfinished(errand.told)
        with self._turn:
            if self._running.get(name) is errand:
                del self._running[name]
        if errand.error is not None:
            raise errand.error
        return errand.found[0]

    @staticmethod
    def _work(errand: _Errand[_Found], work: Callable[[Callable[[str], None]], _Found]) -> None:
        def tell(told: str) -> None:
            errand.told = told

        try:
            errand.found.append(work(tell))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread of whoever asks
            errand.error = error
        finally:
            errand.over.set()
