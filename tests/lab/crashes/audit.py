"""The audit: what really happened in a rehearsal, from claims, manifests and results, against what its database says.

Nothing here asks the code under test to judge itself: the truth is what processes left on disk.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from platforms.local.adapter import Claim, LocalEnd
from tests.lab.crashes.processes import working_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tests.lab.crashes.stage import Stage


@dataclass(frozen=True, slots=True)
class PlannedLane:
    """One job's time in one session, in scheduled UTC seconds; ``end`` is None while it goes on."""

    job: str
    key: str
    attempt: int
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Audit:
    """Findings, each one sentence; none means that nothing was run twice and nothing was lost."""

    duplicates: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[str]:
        """Everything that was found."""
        return [*self.duplicates, *self.losses, *self.other]


def audit(stage: Stage) -> Audit:
    """Look at a rehearsal that has ended."""
    database = sqlite3.connect(f"file:{stage.rehearsal.state}/scheduler.db?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    try:
        bad = {key for (key,) in database.execute("SELECT key FROM checkpoints WHERE state = 'quarantined'")}
        return Audit(
            duplicates=[*_twice_at_once(planned_lanes(stage)), *_forks(stage, bad), *_accepted_twice(database)],
            losses=[*_lost_steps(stage, bad), *_forgotten(stage, database, bad)],
            other=[*_bill(stage, database), *_left_open(database), *_left_running(stage)],
        )
    finally:
        database.close()


def planned_lanes(stage: Stage) -> list[PlannedLane]:
    """Return who trained when, as claims, results and ends of the sessions tell."""
    found = []
    for session in stage.sessions():
        claim, end = session.claim(), session.end()
        if not isinstance(claim, Claim):
            continue
        for lane in json.loads((session.folder / "launch.json").read_bytes())["lanes"]:
            result = stage.week / "artifacts" / "runs" / session.key / f"lane-{lane['index']}" / "result.json"
            left = json.loads(result.read_bytes())["ended_at"] if result.exists() else None
            over = left if left is not None else end.ended_at if end else None
            found.append(PlannedLane(lane["job"], session.key, lane["attempt"], claim.started_at, over))
    return found


def newest_steps(stage: Stage, bad: Collection[str] = ()) -> dict[str, int]:
    """Return the highest step of each job that is in the store, leaving out the manifests with ``bad`` keys."""
    steps: dict[str, int] = {}
    for manifest in _manifests(stage, bad).values():
        steps[manifest["job"]] = max(steps.get(manifest["job"], 0), manifest["step"])
    return steps


def _manifests(stage: Stage, bad: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return what was published and is not ``bad``, by key."""
    keys = {f"jobs/{path.parent.parent.name}/manifests/{path.name}": path for path in stage.manifests()}
    return {key: json.loads(path.read_bytes()) for key, path in keys.items() if key not in bad}


def _twice_at_once(found: Sequence[PlannedLane]) -> Iterator[str]:
    """A job's sessions must follow one another."""
    for job in sorted({planned_lane.job for planned_lane in found}):
        ordered = sorted(
            (planned_lane for planned_lane in found if planned_lane.job == job),
            key=lambda planned_lane: (planned_lane.start, planned_lane.attempt),
        )
        for before, after in pairwise(ordered):
            if before.end is None or after.start < before.end:
                yield f"{job} ran in {after.key} from {after.start} while {before.key} ran until {before.end}"
        attempts = [planned_lane.attempt for planned_lane in ordered]
        if len(set(attempts)) != len(attempts):
            yield f"{job} has an attempt twice: {attempts}"


def _forks(stage: Stage, bad: Collection[str]) -> Iterator[str]:
    """A checkpoint has one successor: two would be two copies that trained from it."""
    successors: dict[str, str] = {}
    for key, manifest in _manifests(stage, bad).items():
        parent = manifest["parent"]
        if parent in successors:
            yield f"{key} and {successors[parent]} both go on from {parent}"
        if parent is not None:
            successors[parent] = key


def _accepted_twice(database: sqlite3.Connection) -> Iterator[str]:
    for row in database.execute(
        "SELECT subject, count(*) AS times FROM events WHERE kind = 'run.accept' GROUP BY subject HAVING count(*) > 1"
    ):
        yield f"{row['subject']} was accepted {row['times']} times"


def _lost_steps(stage: Stage, bad: Collection[str]) -> Iterator[str]:
    """A session goes on from the newest good checkpoint that was there before it; no step is ever handed back."""
    # Step 0 holds no training: whoever finds nothing else begins anew, and loses nothing.
    saved = {key: manifest for key, manifest in _manifests(stage, bad).items() if manifest["step"]}
    for job in sorted({manifest["job"] for manifest in saved.values()}):
        ordered = sorted(
            ((key, manifest) for key, manifest in saved.items() if manifest["job"] == job),
            key=lambda pair: (pair[1]["attempt"], pair[1]["step"]),
        )
        for (key, before), (_, after) in pairwise(ordered):
            if after["step"] <= before["step"]:
                yield f"{job} went back from step {before['step']} to {after['step']} in attempt {after['attempt']}"
            if after["parent"] != key:
                yield f"{job}: step {after['step']} goes on from {after['parent']} instead of {key}"


def _forgotten(stage: Stage, database: sqlite3.Connection, bad: Collection[str]) -> Iterator[str]:
    """All that is in the store is in the database."""
    known = {row["name"]: row["done_step"] for row in database.execute("SELECT name, done_step FROM jobs")}
    for job, step in newest_steps(stage, bad).items():
        if known.get(job) != step:
            yield f"{job} has step {step} in the store, but {known.get(job)} in the database"


def _bill(stage: Stage, database: sqlite3.Connection) -> Iterator[str]:
    """Each session was charged exactly once, and exactly for as long as it ran."""
    spent = {
        row["run"]: (row["start"], row["end"])
        for row in database.execute(
            "SELECT run, starts_at AS start, ends_at AS \"end\" FROM ledger WHERE kind = 'spend'"
        )
    }
    ran = {}
    for session in stage.sessions():
        claim, end = session.claim(), session.end()
        if isinstance(claim, Claim) and isinstance(end, LocalEnd):
            ran[session.key] = (end.started_at, end.ended_at)
        elif isinstance(claim, Claim):
            yield f"{session.key} has not ended"
    for key in sorted(spent.keys() | ran.keys()):
        if spent.get(key) != ran.get(key):
            yield f"{key} ran {ran.get(key)} and was charged {spent.get(key)}"


def _left_open(database: sqlite3.Connection) -> Iterator[str]:
    for row in database.execute("SELECT key, state FROM runs WHERE ended_at IS NULL"):
        yield f"{row['key']} is still {row['state']}"
    for row in database.execute("SELECT name, state FROM jobs WHERE state = 'active'"):
        yield f"{row['name']} is still {row['state']}"


def _left_running(stage: Stage) -> Iterator[str]:
    for pid, words in working_for(stage.week).items():
        yield f"process {pid} is still there: {words}"
