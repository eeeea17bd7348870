"""What was truly published: the newest whole checkpoint of each job, and what was damaged."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.lab.simulation.faults import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable


class CheckpointTruth:
    """Every manifest ever published, by key."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self._damaged: set[str] = set()
        self._accused: dict[str, str] = {}
        self._by_job: dict[str, list[tuple[int, str]]] = defaultdict(list)

    def publish(self, job: str, step: int, key: str, run: str) -> None:
        """Note a publication. Raises Violation when a whole one of a higher or the same step is there."""
        newest = self.newest_whole(job)
        if newest is not None and step <= newest:
            raise Violation("steps never go backwards", f"{run} publishes step {step} of {job} after step {newest}")
        self.steps[key] = step
        self._by_job[job].append((step, key))

    def damage(self, key: str) -> None:
        """Note that a checkpoint can never be restored."""
        self._damaged.add(key)

    def accuse(self, keys: Iterable[str], run: str) -> None:
        """Note which damaged checkpoints a session has named in its reports."""
        for key in keys:
            self._accused.setdefault(key, run)

    def check_offer(self, key: str, run: str) -> None:
        """Raise Violation when a session is told to start from what an earlier one has reported as damaged."""
        accuser = self._accused.get(key, run)
        if accuser != run:
            raise Violation("what is damaged is not offered again", f"{run} is offered {key}, which {accuser} reported")

    def is_whole(self, key: str) -> bool:
        """Whether a checkpoint can be restored."""
        return key in self.steps and key not in self._damaged

    def newest_whole(self, job: str) -> int | None:
        """Return the highest step that can be restored."""
        return max((step for step, key in self._by_job[job] if key not in self._damaged), default=None)
