"""What people ask of a running job while the daemon runs: it saves, leaves, and is then as asked."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.crashes.audit import newest_steps
from tests.lab.crashes.stage import Stage
from tests.lab.patience import until

Settled = Callable[[Stage], None]


@pytest.fixture
def training(make_stage: Callable[..., Stage]) -> Stage:
    """One job, in training, with a checkpoint; the daemon is the rehearsal's own."""
    stage = make_stage(models=ONE_MODEL, pools=LONG_SESSIONS, hours=500.0)
    stage.begin()
    stage.until_saved("main")
    return stage


# A session that does not end by itself while a command is typed on a slow machine.
LONG_SESSIONS = """
[[pools]]
name = "desk"
platform = "local"
vram_gib = 24
session_cap = "100h"
session_min = "1h"
"""
ONE_MODEL = """
[[jobs]]
name = "main"
role = "main"
command = ["{python}", "{payload}/trainers/charlm.py", "--pace", "200", "--batch", "16", "--width", "32"]
target_step = 100_000
steps_per_hour = 200
mixture = {}
stall = { first_progress = "off", no_progress = "off", checkpoint = "off" }
"""


def test_a_held_job_saves_leaves_and_stays_until_released(training: Stage, settled: Settled) -> None:
    assert training.type("queue", "hold", "main", "--why", "a look at the data").code == 0
    held = until(lambda: job_in(training, "held"), "the hold")
    assert held["done_step"] == newest_steps(training)["main"] > 0
    until(lambda: not training.live(), "the end of the session")
    assert last_run(training)["lanes"][0]["outcome"] == "yielded"
    explained = training.type("plan", "explain", "main")
    assert "a look at the data" in explained.out
    assert training.type("queue", "release", "main").code == 0
    until(lambda: newest_steps(training)["main"] > held["done_step"], "progress after the release")
    settled(training)


def test_a_cancelled_job_saves_and_leaves_for_good(training: Stage, settled: Settled) -> None:
    assert training.type("queue", "cancel", "main").code == 0
    cancelled = until(lambda: job_in(training, "cancelled"), "the cancellation")
    assert cancelled["done_step"] == newest_steps(training)["main"] > 0
    until(lambda: not training.live(), "the end of the session")
    again = training.type("queue", "hold", "main")
    assert again.code == 6, again.err
    settled(training)


def test_a_stopped_run_saves_and_its_job_goes_back_to_the_queue(training: Stage, settled: Settled) -> None:
    (key,) = training.live()
    asked = training.type("runs", "stop", key, "--why", "the fan is loud", "--json")
    assert asked.code == 0, asked.err
    assert asked.document["told"] is True
    until(lambda: key not in training.live(), "the end of the session")
    until(lambda: any(other != key for other in training.live()), "the next session of the job")
    ended = training.type("runs", "show", key, "--json").document["run"]
    assert ended["lanes"][0]["outcome"] == "yielded"
    assert "the fan is loud" in ended["lanes"][0]["message"]
    settled(training)


def job_in(stage: Stage, state: str) -> dict[str, Any] | None:
    job: dict[str, Any] = stage.type("queue", "show", "main", "--json").document["job"]
    return job if job["state"] == state else None


def last_run(stage: Stage) -> dict[str, Any]:
    newest: dict[str, Any] = stage.type("runs", "list", "--json").document["runs"][0]
    return newest
