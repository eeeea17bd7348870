"""Turns: which job of a share group gets the next session, so that each receives its share of the hours.

The job with the fewest device seconds relative to its share goes first. A job that is finished, runs or may not start
is passed over, so that no hour is left unused because of a share.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.core.snapshot import JobView
    from scheduler.planner.model.case import JobOffer


class Turns:
    """The share groups of a case, and the device seconds that each job has received so far."""

    __slots__ = ("_group", "_part", "_seconds")

    def __init__(self, views: Iterable[JobView]) -> None:
        """Index jobs by their position in ``views``."""
        members: dict[str, list[int]] = {}
        self._part: dict[int, float] = {}
        self._seconds: dict[int, int] = {}
        for index, view in enumerate(views):
            if view.share is not None:
                members.setdefault(view.share.group, []).append(index)
                self._part[index], self._seconds[index] = view.share.part, view.share.seconds
        self._group: Mapping[int, tuple[int, ...]] = {
            index: tuple(jobs) for jobs in members.values() if len(jobs) > 1 for index in jobs
        }

    def __bool__(self) -> bool:
        """Return whether any jobs share hours."""
        return bool(self._group)

    def copy(self) -> Turns:
        """Return an independent copy."""
        twin = object.__new__(Turns)
        twin._group, twin._part, twin._seconds = self._group, self._part, self._seconds.copy()
        return twin

    def group(self, job: int) -> tuple[int, ...]:
        """Return the jobs of the share group of ``job``, itself included; empty without a group."""
        return self._group.get(job, ())

    def add(self, job: int, device_seconds: int) -> None:
        """Add the device seconds of a session of ``job``."""
        if job in self._seconds:
            self._seconds[job] += device_seconds

    def rank(self, job: int) -> tuple[float, int]:
        """Return the rank within the group: device seconds relative to the share, then the queue position."""
        return self._seconds[job] / self._part[job], job

    def next(self, job: int, waiting: Container[int], offers: Sequence[JobOffer | None]) -> int:
        """Return the first job of the group of ``job`` that waits and has an offer; ``job`` if there is none."""
        members = [member for member in self.group(job) if member in waiting and offers[member] is not None]
        return min(members, key=self.rank, default=job)

    def partners(
        self, lead: int, jobs: Sequence[int], waiting: Container[int], offers: Sequence[JobOffer | None]
    ) -> list[int]:
        """Return the ``jobs`` that may share a session with ``lead``: of each other group, the job in turn."""
        own_group = self.group(lead)
        return [job for job in jobs if job not in own_group and self.next(job, waiting, offers) == job]

    def in_turn(self, jobs: Sequence[int], waiting: Container[int], offers: Sequence[JobOffer | None]) -> list[int]:
        """Return the jobs of a session that was planned for ``jobs``: instead of each, the job in turn of its group."""
        members = list(dict.fromkeys(self.next(job, waiting, offers) for job in jobs))
        if len(members) < len(jobs):  # several jobs of one group share the session
            members = list(dict.fromkeys((*members, *jobs)))
        return [job for job in members if job in waiting]
