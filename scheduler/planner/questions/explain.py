"""Explain: the reason why a job waits, and for an outbid job the priority with which it would start now."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

from scheduler.core.plan import Plan
from scheduler.core.reasons import Outbid, Reason, weight_rounded_up
from scheduler.core.snapshot import JobView, Snapshot
from scheduler.planner.model.session_yield import terms
from scheduler.planner.model.value import reference_rate
from scheduler.planner.planner import ALL_LAYERS, WHOLE_JOBS_MAX, Planner, PlannerOptions
from scheduler.planner.questions.whatif import SetWeight, UnknownName, apply
from scheduler.planner.search.rebuild import SEARCHED_JOBS_MAX

# The search ends when a priority that starts the job is at most this factor above one that does not.
CLOSE = 1.01
CLOSE_AMONG_MANY = 1.03
# Factors on the first guess, tried in order until both sides are bracketed.
STRIDES = (1.02, 1.1, 1.4, 3.0, 30.0, 1e3, 1e6)
# After the search, a priority lower by this factor is tried, as long as it starts the job, at most this many times.
CLEARLY_LESS = 1.03
LOWER_TRIES = 6
# The answer must also start the job in a plan made from scratch; if not, it is raised by these factors.
MARGINS = (1.0, 1.01, 1.03, 1.1, 1.3, 2.0)


def explain(
    snapshot: Snapshot, job: str, options: PlannerOptions = ALL_LAYERS, incumbent: Plan | None = None
) -> Reason | None:
    """Return why ``job`` does not start now, or None when it starts or runs. Raises UnknownName.

    ``incumbent`` is the current plan. For an outbid job, ``weight_to_start`` is a priority with which a new plan starts
    it now. It is found by planning with trial priorities, to about 1 % (3 % with hundreds of jobs, where a single
    candidate is used instead of a whole plan). ``no_weight`` is set if no priority starts it.
    """
    if all(view.name != job for view in snapshot.jobs):
        raise UnknownName("job", job, [view.name for view in snapshot.jobs])
    planner = Planner(options)
    plan, policy = planner.plan_and_policy(snapshot, incumbent)
    reason = next((deferral.reason for deferral in plan.deferrals if deferral.job == job), None)
    if not isinstance(reason, Outbid):
        return reason

    def starts(weight: float, maker: Planner, *, quick: bool = False) -> bool:
        edited = apply(snapshot, SetWeight(job, weight))
        placements = (maker.quick_schedule(edited, policy) if quick else maker.plan(edited, incumbent)).placements
        return any(
            lane.job == job for placement in placements if placement.start <= snapshot.now for lane in placement.lanes
        )

    view = next(each for each in snapshot.jobs if each.name == job)
    # One planner for all tries: its solver continues from the last basis, which is many times faster. Most tries skip
    # the local search, which is most of the work; the last ones use it. With hundreds of jobs, where plans are slow, a
    # try is one candidate.
    many = SEARCHED_JOBS_MAX < len(snapshot.jobs) <= WHOLE_JOBS_MAX
    light = Planner(replace(options, search_steps=0))
    guess = _guess(snapshot, view, reason)
    most = max(view.weight, guess) * STRIDES[-1]
    if many and not starts(most, light, quick=True) and not starts(most, planner):
        return replace(reason, no_weight=True)
    close = CLOSE_AMONG_MANY if many else CLOSE
    near = _least(view.weight, guess, lambda weight: starts(weight, light, quick=many), close)
    weight_found = near
    if near is None or not many:
        weight_found = _least(view.weight, near or guess, lambda weight: starts(weight, planner), close)
    if weight_found is None:
        return replace(reason, no_weight=True)
    for _ in range(0 if many else LOWER_TRIES):
        # The local search is not monotonic: a lower priority may start the job as well.
        lower = weight_found / CLEARLY_LESS
        if lower <= view.weight or not starts(lower, Planner(options)):
            break
        weight_found = lower
    raised = (weight_rounded_up(weight_found * margin) for margin in MARGINS)
    return replace(reason, weight_to_start=next((each for each in raised if starts(each, Planner(options))), None))


def _guess(snapshot: Snapshot, view: JobView, reason: Outbid) -> float:
    """Return the priority at which the job's longest session, alone on all devices, is worth the price of its hours."""
    pool = next(each.pool for each in snapshot.pools if each.pool.name == reason.pool)
    speed = view.speed(pool.name, max(view.needs.devices_min, min(view.needs.devices_max, pool.devices_per_session)))
    job_terms = terms(view, pool)
    length = min(pool.session_cap_seconds, job_terms.length_for(view.remaining_steps / speed))
    brings = (
        view.importance * speed / reference_rate(view) * job_terms.useful(length) / length
    )  # per hour of the session
    return view.weight * (reason.price or 0.0) / brings if brings > 0 else 0.0


def _least(low: float, guess: float, starts: Callable[[float], bool], close: float = CLOSE) -> float | None:
    """Return a priority that starts the job, within ``close`` of one that does not; None if no priority starts it.

    ``low`` does not start the job. The search brackets the limit from ``guess``, then bisects on a logarithmic scale.
    """
    low = max(low, 1e-6)
    high = guess if guess > low * close and starts(guess) else None
    if high is None:
        low = base = max(low, guess)
        for stride in STRIDES:
            if starts(base * stride):
                high = base * stride
                break
            low = base * stride
        else:
            return None
    else:
        base = high
        for stride in STRIDES:
            if base / stride <= low:
                break
            if not starts(base / stride):
                low = base / stride
                break
            high = base / stride
    while high > low * close:
        middle = sqrt(low * high)
        if starts(middle):
            high = middle
        else:
            low = middle
    return high
