"""Early stops: end jobs at their best checkpoint when their stop rules apply."""

from operator import itemgetter

from sqlalchemy import Connection

from jobs.nouns.window import HOUR
from jobs.spec import JobSpec
from scheduler.core import job as arrows
from scheduler.core.early_stop import Progress, Scored, progress
from scheduler.core.job import Active, Done, Queued
from scheduler.service.facts import halvings
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, jobs, rates
from scheduler.store.checkpoints import CheckpointRecord
from scheduler.store.jobs import JobRecord


def standing(tx: Connection, spec: JobSpec, fenced_attempt: int = 0) -> Progress:
    """Return the progress of a job by its stop rule; an empty one if the job has no rule."""
    if spec.stop is None:
        return Progress()
    metric = spec.stop.metric
    return progress(
        spec.stop,
        (
            Scored(record.manifest.key, step, record.manifest.metrics[metric], good=record.state == "good")
            for step, record in measured(tx, spec.name, metric, fenced_attempt)
        ),
        spec.target_step,
    )


def measured(tx: Connection, job: str, metric: str, fenced_attempt: int = 0) -> list[tuple[int, CheckpointRecord]]:
    """Return (step, checkpoint) for each checkpoint with a metric, by step; for a repeated step the later attempt."""
    history = {
        record.manifest.step: record
        for record in reversed(checkpoints.everything(tx, job))
        if metric in record.manifest.metrics
        and record.manifest.attempt > fenced_attempt
        and record.state != "quarantined"
    }
    return sorted(history.items(), key=itemgetter(0))


def consider(ports: Ports, tx: Connection, name: str, now: int) -> None:
    """End a job if its stop rule applies; a running session first saves and exits."""
    record = jobs.get(tx, name)
    if record.spec.stop is None or record.done_step >= record.spec.target_step:
        return
    why = standing(tx, record.spec, record.fenced_attempt).why
    if why and isinstance(record.state, Queued):
        finish(ports, tx, record, why, now)
    elif why and isinstance(record.state, Active) and record.state.wish is None:
        jobs.change_state(tx, name, record.state, arrows.ask_finish(record.state, why), "ask_finish", now)


def finish(ports: Ports, tx: Connection, record: JobRecord, why: str, now: int) -> None:
    """Make a job done at its best checkpoint, whose step becomes its target step."""
    name, full = record.spec.name, record.spec.target_step
    best = standing(tx, record.spec, record.fenced_attempt).best
    if best is None:  # the best checkpoint was found to be damaged
        newest = checkpoints.newest(tx, name, 1)[0].manifest
        best = Scored(newest.key, newest.step, 0.0)
    spared = round((full - record.done_step) / _steps_per_second(tx, record))
    why = f"{why}; about {spared / HOUR:.1f} h of sessions are saved"
    done = arrows.finish(record.state, now, why, full)
    old, step = record.state, best.step
    jobs.change_state(
        tx, name, old, done, "finish", now, why=why, step=step, full_target_step=full, spared_seconds=spared
    )
    jobs.change_spec(tx, name, now, "daemon", target_step=best.step)
    jobs.note_progress(tx, name, best.step, best.key, fork=True)
    ports.log.info("job.stopped_early", job=name, step=best.step, left_steps=full - record.done_step, why=why)


def _steps_per_second(tx: Connection, record: JobRecord) -> float:
    """Return the measured speed on the job's last pool, else the best measured one, else that of its definition."""
    speeds = {rate.pool: rate.steps_per_second for rate in rates.of_job(tx, record.spec.name) if rate.samples}
    guess = max(speeds.values(), default=record.spec.steps_per_hour / HOUR)
    return speeds.get(record.last_pool or "", guess)


def undo(tx: Connection, record: JobRecord, now: int, by: str) -> None:
    """Let a job that was stopped early continue to its full target from its newest checkpoint, without its stop rule.

    A candidate of a sweep is not compared any more; the budget of the sweep still applies.
    """
    if isinstance(record.state, Done) and record.state.full_target_step is not None:
        rules = {"stop": None, "halving": halvings.left(record.spec)}
        jobs.change_spec(tx, record.spec.name, now, by, target_step=record.state.full_target_step, **rules)
        if newest := checkpoints.newest(tx, record.spec.name, 1):
            jobs.note_progress(tx, record.spec.name, newest[0].manifest.step, newest[0].manifest.key, fork=True)
    elif isinstance(record.state, Active) and record.state.wish == "finish":
        jobs.change_spec(tx, record.spec.name, now, by, stop=None)
