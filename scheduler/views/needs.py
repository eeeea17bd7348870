"""Needs: the list of actions required of a person, each with the command to type.

Status, top, page, API, metrics, reports, alerts and shell prompts show this list. An entry that is added or removed is
an event.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from sqlalchemy import Connection

from jobs.nouns.window import DAY, HOUR
from jobs.size import counted
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, Queued
from scheduler.core.plan import Plan
from scheduler.core.reasons import BadDefinition, Cause, DeadlineUnreachable, DoesNotFit, NoAllowedPool, SecretMissing
from scheduler.core.run import Ended, Outcome, Reserved, Submitting
from scheduler.core.version import version_name
from scheduler.report.forecast import forecast
from scheduler.report.report import Need
from scheduler.service.outside.ports import Ports
from scheduler.store import (
    conditions,
    deployments,
    due,
    evaluations,
    events,
    jobs,
    limits,
    outbox,
    plans,
    rates,
    runs,
    versions,
    watched,
)
from scheduler.store.events import Event
from scheduler.store.jobs import JobRecord
from scheduler.views.long_work import long_work

RAISED, SETTLED = conditions.RAISED, "need.settled"
CLAIMED = "session.taken"
ALARMS = ("quota.orphan_suspected", "checkpoint.quarantined", "session.orphan", conditions.BLIND)
REPORT_AGAIN = "weekly-report-again"  # a due time with this name exists while a report could not be made
_TRIES_SHOWN = 3  # a message that failed this often needs an action
_REFUSALS = 5  # refused launches of a pool in a row
_STRAY_SECONDS = 2 * HOUR  # a session that still runs is reported again every hour, so older reports have ended


def needs(
    tx: Connection,
    pools: Collection[str],
    since: int,
    now: int,
    alarms: Sequence[Event] | None = None,
    read_plan: Callable[[Connection], Plan | None] = plans.newest,
) -> list[Need]:
    """Return the actions required of a person, from the present state and the events from ``since`` on.

    Only the configured ``pools`` count. ``alarms`` are the events of the kinds :data:`ALARMS` if the caller has read
    them; ``read_plan`` returns the newest plan, which a caller may have cached.
    """
    queue, plan = jobs.everything(tx), read_plan(tx)
    return [
        *_jobs(queue),
        *_waiting(queue, plan),
        *_deadlines(tx, queue, plan, now),
        *_paused(tx),
        *_pools(tx, pools, now),
        *_conditions(tx, queue),
        *_facts(tx),
        *_versions(tx),
        *_deployments(tx),
        *_messages(tx, since),
        *_long_work(tx),
        *_alarms(events.tail(tx, kinds=ALARMS) if alarms is None else alarms, since, now),
    ]


def watch_needs(ports: Ports, now: int, since: int) -> int:
    """Write an event for each need that was added or settled since the last call; return the number of needs."""
    with ports.database.read() as tx:
        current = {(need.what, need.subject): need for need in needs(tx, ports.pools, since, now)}
        reported = {(condition.what, condition.subject) for condition in conditions.standing(tx, RAISED)}
    new = [need for at, need in current.items() if at not in reported]
    resolved = sorted(reported - current.keys())
    if new or resolved:
        with ports.write() as tx:
            for need in new:
                facts = {"what": need.what, "why": need.why, "next": need.remedy}
                events.append(tx, RAISED, need.subject, now, **facts)
            for what, subject in resolved:
                events.append(tx, SETTLED, subject, now, what=what)
    for need in new:
        ports.log.warning(RAISED, what=need.what, about=need.subject, why=need.why, next=need.remedy)
    for what, subject in resolved:
        ports.log.info(SETTLED, what=what, about=subject)
    return len(current)


def _jobs(queue: Sequence[JobRecord]) -> Iterator[Need]:
    """Yield the needs of jobs that cannot continue without a person."""
    stopped = {job.spec.name: job for job in queue if isinstance(job.state, Failed | Cancelled)}
    for job in queue:
        name = job.spec.name
        match job.state:
            case Held(by=by, why=why, since=at):
                yield Need("job held", name, f"by {by}: {why}", f"schedctl queue release {name}", at)
            case Failed(why=why, message=message, at=at):
                yield Need("job failed", name, f"{why}: {message}", f"schedctl queue release {name}", at)
            case Done() if job.result_lost:
                why = f"its last checkpoint is damaged; step {job.done_step} of {job.spec.target_step} is left"
                yield Need("result lost", name, why, f"schedctl queue release {name}")
            case Queued() if job.faults:
                sentence = BadDefinition(name, "; ".join(job.faults)).sentence()
                yield Need("job can never start", name, sentence, f"schedctl queue edit {name}")
            case Queued() if not job.done_step and job.spec.gate is not None and job.spec.gate.parent in stopped:
                parent = stopped[job.spec.gate.parent]
                if parent.done_step < job.spec.gate.step_of(parent.spec.target_step):
                    state = parent.state
                    failed = isinstance(state, Failed)
                    sentence = f"waits for {parent.spec.name}, which {'failed' if failed else 'was cancelled'}"
                    remedy = f"queue release {parent.spec.name}" if failed else f"queue cancel {name}"
                    since = state.at if isinstance(state, Failed | Cancelled) else None
                    yield Need("dependency cannot be met", name, sentence, f"schedctl {remedy}", since)
            case _:
                pass


def _waiting(queue: Sequence[JobRecord], plan: Plan | None) -> Iterator[Need]:
    waiting = {job.spec.name for job in queue if isinstance(job.state, Queued)}
    for deferral in plan.deferrals if plan else ():
        if deferral.job in waiting and isinstance(deferral.reason, NoAllowedPool | DoesNotFit):
            explain = f"schedctl plan explain {deferral.job}"
            yield Need("job can never start", deferral.job, deferral.reason.sentence(), explain)
        elif deferral.job in waiting and isinstance(deferral.reason, SecretMissing):
            why = f"{deferral.reason.sentence()}. {deferral.reason.remedy}"
            yield Need("secret missing", deferral.job, why, f"schedctl plan explain {deferral.job}")


def _deadlines(tx: Connection, queue: Sequence[JobRecord], plan: Plan | None, now: int) -> Iterator[Need]:
    """Yield deadlines that the late case of the newest plan's forecast misses, and deadlines without a forecast."""
    dated = [job for job in queue if job.spec.deadline is not None and not jobs.has_time(job.spec, now)]
    dated = [job for job in dated if not isinstance(job.state, Cancelled | Failed)]
    left = {job.spec.name: steps for job in dated if (steps := job.spec.target_step - job.done_step) > 0}
    if not left:
        return
    speeds = rates.of_jobs(tx, list(left))
    unreachable = {
        deferral.job: deferral.reason.sentence()
        for deferral in (plan.deferrals if plan else ())
        if isinstance(deferral.reason, DeadlineUnreachable)
    }
    for job in dated:
        name = job.spec.name
        if name not in left:
            continue
        sigma = max((rate.sigma for rate in speeds.get(name, ()) if rate.samples), default=None)
        outlook = forecast(name, left[name], plan, 0.0, sigma, now)
        if outlook is None or outlook.latest > (job.spec.deadline or 0):
            end = "no session is planned for it" if outlook is None else "the forecast ends after its deadline"
            yield Need("deadline at risk", name, unreachable.get(name, end), f"schedctl plan explain {name}")


def _paused(tx: Connection) -> Iterator[Need]:
    if (paused := limits.paused(tx)) is not None:
        yield Need("everything paused", "all pools", paused.why, "schedctl resume", paused.at)


def _pools(tx: Connection, pools: Collection[str], now: int) -> Iterator[Need]:
    reported: set[str] = set()
    for pool, closure in limits.standing(tx).items():
        open_ = f"schedctl pools open {pool}"
        unread = closure.cause is Cause.QUOTA_UNREADABLE and now - closure.at >= conditions.SILENT_SECONDS
        wrong = closure.cause is Cause.WRONG_DEVICE and (closure.until is None or closure.until > now)
        if pool not in pools or not (closure.cause.waits_for_person or closure.until is None or unread or wrong):
            continue
        reported.add(pool)
        if wrong:
            yield Need("wrong accelerator", pool, closure.why, open_, closure.at)
        elif closure.cause.waits_for_person:
            yield Need("pool cannot be used", pool, closure.why, open_, closure.at)
        elif closure.until is None:
            yield Need("pool closed", pool, closure.why, open_, closure.at)
        else:
            yield Need("platform does not answer", pool, closure.why, "schedctl doctor", closure.at)
    for silent in conditions.standing(tx, conditions.SILENT):
        if silent.subject in set(pools) - reported:
            reported.add(silent.subject)
            yield Need("platform does not answer", silent.subject, silent.why, "schedctl doctor", silent.since)
    for pool, refused in sorted(refusals(tx, now - DAY).items()):
        if pool in set(pools) - reported and len(refused) >= _REFUSALS:
            why = f"{counted(len(refused), 'launch', 'launches')} in a row were refused, the last: {refused[-1][1]}"
            yield Need("launches refused", pool, why, f"schedctl runs list --pool {pool}", refused[0][0])


def _conditions(tx: Connection, queue: Sequence[JobRecord]) -> Iterator[Need]:
    """Yield lasting problems of live sessions and open jobs, changes that agents propose, and refused settings.

    The problems are sessions that cannot be handled or that still run unwanted, running jobs that cannot be planned,
    jobs that were planned at least twice without a launch, and unclaimed live sessions, which block all launches.
    """
    late, live = watched.keys(tx), {run.key for run in runs.live(tx)}
    training, waiting = ({job.spec.name for job in queue if isinstance(job.state, kind)} for kind in (Active, Queued))
    for kind, what, remedy, among in (
        (conditions.RUN_POISONED, "session cannot be handled", "schedctl runs show {}", live | late),
        (conditions.RUN_UNCLEAR, "session not known", "schedctl runs lost {} --proof '...'", live | late),
        (conditions.LIVES, "session goes on unwanted", "schedctl runs show {}", late),
        (conditions.JOB_POISONED, "job cannot be planned", "schedctl queue show {}", training),
        (conditions.LAUNCH_POSTPONED, "job cannot be launched", "schedctl plan explain {}", waiting),
        (conditions.OFFERED, "session offered", "schedctl handover claim {}", live),
        (conditions.PROPOSED, "agent asks", "schedctl agents approve {}", None),
        (conditions.RELOAD_REFUSED, "settings not reloaded", "schedctl config check", None),
    ):
        for problem in conditions.standing(tx, kind):
            if among is None or problem.subject in among:
                why = "it waits for a person to claim it" if kind == conditions.OFFERED else problem.why
                yield Need(what, problem.subject, why, remedy.format(problem.subject), problem.since)


def _facts(tx: Connection) -> Iterator[Need]:
    for one in conditions.standing(tx, conditions.CONTRADICTED):
        name, _, pool = one.subject.partition(" of ")
        remedy = f"acceptance {pool} --only {name}" if name != "session_cap_seconds" else "config show"
        yield Need("fact contradicted", one.subject, one.why, f"schedctl {remedy}", one.since)


def refusals(tx: Connection, since: int) -> dict[str, list[tuple[int, str]]]:
    """Return (instant, reason) of the launches refused since the last accepted launch, by pool and oldest first."""
    result: dict[str, list[tuple[int, str]]] = {}
    for run in runs.since(tx, since):
        refused = result.setdefault(run.pool, [])
        if isinstance(run.state, Ended) and run.state.outcome is Outcome.REJECTED:
            refused.append((run.state.at, next((lane.message for lane in run.lanes if lane.message), "")))
        elif not isinstance(run.state, Reserved | Submitting):
            refused.clear()
    return {pool: refused for pool, refused in result.items() if refused}


def _versions(tx: Connection) -> Iterator[Need]:
    """Yield needs of the newest version of each model: no scores, not accepted, or accepted but not promoted.

    A version that the daemon rolled back after votes is a need until a person promotes a version of the model.
    """
    for version in {one.model: one for one in versions.everything(tx)}.values():
        moved = next(iter(versions.promotions_of(tx, version.model)), None)
        if moved is not None and moved.kind == "rollback" and moved.by == deployments.DAEMON and moved.was is not None:
            back = f"{version.model}@{moved.number} is promoted" if moved.number else "none is promoted"
            before = version_name(version.model, moved.was)
            yield Need(
                "version rolled back", before, f"{moved.why}; {back}", f"schedctl models show {before}", moved.at
            )
        promoted = versions.in_force(tx, version.model)
        if version.state == "accepted" and (promoted is None or promoted.number < version.number):
            decided_at = [one.at for one in evaluations.verdicts_of(tx, version)]
            decided_at += [one.at for one in evaluations.overrules_of(tx, version)]
            since = max(decided_at, default=version.created_at)
            remedy = f"schedctl models promote {version.name} --reason WHY"
            why = f"accepted ({version.why}), but not promoted yet"
            yield Need("version waits for promotion", version.name, why, remedy, since)
        rows = evaluations.of_version(tx, version)
        if version.state == "candidate" and rows and rows[-1].state == "failed":
            remedy = f"schedctl models evaluate {version.name}"
            yield Need("evaluation failed", version.name, rows[-1].error, remedy, rows[-1].ended_at)
        elif version.state in {"rejected", "inconclusive"} and not evaluations.overrules_of(tx, version):
            verdicts = evaluations.verdicts_of(tx, version)
            # If the newest verdict differs from the state, a person rolled back an accepted version.
            if verdicts and verdicts[-1].verdict == version.state:
                why = f"{version.state}: {version.why}"
                yield Need(
                    "version not accepted", version.name, why, f"schedctl models show {version.name}", verdicts[-1].at
                )


def _deployments(tx: Connection) -> Iterator[Need]:
    for ended in deployments.stopped(tx):
        why = f"{ended.version} was {ended.state}: {ended.why}"
        about = f"{ended.model} at {ended.target}"
        yield Need("deployment stopped", about, why, f"schedctl models resume {ended.model}", ended.ended_at)
    rows = deployments.live(tx)
    replaced = {(row.model, row.target) for row in rows if row.state == "intended"}
    for row in rows:
        version = versions.find(tx, row.model, row.number)
        if row.state != "serving" or version is None or version.state != "rejected":
            continue
        promoted = versions.in_force(tx, row.model)
        # The daemon itself deploys the promoted version to an automatic target.
        is_automatic = row.by == deployments.DAEMON and promoted is not None
        if not is_automatic and (row.model, row.target) not in replaced:
            remedy = f"schedctl models deploy {promoted.name if promoted else row.model} --to {row.target}"
            why = f"{row.version} was rolled back ({version.why}) and is still deployed"
            yield Need("rolled back, still deployed", f"{row.model} at {row.target}", why, remedy, row.served_at)


def _messages(tx: Connection, since: int) -> Iterator[Need]:
    """Yield one need for each channel that rejects its messages, and one if a report could not be made."""
    for one in outbox.stuck(tx, _TRIES_SHOWN, since):
        why = f"{counted(one.messages, 'message')}, {counted(one.attempts, 'try', 'tries')}: {one.why}"
        yield Need("message not delivered", one.channel, why, "schedctl doctor", one.since)
    if REPORT_AGAIN in due.next_due(tx):
        failed = events.tail(tx, limit=1, kinds=("report.failed",))
        week, why = (failed[0].subject, str(failed[0].data.get("why"))) if failed else ("weekly", "")
        yield Need("report not made", week, why, "schedctl report weekly", failed[0].at if failed else None)


def _long_work(tx: Connection) -> Iterator[Need]:
    for one in long_work(tx):
        if one.state == "failed":
            yield Need("work failed", one.what, one.told, "schedctl doctor", one.since)
        elif one.state == "standing still":
            why = f"no progress for half an hour{': ' * bool(one.told)}{one.told}"
            yield Need("work stands still", one.what, why, "schedctl doctor", one.since)


def _alarms(alarms: Sequence[Event], since: int, now: int) -> Iterator[Need]:
    for event in alarms:
        if not since <= event.at < now:
            continue
        match event.kind:
            case "quota.orphan_suspected":
                unexplained = event.data.get("seconds", 0) / 3_600
                why = f"{unexplained:.2f} h were billed that no run of ours explains"
                remedy = f"schedctl runs list --pool {event.subject}"
                yield Need("use by others suspected", event.subject, why, remedy, event.at)
            case "session.orphan" if now - event.at < _STRAY_SECONDS:
                pool = str(event.data.get("pool"))
                why = f"runs on {pool} as {event.data.get('remote_id')}, but no run in the database belongs to it"
                yield Need("session without a run", event.subject, why, f"schedctl runs list --pool {pool}", event.at)
            case "checkpoint.quarantined":
                why = str(event.data.get("why"))
                yield Need("checkpoint damaged", event.subject, why, "schedctl checkpoints verify", event.at)
            case "watch.blind":
                why = str(event.data.get("why"))
                yield Need("votes not read", event.subject, why, f"schedctl models watch {event.subject}", event.at)
            case _:
                pass
