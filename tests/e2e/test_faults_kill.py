"""kill -9 of the daemon, of the command and of payloads: adopted under the same keys, nothing twice, nothing lost."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platforms.local.adapter import Claim
from tests.lab.crashes.audit import newest_steps
from tests.lab.crashes.campaign import attack
from tests.lab.crashes.processes import kill, working_for
from tests.lab.crashes.stage import MODELS, Stage
from tests.lab.patience import until

Settled = Callable[[Stage], None]


def test_a_killed_daemon_is_replaced_at_once_and_its_sessions_are_adopted(running: Stage, settled: Settled) -> None:
    """The same launch keys, the same processes; the dead daemon's lease is not waited for."""
    before = running.live()
    steps = newest_steps(running)
    running.kill_daemon()
    assert running.live().keys() <= before.keys()
    running.cut(3.0)
    command = running.resume()
    until(lambda: '"epoch": 2' in running.log or command.poll() is not None, "the second daemon")
    assert all(running.live().get(key, claim) == claim for key, claim in before.items())
    assert running.ended(command).code == 0, running.log
    keys = {session.key for session in running.sessions()}
    assert before.keys() <= keys
    assert all(step >= steps.get(job, 0) for job, step in newest_steps(running).items())
    settled(running)


def test_a_killed_command_leaves_the_daemon_to_be_joined(running: Stage, settled: Settled) -> None:
    """The fixture killed the command: the daemon never noticed. The next one joins it, and says when it ends early."""
    pid = running.daemon_pid()
    command = running.resume()
    joined = f"joining the daemon that still runs (process {pid})"
    until(lambda: joined in running.said(command).read_text() or command.poll() is not None, "the joining")
    running.kill_daemon()
    ended = running.ended(command)
    assert joined in ended.err
    assert ended.code == 6, ended.err
    assert "--resume" in ended.err
    assert running.log.count('"daemon.started"') == 1
    settled(running)


def test_sessions_outlive_daemon_and_command_and_are_settled_later(running: Stage, settled: Settled) -> None:
    """Whoever comes late finds ended sessions: they are charged for what they ran, and their checkpoints are taken."""
    until(lambda: len(_listed(running)) >= 2, "both sessions in the database")
    running.kill_daemon()
    for claim in running.live().values():
        os.kill(claim.agent, signal.SIGTERM)
    until(lambda: not running.live(), "the end of all sessions")
    until(lambda: not working_for(running.rehearsal.state), "the end of their keepers")
    settled(running)


@pytest.mark.parametrize("victim", ["agent", "keeper"])
def test_a_killed_session_is_lost_only_when_all_of_it_is_gone(running: Stage, settled: Settled, victim: str) -> None:
    """Its job goes on from the newest manifest. Without its keeper a session goes on: it is not lost."""
    running.until_saved(count=1)

    def goes_on() -> tuple[str, Claim] | None:
        """Return a session whose command runs: killed before that or after its result it is not lost."""
        runs = running.week / "artifacts" / "runs"
        for key, claim in running.live().items():
            heartbeats = [json.loads(path.read_bytes()) for path in runs.glob(f"{key}/*/heartbeat.json")]
            if any(each.get("command_at") for each in heartbeats) and not [*runs.glob(f"{key}/*/result.json")]:
                return key, claim
        return None

    key, claim = until(goes_on, "a session that goes on")
    kill(claim.agent if victim == "agent" else claim.keeper)
    until(lambda: _ended(running, key), "the end in the database")
    shown = running.type("runs", "show", key, "--json").document["run"]
    outcomes = {lane["outcome"] for lane in shown["lanes"]}
    assert outcomes == ({"lost"} if victim == "agent" else {"yielded"}), shown
    settled(running)


MAIN = MODELS[MODELS.index("[[jobs]]") : MODELS.index('[[jobs]]\nname = "left"')]
# One session of two lanes, which nobody asks to leave for as long as the test takes.
TWO_LANES = """
[[pools]]
name = "kaggle"
platform = "local"
devices_per_session = 2
sessions_max = 1
vram_gib = 15
session_cap = "200h"
session_min = "1h"
"""
BOTH = MODELS.replace(MAIN, "")


def test_a_killed_trainer_fails_its_lane_and_its_job_goes_on(
    make_stage: Callable[..., Stage], settled: Settled
) -> None:
    """The agent lives to tell: failed, error class killed; the lane beside it trains on."""
    stage = make_stage(pools=TWO_LANES, models=BOTH, hours=500.0)
    stage.begin()
    for job in ("left", "right"):
        stage.until_saved(job)
    (key,) = stage.live()
    kill(min(_trainers(stage)))

    def failed() -> dict[str, Any] | None:
        return next((lane for lane in _lanes(stage, key) if lane["outcome"] == "failed"), None)

    struck = until(failed, "the end of the lane")
    assert "killed" in struck["message"], struck
    (other,) = (lane for lane in _lanes(stage, key) if lane["job"] != struck["job"])
    known = newest_steps(stage)[other["job"]]
    until(lambda: newest_steps(stage)[other["job"]] > known, "progress beside it")
    assert other["outcome"] is None
    assert key in stage.live()
    settled(stage)
    assert newest_steps(stage)[struck["job"]] > 0


@pytest.mark.parametrize("seed", [101, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (102, 103))])
def test_random_kills(tmp_path: Path, seed: int) -> None:
    """A share of benchmarks/kill9.py, which has the whole campaign."""
    outcome = attack(tmp_path / "stage", seed, kills=2)
    assert (outcome.findings.all, outcome.failures) == ([], []), outcome.kills


def _listed(stage: Stage) -> list[dict[str, str]]:
    found: list[dict[str, str]] = stage.type("runs", "list", "--json").document["runs"]
    return found


def _lanes(stage: Stage, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stage.type("runs", "show", key, "--json").document["run"]["lanes"]
    return found


def _ended(stage: Stage, key: str) -> bool:
    return any(run["key"] == key and run["state"] == "ended" for run in _listed(stage))


def _trainers(stage: Stage) -> dict[int, str]:
    """Return the live training commands and the launch keys of their sessions."""
    leaders = {claim.agent: key for key, claim in stage.live().items()}
    found = {}
    for pid, words in working_for(stage.week).items():
        if "charlm" in words:
            try:
                found[pid] = leaders[os.getsid(pid)]
            except (ProcessLookupError, KeyError):
                continue
    return found
