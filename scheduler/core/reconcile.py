"""Reconcile: the steps that bring our records of live runs in line with observations. Pure.

Four rules are applied here and nowhere else. No answer means "unknown" and changes nothing. A run ends only with proof.
A launch counts as never started only after the platform's visibility delay and a margin, or if the platform proves it.
A session that cannot be asked to save is ended by force only if that costs less than waiting for its own end.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from jobs.lane_report import LaneReport, longest_wait
from scheduler.core.job import Wish
from scheduler.core.run import CLOCKS_SECONDS, Ended, Lane, Outcome, Reserved, Run, Running, Stopping, Submitting, Wait

_MESSAGE_MAX = 2_000
SightingState = Literal["queued", "running", "ended", "absent"]
StopChannel = Literal["store", "platform", "none"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a platform reports about one run ID. Times are UTC seconds, None if not reported.

    ``stop_channel`` is how the session can be asked to save: the stop flag in the store, the platform, or none.
    ``exact`` is False if ``ended`` is only the latest possible end. ``wait`` is set for a session in the platform's
    queue, ``price_microdollars_per_hour`` (by the platform) for a session that ended, ``deadline`` for a running
    session whose length counts from its real start. ``preempted`` is True if the platform preempted the session.
    ``contradicts`` maps each fact of the pool that this session shows to be wrong to a description of what happened.
    """

    state: SightingState
    remote_id: str
    started: int | None = None
    ended: int | None = None
    detail: str = ""
    stop_channel: StopChannel = "store"
    exact: bool = True
    wait: Wait | None = None
    price_microdollars_per_hour: int | None = None
    deadline: int | None = None
    preempted: bool = False
    contradicts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """The observations of one live run.

    ``sighting`` is None if the platform does not list the run; ``reachable`` is False if it did not answer at all.
    ``asked_at`` is when the answered query was sent, perhaps some cycles ago; None means now. ``ran_at`` is when the
    platform last reported the session as running.
    ``complete`` is False if the artifact store did not return everything that the run's lanes wrote; ``heard`` is True
    if a lane wrote anything.
    ``lost`` names the outputs that are given up. ``declared`` is a person's statement that the session ended: (end of
    the charge, how the person knows).
    ``results`` are the final reports of lanes by index; ``wishes`` are requests of people by job name.
    ``begun`` are the lanes whose command is known to have begun.
    """

    run: Run
    sighting: Sighting | None
    reachable: bool
    results: Mapping[int, LaneReport]
    wishes: Mapping[str, tuple[Wish, str]]
    visibility_seconds: int
    overdue_seconds: int
    complete: bool = True
    heard: bool = False
    asked_at: int | None = None
    lost: str = ""
    ran_at: int | None = None
    declared: tuple[int, str] | None = None
    begun: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """How one lane ended. ``place_failed`` is True if the session ended by itself before the lane's command began."""

    index: int
    job: str
    outcome: Outcome
    step: int | None
    error_class: str | None
    message: str
    place_failed: bool = False


@dataclass(frozen=True, slots=True)
class Accept:
    """The platform lists the session."""

    run: Run
    remote_id: str
    started: int


@dataclass(frozen=True, slots=True)
class CloseLane:
    """A lane has written its final report while its run continues."""

    run: Run
    end: LaneEnd


@dataclass(frozen=True, slots=True)
class Finish:
    """The run has ended: ``started`` .. ``ended`` is charged; ``started`` None means that it never ran.

    ``proven`` is False if a timeout or a person decided instead of the platform, so that the end may be wrong.
    ``may_live`` is True if a session with access to the artifact store left no final report: a platform also reports
    lost sessions as ended, and the payload may still train.
    """

    run: Run
    outcome: Outcome
    started: int | None
    ended: int
    lanes: tuple[LaneEnd, ...]
    why: str
    proven: bool = True
    may_live: bool = False
    price_microdollars_per_hour: int | None = None  # as reported by the platform


@dataclass(frozen=True, slots=True)
class AskStop:
    """Ask the payload to save and leave; ``lane`` None means all lanes."""

    run: Run
    lane: int | None
    why: str


@dataclass(frozen=True, slots=True)
class ForceStop:
    """End the session by force: it passed its deadline, or did not follow a stop."""

    run: Run
    why: str


@dataclass(frozen=True, slots=True)
class Postpone:
    """The session waits in its platform's queue: its hold and its deadline move, so that waiting costs no run time."""

    run: Run
    length_seconds: int
    deadline: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The session began at another time than recorded; ``deadline`` is its new deadline."""

    run: Run
    started: int
    deadline: int


Step = Accept | Postpone | Begin | CloseLane | Finish | AskStop | ForceStop


def reconcile(facts: Iterable[Facts], now: int) -> list[Step]:
    """Return the steps for all live runs, in the order given."""
    return [step for fact in facts for step in _steps(fact, now)]


def _steps(fact: Facts, now: int) -> list[Step]:
    run, state = fact.run, fact.run.state
    if fact.declared is not None and isinstance(state, Submitting | Running | Stopping):
        ended, why = fact.declared
        declared_end = Sighting("ended", "", None, ended, why)
        # A person may be wrong: the session is polled as long as one that vanished.
        return [replace(_finish(fact, declared_end, now), proven=False)] if fact.complete else []
    match state:
        case Reserved():
            # Submitting is committed before the platform is called, so this run was never sent.
            return [_never_ran(fact, now, "left over from a restart before it was submitted")]
        case Submitting(since=since):
            if fact.sighting is None:
                patience = fact.visibility_seconds + fact.overdue_seconds
                if _polled_at(fact, now) <= since + patience:
                    return []
                if fact.heard:
                    # The session wrote to the artifact store, so only the platform's list is late.
                    return [Accept(run, run.key, run.planned_start)]
                if fact.reachable and fact.complete:
                    given_up = _never_ran(fact, now, f"not on the platform {patience} s after the launch")
                    return [replace(given_up, proven=False)]
                return []
            if fact.sighting.state == "absent":
                return [_never_ran(fact, now, fact.sighting.detail or "the platform proves it never started")]
            if fact.sighting.state == "ended":
                return [_finish(fact, fact.sighting, now)] if fact.complete else []
            return [Accept(run, fact.sighting.remote_id, _started(fact, fact.sighting))]
        case Running() | Stopping():
            return _steps_of_session(fact, now)
        case Ended():
            return []
        case _:
            assert_never(state)


def _steps_of_session(fact: Facts, now: int) -> list[Step]:
    run, state = fact.run, fact.run.state
    if fact.sighting is not None and fact.sighting.state == "ended":
        # With an incomplete answer of the store, a published step would count as lost.
        return [_finish(fact, fact.sighting, now)] if fact.complete else []
    if fact.sighting is not None and fact.sighting.state == "absent":
        # Accepted into the platform's queue, and proven never to have started.
        return [_never_ran(fact, now, fact.sighting.detail or "the platform proves it never started")]
    absent_from = run.held_until + fact.visibility_seconds + fact.overdue_seconds
    if fact.sighting is None and fact.reachable and _polled_at(fact, now) > absent_from:
        vanished = Sighting("ended", "", None, run.held_until, "gone from the platform after its deadline")
        return [replace(_finish(fact, vanished, now), proven=False)] if fact.complete else []
    steps: list[Step] = [
        CloseLane(run, _lane_end(lane, fact, None))
        for lane in run.lanes
        if lane.outcome is None and lane.index in fact.results and fact.complete
    ]
    moved = moved_span(run, fact.sighting, now, fact.overdue_seconds)
    stops: list[AskStop | ForceStop] = []
    late = fact.sighting is not None and now > deadline_of(run, fact.sighting) + fact.overdue_seconds
    if late and not isinstance(moved, Postpone):
        waits = fact.sighting is not None and fact.sighting.state == "queued"
        stops.append(ForceStop(run, "past its deadline" + (", and still in its platform's queue" if waits else "")))
    elif isinstance(state, Stopping):
        stops.extend(_enforced_stop(fact, state, now))
    stops.extend(_wished_stops(fact, now))
    # A stop and a moved span would both change the run's state: a stopped session's span moves in the next cycle.
    stopped = isinstance(state, Running) and any(isinstance(stop, ForceStop) or stop.lane is None for stop in stops)
    if moved is not None and not stopped:
        steps.append(moved)
    return [*steps, *stops]


def _enforced_stop(fact: Facts, state: Stopping, now: int) -> list[ForceStop]:
    """Return a forced stop if the session ignored its stop, or if waiting for its end costs more than a forced stop.

    Without a sighting the result is empty: the session may have ended, and force may destroy its outputs.
    """
    if fact.sighting is None:
        return []
    if _cannot_be_asked(fact):
        loss, waiting = _costs(fact, now)
        return [ForceStop(fact.run, state.why)] if loss < waiting else []
    if now > state.since + 2 * fact.overdue_seconds:
        return [ForceStop(fact.run, f"did not follow the stop: {state.why}")]
    return []


def _wished_stops(fact: Facts, now: int) -> list[AskStop | ForceStop]:
    if isinstance(fact.run.state, Stopping):
        return []
    open_lanes = [lane for lane in fact.run.lanes if lane.outcome is None and lane.index not in fact.results]
    wished = [lane for lane in open_lanes if lane.job in fact.wishes]
    if not wished:
        return []
    why = "; ".join(f"{fact.wishes[lane.job][0]} {lane.job} by {fact.wishes[lane.job][1]}" for lane in wished)
    if len(wished) < len(open_lanes):
        return [AskStop(fact.run, lane.index, why) for lane in wished]
    if not _cannot_be_asked(fact):
        return [AskStop(fact.run, None, why)]
    loss, waiting = _costs(fact, now)
    why += "; it cannot be asked to save"
    if loss < waiting:
        return [ForceStop(fact.run, f"{why}: the {loss} s it trained are lost, waiting would cost {waiting} s")]
    why += f" and ends by itself in {waiting} s, which costs less than {loss} s lost"
    return [AskStop(fact.run, None, why)]


def _cannot_be_asked(fact: Facts) -> bool:
    return fact.sighting is not None and fact.sighting.stop_channel == "none"


def _costs(fact: Facts, now: int) -> tuple[int, int]:
    sighting = fact.sighting
    began = None if sighting is None or sighting.state == "queued" else _started(fact, sighting)
    return costs_of_stop(fact.run, began, now)


def costs_of_stop(run: Run, began: int | None, now: int) -> tuple[int, int]:
    """Return (seconds lost by a forced stop, seconds until the deadline) of a session that cannot be asked to save.

    The session is stopped by force if the first is smaller. ``began`` is when it began to train, None if it has not.
    """
    return 0 if began is None else max(0, now - began), max(0, run.deadline - now)


def _never_ran(fact: Facts, now: int, why: str) -> Finish:
    lanes = tuple(
        LaneEnd(lane.index, lane.job, Outcome.REJECTED, None, None, why)
        for lane in fact.run.lanes
        if lane.outcome is None
    )
    return Finish(fact.run, Outcome.REJECTED, None, now, lanes, why)


def _finish(fact: Facts, sighting: Sighting, now: int) -> Finish:
    started = _started(fact, sighting)
    ended = _end(fact, sighting, started, now)
    lanes = tuple(_lane_end(lane, fact, sighting) for lane in fact.run.lanes if lane.outcome is None)
    # The errors of lanes go first, because a platform may report success for a failed command.
    ended_lanes: list[Lane | LaneEnd] = [*fact.run.lanes, *lanes]
    errors = dict.fromkeys(lane.message for lane in ended_lanes if lane.error_class and lane.message)
    outcomes = [*(end.outcome for end in lanes), *(lane.outcome for lane in fact.run.lanes if lane.outcome)]
    return Finish(
        fact.run,
        summary(outcomes),
        started,
        max(started, ended),
        lanes,
        "; ".join(errors) or sighting.detail or "session ended",
        may_live=sighting.stop_channel == "store" and any(end.index not in fact.results for end in lanes),
        price_microdollars_per_hour=sighting.price_microdollars_per_hour,
    )


def _polled_at(fact: Facts, now: int) -> int:
    return now if fact.asked_at is None else fact.asked_at


def _end(fact: Facts, sighting: Sighting, started: int, now: int) -> int:
    """Return the instant until which a session is charged: its end as reported by the platform, if that is exact.

    Otherwise it is when we saw the end, limited by the hold and by the last report of the lanes plus the platform's
    overrun. Time for which the platform reported the session as running is always charged.
    """
    if sighting.exact and sighting.ended is not None:
        return sighting.ended
    run = fact.run
    # The platform's list may be as old as its visibility delay.
    ran = 0 if fact.ran_at is None else fact.ran_at - fact.visibility_seconds
    latest = min(now, max(ran, run.held_until) if sighting.ended is None else sighting.ended)
    results = [fact.results[lane.index] for lane in run.lanes if lane.index in fact.results]
    reported = [result.ended_at for result in results]
    # A report from shortly before the start comes from another clock; it counts as the start.
    ends = [max(at, started) for at in reported if at is not None and at >= started - CLOCKS_SECONDS]
    if len(ends) == len(run.lanes):
        latest = min(latest, max(ran, max(ends) + longest_wait(results) + run.held_until - run.deadline))
    return max(started, latest)


def _started(fact: Facts, sighting: Sighting) -> int:
    return started_of(fact.run) if sighting.started is None else sighting.started


def _lane_end(lane: Lane, fact: Facts, sighting: Sighting | None) -> LaneEnd:
    end = _reported_end(lane, fact.results.get(lane.index), fact, sighting)
    return replace(end, message=f"lost: {fact.lost}; {end.message}"[:_MESSAGE_MAX]) if fact.lost else end


def _reported_end(lane: Lane, result: LaneReport | None, fact: Facts, sighting: Sighting | None) -> LaneEnd:
    run = fact.run
    if result is None:
        detail = sighting.detail if sighting is not None else ""
        if isinstance(run.state, Stopping) and sighting is not None and sighting.stop_channel == "none":
            why = f"ended by force, its training since its start is lost: {run.state.why}"
            return LaneEnd(lane.index, lane.job, Outcome.CANCELLED, None, None, why[:_MESSAGE_MAX])
        if sighting is not None and sighting.preempted:
            why = f"the platform preempted it. {detail}".strip()
            return LaneEnd(lane.index, lane.job, Outcome.PREEMPTED, None, None, why)
        if lane.index not in fact.begun:
            why = f"ended before its command had begun. {detail}".strip()
            failed = fact.declared is None and not isinstance(run.state, Stopping) and lane.begun_at is None
            return LaneEnd(lane.index, lane.job, Outcome.PREEMPTED, None, None, why, place_failed=failed)
        return LaneEnd(lane.index, lane.job, Outcome.LOST, None, "killed", f"ended without a result. {detail}".strip())
    lines = [line for line in result.message.splitlines() if line.strip()]
    # The last line of a traceback names the error. It is put first, because lists show only the beginning.
    why = f"{result.why}: {lines[-1].strip()}" if result.why and len(lines) > 1 else result.why
    # The reason and the message may be equal.
    message = "; ".join(dict.fromkeys(part for part in (why, result.message) if part))[:_MESSAGE_MAX]
    outcome = Outcome(result.outcome or "failed")
    return LaneEnd(lane.index, lane.job, outcome, result.checkpoint_step, result.error_class, message)


_BY_SEVERITY: Sequence[Outcome] = (
    Outcome.FINISHED,
    Outcome.YIELDED,
    Outcome.CANCELLED,
    Outcome.PREEMPTED,
    Outcome.REJECTED,
    Outcome.FAILED,
    Outcome.LOST,
)


def summary(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the most severe outcome of the lanes, which is the run's outcome."""
    return max(outcomes, key=_BY_SEVERITY.index, default=Outcome.LOST)


# Spans: the start and deadline of a run's session, where they depend on its real start. Pure.
ALIKE_SECONDS = 60  # smaller differences from the recorded start are ignored
_AHEAD = 4  # the deadline of a waiting session moves by this fraction (1/4) of its length more than needed now


def moved_span(run: Run, sighting: Sighting | None, now: int, least_seconds: int) -> Postpone | Begin | None:
    """Return the change of a run's span for a session that waits or began at another time; None if there is none.

    The span of a waiting session moves by ``least_seconds`` or more at a time, so that it moves rarely.
    """
    if sighting is None:
        return None
    if sighting.state == "queued":
        wait = sighting.wait
        if wait is None or wait.length_seconds is None or wait.deadline is None or not isinstance(run.state, Running):
            return None
        needed = now + wait.length_seconds
        if needed <= min(run.deadline, wait.deadline):
            return None
        within_hold = needed <= run.deadline  # the platform does not have the new deadline yet
        ahead = max(least_seconds, wait.length_seconds // _AHEAD)
        return Postpone(run, wait.length_seconds, run.deadline if within_hold else needed + ahead)
    deadline, started = deadline_of(run, sighting), sighting.started
    if started is None:
        started = started_of(run)
    if max(abs(deadline - run.deadline), abs(started - started_of(run))) <= ALIKE_SECONDS:
        return None
    return Begin(run, started, deadline)


def started_of(run: Run) -> int:
    """Return the recorded start of a run's charge, or its planned start."""
    return run.state.started if isinstance(run.state, Running | Stopping) else run.planned_start


def deadline_of(run: Run, sighting: Sighting | None) -> int:
    """Return the deadline of a session: the one its platform reports for a running session, else the recorded one."""
    deadline = sighting.deadline if sighting is not None and sighting.state == "running" else None
    return run.deadline if deadline is None else deadline
