"""The launcher of several processes: what torchrun does wrong with our signals, it does right."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs.payload.trainers.ranks import devices_visible
from tests.lab.patience import PATIENCE_SECONDS, until

RANKS = Path(__file__).parent.parent.parent / "jobs/payload/trainers/ranks.py"
# Each rank writes a file once it listens, and one of the signals that it heard when it ends.
LISTENING = """
import os, pathlib, queue, signal, sys
here, rank, heard, told = pathlib.Path(sys.argv[1]), os.environ["RANK"], queue.SimpleQueue(), []
(here / f"early-{rank}").touch()
if sys.argv[2:] == ["late"]:
    while not (here / "go").exists(): pass
signal.signal(signal.SIGUSR1, lambda *_: heard.put("USR1"))
signal.signal(signal.SIGTERM, lambda *_: heard.put("TERM"))
(here / f"ready-{rank}").touch()
while "TERM" not in told:
    told.append(heard.get())
    if told[-1] == "USR1": (here / f"saved-{rank}").touch()
(here / f"ended-{rank}").write_text(" ".join([*told, os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]]))
"""
DYING = """
import os, signal, sys
if os.environ["RANK"] == "1": sys.exit(int(sys.argv[1])) if int(sys.argv[1]) >= 0 else os.kill(os.getpid(), 9)
signal.pause()
"""
ENDS = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from ranks import Ranks
class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGUSR1):
        kill(process, number)  # after Python has given its signals back
late = Late()
sys.exit(Ranks().run([sys.executable, sys.argv[2]], 1))
"""


@contextmanager
def start(folder: Path, script: str, *words: str, devices: str = "0,1") -> Iterator[subprocess.Popen[str]]:
    (folder / "script.py").write_text(script)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": devices}
    command = [sys.executable, str(RANKS), str(folder / "script.py"), *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            yield launcher
            launcher.wait(PATIENCE_SECONDS)
        finally:
            launcher.kill()


def test_signals_reach_every_rank_and_only_the_ranks_decide_what_they_mean(tmp_path: Path) -> None:
    with start(tmp_path, LISTENING, str(tmp_path)) as launcher:
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "both ranks to listen")
        launcher.send_signal(signal.SIGUSR1)
        until(lambda: len(list(tmp_path.glob("saved-*"))) == 2, "both ranks to save")
        assert launcher.poll() is None
        launcher.send_signal(signal.SIGTERM)
    assert launcher.returncode == 0
    assert [(tmp_path / f"ended-{rank}").read_text() for rank in (0, 1)] == ["USR1 TERM 2 0", "USR1 TERM 2 1"]


def test_a_wish_to_save_before_anybody_listens_does_no_harm(tmp_path: Path) -> None:
    with start(tmp_path, LISTENING, str(tmp_path), "late", devices="0") as launcher:
        until((tmp_path / "early-0").exists, "the rank to begin")
        launcher.send_signal(signal.SIGUSR1)
        (tmp_path / "go").touch()
        until((tmp_path / "ready-0").exists, "the rank to listen")
        launcher.send_signal(signal.SIGTERM)
    assert launcher.returncode == 0


def test_a_signal_after_the_last_rank_does_not_change_the_status(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    words = [sys.executable, "-c", ENDS, str(RANKS.parent), str(tmp_path / "script.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("dies", "status"), [("7", 7), ("-9", 128 + 9)])
def test_when_a_rank_dies_all_end_with_its_status(dies: str, status: int, tmp_path: Path) -> None:
    with start(tmp_path, DYING, dies) as launcher:
        assert launcher.stderr is not None
        said = launcher.stderr.read()
    assert launcher.returncode == status
    assert "rank 1 of 2 ended with status" in said


def test_all_that_have_died_before_the_launcher_looks_are_told(tmp_path: Path) -> None:
    """Who died of another's death may be found first: only both lines tell what happened."""
    with start(tmp_path, LISTENING, str(tmp_path)) as launcher:
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "both ranks to listen")
        ranks = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        launcher.send_signal(signal.SIGSTOP)
        until(lambda: ") T " in Path(f"/proc/{launcher.pid}/stat").read_text(), "the launcher to stop")
        for rank in ranks:
            os.kill(int(rank), signal.SIGKILL)
        until(lambda: all(") Z " in Path(f"/proc/{rank}/stat").read_text() for rank in ranks), "both to be dead")
        launcher.send_signal(signal.SIGCONT)
        assert launcher.stderr is not None
        said = launcher.stderr.read()
    assert launcher.returncode == 128 + 9
    assert said == "ranks: rank 0 of 2 ended with status -9, rank 1 of 2 ended with status -9, so all end\n"


def test_ranks_die_with_their_launcher(tmp_path: Path) -> None:
    with start(tmp_path, LISTENING, str(tmp_path)) as launcher:
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "both ranks to listen")
        ranks = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        assert len(ranks) == 2
        launcher.kill()
    until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), "the ranks to end")


def test_the_number_of_devices_is_that_of_the_lane() -> None:
    assert devices_visible({"CUDA_VISIBLE_DEVICES": "0,1"}) == 2
    assert devices_visible({"CUDA_VISIBLE_DEVICES": "3"}) == 1
    assert devices_visible({"CUDA_VISIBLE_DEVICES": ""}) == 1


def test_a_machine_without_a_driver_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices_visible({}) == 1
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 0\necho 1\necho 2\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert devices_visible({}) == 3


def test_lines_of_several_ranks_stay_whole_though_each_word_is_written_at_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text('import os\nfor step in range(500): print(os.environ["RANK"], "at", step)')
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(RANKS), str(tmp_path / "script.py")]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert sorted(printed.splitlines()) == sorted(f"{rank} at {step}" for rank in range(4) for step in range(500))
