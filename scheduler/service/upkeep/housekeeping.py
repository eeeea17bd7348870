"""Housekeeping: what recurs; above all retention, by which saved states leave the artifact store in two phases.

What may go is marked with its reason and a time; when the time has come it is judged again, and only then deleted. The
order makes every crash harmless: first the database says that a checkpoint has expired, so that no session starts
from it; then its manifest goes; its components go last, when no manifest names them and no session of their job runs
that might be about to name them. Each pass does a bounded amount of work, and repeating it does no harm.

Code, inputs and corpora that no job names any longer leave the store likewise, after a grace period.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from jobs.nouns.window import DAY, HOUR
from jobs.payload.bounds import Rejection
from jobs.payload.store.manifest import BadManifest, blob_key, parse_manifest
from jobs.payload.store.tree import LISTING, sweep_trees
from platforms.artifacts.base import Missing, StoreError, StoreUnreachable
from platforms.base import Platform, PlatformError
from scheduler.core.retention import Retention, RetentionVerdict, SavedState, may_be_read, verdicts
from scheduler.core.run import Run
from scheduler.service.facts.early_stops import standing
from scheduler.service.faults.isolation import why
from scheduler.service.outside import border
from scheduler.service.outside.calls import fail
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import CHECK_EVERY_SECONDS, READ_EVERY_SECONDS, audit, recheck
from scheduler.store import checkpoints, due, events, generations, jobs, outbox, runs, trees, versions, watched
from scheduler.store.checkpoints import CheckpointRecord, Discard
from scheduler.store.errors import StoreFailure

PORTION = 200  # objects marked, and objects deleted, in one pass
_MANIFEST_BYTES = 1 << 20
_UNNAMED = "no checkpoint names it"


@dataclass(frozen=True, slots=True)
class JudgedCheckpoint:
    """One unexpired checkpoint, what retention says of it, and when it goes if it is marked already."""

    record: CheckpointRecord
    verdict: RetentionVerdict
    delete_at: int | None


def judge(tx: Connection, rule: Retention, now: int, job: str | None = None) -> list[JudgedCheckpoint]:
    """Judge all unexpired checkpoints, of one job if asked; by job, highest step first. Raises UnknownJob."""
    live = runs.live(tx)
    marked = {mark.key: mark.delete_at for mark in checkpoints.marked(tx, job)}
    by_job: dict[str, list[CheckpointRecord]] = {}
    for record in checkpoints.unexpired(tx, job):
        by_job.setdefault(record.manifest.job, []).append(record)
    result = []
    for name, records in by_job.items():
        by_key = _verdicts(tx, name, records, live, rule, now)
        result += [
            JudgedCheckpoint(record, by_key[record.manifest.key], marked.get(record.manifest.key)) for record in records
        ]
    return result


def retain(ports: Ports, now: int) -> None:
    """Mark what may go, unmark what is needed after all, and delete what has waited out its grace."""
    _mark(ports, now)
    _expire(ports, now)
    with ports.database.read() as tx:
        names = checkpoints.unexpired_jobs(tx) | {mark.job for mark in checkpoints.marked(tx)}
    for job in sorted(names):
        _sweep(ports, [job], now)


def sweep_ended(ports: Ports, names: Collection[str], now: int) -> None:
    """Delete what waits of these jobs, whose sessions have just ended: before the next ones begin there is time."""
    with ports.database.read() as tx:
        due = {mark.job for mark in checkpoints.marked(tx) if mark.delete_at <= now}
    _sweep(ports, due & set(names), now)


def _sweep(ports: Ports, names: Collection[str], now: int) -> None:
    """Sweep each job once at a time, wherever it is asked for; one whose store takes long holds up no other job."""
    ports.calls.gather("components", {job: partial(sweep_components, ports, job, now) for job in sorted(names)})


def sweep_components(ports: Ports, job: str, now: int) -> None:
    """Mark the components of ``job`` that no manifest names, and delete those that have been so for the grace.

    Nothing while a session of the job runs: it may be about to name one of them. A store that gives no answer, or a
    manifest that cannot be understood, changes nothing.
    """
    with ports.database.read() as tx:
        if _trains(tx, job):
            return
        records = checkpoints.unexpired(tx, job)
        marked = {mark.key: mark for mark in checkpoints.marked(tx, job) if mark.key.startswith(blob_key(job, ""))}
    try:
        stored = set(ports.artifacts.keys(blob_key(job, "")))
        named = _named(ports, job, records)
    except (StoreError, BadManifest) as error:
        ports.log.warning("retention.waits", job=job, why=str(error), next="tried again with the next pass")
        if not isinstance(error, StoreUnreachable):
            refused = border.NotBelieved(job, "manifest", (Rejection(f"jobs/{job}/manifests", str(error), ""),))
            border.Complaints(ports).tell([refused], {job}, now)
        return
    unnamed = stored - named
    expired = [key for key, mark in marked.items() if key in unnamed and mark.delete_at <= now][:PORTION]
    kept = [key for key in marked if key not in unnamed]
    grace = ports.policy.retention.grace_seconds
    fresh = [Discard(key, job, _UNNAMED, now, now + grace) for key in sorted(unnamed - marked.keys())[:PORTION]]
    if not (expired or kept or fresh):
        return
    with ports.write() as tx:  # fenced: a daemon that has lost its lease deletes nothing
        if _trains(tx, job):  # since the store was asked; from now on none is launched before this is over
            return
        checkpoints.unmark(tx, kept)
        checkpoints.mark(tx, fresh)
    _delete(ports, job, expired)


def _trains(tx: Connection, job: str) -> bool:
    return any(lane.job == job for run in runs.live(tx) for lane in run.lanes)


def _verdicts(
    tx: Connection, job: str, records: Sequence[CheckpointRecord], live: Sequence[Run], rule: Retention, now: int
) -> dict[str, RetentionVerdict]:
    job_record = jobs.find(tx, job)
    if job_record is None:
        raise jobs.UnknownJob(job, ())
    saved = [
        SavedState(
            record.manifest.key,
            record.manifest.step,
            record.manifest.attempt,
            record.state == "good",
            record.pinned,
            record.seen_at,
            record.manifest.run,
            record.why,
            record.manifest.attempt <= job_record.fenced_attempt,
        )
        for record in records
    ]
    mine = [run for run in live if any(lane.job == job for lane in run.lanes)]
    readers = [may_be_read(saved, run.key, run.planned_start, checkpoints.RESTORABLE) for run in mine]
    read = dict.fromkeys(set().union(*readers), "a live session may read it")
    best = standing(tx, job_record.spec, job_record.fenced_attempt).best
    result = {} if best is None else {best.key: "the best so far by the job's stop rule"}
    needed = generations.kept(tx, job) | versions.kept(tx, job) | read | result
    return verdicts(saved, job_record.checkpoint, needed, job_record.spec.target_step, rule, now)


def _mark(ports: Ports, now: int) -> None:
    rule = ports.policy.retention
    with ports.database.read() as tx:
        judged = judge(tx, rule, now)
    kept = [one.record.manifest.key for one in judged if one.verdict.stays and one.delete_at is not None]
    fresh = [
        Discard(one.record.manifest.key, one.record.manifest.job, one.verdict.why, now, now + rule.grace_seconds)
        for one in judged
        if not one.verdict.stays and one.delete_at is None
    ]
    if kept or fresh:
        with ports.write() as tx:
            checkpoints.unmark(tx, kept)
            checkpoints.mark(tx, fresh[:PORTION])


def _expire(ports: Ports, now: int) -> None:
    """Delete the manifests whose grace is over. Judged once more, in the transaction that lets them expire."""
    with ports.write() as tx:
        due = [
            mark
            for mark in checkpoints.marked(tx)
            if mark.delete_at <= now and not mark.key.startswith(blob_key(mark.job, ""))
        ][:PORTION]
        reasons = {
            one.record.manifest.key: one.verdict
            for job in sorted({mark.job for mark in due})
            for one in judge(tx, ports.policy.retention, now, job)
        }
        needed = [mark.key for mark in due if mark.key in reasons and reasons[mark.key].stays]
        checkpoints.unmark(tx, needed)
        for mark in due:
            if mark.key in reasons and not reasons[mark.key].stays:  # what is not judged has expired in an earlier pass
                checkpoints.expire(tx, mark.key, reasons[mark.key].why, now)
    by_job: dict[str, list[str]] = {}
    for mark in due:
        if mark.key not in needed:
            by_job.setdefault(mark.job, []).append(mark.key)
    for job, keys in by_job.items():
        _delete(ports, job, keys)


def _delete(ports: Ports, job: str, keys: Sequence[str]) -> None:
    """Delete objects, then their marks; what cannot be deleted stays marked."""
    deleted = []
    for key in keys:
        try:
            ports.artifacts.delete(key)
        except StoreError as error:
            ports.log.warning("retention.failed", job=job, why=str(error), next="tried again with the next pass")
            break
        deleted.append(key)
    if deleted:
        with ports.write() as tx:
            checkpoints.unmark(tx, deleted)
        ports.log.info("retention.deleted", job=job, objects=len(deleted))


def _named(ports: Ports, job: str, records: Sequence[CheckpointRecord]) -> set[str]:
    """Return the keys of all components that a manifest of ``job`` names, in the store or in our ``records``.

    Raises StoreError, and BadManifest for one that only the store knows and that cannot be read.
    """
    keys = {record.manifest.key for record in records}
    manifests = [record.manifest for record in records]
    for key in ports.artifacts.keys(f"jobs/{job}/manifests/"):
        if key not in keys:
            try:
                manifests.append(parse_manifest(key, ports.artifacts.read(key, _MANIFEST_BYTES)))
            except Missing:
                continue
    return {blob_key(job, component.sha256) for manifest in manifests for component in manifest.components}


def retain_trees(ports: Ports, now: int) -> None:
    """Mark what is not needed, unmark what is needed after all, and delete what has waited out its grace.

    What is being deleted is noted before, so that no job can come to need it meanwhile; a crash in between is made good
    by the next pass.
    """
    corpora = ports.corpora() if ports.corpora is not None else None
    kept = corpora.kept() if corpora is not None else set()
    with ports.write() as tx:
        needed = trees.needed(tx) | kept
        going = []
        for tree in trees.everything(tx):
            if tree.going:
                going.append(tree)
            elif {tree.digest, tree.origin} & needed:
                if tree.delete_at is not None:
                    trees.note(tx, tree.kind, tree.digest, None)
            elif tree.delete_at is None:
                trees.note(tx, tree.kind, tree.digest, now + ports.policy.retention.grace_seconds)
            elif tree.delete_at <= now:
                trees.let_go(tx, tree.digest, now)
                going.append(tree)
    for tree in going:
        try:
            if tree.kind == trees.CORPUS and corpora is not None:
                corpora.delete(tree.digest)  # what sessions elsewhere got of it is in the store
            ports.artifacts.delete(f"{tree.prefix}/{LISTING}")  # first: without it nothing counts as there
            for key in ports.artifacts.keys(f"{tree.prefix}/"):
                ports.artifacts.delete(key)
        except (StoreError, OSError) as error:
            ports.log.warning(
                "retention.failed", tree=tree.prefix, why=str(error), next="tried again with the next pass"
            )
            return
        with ports.write() as tx:
            trees.forget(tx, tree.digest)
        ports.log.info("retention.deleted", tree=tree.prefix)


# Duties: remove data that nothing needs any more. Every step is idempotent and safe to cut short.
KEEP_SESSIONS_SECONDS = 7 * DAY
_ROWS = 5_000  # pruned in one pass
_UPLOAD_SECONDS = 7 * DAY  # real time in which a writer that was cut off may go on


def sweep_sessions(ports: Ports, now: int) -> None:
    """Let platforms forget sessions that ended more than a week ago.

    The sessions to forget are named, not those to keep: a daemon that was suspended, or that works on a restored
    backup, does not know the sessions launched meanwhile, and they would be forgotten before they are settled.
    """
    with ports.database.read() as tx:
        # What is still watched was given up, or lives on: what it leaves may have to come home yet.
        over = runs.ended_before(tx, now - KEEP_SESSIONS_SECONDS) - watched.keys(tx)

    def sweep(pool: str, platform: Platform) -> None:
        try:
            removed = border.call(pool, "sweep", partial(platform.sweep, over, now))
        except PlatformError as error:
            ports.log.warning("sweep.failed", pool=pool, why=str(error))
            return
        if removed:
            ports.log.info("sweep.done", pool=pool, sessions=len(removed))

    _ask_each(ports, "sweep", sweep)


def find_orphans(ports: Ports, now: int) -> None:
    """Look for live sessions that are ours and that no run names, and raise the alarm: no cycle would reconcile them.

    They are not ended: another scheduler on the same account may own them.
    """
    with ports.database.read() as tx:
        our_keys = runs.keys_since(tx, now - KEEP_SESSIONS_SECONDS)

    def look(pool: str, platform: Platform) -> None:
        if not platform.capabilities.finds_orphans:
            return
        try:
            orphans = border.orphans(ports, pool, our_keys)
        except PlatformError as error:
            ports.log.warning("orphans.unknown", pool=pool, why=str(error))
            return
        for orphan in orphans:
            with ports.write() as tx:
                if orphan.key in runs.keys_since(tx, now - KEEP_SESSIONS_SECONDS):
                    continue  # launched while the platform was asked
                events.append(tx, "session.orphan", orphan.key, now, pool=pool, remote_id=orphan.remote_id)
            ports.log.error(
                "session.orphan",
                pool=pool,
                run=orphan.key,
                remote_id=orphan.remote_id,
                next="end it, or find its owner",
            )

    _ask_each(ports, "orphans", look)


def _ask_each(ports: Ports, kind: str, ask: Callable[[str, Platform], None]) -> None:
    """Ask every platform; one that takes long goes on by itself while everybody else is looked after."""
    ports.calls.gather(kind, {pool: partial(ask, pool, platform) for pool, platform in sorted(ports.platforms.items())})


def prune_rows(ports: Ports, now: int) -> None:
    """Remove what the database need not remember: old events, the words of old messages, checkpoints long gone."""
    rule = ports.policy.retention
    with ports.write() as tx:
        removed = {
            "events": events.prune(tx, now - rule.events_seconds, _ROWS),
            "letters": outbox.empty(tx, now - rule.messages_seconds, _ROWS),
            "checkpoints": checkpoints.forget(tx, now - rule.events_seconds, _ROWS),
        }
    if any(removed.values()):
        ports.log.info("prune.done", **removed)


def sweep_store(ports: Ports, now: int) -> None:
    """Remove from the artifact store what writers that were killed left, and reports of sessions long over."""
    figures = ports.clock.payload_clock()
    real = figures["origin"] + (now - figures["epoch"]) / figures["scale"]
    before = now - ports.policy.retention.reports_seconds
    sweeps: dict[str, Callable[[], int]] = {
        "leftovers": lambda: ports.artifacts.sweep(real - _UPLOAD_SECONDS),
        "inputs": lambda: len(sweep_trees(ports.scratch, real - _UPLOAD_SECONDS)),
        "reports": lambda: _sweep_reports(ports, before),
    }
    for what, sweep in sweeps.items():
        try:
            removed = sweep()
        except StoreError as error:
            ports.log.warning("sweep.store_failed", what=what, why=str(error), next="tried again tomorrow")
            continue
        if removed:
            ports.log.info("sweep.store_done", what=what, objects=removed)


def _sweep_reports(ports: Ports, before: int) -> int:
    """Delete heartbeats, results and stop flags of sessions that ended before ``before``; return how many objects.

    What no run of ours explains is left alone: it may be another scheduler's.
    """
    keys = list(ports.artifacts.keys("runs/"))
    with ports.database.read() as tx:
        over = runs.ended_before(tx, before)
    doomed = [key for key in keys if key.split("/")[1] in over][:PORTION]
    for key in doomed:
        ports.artifacts.delete(key)
    return len(doomed)


_TASKS = {
    "retention": (retain, 6 * HOUR),
    "tree-retention": (retain_trees, 6 * HOUR),
    "prune-rows": (prune_rows, DAY),
    "sweep-store": (sweep_store, DAY),
    "find-orphans": (find_orphans, HOUR),
    "sweep-sessions": (sweep_sessions, DAY),
    "audit-quotas": (audit, READ_EVERY_SECONDS),
    "recheck-bills": (recheck, CHECK_EVERY_SECONDS),
}


def run_due(ports: Ports, now: int) -> None:
    """Run what the ``due`` table says is due; down time makes a task late, never lost and never doubled.

    One that takes long goes on by itself while cycles and the other duties do.
    """
    ports.calls.begin()
    with ports.database.read() as tx:
        planned = due.next_due(tx)
    for name, (task, every_seconds) in _TASKS.items():
        # No further ahead than its interval: a clock that was years ahead for a moment puts nothing off for years.
        if now < planned.get(name, 0) <= now + every_seconds:
            continue
        ports.calls.gather("duty", {name: partial(_do, ports, name, task, now, every_seconds)})


def _do(ports: Ports, name: str, task: Callable[[Ports, int], None], now: int, every_seconds: int) -> None:
    try:
        task(ports, now)
    except (StoreFailure, OSError):
        raise
    except Exception as error:  # one duty that fails keeps no other from being done
        ports.log.exception("housekeeping.failed", duty=name, next="tried again with the next look")
        fail(why(error))
        return
    with ports.write() as tx:
        due.set_due(tx, name, now + every_seconds)
