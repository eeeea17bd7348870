"""Housekeeping: recurring duties, above all retention, which deletes checkpoints from the artifact store in two phases.

A checkpoint that is not needed is marked with reason and time; at that time it is judged again before it is deleted.
The order makes crashes harmless: the database row expires first, so that no session starts from the checkpoint; then
the manifest is deleted; its components are deleted last, when no manifest names them and no session of the job runs
that could name them. Each pass is bounded and idempotent.

Code, inputs and corpora that no job names are deleted in the same way, after a grace period.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from jobs.grouping import grouped
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

PORTION = 200  # objects marked, and objects deleted, per pass
_MANIFEST_BYTES = 1 << 20
_UNNAMED = "no checkpoint names it"


@dataclass(frozen=True, slots=True)
class JudgedCheckpoint:
    """An unexpired checkpoint, the verdict of retention, and its time of deletion if it is marked."""

    record: CheckpointRecord
    verdict: RetentionVerdict
    delete_at: int | None


def judge(tx: Connection, rule: Retention, now: int, job: str | None = None) -> list[JudgedCheckpoint]:
    """Return unexpired checkpoints (all, or of ``job``) with their verdicts, highest step first. Raises UnknownJob."""
    live = runs.live(tx)
    marked = {mark.key: mark.delete_at for mark in checkpoints.marked(tx, job)}
    result = []
    for name, records in grouped((one.manifest.job, one) for one in checkpoints.unexpired(tx, job)).items():
        by_key = _verdicts(tx, name, records, live, rule, now)
        keys = [record.manifest.key for record in records]
        result += [JudgedCheckpoint(one, by_key[key], marked.get(key)) for one, key in zip(records, keys, strict=True)]
    return result


def retain(ports: Ports, now: int) -> None:
    """Mark checkpoints that are not needed, unmark those needed again, and delete those whose grace is over."""
    _mark(ports, now)
    _expire(ports, now)
    with ports.database.read() as tx:
        names = checkpoints.unexpired_jobs(tx) | {mark.job for mark in checkpoints.marked(tx)}
    for job in sorted(names):
        _sweep(ports, [job], now)


def sweep_ended(ports: Ports, names: Collection[str], now: int) -> None:
    """Delete marked components of these jobs, whose sessions have just ended, before their next sessions start."""
    with ports.database.read() as tx:
        due = {mark.job for mark in checkpoints.marked(tx) if mark.delete_at <= now}
    _sweep(ports, due & set(names), now)


def _sweep(ports: Ports, names: Collection[str], now: int) -> None:
    """Sweep jobs in the background, each at most once at a time, so that a slow store delays no other job."""
    ports.calls.gather("components", {job: partial(sweep_components, ports, job, now) for job in sorted(names)})


def sweep_components(ports: Ports, job: str, now: int) -> None:
    """Mark the components of ``job`` that no manifest names, and delete those marked longer than the grace period.

    Nothing changes while a session of the job runs, which could name a component, or if the store does not answer or a
    manifest cannot be read.
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
            refused = border.RejectedInput(job, "manifest", (Rejection(f"jobs/{job}/manifests", str(error), ""),))
            border.RejectionLog(ports).report([refused], {job}, now)
        return
    unnamed = stored - named
    expired = [key for key, mark in marked.items() if key in unnamed and mark.delete_at <= now][:PORTION]
    kept = [key for key in marked if key not in unnamed]
    grace = ports.policy.retention.grace_seconds
    fresh = [Discard(key, job, _UNNAMED, now, now + grace) for key in sorted(unnamed - marked.keys())[:PORTION]]
    if not (expired or kept or fresh):
        return
    with ports.write() as tx:  # fenced: a daemon that has lost its lease deletes nothing
        # checked again after the store's answer; from here on no session is launched until this is done
        if _trains(tx, job):
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
    """Delete the manifests whose grace is over, after judging them again in the transaction that expires them."""
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
            # checkpoints without a verdict expired in an earlier pass
            if mark.key in reasons and not reasons[mark.key].stays:
                checkpoints.expire(tx, mark.key, reasons[mark.key].why, now)
    for job, keys in grouped((mark.job, mark.key) for mark in due if mark.key not in needed).items():
        _delete(ports, job, keys)


def _delete(ports: Ports, job: str, keys: Sequence[str]) -> None:
    """Delete objects, then their marks; objects that cannot be deleted stay marked."""
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
    """Return the keys of all components named by manifests of ``job``, in the store or in ``records``.

    Raises StoreError, and BadManifest for a manifest that is only in the store and cannot be read.
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
    """Mark trees that are not needed, unmark those that are needed again, and delete those whose grace is over.

    A deletion is stored before it starts, so that no job can start to need the tree meanwhile; after a crash the next
    pass completes it.
    """
    corpora = ports.corpora() if ports.corpora is not None else None
    kept = corpora.kept() if corpora is not None else set()
    with ports.write() as tx:
        needed = trees.needed(tx) | kept
        to_delete = []
        for tree in trees.everything(tx):
            if tree.going:
                to_delete.append(tree)
            elif {tree.digest, tree.origin} & needed:
                if tree.delete_at is not None:
                    trees.record(tx, tree.kind, tree.digest, None)
            elif tree.delete_at is None:
                trees.record(tx, tree.kind, tree.digest, now + ports.policy.retention.grace_seconds)
            elif tree.delete_at <= now:
                trees.begin_deletion(tx, tree.digest, now)
                to_delete.append(tree)
    for tree in to_delete:
        try:
            if tree.kind == trees.CORPUS and corpora is not None:
                corpora.delete(tree.digest)  # this machine's part; the part for sessions elsewhere is in the store
            ports.artifacts.delete(f"{tree.prefix}/{LISTING}")  # first: without the listing the tree counts as missing
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


# Duties: remove data that is no longer needed. Every step is idempotent and may be interrupted.
KEEP_SESSIONS_SECONDS = 7 * DAY
_ROWS = 5_000  # rows pruned per pass
_UPLOAD_SECONDS = 7 * DAY  # real time that an interrupted writer may need to continue


def sweep_sessions(ports: Ports, now: int) -> None:
    """Let platforms remove records of sessions that ended more than a week ago.

    The sessions to remove are listed, not those to keep: a daemon that was suspended, or that uses a restored backup,
    does not know sessions launched meanwhile, which would be removed before they are settled.
    """
    with ports.database.read() as tx:
        # Watched sessions may still run, and their results may still have to be fetched.
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
    """Report live sessions of this program that do not belong to a run, because no cycle handles them.

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
                    continue  # launched during the request
                events.append(tx, "session.orphan", orphan.key, now, pool=pool, remote_id=orphan.remote_id)
            following = "end it, or find its owner"
            ports.log.error("session.orphan", pool=pool, run=orphan.key, remote_id=orphan.remote_id, next=following)

    _ask_each(ports, "orphans", look)


def _ask_each(ports: Ports, kind: str, ask: Callable[[str, Platform], None]) -> None:
    """Call every platform in the background, so that a slow one delays no other."""
    ports.calls.gather(kind, {pool: partial(ask, pool, platform) for pool, platform in sorted(ports.platforms.items())})


def prune_rows(ports: Ports, now: int) -> None:
    """Prune the database: old events, texts of old messages, rows of checkpoints deleted long ago."""
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
    """Remove leftovers of killed writers from the artifact store, and reports of sessions that ended long ago."""
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
    """Delete heartbeats, results and stop flags of sessions that ended before ``before``; return the number of objects.

    Objects of unknown runs are left alone: they may belong to another scheduler.
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
    """Run the duties that are due by the table ``due``. Down time delays a duty, but never loses or repeats it.

    Long duties run in the background.
    """
    ports.calls.begin()
    with ports.database.read() as tx:
        planned = due.next_due(tx)
    for name, (task, every_seconds) in _TASKS.items():
        # At most one interval ahead, so that a clock that was wrong for a moment does not postpone a duty for years.
        if now < planned.get(name, 0) <= now + every_seconds:
            continue
        ports.calls.gather("duty", {name: partial(_do, ports, name, task, now, every_seconds)})


def _do(ports: Ports, name: str, task: Callable[[Ports, int], None], now: int, every_seconds: int) -> None:
    try:
        task(ports, now)
    except (StoreFailure, OSError):
        raise
    except Exception as error:  # a failed duty does not stop the others
        ports.log.exception("housekeeping.failed", duty=name, next="tried again with the next look")
        fail(why(error))
        return
    with ports.write() as tx:
        due.set_due(tx, name, now + every_seconds)
