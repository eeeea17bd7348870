"""From start to result: training, resuming, stopping in time."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.store.manifest import parse_manifest


def entry_script(payload: Path) -> tuple[str, ...]:
    return (str(payload / "agent.py"),)


def entry_module(payload: Path) -> tuple[str, ...]:
    return ("-m", "jobs.payload.agent")


def entry_shipped(payload: Path) -> tuple[str, ...]:
    """The folder alone, under another name, without the standard library's search path being helped."""
    shipped = Path.cwd() / "shipped"
    shutil.copytree(payload, shipped, ignore=shutil.ignore_patterns("__pycache__"))
    return ("-I", str(shipped / "agent.py"))


@pytest.mark.parametrize("entry", [entry_script, entry_module, entry_shipped])
def test_a_job_is_trained_to_its_target(
    session: Any,
    payload: Path,
    repository: Path,
    entry: Callable[[Path], tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(session.folder)
    session.write(session.lane(session.counter, target_step=20))
    session.start(*entry(payload), PYTHONPATH=str(repository))
    assert session.end() == 0
    result = session.result()
    assert (result["outcome"], result["why"], result["error_class"]) == ("finished", "target step", None)
    assert (result["phase"], result["step"], result["checkpoint_step"]) == ("ended", 20, 20)
    assert result["started_at"] <= result["ended_at"] <= session.deadline
    [key] = session.manifests()
    manifest = parse_manifest(key, (session.store / key).read_bytes())
    assert (manifest.step, manifest.parent, manifest.run, manifest.metrics["loss"]) == (20, None, "run-0001", 1 / 20)
    assert {component.name for component in manifest.components} == {"meta.json", "state.json"}
    assert session.heartbeat()["checkpoint_step"] == 20
    assert session.heartbeat()["phase"] == "ended", "while the session goes on for another lane, only this tells of it"


def test_training_goes_on_from_the_newest_checkpoint(session: Any) -> None:
    session.run(session.lane(session.counter, target_step=10))
    session.forget_run()
    result = session.run(session.lane(session.counter, target_step=15, attempt=2, restore=session.manifests()))
    assert (result["outcome"], result["restored_step"], result["checkpoint_step"]) == ("finished", 10, 15)
    newest, oldest = session.manifests()
    assert result["restored_from"] == oldest
    assert session.manifest(newest)["parent"] == oldest


def test_a_job_that_has_reached_its_target_is_finished_at_once(session: Any) -> None:
    session.run(session.lane(session.counter, target_step=10))
    session.forget_run()
    result = session.run(session.lane(session.counter, target_step=10, attempt=2, restore=session.manifests()))
    assert result["outcome"] == "finished"
    assert len(session.manifests()) == 1


def test_the_stop_flag_ends_its_lane_with_a_checkpoint(session: Any) -> None:
    session.write(session.lane(session.counter))
    flag = session.store / "runs/run-0001/stop"
    flag.parent.mkdir(parents=True)
    flag.write_text('{"reason": "cancelled by ann", "lane": 1}')
    session.start()
    fifo = session.folder / "work/lane-0/progress"
    session.until_training()
    assert fifo.exists()
    flag.write_text('{"reason": "cancelled by ann", "lane": 0}')
    assert session.end() == 0
    result = session.result()
    assert (result["outcome"], result["why"]) == ("yielded", "stop flag: cancelled by ann")
    assert result["checkpoint_step"] >= result["step"] > 0


def test_a_platforms_sigterm_is_preemption_and_saves(session: Any) -> None:
    session.write(session.lane(session.counter))
    session.start()
    session.until_training()
    assert session.process
    session.process.send_signal(signal.SIGTERM)
    assert session.end() == 0
    result = session.result()
    assert (result["outcome"], result["why"]) == ("preempted", "SIGTERM")
    assert result["checkpoint_step"] >= result["step"] > 0


def test_a_platforms_sigterm_reaches_every_lane(session: Any) -> None:
    session.write(session.lane(session.counter, 0), session.lane(session.counter, 1))
    session.start()
    session.until_training(0)
    session.until_training(1)
    session.process.send_signal(signal.SIGTERM)
    assert session.end() == 0
    for lane in (0, 1):
        result = session.result(lane)
        assert result["outcome"] == "preempted"
        assert result["checkpoint_step"] >= result["step"] > 0


def test_one_lane_can_be_run_alone(session: Any) -> None:
    lanes = (session.lane(session.counter, index, target_step=5) for index in (0, 1))
    session.write(*lanes)
    session.start(str(session.payload / "agent.py"), options=("--lane", "1"))
    assert session.end() == 0
    assert session.result(1)["outcome"] == "finished"
    assert not (session.store / "runs/run-0001/lane-0").exists()


EARLY_SIGTERM = """
import os, signal, sys
def hook(event, arguments):
    if event == "import" and arguments[0] == "payload.lane":
        os.kill(os.getpid(), signal.SIGTERM)
sys.addaudithook(hook)
"""


def test_a_sigterm_while_the_agent_starts_still_leaves_a_result(session: Any) -> None:
    (session.folder / "sitecustomize.py").write_text(EARLY_SIGTERM)
    session.write(session.lane(session.counter))
    session.start(PYTHONPATH=str(session.folder))
    assert session.end() == 0
    assert session.result()["outcome"] == "preempted"


def test_the_last_checkpoint_ends_before_the_stop_margin(session: Any) -> None:
    """An hour a second: cadence saves on the way, the last one is stored in time, trained time adds up."""
    result = session.run(
        session.lane(session.counter, checkpoint_seconds=360),
        seconds=3.0,
        scale=3600.0,
        stop_margin_seconds=1800,
        mtbf_seconds=7200,
    )
    assert (result["outcome"], result["why"]) == ("yielded", "deadline")
    manifests = [session.manifest(key) for key in reversed(session.manifests())]
    assert len(manifests) >= 3
    assert manifests[-1]["created_at"] <= session.deadline - 900  # half the margin is for a busy machine
    assert result["ended_at"] <= session.deadline
    assert [entry["parent"] for entry in manifests[1:]] == list(reversed(session.manifests()))[:-1]
    trained = sum(entry["trained_seconds"] for entry in manifests)
    assert 0 < trained <= result["trained_seconds"] <= session.deadline - session.epoch
    assert result["checkpoint_seconds"] > 0
    assert result["setup_seconds"] > 0
    assert result["steps_per_second"] > 0


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 2}', '{"format": 1}'])
def test_an_unreadable_launch_is_one_clear_line(session: Any, content: str | None) -> None:
    if content is not None:
        (session.folder / "launch.json").write_text(content)
    session.start()
    assert session.end() == 2
    [line] = "".join(session.said).splitlines()
    assert "launch.json" in line
