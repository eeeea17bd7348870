"""Late checkpoints: found when a run is over for the books, after a restore or when a session was given up too early.

No run is left that would close its jobs with what is found, so a job whose target is among it is finished here.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from scheduler.core import job as arrows
from scheduler.core.job import Active, Failed, Held, Queued
from scheduler.core.run import Running, stop
from scheduler.service.facts.apply import apply
from scheduler.service.facts.observation import Observation
from scheduler.service.facts.observe import read_manifests
from scheduler.service.outside.border import Complaints
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, jobs, runs


def record_late(ports: Ports, names: Collection[str], now: int, ahead: int = 0) -> bool:
    """Record the checkpoints of these jobs that are not known yet; False when the store did not tell them all.

    ``ahead`` is how many attempts of each there may have been that our books forgot.

    Raises Fenced and other StoreFailures.
    """
    with ports.database.read() as tx:
        stored_keys = checkpoints.keys(tx, names)
    observation = Observation()
    read_manifests(ports, sorted(names), stored_keys, observation, ahead)
    Complaints(ports).tell(observation.refused, names, now)
    if observation.manifests or observation.bad:
        with ports.write() as tx:
            apply(ports, tx, [], observation, [], now)
            for name in sorted({manifest.job for manifest in observation.manifests}):
                _finish(tx, name, now)
    return observation.listed == set(names)


def _finish(tx: Connection, name: str, now: int) -> None:
    """Finish a job that reached its target. A session that trains it further for nothing is asked to leave."""
    job = jobs.find(tx, name)
    if job is None or job.done_step < job.spec.target_step:
        return
    if isinstance(job.state, Queued | Held | Failed):
        jobs.change_state(tx, name, job.state, arrows.finish(job.state, now), "finish", now)
    elif isinstance(job.state, Active):
        run = runs.get(tx, job.state.run)
        if isinstance(run.state, Running) and all(lane.job == name or lane.outcome for lane in run.lanes):
            why = f"{name} reached its target in an earlier session"
            runs.change_state(tx, run.key, run.state, stop(run.state, why, now), "stop", now)
