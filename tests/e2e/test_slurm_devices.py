"""One pool of a real Slurm gives each session as many devices as its job needs to be in time, and counts them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler.clock import real_now
from scheduler.core import reconcile
from tests.lab.patience import PATIENCE_SECONDS, files_called, until
from tests.lab.slurm import SlurmLab, slurm_lab
from tests.lab.typed import told

CONFIG = """
state_dir = "state"
zone = "UTC"
models = []

[daemon]
cycle = "1s"
heartbeat = "1s"

[[pools]]
name = "cluster"
platform = "slurm"
accelerator = "H100"
device_counts = [1, 2]
devices_max = 3
options = {{ partition = "gpu", gres = "gpu:h100", slurm_conf = "{conf}", command_seconds = "60" }}
[[pools.quotas]]
name = "GPU hours of the month"
kind = "month"
limit = "100h"
charge = "device"
[[pools.quotas]]
name = "hours of the month"
kind = "month"
limit = "50h"
"""
SCRIPT = """
import json, os, time
from trainer_kit import Training

training = Training()
print("has", os.environ["CUDA_VISIBLE_DEVICES"], "of job", os.environ["SLURM_JOB_GPUS"], flush=True)
while not os.path.exists("GO") and not training.should_stop:  # until then no speed is measured, only the declared known
    time.sleep(0.1)
step = 0
while step < training.target_step and not training.should_stop:
    step += 1
    time.sleep(0.01)
    training.progress(step, loss=1 / step)
training.checkpoint(step, lambda folder: (folder / "step.json").write_text(json.dumps(step)), {})
"""
HOUR = 3_600
# A launch whose answer came late is found in the queue; a start that differs by less is not entered, on three devices.
ALIKE_SECONDS = 3 * reconcile.ALIKE_SECONDS


@pytest.fixture
def lab() -> Iterator[SlurmLab]:
    """The cluster."""
    with slurm_lab() as made:
        yield made


def test_sessions_with_one_and_two_devices_run_side_by_side_on_one_pool(lab: SlurmLab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("GO", str(tmp_path / "go")))
    (tmp_path / "config.toml").write_text(CONFIG.format(conf=lab.conf))
    environ = {**os.environ, "HOME": str(tmp_path), "SCHEDCTL_CONFIG": str(tmp_path / "config.toml")}
    program = str(Path(sys.executable).with_name("schedctl"))

    def schedctl(*words: str, plain: bool = False) -> Any:
        asked = [program, *words] if plain else [program, *words, "--json"]
        done = subprocess.run(asked, cwd=tmp_path, env=environ, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode() if plain else json.loads(done.stdout)

    def runs() -> dict[str, dict[str, Any]]:
        return {run["lanes"][0]["job"]: run for run in told(tmp_path / "config.toml", "runs", "list")["runs"]}

    schedctl("init")
    # On one device five hours, on two less than three. The second is due between the two.
    due = datetime.fromtimestamp(real_now(), UTC) + timedelta(hours=4.5)
    for name in ("narrow", "wide", "waits"):
        words = ("--target-step", "1000000", "--steps-per-hour", "200000", "--probe", "0", "--name", name)
        schedctl("submit", "train.py", *words)
        schedctl("queue", "edit", name, "--set", "needs.devices=[1, 4]", "--set", "device_speedup=[1.0, 1.9, 1.9, 2.0]")
    schedctl("queue", "edit", "wide", "--set", f"deadline={due.isoformat(timespec='seconds')}")
    schedctl("queue", "edit", "waits", "--set", "weight=0.5")
    with (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([program, "daemon"], cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        until(lambda: [run["state"] for run in runs().values()].count("running") == 2, "two sessions")
        until(lambda: len(printed(tmp_path)) == 2, "what they have")
        held = {job: run["lanes"][0]["devices"] for job, run in runs().items()}
        assert held == {"narrow": [0], "wide": [0, 1]}
        asked = {job: gres(lab, run["key"]) for job, run in runs().items()}
        assert asked == {"narrow": "gpu:h100:1", "wide": "gpu:h100:2"}
        assert sorted(len(numbers.split(",")) for numbers in printed(tmp_path)) == [1, 2]
        chosen = [one for one in schedctl("plan", "explain", "wide")["devices"] if one["chosen"]]
        assert [(one["devices"], one["in_time"], one["left"]) for one in chosen] == [(2, True, 1)]
        table = schedctl("plan", "what-if", "--devices", "waits=2", plain=True)
        assert re.search(r"cluster +1 +5\.00 +5\.00 +2 +- +\*", table), table

        (tmp_path / "go").touch()

        def held_matches() -> bool:  # a hold begins where its session really began, which the daemon hears later
            meters = {meter["quota"]: meter["held"] for meter in schedctl("quota")["quotas"]}
            spans = {job: run["held_until"] - (run["started"] or run["planned_start"]) for job, run in runs().items()}
            by_device, by_session = spans["narrow"] + 2 * spans["wide"], spans["narrow"] + spans["wide"]
            return bool(
                0 <= meters["GPU hours of the month"] - by_device <= ALIKE_SECONDS
                and 0 <= meters["hours of the month"] - by_session <= ALIKE_SECONDS
            )

        until(held_matches, "holds that count each device")
        schedctl("queue", "cancel", "--all", "--yes")
        until(lambda: all(run["state"] == "ended" for run in runs().values()), "their ends")
    finally:
        daemon.terminate()
        daemon.wait(timeout=PATIENCE_SECONDS)
    ended = runs()
    assert set(ended) == {"narrow", "wide"}
    assert {run["key"]: (run["started"], run["ended"]) for run in ended.values()} == lab.books()
    seconds = {job: run["ended"] - run["started"] for job, run in ended.items()}
    used = {meter["quota"]: meter["used"] for meter in schedctl("quota")["quotas"]}
    assert used["GPU hours of the month"] == seconds["narrow"] + 2 * seconds["wide"]
    assert used["hours of the month"] == seconds["narrow"] + seconds["wide"]
    schedctl("db", "verify")


def gres(lab: SlurmLab, key: str) -> str:
    """Return what Slurm was asked for a node of the job."""
    told = lab.say("squeue", "-h", "-n", key, "-O", "tres-per-node:80").strip()
    return told.removeprefix("gres:")


def printed(folder: Path) -> list[str]:
    """Return the devices that each session says it has."""
    said = "".join(path.read_text() for path in files_called("output.log", folder / "state"))
    return re.findall(r"has ([\d,]+) of job ", said)
