"""A rehearsal from its first line to its figures, which are computed again here from the database and the disk."""

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from config.layers import shipped
from platforms.local.records import OUTPUT
from tests.lab.crashes.audit import audit
from tests.lab.crashes.processes import working_for
from tests.lab.crashes.stage import MODELS, Stage
from tests.lab.patience import slowness

HOUR = 3_600
OWN = shipped("own_folder")
# As config/own_folder/models.toml has it, on the pools of these tests; it learns from no corpus.
OWN_JOB = f"""
[[jobs]]
name = "own"
command = ["{{python}}", "train.py", "--pace", "400"]
code = "{OWN}"
requirements = "{OWN}/requirements.txt"
target_step = 600
steps_per_hour = 400
weight = 8
seed = 4
"""
SHAPE = {
    "": {"scale", "hours", "start", "end", "violations", "barred", "goodput", "pools", "jobs", "runs"},
    "pools": {
        "name",
        "quota_seconds",
        "charged_seconds",
        "cost_microdollars",
        "useful_seconds",
        "lane_seconds",
        "launches",
        "refused_launches",
        "last_refusal",
        "why_idle",
        "windows",
    },
    "jobs": {"name", "role", "state", "why", "target_step", "step", "runs", "pools", "resumes", "resumed_elsewhere"}
    | {"checkpoints", "starts_from", "loss_parent", "loss_first", "loss_last"},
    "runs": {"key", "pool", "lanes", "start", "end", "outcome"},
}


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One rehearsal for all tests of this file: twelve hours in twelve seconds, or longer while the machine is slow."""
    family = MODELS.replace("seed = 3", 'seed = 3\nstart_from = { job = "main", at = "newest" }')
    stage = Stage(
        tmp_path_factory.mktemp("rehearsal"), models=family + OWN_JOB, hours=12.0, scale=round(HOUR / slowness())
    )
    ended = stage.ended(stage.begin("--json"))
    left = stage.close()
    return stage, ended, left


@pytest.fixture
def document(week: Any) -> Any:
    """week.json."""
    return json.loads((week[0].week / "week.json").read_bytes())


def test_it_succeeds_and_prints_what_it_writes(week: Any, document: Any) -> None:
    stage, ended, _ = week
    assert ended.code == 0, ended.err + stage.log
    assert ended.document == document
    assert document["violations"] == []
    assert (stage.week / "week.svg").read_text().startswith("<svg")


def test_it_leaves_no_process_behind(week: Any) -> None:
    stage, _, left = week
    assert left == {}
    assert working_for(stage.folder) == {}


def test_nothing_ran_twice_and_nothing_was_lost(week: Any) -> None:
    assert audit(week[0]).all == []


def test_week_json_has_the_documented_shape(week: Any, document: Any) -> None:
    assert document.keys() == SHAPE[""]
    for part in ("pools", "jobs", "runs"):
        assert document[part]
        assert all(entry.keys() == SHAPE[part] for entry in document[part])
    assert document["hours"] == 12.0
    assert document["scale"] == week[0].scale


def test_every_job_moved_was_resumed_and_learned(document: Any) -> None:
    for job in document["jobs"]:
        assert job["step"] > 0, job
        if job["name"] == "own":
            continue
        assert job["loss_last"] < job["loss_first"] or job["checkpoints"] == 1, job
    assert any(job["resumes"] > 0 for job in document["jobs"])
    started = [job for job in document["jobs"] if job["starts_from"]]
    assert started
    for job in started:
        assert job["loss_first"] == job["loss_parent"], "a manager's first loss is main's, not a beginner's"
    assert any(len(run["lanes"]) == 2 for run in document["runs"])


def test_charges_are_what_sessions_really_took(week: Any, document: Any) -> None:
    """The platform's own records, not the ledger, say how long each session ran; shares of two lanes are one charge."""
    start, end = document["start"], document["end"]
    ran: dict[str, int] = {}
    for session in week[0].sessions():
        over = session.end()
        if over is not None:
            pool = session.folder.parent.name
            ran[pool] = ran.get(pool, 0) + max(0, min(end, over.ended_at) - max(start, over.started_at))
    assert {pool["name"]: pool["charged_seconds"] for pool in document["pools"]} == ran


def test_useful_time_is_what_kept_checkpoints_hold(week: Any, document: Any) -> None:
    devices = {"kaggle": 2, "desk": 1}
    useful = dict.fromkeys(devices, 0.0)
    homes = {run["key"]: run for run in document["runs"]}
    for path in week[0].manifests():
        manifest = json.loads(path.read_bytes())
        run = homes[manifest["run"]]
        lane = run["lanes"][manifest["lane"]]
        # Of a session across the week's end, what it saved in the week counts there.
        if manifest["created_at"] <= document["end"]:
            useful[run["pool"]] += manifest["trained_seconds"] * len(lane["devices"]) / devices[run["pool"]]
    for pool in document["pools"]:
        # A session's share is taken on its own clock, which goes on until its last word: a little past what was billed.
        assert 0.97 * useful[pool["name"]] - 1 <= pool["useful_seconds"] <= useful[pool["name"]] + 1
        assert 0 < pool["useful_seconds"] <= pool["charged_seconds"]


def test_jobs_tell_what_the_store_holds(week: Any, document: Any) -> None:
    stage: Stage = week[0]
    for job in document["jobs"]:
        saved = [json.loads(path.read_bytes()) for path in stage.manifests(job["name"])]
        assert job["step"] == max(manifest["step"] for manifest in saved)
        assert job["checkpoints"] == len(saved)
        assert job["loss_last"] == saved[-1]["metrics"].get("held_out_loss")


def test_a_folder_of_ones_own_is_trained_with_the_packages_it_asks_for(week: Any, document: Any) -> None:
    (own,) = [job for job in document["jobs"] if job["name"] == "own"]
    assert (own["state"], own["step"], own["loss_last"]) == ("done", 600, None)
    said = "".join((session.folder / OUTPUT).read_text() for session in week[0].sessions() if session.end())
    assert re.search(r"packages: fetched rehearsal.points 1.0, rehearsal.rates 1.0", said), "uv writes a hyphen"


def test_the_ledger_holds_each_session_once(week: Any) -> None:
    path: Path = week[0].rehearsal.state / "scheduler.db"
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = database.execute("SELECT run, count(*) FROM ledger WHERE kind IN ('spend', 'release') GROUP BY run")
    counts = dict(rows.fetchall())
    runs = [key for (key,) in database.execute("SELECT key FROM runs")]
    database.close()
    assert counts == dict.fromkeys(runs, 1)
