"""The coming week of a plan: the sessions of each lane, its gaps with reasons, and the jobs that could use them.

Command line, page, API and port show the same answer of :func:`coming_week`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from sqlalchemy import Connection

from jobs.grouping import grouped
from jobs.nouns.pool import Pool
from jobs.nouns.window import WEEK
from jobs.size import counted
from scheduler.core.plan import KeptHours, Placement, Plan
from scheduler.core.reasons import GateClosed, HeldByPerson, Reason, show
from scheduler.core.snapshot import JobView, PoolView, Snapshot
from scheduler.planner.model.case import Case, PlannerJob, make_case
from scheduler.planner.model.pool_capacity import PoolCapacity
from scheduler.report.chart import hues_of
from scheduler.report.timeline import LaneBar, Phase, Timeline, TimelineSession
from scheduler.store import jobs
from scheduler.views import chart_facts

_EXPECTED = Pool("expected work", "", "")  # a pool of this name is the last row of the picture
Kind = Literal["running", "planned", "empty", "unusable"]

_NAMED_MAX = 2  # a sentence names at most this many jobs and counts the others
_USES_MAX = 5


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of one lane's week. If it has no session, ``job`` is empty and ``why`` is the reason."""

    start: int
    end: int
    kind: Kind
    job: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class LaneWeek:
    """One lane of a pool, numbered from 1: its stretches in order, without gaps between them."""

    pool: str
    lane: int
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """A job that could use a gap. ``change`` says what must change first; it is empty if nothing must."""

    job: str
    change: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Unused open hours on ``devices`` lanes from ``lane`` on; ``why`` says why no job uses them."""

    pool: str
    lane: int
    devices: int
    start: int
    end: int
    why: str
    could_use: tuple[Use, ...]

    @property
    def length(self) -> int:
        """The length in seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ComingWeek:
    """The lanes of all pools in [start, end), their gaps, and the expected work for which hours are reserved."""

    start: int
    end: int
    lanes: tuple[LaneWeek, ...]
    gaps: tuple[Gap, ...]
    expected: tuple[KeptHours, ...]


def coming_week(snapshot: Snapshot, plan: Plan, zone: str = "UTC") -> ComingWeek:
    """Return the week that starts at the time of ``snapshot``; sentences show instants in ``zone``."""
    case = make_case(snapshot)
    until = min(case.until, case.now + WEEK)
    lanes: list[LaneWeek] = []
    gaps: list[Gap] = []
    placed = grouped((one.pool, one) for one in plan.placements)
    sessions = [_sessions(one.view, placed.get(one.pool.name, ()), case.now) for one in case.capacities]
    obstacles = _Obstacles(case, plan, sessions, zone)
    for number in range(len(case.capacities)):
        pool = _PoolWeek(case, sessions[number], number, until, obstacles)
        lanes += pool.lanes()
        gaps += pool.gaps
    order = sorted(gaps, key=lambda gap: (gap.start, gap.pool, gap.lane))
    return ComingWeek(case.now, until, tuple(lanes), tuple(order), plan.kept)


@dataclass(frozen=True, slots=True)
class _Session:
    """A running or planned session: (job, devices) of its lanes."""

    start: int
    end: int
    kind: Kind
    lanes: tuple[tuple[str, int], ...]

    @property
    def devices(self) -> int:
        return sum(devices for _, devices in self.lanes)


def _sessions(view: PoolView, placements: Sequence[Placement], now: int) -> list[_Session]:
    """Return the running and planned sessions of a pool, by start; ``placements`` are the pool's."""
    live = [
        _Session(now, run.deadline, "running", tuple((job, max(1, run.devices // len(run.jobs))) for job in run.jobs))
        for run in view.live
        if run.jobs and run.deadline > now
    ]
    planned = [
        _Session(max(now, one.start), one.end, "planned", tuple((lane.job, max(1, lane.devices)) for lane in one.lanes))
        for one in placements
        if one.end > now
    ]
    running = {job for session in live for job, _ in session.lanes}
    planned = [one for one in planned if one.start > now or running.isdisjoint(job for job, _ in one.lanes)]
    return sorted([*live, *planned], key=lambda one: (one.start, one.end))


class _PoolWeek:
    """The lanes of one pool, filled in order of time. Gaps are booked as well, so that no hour is shown twice."""

    def __init__(
        self, case: Case, sessions: Sequence[_Session], number: int, until: int, obstacles: "_Obstacles"
    ) -> None:
        self._now, self._until, self._number, self._obstacles = case.now, until, number, obstacles
        self._free: PoolCapacity = case.capacities[number].copy()
        self._pool = self._free.pool
        self._height = 1 if self._pool.device_counts else self._pool.devices_per_session  # lanes of a slot
        self._slots: list[list[_Session]] = []
        self.gaps: list[Gap] = []
        for session in sessions:
            if session.kind == "planned":
                self._free.book(session.start, session.end, session.devices)
            slot = next((one for one in self._slots if one[-1].end <= session.start), None)
            if slot is None:
                self._slots.append([session])
            else:
                slot.append(session)
        if len(self._slots) < self._pool.sessions_max:
            self._slots.append([])

    def lanes(self) -> Iterator[LaneWeek]:
        """Yield the lanes. A lane that no session could use at any time is left out, unless it is the only lane."""
        for slot, sessions in enumerate(self._slots):
            rows: list[list[Stretch]] = [[] for _ in range(self._height)]
            instant = self._now
            for session in sessions:
                self._leave_empty(slot, rows, instant, min(session.start, self._until))
                if session.start < self._until:
                    self._add_session(slot, rows, session)
                instant = max(instant, session.end)
            self._leave_empty(slot, rows, instant, self._until)
            if slot and not sessions and all(one.kind == "unusable" for one in rows[0]):
                continue
            for row, stretches in enumerate(rows):
                yield LaneWeek(self._pool.name, slot * self._height + row + 1, tuple(stretches))

    def _add_session(self, slot: int, rows: list[list[Stretch]], session: _Session) -> None:
        """Add a session to its lanes; the devices that it does not use become a gap."""
        start, end = session.start, min(session.end, self._until)
        lanes = session.lanes[:1] if self._pool.device_counts else session.lanes
        row_jobs = [job for job, devices in lanes for _ in range(1 if self._pool.device_counts else devices)]
        for row, stretches in enumerate(rows):
            if row < len(row_jobs):
                stretches.append(Stretch(start, end, session.kind, row_jobs[row]))
        if len(row_jobs) < self._height:
            gap = self._gap(slot * self._height + len(row_jobs) + 1, self._height - len(row_jobs), start, end)
            for stretches in rows[len(row_jobs) :]:
                stretches.append(Stretch(start, end, "empty", why=gap.why))

    def _leave_empty(self, slot: int, rows: list[list[Stretch]], start: int, end: int) -> None:
        """Add [start, end) without a session, as stretches in which a session was possible or impossible."""
        stretches: list[Stretch] = []
        while start < end:
            room = self._free.room(start)
            length = min(room.seconds, end - start)
            if length >= max(1, self._pool.session_seconds_min):
                self._free.book(start, start + length, self._free.places_of(0))
                stretch = Stretch(start, start + length, "empty")
            else:
                after = min(max(self._free.next_change(start), start + 1), end)
                why = _unusable(self._pool.name, room.seconds, room.limited_by)
                stretch = Stretch(start, after, "unusable", why=why)
            start = stretch.end
            if stretches and (stretches[-1].kind, stretches[-1].why) == (stretch.kind, stretch.why):
                stretch = replace(stretch, start=stretches.pop().start)
            stretches.append(stretch)
        for one in stretches:
            why = one.why
            if one.kind == "empty":
                why = self._gap(slot * self._height + 1, self._height, one.start, one.end).why
            for row in rows:
                row.append(replace(one, why=why))

    def _gap(self, lane: int, devices: int, start: int, end: int) -> Gap:
        widest = self._pool.devices_per_session if self._pool.device_counts else devices
        why, uses = self._obstacles.of_gap(self._number, start, end, widest)
        gap = Gap(self._pool.name, lane, devices, start, end, why, uses)
        self.gaps.append(gap)
        return gap


def _unusable(pool: str, seconds: int, limited_by: str) -> str:
    """Return why a lane cannot have a session; ``seconds`` are left until the limit ``limited_by``."""
    if seconds > 0:
        return f"{pool} has {seconds // 60} min left, too short for a session"
    if limited_by == "opening hours":
        return f"{pool} is closed"
    if limited_by in {"concurrency", "session cap"}:
        return f"all sessions of {pool} are used"
    return f"no {limited_by} of {pool} is left beside what is planned"


class _Obstacles:
    """Finds out why jobs do not use a gap, and which changes would let them use it."""

    def __init__(self, case: Case, plan: Plan, sessions: Sequence[Sequence[_Session]], zone: str) -> None:
        self._case, self._zone, self._kept = case, zone, plan.kept
        self._reasons: dict[str, Reason] = {one.job: one.reason for one in plan.deferrals}
        self._sessions = grouped(  # by job: start, end, pool
            (job, (session.start, session.end, capacity.pool.name))
            for capacity, of_pool in zip(case.capacities, sessions, strict=True)
            for session in of_pool
            for job, _ in session.lanes
        )
        planned: dict[str, int] = {}
        for placement in plan.placements:
            for lane in placement.lanes:
                planned[lane.job] = planned.get(lane.job, 0) + lane.steps
        # Steps that neither live runs nor the plan train; a job with none left does not need a gap.
        self._steps_left = {
            job.view.name: job.view.remaining_steps - job.expected_steps - planned.get(job.view.name, 0)
            for job in case.jobs
        }

    def of_gap(self, pool: int, start: int, end: int, devices: int) -> tuple[str, tuple[Use, ...]]:
        """Return why no job uses the gap, and the jobs that could use it; jobs that need no change come first."""
        free: list[Use] = []
        fixable: list[Use] = []
        obstacles: list[str] = []
        for job in self._case.jobs:
            view = job.view
            if view.remaining_steps <= 0 or self._is_busy(view.name, start, end):
                continue
            obstacle, change = self._unmet(view, pool, devices) or self._timing(job, pool, start, end) or ("", "")
            later = next((one for one in self._sessions.get(view.name, ()) if one[0] >= end), None)
            if not obstacle and later is not None:
                free.append(Use(view.name, f"planned on {later[2]} at {show(later[0], self._zone)}"))
            elif not obstacle and self._steps_left[view.name] > 0:
                free.append(Use(view.name, ""))
            elif obstacle and (self._steps_left[view.name] > 0 or later is not None):
                obstacles.append(f"{view.name} {obstacle}")
                fixable += [Use(view.name, change)] if change else []
            if len(free) == _USES_MAX:
                break
        for kept in self._kept:
            if kept.expected_at < end:
                fixable.append(Use(kept.kind, f"expected {show(kept.expected_at, self._zone)}"))
        return _gap_sentence(free, obstacles), tuple([*free, *fixable][:_USES_MAX])

    def _is_busy(self, job: str, start: int, end: int) -> bool:
        """Return whether the job has a session during the gap, or is done before it."""
        sessions = self._sessions.get(job, ())
        return any(begins < end and ends > start for begins, ends, _ in sessions) or (
            self._steps_left[job] <= 0 and all(ends <= start for _, ends, _ in sessions)
        )

    def _unmet(self, job: JobView, number: int, devices: int) -> tuple[str, str] | None:
        """Return the need of the job that the pool does not meet, and a change that helps; None if it meets all."""
        pool, needs = self._case.capacities[number].pool, job.needs
        if job.allowed_pools and pool.name not in job.allowed_pools:
            return f"may not use {pool.name}", f"if {pool.name} is among its pools"
        if needs.accelerator not in {"any", pool.kind}:
            return f"needs a {needs.accelerator.upper()}", ""
        if needs.vram_gib > pool.vram_gib:
            return f"needs {needs.vram_gib:g} GiB", f"if it fits into {pool.vram_gib:g} GiB (schedctl advise)"
        if needs.dtype not in pool.dtypes:
            return f"needs {needs.dtype}", f"if it trains in {', '.join(sorted(pool.dtypes))}"
        if needs.devices_min > devices:
            return f"needs {counted(needs.devices_min, 'device')}", f"if it runs on {counted(devices, 'device')}"
        return (f"has no speed on {pool.name}", "") if pool.name not in job.rates else None

    def _timing(self, planner_job: PlannerJob, number: int, start: int, end: int) -> tuple[str, str] | None:
        """Return why a job cannot use the time of the gap, and the change that would help; None if it can."""
        case, job = self._case, planner_job.view
        reason = self._reasons.get(job.name)
        offer = case.classes[case.class_of[number]].offers[planner_job.index]
        if job.blocked is not None:
            held = isinstance(job.blocked, HeldByPerson)
            change = f"schedctl queue release {job.name}" if held else "when this reason has ended"
            return f"waits: {job.blocked.text(self._zone)}", change
        needed = offer.shortest(max(1, self._steps_left[job.name])) if offer is not None else end - start + 1
        if needed > end - start:
            return f"needs at least {-(-needed // 60)} min in one session", ""
        release = planner_job.release
        if release + needed > end:
            return f"must not start before {show(release, self._zone)}", "if it may start earlier"
        passes_at = reason.passes_at if isinstance(reason, GateClosed) else None
        awaits = planner_job.gate_shut or planner_job.gate_parent is not None
        if job.gate is not None and awaits and (passes_at is None or passes_at + needed > end):
            return f"waits for {job.gate.parent} at {job.gate.fraction:.0%}", f"if {job.gate.parent} gets there earlier"
        return None


def _gap_sentence(free: Sequence[Use], obstacles: Sequence[str]) -> str:
    """Return why a gap is unused, as a sentence: a job that could use it, or the obstacles of the jobs."""
    if free:
        use = free[0]
        return f"{use.job} could use it and is {use.change}" if use.change else f"{use.job} could use it"
    if not obstacles:
        return "no job is left that could use it"
    more = len(obstacles) - _NAMED_MAX
    return f"no job fits: {'; '.join(obstacles[:_NAMED_MAX])}" + (f"; {more} more" if more > 0 else "")


def week_timeline(week: ComingWeek, pools: Mapping[str, Pool], tx: Connection) -> Timeline:
    """Return the week as a timeline: sessions, empty hours, and a row for expected work."""
    bars: dict[tuple[str, int, Stretch], list[int]] = {}
    rows_per_slot = {name: 1 if pool.device_counts else pool.devices_per_session for name, pool in pools.items()}
    for row in week.lanes:
        slot, lane = divmod(row.lane - 1, rows_per_slot[row.pool])
        for one in row.stretches:
            if one.kind != "unusable":
                bars.setdefault((row.pool, slot, one), []).append(lane)
    sessions = [
        TimelineSession(
            pool, slot, one.start, one.end, cast("Phase", one.kind), None,
            (LaneBar(one.job or "empty", lanes[0], len(lanes)),), one.why or one.kind,
        )
        for (pool, slot, one), lanes in bars.items()
    ]  # fmt: skip
    sessions += [
        TimelineSession(
            _EXPECTED.name, row, kept.expected_at, kept.expected_at + kept.seconds, "expected", None,
            (LaneBar(kept.kind, 0, 1),), "expected",
        )
        for row, kept in enumerate(week.expected)
    ]  # fmt: skip
    drawn = [pool for _, pool in sorted(pools.items())] + ([_EXPECTED] if week.expected else [])
    slots = {pool.name: 1 + max((one.slot for one in sessions if one.pool == pool.name), default=0) for pool in drawn}
    closed = {name: chart_facts.closures(tx, name, week.start, week.end) for name in pools}
    hues = hues_of(jobs.names_by_age(tx))
    return Timeline(week.start, week.end, week.start, tuple(drawn), slots, tuple(sessions), closed, hues)


def alike_gaps(week: ComingWeek) -> list[tuple[str, str, list[Gap]]]:
    """Return (reason, jobs that could use them, gaps) for all gaps of a pool with the same reason, by first start."""
    alike = grouped(((gap.pool, gap.why), gap) for gap in week.gaps)
    return [(why, _uses(gaps), gaps) for (_, why), gaps in alike.items()]


def _uses(gaps: Sequence[Gap]) -> str:
    """Return the jobs that could use any of ``gaps``, each with the change that the first of them needs."""
    changes: dict[str, str] = {}
    for gap in gaps:
        for use in gap.could_use:
            changes.setdefault(use.job, use.change)
    named = [f"{job} ({change})" if change else job for job, change in list(changes.items())[:_USES_MAX]]
    return ", ".join(named) + (f", {len(changes) - _USES_MAX} more" if len(changes) > _USES_MAX else "")
