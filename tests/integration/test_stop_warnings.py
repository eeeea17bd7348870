"""Whoever holds one of two jobs that share a session is told what becomes of it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.spec import JobSpec
from platforms.base import Capabilities, Observed, SessionState, StopChannel
from scheduler.cli.parts.runs_table import warn_of_loss
from scheduler.core import job as job_arrows
from scheduler.core.run import Lane, Run, Running
from scheduler.service.requests import queue
from scheduler.store import jobs, runs
from scheduler.store.engine import Database

NOW, END = 1_795_000_000, 1_795_007_200


@pytest.fixture
def warned(database: Database) -> Callable[..., list[str]]:
    """Warns of a run with two jobs on a place whose sessions can be asked as told; returns what was said."""
    planned_lanes = tuple(Lane(index, name, 1, (index,), None) for index, name in enumerate(("ufm", "ucm")))
    with database.write() as tx:
        for planned_lane in planned_lanes:
            spec = JobSpec(planned_lane.job, "manager", ("train",), target_step=10, steps_per_hour=1.0)
            state = jobs.add(tx, spec, NOW).state
            active = job_arrows.activate(state, "run-1", NOW)
            jobs.change_state(tx, planned_lane.job, state, active, "activate", NOW)
        runs.insert(tx, Run("run-1", "kaggle", planned_lanes, NOW, END, END, Running("r", NOW)), NOW)

    def warn(stop_channel: StopChannel, *, flag: bool = False) -> list[str]:
        said: list[str] = []
        observed = Observed("run-1", SessionState.RUNNING, "r", NOW, stop_channel=stop_channel)
        platform = SimpleNamespace(
            capabilities=Capabilities(sees_stop_flag=flag), find=lambda keys, now: {"run-1": observed}
        )
        cli: Any = SimpleNamespace(
            app=SimpleNamespace(database=database, pools={"kaggle": None}, platform=lambda pool: platform),
            now=NOW + 60,
            out=SimpleNamespace(warn=said.append, instant=str),
        )
        warn_of_loss(cli, "run-1", "ucm")
        return said

    return warn


@pytest.mark.parametrize("stop_channel", [StopChannel.PLATFORM, StopChannel.NONE])
def test_one_job_of_a_session_that_leaves_as_a_whole_stays_to_its_end(
    warned: Callable[..., list[str]], database: Database, stop_channel: StopChannel
) -> None:
    queue.hold(database, "ucm", "", NOW, "ann")
    (said,) = warned(stop_channel)
    assert said.startswith("ucm shares run-1 with ufm, and that session can only leave as a whole: ucm goes on")
    assert str(END) in said


def test_where_the_stop_flag_is_seen_one_job_leaves_alone(warned: Callable[..., list[str]]) -> None:
    assert warned(StopChannel.STORE) == warned(StopChannel.NONE, flag=True) == []


def test_once_both_are_asked_it_is_the_session_that_leaves(
    warned: Callable[..., list[str]], database: Database
) -> None:
    for name in ("ufm", "ucm"):
        queue.hold(database, name, "", NOW, "ann")
    assert warned(StopChannel.PLATFORM) == []
    (said,) = warned(StopChannel.NONE)
    assert "run-1 cannot be asked to save: it is ended" in said
