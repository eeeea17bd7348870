"""Workers: processes that share tasks, tell how far they are, and go on when one of them dies."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tests.lab.simulation.database import SHARED_MEMORY, Laboratory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_Answer = TypeVar("_Answer")
_TOLD_EVERY_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Task(Generic[_Answer]):
    """One piece of work for one process; ``inputs`` are done one after the other and may be done apart."""

    work: Callable[..., _Answer]
    inputs: Sequence[Any]
    common: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.work.__name__.strip('_')} {', '.join(map(str, self.inputs))}"

    def apart(self) -> list[Task[_Answer]]:
        """Return a task for each input."""
        return [Task(self.work, [one], self.common) for one in self.inputs]


class Workers:
    """``count`` processes, each with a laboratory of its own in one folder that is removed at the end.

    A worker that dies takes the tasks in hand with it. They are done again one by one, so that ``lost`` names the very
    inputs that kill a worker. ``nice`` makes room for others.
    """

    def __init__(self, count: int, nice: int = 0) -> None:
        self.count = count
        self.lost: list[str] = []
        self._nice = nice
        self.folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=SHARED_MEMORY))
        self._pool = self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # nobody waits for what they are at
            for child in active_children():
                child.terminate()
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def answers(self, what: str, tasks: Sequence[Task[_Answer]]) -> Iterator[_Answer]:
        """Yield what the tasks answer, in any order; tell now and then how far they are and how long they will take."""
        began = told = monotonic()
        left, done = iter(tasks), 0
        running: dict[Future[_Answer], Task[_Answer]] = {}
        while True:
            suspects = self._submit(islice(left, 2 * self.count - len(running)), running)
            if not running and not suspects:
                break
            ended, _ = wait(running, timeout=_TOLD_EVERY_SECONDS, return_when=FIRST_COMPLETED)
            for future in ended:
                task = running.pop(future)
                try:
                    answer = future.result()
                except BrokenProcessPool:
                    suspects.append(task)
                    continue
                done += 1
                yield answer
            if suspects:
                suspects += running.values()
                running.clear()
                self._pool = self._begin()
                done += len(suspects)
                yield from self._one_by_one(suspects)
            if monotonic() - told > _TOLD_EVERY_SECONDS:
                told = monotonic()
                minutes = f"{(told - began) / done * (len(tasks) - done) / 60:.1f}" if done else "some"
                print(f"{what}: {done} of {len(tasks)} tasks, {minutes} minutes left", file=sys.stderr)
        print(f"{what}: {monotonic() - began:.0f} s", file=sys.stderr)

    def _submit(
        self, tasks: Iterable[Task[_Answer]], running: dict[Future[_Answer], Task[_Answer]]
    ) -> list[Task[_Answer]]:
        """Hand out tasks; return those that could not be, because a worker has died meanwhile."""
        refused = []
        for task in tasks:
            try:
                running[self._pool.submit(task.work, task.inputs, *task.common)] = task
            except BrokenProcessPool:
                refused.append(task)
        return refused

    def _one_by_one(self, suspects: Sequence[Task[_Answer]]) -> Iterator[_Answer]:
        print(f"a worker died; {len(suspects)} tasks are done again, one by one", file=sys.stderr)
        for task in (part for suspect in suspects for part in suspect.apart()):
            try:
                answer = self._pool.submit(task.work, task.inputs, *task.common).result()
            except BrokenProcessPool:
                self.lost.append(str(task))
                print(f"a worker dies in {task}", file=sys.stderr)
                self._pool = self._begin()
                continue
            yield answer

    def _begin(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.count, initializer=_prepare, initargs=(self.folder, self._nice))


def _prepare(folder: Path, nice: int) -> None:
    """Make this process a worker: it leaves interruptions to the one that shares out the tasks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(nice)
    global _FOLDER  # noqa: PLW0603 - a worker is told by its initializer alone
    _FOLDER = folder


_FOLDER: Path | None = None


@cache
def laboratory() -> Laboratory:
    """Return this worker's laboratory; its files go with the folder of all."""
    return Laboratory(_FOLDER)
