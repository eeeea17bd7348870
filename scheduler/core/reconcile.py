"""Reconcile: what was observed against what we recorded gives the steps to take. Pure.

Four rules are kept here and nowhere else: silence is "unknown", and changes or ends nothing; a run is over only with
proof; an intent is void only when the platform's visibility delay and a margin have passed, or the platform proves
absence; a session that cannot be asked to save is ended by force only where that costs less than waiting for its own
end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from jobs.lane_report import LaneReport
from scheduler.core.job import Wish
from scheduler.core.run import CLOCKS_SECONDS, Ended, Lane, Outcome, Reserved, Run, Running, Stopping, Submitting, Wait
from scheduler.core.spans import Begin, Postpone, deadline_of, moved_span, started_of

_MESSAGE_MAX = 2_000
SightingState = Literal["queued", "running", "ended", "absent"]
StopWay = Literal["store", "platform", "none"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a platform said about one launch key. Times are UTC seconds, None when it did not tell.

    ``stop_channel`` is how the session can be asked to save: by the stop flag in the store, by the platform, or not.
    ``told`` is False when ``ended`` is only the latest that the end can have been. ``wait`` is told of a session in the
    platform's queue, ``price_microdollars_per_hour`` of one that ended, by the platform's own reckoning.
    ``deadline`` is told of a running one whose length counts from its real start, ``taken`` of one that its platform
    took away.
    """

    state: SightingState
    remote_id: str
    started: int | None = None
    ended: int | None = None
    detail: str = ""
    stop_channel: StopWay = "store"
    told: bool = True
    wait: Wait | None = None
    price_microdollars_per_hour: int | None = None
    deadline: int | None = None
    taken: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything known about one live run.

    ``sighting`` is None when the platform did not name the key; ``reachable`` is False when it did not answer at all.
    ``asked_at`` is when the question was put that it answered, which may be some cycles ago; None: just now. ``ran_at``
    is when the platform last showed the session running, as far as it is known.
    ``complete`` is False when the artifact store did not tell everything that the run's lanes left there; ``heard`` is
    True when one of them has left a sign of life.
    ``lost`` is what the session left and nobody waits for any more. ``declared`` is a person's word that it is over:
    until when it is charged, and how they know.
    ``results`` holds final words of lanes by index; ``wishes`` what people want of the lanes' jobs, by job name.
    ``begun`` holds the lanes whose command has begun, as far as they have told.
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
    """How one lane ended. ``place_failed``: the session ended by itself before the lane's command had begun."""

    index: int
    job: str
    outcome: Outcome
    step: int | None
    error_class: str | None
    message: str
    place_failed: bool = False


@dataclass(frozen=True, slots=True)
class Accept:
    """The platform shows the session."""

    run: Run
    remote_id: str
    started: int


@dataclass(frozen=True, slots=True)
class CloseLane:
    """A lane has said its last word while its run goes on."""

    run: Run
    end: LaneEnd


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over: ``started`` .. ``ended`` is charged; ``started`` None means it never ran.

    ``proven`` is False when time passed instead of the platform giving its word, so it may be wrong yet. ``may_live``
    is True where a session that reaches the artifact store has left no last word: a platform calls what it lost sight
    of ended too, and its payload may train on.
    """

    run: Run
    outcome: Outcome
    started: int | None
    ended: int
    lanes: tuple[LaneEnd, ...]
    why: str
    proven: bool = True
    may_live: bool = False
    price_microdollars_per_hour: int | None = None  # by the platform's own reckoning, where it tells


@dataclass(frozen=True, slots=True)
class AskStop:
    """Ask the payload to save and leave; ``lane`` None means all lanes."""

    run: Run
    lane: int | None
    why: str


@dataclass(frozen=True, slots=True)
class ForceStop:
    """End the session from outside: it overstayed, or did not follow a stop."""

    run: Run
    why: str


Step = Accept | Postpone | Begin | CloseLane | Finish | AskStop | ForceStop


def reconcile(facts: Iterable[Facts], now: int) -> list[Step]:
    """Return the steps for all live runs, in the order given."""
    return [step for fact in facts for step in _steps(fact, now)]


def _steps(fact: Facts, now: int) -> list[Step]:
    run, state = fact.run, fact.run.state
    if fact.declared is not None and isinstance(state, Submitting | Running | Stopping):
        ended, why = fact.declared
        over = Sighting("ended", "", None, ended, why)
        # A person may be wrong: it is looked for as long as one that vanished.
        return [replace(_finish(fact, over, now), proven=False)] if fact.complete else []
    match state:
        case Reserved():
            # Submitting is committed before the platform is called, so this was never sent anywhere.
            return [_never_ran(fact, now, "left over from a restart before it was submitted")]
        case Submitting(since=since):
            if fact.sighting is None:
                patience = fact.visibility_seconds + fact.overdue_seconds
                if _looked_at(fact, now) <= since + patience:
                    return []
                if fact.heard:
                    # Late is the platform's list, not the session: it has written to the artifact store.
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
        # Until the store has told all that is in it, a step that was published would count as lost.
        return [_finish(fact, fact.sighting, now)] if fact.complete else []
    if fact.sighting is not None and fact.sighting.state == "absent":
        # Accepted into a platform's queue, and proven never to leave it.
        return [_never_ran(fact, now, fact.sighting.detail or "the platform proves it never started")]
    gone_from = run.held_until + fact.visibility_seconds + fact.overdue_seconds
    if fact.sighting is None and fact.reachable and _looked_at(fact, now) > gone_from:
        gone = Sighting("ended", "", None, run.held_until, "gone from the platform after its deadline")
        return [replace(_finish(fact, gone, now), proven=False)] if fact.complete else []
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
    # Both would change the state that the other was decided for: a session that is stopped moves in the next cycle.
    stopped = isinstance(state, Running) and any(isinstance(stop, ForceStop) or stop.lane is None for stop in stops)
    if moved is not None and not stopped:
        steps.append(moved)
    return [*steps, *stops]


def _enforced_stop(fact: Facts, state: Stopping, now: int) -> list[ForceStop]:
    """End a session that does not follow its stop, or that cannot be asked and has more to cost than to lose.

    One that is not seen now is not ended: it may be over, and force may destroy what it left.
    """
    if fact.sighting is None:
        return []
    if _cannot_be_asked(fact):
        lost, waiting = _costs(fact, now)
        return [ForceStop(fact.run, state.why)] if lost < waiting else []
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
    lost, waiting = _costs(fact, now)
    why += "; it cannot be asked to save"
    if lost < waiting:
        return [ForceStop(fact.run, f"{why}: the {lost} s it trained are lost, waiting would cost {waiting} s")]
    why += f" and ends by itself in {waiting} s, which costs less than {lost} s lost"
    return [AskStop(fact.run, None, why)]


def _cannot_be_asked(fact: Facts) -> bool:
    return fact.sighting is not None and fact.sighting.stop_channel == "none"


def _costs(fact: Facts, now: int) -> tuple[int, int]:
    seen = fact.sighting
    return costs_of_stop(fact.run, None if seen is None or seen.state == "queued" else _started(fact, seen), now)


def costs_of_stop(run: Run, began: int | None, now: int) -> tuple[int, int]:
    """Return the seconds that are lost when a session that cannot be asked to save is ended, and those it has left.

    It is ended where the first are fewer. ``began`` is when it began to train, None when it has not.
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
    outcomes = [*(end.outcome for end in lanes), *(lane.outcome for lane in fact.run.lanes if lane.outcome)]
    return Finish(
        fact.run,
        summary(outcomes),
        started,
        max(started, ended),
        lanes,
        _why_ended((*fact.run.lanes, *lanes), sighting),
        may_live=sighting.stop_channel == "store" and any(end.index not in fact.results for end in lanes),
        price_microdollars_per_hour=sighting.price_microdollars_per_hour,
    )


def _why_ended(lanes: Sequence[Lane | LaneEnd], sighting: Sighting) -> str:
    """Return why a session ended: what its lanes say, for a place may call well done what ended badly inside it.

    ``lanes`` are those that end with it and those that had ended before.
    """
    own = dict.fromkeys(lane.message for lane in lanes if lane.error_class and lane.message)
    return "; ".join(own) or sighting.detail or "session ended"


def _looked_at(fact: Facts, now: int) -> int:
    return now if fact.asked_at is None else fact.asked_at


def _end(fact: Facts, sighting: Sighting, started: int, now: int) -> int:
    """Return until when a session is charged.

    Without the platform's word that is when we saw its end, but never past what was held, or past the last word of its
    lanes by more than the platform may take to end a session. What the platform showed running is charged in any case.
    """
    if sighting.told and sighting.ended is not None:
        return sighting.ended
    run = fact.run
    # A list may be as old as it takes a session to show up; until then it ran, whatever it says.
    ran = 0 if fact.ran_at is None else fact.ran_at - fact.visibility_seconds
    latest = min(now, max(ran, run.held_until) if sighting.ended is None else sighting.ended)
    words = [fact.results[lane.index].ended_at for lane in run.lanes if lane.index in fact.results]
    # A word from shortly before the start comes from another clock: the session ended as it had begun.
    left = [max(word, started) for word in words if word is not None and word >= started - CLOCKS_SECONDS]
    if len(left) == len(run.lanes):
        latest = min(latest, max(ran, max(left) + run.held_until - run.deadline))
    return max(started, latest)


def _started(fact: Facts, sighting: Sighting) -> int:
    if sighting.started is not None:
        return sighting.started
    return started_of(fact.run)


def _lane_end(lane: Lane, fact: Facts, sighting: Sighting | None) -> LaneEnd:
    end = _said_end(lane, fact.results.get(lane.index), fact, sighting)
    return replace(end, message=f"lost: {fact.lost}; {end.message}"[:_MESSAGE_MAX]) if fact.lost else end


def _said_end(lane: Lane, result: LaneReport | None, fact: Facts, sighting: Sighting | None) -> LaneEnd:
    run = fact.run
    if result is None:
        detail = sighting.detail if sighting is not None else ""
        if isinstance(run.state, Stopping) and sighting is not None and sighting.stop_channel == "none":
            why = f"ended by force, what it trained since its start is lost: {run.state.why}"
            return LaneEnd(lane.index, lane.job, Outcome.CANCELLED, None, None, why[:_MESSAGE_MAX])
        if sighting is not None and sighting.taken:
            why = f"the platform took it away. {detail}".strip()
            return LaneEnd(lane.index, lane.job, Outcome.PREEMPTED, None, None, why)
        if lane.index not in fact.begun:
            why = f"ended before its command had begun. {detail}".strip()
            failed = fact.declared is None and not isinstance(run.state, Stopping)
            return LaneEnd(lane.index, lane.job, Outcome.PREEMPTED, None, None, why, place_failed=failed)
        return LaneEnd(lane.index, lane.job, Outcome.LOST, None, "killed", f"ended without a result. {detail}".strip())
    lines = [line for line in result.message.splitlines() if line.strip()]
    # A traceback ends in what went wrong, which is said first: lists have room for the beginning alone.
    why = f"{result.why}: {lines[-1].strip()}" if result.why and len(lines) > 1 else result.why
    # A failure's reason may be all that there is to say: it is said once.
    message = "; ".join(dict.fromkeys(part for part in (why, result.message) if part))[:_MESSAGE_MAX]
    outcome = Outcome(result.outcome or "failed")
    return LaneEnd(lane.index, lane.job, outcome, result.checkpoint_step, result.error_class, message)


_GRAVITY: Sequence[Outcome] = (
    Outcome.FINISHED,
    Outcome.YIELDED,
    Outcome.CANCELLED,
    Outcome.PREEMPTED,
    Outcome.REJECTED,
    Outcome.FAILED,
    Outcome.LOST,
)


def summary(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the gravest of the lanes' outcomes, which stands for the run."""
    return max(outcomes, key=_GRAVITY.index, default=Outcome.LOST)
