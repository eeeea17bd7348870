"""A version of a model to look at: judged by a gate, accepted, and in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.store import checkpoints, evaluations, versions
from scheduler.store.versions import Promotion, Version

if TYPE_CHECKING:
    from sqlalchemy import Connection

FINDING = {
    "gate": {"metric": "atomicity", "kind": "threshold", "minimum": 0.9},
    "outcome": "passed",
    "value": 0.95,
    "before": None,
    "items": 40,
    "clusters": 8,
    "low": 0.9,
    "high": 0.97,
    "smallest_effect": 0.02,
    "examples": [{"item": "item-7", "value": 0.0, "before": None, "text": "<b>bold</b>"}],
}


def add_version(tx: Connection, now: int) -> Version:
    """Write a version of the first job that has a checkpoint, its verdict, and that it is in force."""
    saved = next(record for record in checkpoints.everything(tx) if record.state == "good").manifest
    wanted = Version(saved.job, 0, saved.key, saved.digest, saved.step, "candidate", "", now)
    made = versions.move(tx, versions.add(tx, wanted, now, "test"), "evaluate", "", now)
    evaluations.begin(tx, made, saved.job, "ab" * 32, "cd" * 32, now)  # any job will do to look at
    (evaluation,) = evaluations.open_ones(tx)
    evaluations.end(tx, evaluation, "scored", now)
    evidence = {"reason": "<i>1 gate passed</i>", "findings": [FINDING]}
    evaluations.add_verdict(tx, evaluation, "ef" * 32, "accepted", evidence, now)
    made = versions.move(tx, made, "accept", "1 gate passed", now)
    versions.note_promotion(tx, Promotion(made.model, "promote", made.number, None, "test", "", now))
    return made
