"""A lane whose job is over continues with the next job that the store has an order for."""

import json
import os
import signal
from pathlib import Path
from typing import Any

CHAIN = {"wait_seconds": 30, "least_seconds": 1}
# Says what it was given, then reaches its target at once.
NEXT = """
import json, os, pathlib
from trainer_kit import Training
training = Training()
said = {name: os.environ.get(name) for name in ("TOKEN", "OTHER", "CUDA_VISIBLE_DEVICES")}
said["files"] = sorted(path.name for path in pathlib.Path().iterdir())
def write(folder):
    (folder / "said.json").write_text(json.dumps(said))
training.progress(0)
training.checkpoint(training.target_step, write, {})
"""
LITTER = """
import pathlib
pathlib.Path("litter").write_text("of the job before")
"""


def order(session: Any, after: int, lane: dict[str, Any] | None, run: str = "run-0001") -> None:
    """Put what follows after a lane, as the daemon does: all at once, and once."""
    document = {"format": 1, "run": run, "after": after, "lane": lane}
    if lane is not None:
        document["store"] = {"kind": "directory", "root": str(session.store)}
    folder = session.store / f"runs/run-0001/lane-{after}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".new").write_text(json.dumps(document))
    os.link(folder / ".new", folder / "next.json")


def said(session: Any, job: str) -> dict[str, Any]:
    [key] = session.manifests(job)
    digest = next(part["sha256"] for part in session.manifest(key)["components"] if part["name"] == "said.json")
    document: dict[str, Any] = json.loads((session.store / f"jobs/{job}/blobs/{digest}").read_bytes())
    return document


def test_the_next_job_runs_in_a_fresh_folder_with_its_own_secrets(session: Any) -> None:
    first = session.lane(LITTER + session.counter, target_step=10, secrets=["TOKEN"], devices=[5])
    session.write(first, chain=CHAIN)
    session.start(SCHED_SECRETS=json.dumps({"TOKEN": "hush-hush", "OTHER": "quiet-quiet"}))
    session.until("waits for another job")
    assert session.result()["waits_until"] > session.result()["ended_at"], "the daemon learns that it waits"
    order(session, 0, session.lane(NEXT, index=4, target_step=3, secrets=["OTHER"], devices=[0], attempt=2))
    session.until("job4 continues in this session, as lane 4")
    session.until("waits for another job")
    order(session, 4, None)
    assert session.end() == 0
    result, heard = session.result(4), said(session, "job4")
    assert (result["outcome"], result["job"], result["step"]) == ("finished", "job4", 3)
    assert result["started_at"] >= session.result()["ended_at"], "it is charged from where it began"
    assert (heard["TOKEN"], heard["OTHER"]) == (None, "quiet-quiet"), "each job has its own secrets alone"
    assert heard["CUDA_VISIBLE_DEVICES"] == "5", "it has the device of the lane before it"
    assert "litter" not in heard["files"]
    assert session.manifest(session.manifests("job4")[0])["attempt"] == 2


def test_a_session_that_takes_no_orders_ends_with_its_job(session: Any) -> None:
    order(session, 0, session.lane(NEXT, index=1, target_step=3))
    assert session.run(session.lane(session.counter, target_step=10))["waits_until"] is None
    assert not session.manifests("job1")


def test_what_waits_in_vain_ends_by_itself(session: Any) -> None:
    session.run(session.lane(session.counter, target_step=10), chain={"wait_seconds": 0.3, "least_seconds": 1})


def test_a_session_without_time_for_another_job_does_not_wait(session: Any) -> None:
    result = session.run(session.lane(session.counter, target_step=10), chain={"wait_seconds": 30, "least_seconds": 60})
    assert result["waits_until"] is None


def test_an_order_of_another_lane_is_not_taken(session: Any) -> None:
    session.write(session.lane(session.counter, target_step=10), chain=CHAIN)
    order(session, 0, session.lane(NEXT, index=1, target_step=3), run="run-0002")
    session.start()
    assert session.end() == 0
    assert "is invalid" in "".join(session.said)
    assert not session.manifests("job1")


def test_a_stop_of_the_whole_session_ends_the_wait(session: Any) -> None:
    session.write(session.lane(session.counter, target_step=10), chain=CHAIN)
    session.start()
    session.until("waits for another job")
    (session.store / "runs/run-0001/stop").write_text(json.dumps({"lane": None, "reason": "enough"}))
    assert session.end() == 0


def test_what_asked_the_job_before_to_stop_does_not_ask_the_next(session: Any) -> None:
    session.write(session.lane(session.counter), chain=CHAIN)
    order(session, 0, session.lane(NEXT, index=1, target_step=3))
    session.start()
    session.until_training()
    (session.store / "runs/run-0001/stop").write_text(json.dumps({"lane": 0, "reason": "hold"}))
    session.until("yielded: stop flag: hold")
    session.until("job1 continues in this session")
    session.until("waits for another job")
    order(session, 1, None)
    assert session.end() == 0
    assert session.manifests("job1")


def test_sigterm_ends_the_wait(session: Any) -> None:
    session.write(session.lane(session.counter, target_step=10), chain=CHAIN)
    session.start()
    session.until("waits for another job")
    session.process.send_signal(signal.SIGTERM)
    session.end()
    assert session.result()["outcome"] == "finished"


def test_a_lane_waits_as_long_as_another_works(session: Any) -> None:
    lanes = session.lane(session.counter), session.lane(session.counter, index=1, target_step=10)
    session.write(*lanes, chain={"wait_seconds": 0.2, "least_seconds": 1})
    session.start()
    session.until("waits for another job")
    session.until_beats(20)  # ten times as long as it would wait alone
    order(session, 1, session.lane(NEXT, index=2, target_step=3))
    session.until("job2 continues in this session")
    session.until("waits for another job")
    (session.store / "runs/run-0001/stop").write_text(json.dumps({"lane": None, "reason": "enough"}))
    assert session.end() == 0
    assert said(session, "job2")["CUDA_VISIBLE_DEVICES"] == "1"
    closed = json.loads((session.store / "runs/run-0001/lane-2/next.json").read_bytes())
    assert closed["lane"] is None, "whoever put an order too late learns that nobody takes it"


def test_a_job_that_continues_and_is_killed_leaves_a_result(session: Any, tmp_path: Path) -> None:
    lanes = session.lane(session.counter), session.lane(session.counter, index=1, target_step=10)
    session.write(*lanes, chain=CHAIN)
    script = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n"
    order(session, 1, session.lane(script, index=2, target_step=3))
    session.start()
    session.until_training()
    path = session.store / "runs/run-0001/lane-2/result.json"
    while not path.exists():
        session.until_beats(1)
    (session.store / "runs/run-0001/stop").write_text(json.dumps({"lane": None, "reason": "enough"}))
    assert session.end() == 0
    assert (session.result(2)["outcome"], session.result(2)["error_class"]) == ("failed", "killed")


def test_a_device_that_no_job_has_takes_one_while_another_works(session: Any) -> None:
    session.write(session.lane(session.counter), chain={**CHAIN, "free": [[1, [6]]]})
    session.start()
    session.until_training()
    order(session, 1, session.lane(NEXT, index=2, target_step=3, devices=[1]))
    session.until("job2 continues in this session, as lane 2")
    session.until("waits for another job")
    (session.store / "runs/run-0001/stop").write_text(json.dumps({"lane": None, "reason": "enough"}))
    assert session.end() == 0
    assert said(session, "job2")["CUDA_VISIBLE_DEVICES"] == "6"
    assert session.result()["outcome"] == "yielded"


def test_a_device_that_no_job_has_keeps_no_session_going(session: Any) -> None:
    chain = {"wait_seconds": 0.3, "least_seconds": 1, "free": [[1, [6]]]}
    assert session.run(session.lane(session.counter, target_step=10), chain=chain)["outcome"] == "finished"
    closed = json.loads((session.store / "runs/run-0001/lane-1/next.json").read_bytes())
    assert closed["lane"] is None
    assert not (session.store / "runs/run-0001/lane-1/result.json").exists()
