"""Corpus: which version of it a job trains on, and who trains on which."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from sqlalchemy import Connection

from jobs.problem import Refusal
from scheduler.core.job import Active
from scheduler.store import jobs, runs, trees
from scheduler.store.engine import Database
from scheduler.store.jobs import JobRecord


def take_up(database: Database, name: str, version: str, now: int, by: str, grace_seconds: int) -> JobRecord:
    """Let the next sessions of a job train on a version of the corpus that is here; event ``job.changed``.

    A session that runs keeps the one that it has until it is over. Raises UnknownJob, Refusal, Refused.
    """
    with database.write() as tx:
        record = jobs.get(tx, name)
        mixture = record.spec.mixture
        if mixture is None:
            remedy = f"Give it one first: schedctl queue edit {name} --set mixture.corpus={version}"
            raise Refusal(f"{name} trains on no corpus", remedy=remedy)
        if mixture.corpus == version:
            return record
        if isinstance(record.state, Active) and mixture.corpus:
            over = runs.get(tx, record.state.run).held_until
            trees.note(tx, trees.CORPUS, mixture.corpus, max(over, now) + grace_seconds)
        trees.note(tx, trees.CORPUS, version, None)
        return jobs.change_spec(tx, name, now, by, mixture=replace(mixture, corpus=version))


def jobs_by_version(tx: Connection) -> dict[str, list[str]]:
    """Return the jobs of the queue by the version that they train on; under "" those without one yet."""
    result: defaultdict[str, list[str]] = defaultdict(list)
    for record in jobs.everything(tx):
        if record.spec.mixture is not None:
            result[record.spec.mixture.corpus].append(record.spec.name)
    return dict(result)
