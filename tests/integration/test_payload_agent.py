"""The agent as a platform runs it: real processes, real files, a scripted training command."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.checkpoint import parse_manifest
from jobs.payload.clock import Clock

# Counts, a step each time the agent's side wakes it or every few milliseconds; state is one number in one file.
COUNTER = """
import json, os, select, sys
from trainer_kit import Training
training = Training()
step = json.loads((training.resume_dir / "state.json").read_text()) if training.resume_dir else 0
def write(folder):
    (folder / "state.json").write_text(json.dumps(step))
training.progress(step)
while step < training.target_step:
    if training.should_save:
        training.checkpoint(step, write, {"loss": 1 / (step + 1)})
    if training.should_stop:
        sys.exit(0)
    select.select([], [], [], 0.002)
    step += 1
    training.progress(step, loss=1 / step)
training.checkpoint(step, write, {"loss": 1 / step})
"""


class Session:
    """One launch: writes launch.json, starts the agent, reads what it left."""

    def __init__(self, folder: Path, payload: Path) -> None:
        self.folder, self.payload = folder, payload
        self.store = folder / "store"
        self.store.mkdir(exist_ok=True)
        self.process: subprocess.Popen[str] | None = None
        self.said: list[str] = []

    def write(self, *lanes: dict[str, Any], seconds: float = 60.0, scale: float = 1.0, **changes: Any) -> None:
        """Write launch.json; seconds are wall seconds."""
        now = Clock().now()
        self.epoch = 1_763_769_600.0
        self.deadline = self.epoch + seconds * scale
        document = {
            "format": 1,
            "run": "run-0001",
            "clock": {"epoch": self.epoch, "origin": now, "scale": scale},
            "started_at": int(self.epoch),
            "deadline": self.deadline,
            "stop_margin_seconds": 0.5 * scale,
            "heartbeat_seconds": 0.1 * scale,
            "grace_seconds": 10 * scale,
            "mtbf_seconds": 1e9 * scale,
            "work_dir": "work",
            "store": {"kind": "directory", "root": str(self.store)},
            "expected_devices": None,
            "lanes": list(lanes),
            **changes,
        }
        (self.folder / "launch.json").write_text(json.dumps(document))

    def lane(self, script: str, index: int = 0, **changes: Any) -> dict[str, Any]:
        """Return a lane that runs a script."""
        path = self.folder / f"train-{index}.py"
        path.write_text(script)
        return {
            "index": index,
            "job": f"job{index}",
            "attempt": 1,
            "devices": [index],
            "seed": 7,
            "target_step": 1_000_000,
            "command": ["{python}", str(path)],
            "environment": {},
            "data": "",
            "setup_seconds": 1,
            "checkpoint_seconds": 0.1,
            "restore": [],
            **changes,
        }

    def start(self, *words: str, **environment: str) -> None:
        """Start the agent."""
        self.process = subprocess.Popen(
            [sys.executable, *(words or (str(self.payload / "agent.py"),)), "launch.json"],
            cwd=self.folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, words: str) -> None:
        """Read the log up to a line that has these words."""
        assert self.process
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line)
            if words in line:
                return
        raise AssertionError(f"never said {words!r}: {''.join(self.said)}")

    def end(self) -> int:
        """Wait for the agent; return its exit status."""
        assert self.process
        _, rest = self.process.communicate(timeout=60)
        self.said.append(rest)
        return self.process.returncode

    def run(self, *lanes: dict[str, Any], **changes: Any) -> dict[str, Any]:
        """Write, start, and expect a result of lane 0."""
        self.write(*lanes, **changes)
        self.start()
        assert self.end() == 0, "".join(self.said)
        return self.result()

    def result(self, lane: int = 0) -> dict[str, Any]:
        """Return a result; the store and the working folder must agree."""
        stored = (self.store / f"runs/run-0001/lane-{lane}/result.json").read_bytes()
        assert (self.folder / f"work/lane-{lane}/result.json").read_bytes() == stored
        document: dict[str, Any] = json.loads(stored)
        return document

    def heartbeat(self, lane: int = 0) -> dict[str, Any]:
        """Return the newest heartbeat."""
        document: dict[str, Any] = json.loads((self.store / f"runs/run-0001/lane-{lane}/heartbeat.json").read_bytes())
        return document

    def manifests(self, job: str = "job0") -> list[str]:
        """Keys, newest first."""
        folder = self.store / "jobs" / job / "manifests"
        names = sorted((path.name for path in folder.iterdir()), reverse=True) if folder.is_dir() else []
        return [f"jobs/{job}/manifests/{name}" for name in names]

    def manifest(self, key: str) -> dict[str, Any]:
        """Return a manifest's document."""
        document: dict[str, Any] = json.loads((self.store / key).read_bytes())
        return document

    def forget_run(self) -> None:
        """Keep the checkpoints, drop the run's documents, as the next attempt has its own."""
        shutil.rmtree(self.store / "runs", ignore_errors=True)
        self.said.clear()


@pytest.fixture
def payload(repository: Path) -> Path:
    return repository / "jobs" / "payload"


@pytest.fixture
def session(tmp_path: Path, payload: Path) -> Iterator[Session]:
    session = Session(tmp_path, payload)
    yield session
    if session.process:
        if session.process.poll() is None:
            session.process.kill()
        session.process.communicate()


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
    session: Session,
    payload: Path,
    repository: Path,
    entry: Callable[[Path], tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(session.folder)
    session.write(session.lane(COUNTER, target_step=20))
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


def test_training_goes_on_from_the_newest_checkpoint(session: Session) -> None:
    session.run(session.lane(COUNTER, target_step=10))
    session.forget_run()
    result = session.run(session.lane(COUNTER, target_step=15, attempt=2, restore=session.manifests()))
    assert (result["outcome"], result["restored_step"], result["checkpoint_step"]) == ("finished", 10, 15)
    newest, oldest = session.manifests()
    assert result["restored_from"] == oldest
    assert session.manifest(newest)["parent"] == oldest


def test_a_job_that_has_reached_its_target_is_finished_at_once(session: Session) -> None:
    session.run(session.lane(COUNTER, target_step=10))
    session.forget_run()
    result = session.run(session.lane(COUNTER, target_step=10, attempt=2, restore=session.manifests()))
    assert result["outcome"] == "finished"
    assert len(session.manifests()) == 1


def damage(session: Session, key: str, name: str = "state.json") -> Path:
    """Flip one bit of a component."""
    [part] = [part for part in session.manifest(key)["components"] if part["name"] == name]
    blob: Path = session.store / "jobs/job0/blobs" / part["sha256"]
    content = bytearray(blob.read_bytes())
    content[0] ^= 1
    blob.write_bytes(content)
    return blob


def test_a_damaged_newest_checkpoint_is_passed_over_named_and_healed(session: Session) -> None:
    """The step that is trained again has the same bytes; the damaged object must not stand for them."""
    session.run(session.lane(COUNTER, target_step=10))
    session.forget_run()
    session.run(session.lane(COUNTER, target_step=15, attempt=2, restore=session.manifests()))
    bad, good = session.manifests()
    blob = damage(session, bad)
    damaged = blob.read_bytes()
    session.forget_run()
    result = session.run(session.lane(COUNTER, target_step=15, attempt=3, restore=[bad, good]))
    assert (result["outcome"], result["restored_from"], result["restored_step"]) == ("finished", good, 10)
    [entry] = result["bad_manifests"]
    assert entry["manifest"] == bad
    assert "digest" in entry["why"]
    assert blob.read_bytes() != damaged
    session.forget_run()
    result = session.run(session.lane(COUNTER, target_step=16, attempt=4, restore=session.manifests()))
    assert (result["restored_step"], result["bad_manifests"]) == (15, [])


def test_when_no_checkpoint_verifies_nothing_is_started_from_scratch(session: Session) -> None:
    session.run(session.lane(COUNTER, target_step=10))
    damage(session, session.manifests()[0])
    missing = "jobs/job0/manifests/000000000005-000001.json"
    session.forget_run()
    result = session.run(session.lane(COUNTER, attempt=2, restore=[*session.manifests(), missing]))
    assert (result["outcome"], result["error_class"]) == ("failed", "store")
    assert [entry["manifest"] for entry in result["bad_manifests"]] == [*session.manifests(), missing]
    assert result["step"] is None


def test_torn_and_broken_folders_are_no_checkpoints(session: Session) -> None:
    """Half a folder, one without meta.json, one with a link: training goes on, only the sound one is stored."""
    script = """
import os
from pathlib import Path
here = Path(os.environ["SCHED_CHECKPOINT_DIR"])
for name in (".partial-00000001", "step-00000002", "step-3", "step-00000005"):
    (here / name).mkdir()
    (here / name / "w").write_text("half")
os.symlink("/etc/hostname", here / "step-00000005" / "link")
(here / "step-00000005" / "meta.json").write_text('{"step": 5, "metrics": {}}')
whole = here / "partial"
whole.mkdir()
(whole / "w").write_text("whole")
(whole / "meta.json").write_text('{"step": 7, "metrics": {}}')
whole.rename(here / "step-00000007")
"""
    result = session.run(session.lane(script, target_step=7))
    assert result["outcome"] == "finished"
    [key] = session.manifests()
    assert session.manifest(key)["step"] == 7
    log = "".join(session.said)
    assert "meta.json" in log
    assert "plain files" in log


def test_steps_never_go_backwards(session: Session) -> None:
    script = """
import os, select, sys
from pathlib import Path
here = Path(os.environ["SCHED_CHECKPOINT_DIR"])
progress = open(os.environ["SCHED_PROGRESS"], "w", buffering=1)
def save(step, content):
    part = here / "part"
    part.mkdir()
    (part / "w").write_text(content)
    (part / "meta.json").write_text('{"step": %d, "metrics": {}}' % step)
    part.rename(here / f"step-{step:08d}")
    progress.write('{"saved": %d}\\n' % step)
save(10, "ten")
while not list((Path(os.environ["STORE"]) / "jobs/job0").glob("manifests/*10-*")):
    select.select([], [], [], 0.002)
save(4, "four")
save(20, "twenty")
"""
    result = session.run(session.lane(script, target_step=20, environment={"STORE": str(session.store)}))
    assert result["outcome"] == "finished"
    assert [session.manifest(key)["step"] for key in session.manifests()] == [20, 10]
    assert "never go backwards" in "".join(session.said)


def test_the_stop_flag_ends_its_lane_with_a_checkpoint(session: Session) -> None:
    session.write(session.lane(COUNTER))
    flag = session.store / "runs/run-0001/stop"
    flag.parent.mkdir(parents=True)
    flag.write_text('{"reason": "cancelled by ann", "lane": 1}')
    session.start()
    fifo = session.folder / "work/lane-0/progress"
    session_is_training(session)
    assert fifo.exists()
    flag.write_text('{"reason": "cancelled by ann", "lane": 0}')
    assert session.end() == 0
    result = session.result()
    assert (result["outcome"], result["why"]) == ("yielded", "stop flag: cancelled by ann")
    assert result["checkpoint_step"] >= result["step"] > 0


def session_is_training(session: Session) -> None:
    """Ask for a checkpoint and wait until it is stored: the command runs and has its handlers."""
    assert session.process
    while not (session.store / "runs/run-0001/lane-0/heartbeat.json").exists() or not session.heartbeat()["step"]:
        assert session.process.poll() is None, session.end()
        # An os-level wait: nothing becomes readable, time passes.
        with pytest.raises(subprocess.TimeoutExpired):
            session.process.wait(0.02)


def test_a_platforms_sigterm_is_preemption_and_saves(session: Session) -> None:
    session.write(session.lane(COUNTER))
    session.start()
    session_is_training(session)
    assert session.process
    session.process.send_signal(signal.SIGTERM)
    assert session.end() == 0
    result = session.result()
    assert (result["outcome"], result["why"]) == ("preempted", "SIGTERM")
    assert result["checkpoint_step"] >= result["step"] > 0


def test_a_sigterm_before_anything_runs_still_leaves_a_result(session: Session) -> None:
    session.write(session.lane(COUNTER))
    held = {signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)  # inherited: stands for a signal that comes during start-up
    try:
        session.start()
        assert session.process
        session.process.send_signal(signal.SIGTERM)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
    assert session.end() == 0
    assert session.result()["outcome"] == "preempted"


def test_the_last_checkpoint_ends_before_the_stop_margin(session: Session) -> None:
    """An hour a second: cadence saves on the way, the last one is stored in time, trained time adds up."""
    result = session.run(
        session.lane(COUNTER, checkpoint_seconds=360),
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


def test_a_crashing_lane_does_not_take_the_other_along(session: Session) -> None:
    crash = "import sys\nsys.stderr.write('KeyError: weights\\n')\nsys.exit(3)\n"
    session.run(session.lane(crash, 0), session.lane(COUNTER, 1, target_step=20))
    failed, finished = session.result(0), session.result(1)
    assert (failed["outcome"], failed["error_class"]) == ("failed", "code")
    assert "KeyError: weights" in failed["message"]
    assert finished["outcome"] == "finished"
    assert session.manifests("job1")


# Holds the write end of a FIFO as long as it lives, and starts a child that does too; neither obeys SIGTERM.
STUBBORN = """
import os, select, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = os.open(os.environ["ALIVE"], os.O_WRONLY)
os.set_inheritable(held, True)
child = "import signal, select; signal.signal(signal.SIGTERM, signal.SIG_IGN); select.select([], [], [])"
subprocess.Popen([sys.executable, "-c", child], close_fds=False)
open(os.environ["SCHED_PROGRESS"], "w").write('{"step": 1}\\n')
select.select([], [], [])
"""


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A FIFO, and a wait until every process that holds its other end is gone."""
    path = tmp_path / "alive"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def wait_for_all_gone() -> None:
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""

    yield path, wait_for_all_gone
    os.close(reader)


def test_a_command_that_ignores_sigterm_is_killed_with_its_children(
    session: Session, alive: tuple[Path, Callable[[], None]]
) -> None:
    path, wait_for_all_gone = alive
    result = session.run(session.lane(STUBBORN, environment={"ALIVE": str(path)}), seconds=3.0, grace_seconds=0.5)
    wait_for_all_gone()
    assert (result["outcome"], result["error_class"]) == ("failed", "killed")
    assert "grace" in result["why"]


def test_a_killed_agent_takes_its_command_along(session: Session, alive: tuple[Path, Callable[[], None]]) -> None:
    path, wait_for_all_gone = alive
    session.write(session.lane(STUBBORN, environment={"ALIVE": str(path)}))
    session.start()
    session_is_training(session)
    assert session.process
    session.process.kill()
    session.process.wait()
    wait_for_all_gone()


def test_a_killed_supervisor_takes_its_lanes_along(session: Session, alive: tuple[Path, Callable[[], None]]) -> None:
    path, wait_for_all_gone = alive
    environment = {"ALIVE": str(path)}
    session.write(*(session.lane(STUBBORN, index, environment=environment) for index in (0, 1)))
    session.start()
    session_is_training(session)
    assert session.process
    session.process.kill()
    session.process.wait()
    wait_for_all_gone()


def test_a_killed_lane_gets_a_result_and_the_other_goes_on(
    session: Session, alive: tuple[Path, Callable[[], None]]
) -> None:
    """The command kills the agent of its own lane; the supervisor reports in its place."""
    path, wait_for_all_gone = alive
    killer = STUBBORN.replace("select.select([], [], [])\n", "os.kill(os.getppid(), signal.SIGKILL)\n")
    killer += "select.select([], [], [])\n"
    session.run(session.lane(killer, 0, environment={"ALIVE": str(path)}), session.lane(COUNTER, 1, target_step=20))
    wait_for_all_gone()
    lost = session.result(0)
    assert (lost["outcome"], lost["error_class"], lost["job"]) == ("failed", "killed", "job0")
    assert session.result(1)["outcome"] == "finished"


def test_a_full_store_is_waited_out_while_training_goes_on(session: Session, tmp_path: Path) -> None:
    """No space for a checkpoint: said clearly, nothing torn; stored when space is back."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    try:
        session.store = disk
        (disk / "ballast").write_bytes(b"b" * 384 * 1024)
        script = COUNTER.replace(
            "(folder /", '(folder / "weights").write_bytes(bytes([step % 251]) * 200_000)\n    (folder /'
        )
        session.write(session.lane(script, checkpoint_seconds=0.05), mtbf_seconds=1)
        session.start()
        session.until("the store's disk is full")
        assert session.process
        assert session.process.poll() is None
        assert session.manifests() == []
        assert not [path for path in disk.rglob(".tmp-*") if path.stat().st_size > 100_000]
        (disk / "ballast").unlink()
        session.until("published")
        (disk / "runs/run-0001/stop").write_text('{"reason": "enough", "lane": null}')
        session.end()
        key = session.manifests()[0]
        for part in session.manifest(key)["components"]:
            assert (disk / "jobs/job0/blobs" / part["sha256"]).stat().st_size == part["bytes"]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_missing_data_is_a_data_failure(session: Session) -> None:
    result = session.run(session.lane(COUNTER, data="corpus/none"))
    assert (result["outcome"], result["error_class"]) == ("failed", "data")
    assert "corpus/none" in result["message"]


@pytest.mark.parametrize(
    ("script", "error_class"),
    [
        ("import sys; sys.exit(65)", "data"),
        ("raise MemoryError", "oom"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("import torch_that_is_not_there", "code"),
        ("", "code"),
    ],
)
def test_a_failing_command_is_classed(session: Session, script: str, error_class: str) -> None:
    result = session.run(session.lane(script))
    assert (result["outcome"], result["error_class"]) == ("failed", error_class)


def test_a_program_that_does_not_exist_is_a_clear_failure(session: Session) -> None:
    result = session.run(session.lane("", command=["/no/such/program"]))
    assert (result["outcome"], result["error_class"]) == ("failed", "code")
    assert "/no/such/program" in result["message"]


@pytest.mark.parametrize(("found", "outcome"), [("Tesla T4\nTesla T4", "finished"), ("Tesla P100-PCIE-16GB", "failed")])
def test_the_devices_must_be_the_expected_ones(session: Session, tmp_path: Path, found: str, outcome: str) -> None:
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\nprintf '{found}\\n'\n")
    tool.chmod(0o755)
    session.write(session.lane(COUNTER, target_step=5), expected_devices={"count": 2, "name": "NvidiaTeslaT4"})
    session.start(PATH=f"{tool.parent}:{os.environ['PATH']}")
    assert session.end() == 0
    result = session.result()
    assert result["outcome"] == outcome
    if outcome == "failed":
        assert result["error_class"] == "device"
        assert "P100" in result["message"]
    else:
        assert result["devices"] == ["Tesla T4", "Tesla T4"]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 2}', '{"format": 1}'])
def test_an_unreadable_launch_is_one_clear_line(session: Session, content: str | None) -> None:
    if content is not None:
        (session.folder / "launch.json").write_text(content)
    session.start()
    assert session.end() == 2
    [line] = "".join(session.said).splitlines()
    assert "launch.json" in line
