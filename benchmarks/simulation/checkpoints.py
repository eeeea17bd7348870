"""What was truly published: the newest whole checkpoint of each job, and what was damaged."""

from __future__ import annotations

from collections import defaultdict

from benchmarks.simulation.faults import Violation


class CheckpointTruth:
    """Every manifest ever published, by key."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self._damaged: set[str] = set()
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

    def is_whole(self, key: str) -> bool:
        """Whether a checkpoint can be restored."""
        return key in self.steps and key not in self._damaged

    def newest_whole(self, job: str) -> int | None:
        """Return the highest step that can be restored."""
        return max((step for step, key in self._by_job[job] if key not in self._damaged), default=None)
