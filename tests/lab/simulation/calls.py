"""The daemon's calls without threads: one after the other, and what hangs is heard when the hanging is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.service.outside.calls import Calls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tests.lab.simulation.world import World

_Answer = TypeVar("_Answer")


class SimulatedCalls(Calls):
    """One daemon's calls, as scheduler.service.outside.calls.Calls. One that is gone hears none of what it left."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._late: dict[tuple[str, str], tuple[int, Any]] = {}
        self._told_of: set[tuple[str, str]] = set()

    def under_way(self, kind: str) -> Collection[str]:
        """Return the names of what hangs."""
        return {name for (of, name), (until, _) in self._late.items() if of == kind and self._world.now < until}

    def news(self, kinds: Collection[str]) -> bool:
        """Tell whether answers of these kinds have come that hung; of each once."""
        over = {key for key, (until, _) in self._late.items() if key[0] in kinds and self._world.now >= until}
        fresh, self._told_of = over - self._told_of, over
        return bool(fresh)

    def gather(self, kind: str, work: Mapping[str, Callable[[], _Answer]]) -> dict[str, _Answer]:
        """Do the work in order. What meets a place that hangs has its effect now, and its answer comes later."""
        answers: dict[str, _Answer] = {}
        for name, ask in work.items():
            known = self._late.get((kind, name))
            if known is None:
                self._world.hanging.append(None)
                try:
                    answer = ask()
                finally:
                    until = self._world.hanging.pop()
                if until is None:
                    answers[name] = answer
                else:
                    self._late[kind, name] = until, answer
            elif self._world.now >= known[0]:
                self._world.sometimes("late answer")
                answers[name] = known[1]
                del self._late[kind, name]
        return answers
