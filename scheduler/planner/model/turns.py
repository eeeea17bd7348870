"""Turns: which of the jobs that share hours has a session next, so that each keeps its part of them.

Whoever has had least for its part goes first. A job that is finished, runs or may not start has no turn, so that the
others of its group take what is there: no hour is left unused for a share's sake.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.core.snapshot import JobView
    from scheduler.planner.model.case import JobOffer


class Turns:
    """The groups of a case and the device seconds that each job has had so far; grows with every session."""

    __slots__ = ("_group", "_part", "_seconds")

    def __init__(self, views: Iterable[JobView]) -> None:
        """Index jobs by their place in ``views``."""
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
        """Tell whether any jobs share hours."""
        return bool(self._group)

    def copy(self) -> Turns:
        """Return a copy that counts on its own."""
        twin = object.__new__(Turns)
        twin._group, twin._part, twin._seconds = self._group, self._part, self._seconds.copy()
        return twin

    def group(self, job: int) -> tuple[int, ...]:
        """Return the jobs of the group of ``job``, itself included; none if it shares with nobody."""
        return self._group.get(job, ())

    def take(self, job: int, device_seconds: int) -> None:
        """Count a session."""
        if job in self._seconds:
            self._seconds[job] += device_seconds

    def rank(self, job: int) -> tuple[float, int]:
        """Return the rank among its group: whoever had least for its part goes first, then the place in the queue."""
        return self._seconds[job] / self._part[job], job

    def next(self, job: int, waiting: Container[int], offers: Sequence[JobOffer | None]) -> int:
        """Return who goes first of the group of ``job``, mostly itself, of those that wait and have an offer."""
        members = [one for one in self.group(job) if one in waiting and offers[one] is not None]
        return min(members, key=self.rank, default=job)

    def beside(
        self, lead: int, jobs: Sequence[int], waiting: Container[int], offers: Sequence[JobOffer | None]
    ) -> list[int]:
        """Return those of ``jobs`` who may sit in a session of ``lead``: of each other group who goes first."""
        mine = self.group(lead)
        return [job for job in jobs if job not in mine and self.next(job, waiting, offers) == job]

    def seated(self, jobs: Sequence[int], waiting: Container[int], offers: Sequence[JobOffer | None]) -> list[int]:
        """Return who sits in a session that was planned for ``jobs``: for each of them who goes first of its group."""
        seats = list(dict.fromkeys(self.next(job, waiting, offers) for job in jobs))
        if len(seats) < len(jobs):  # several of one group sit in it
            seats = list(dict.fromkeys((*seats, *jobs)))
        return [job for job in seats if job in waiting]
