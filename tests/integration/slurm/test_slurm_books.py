"""A real slurmdbd: what an account has left is read, nothing is launched that it would not start, and it agrees."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platforms.base import Refused, SessionState
from platforms.registry import checkup
from scheduler.clock import real_now
from tests.lab.patience import PATIENCE_SECONDS, until
from tests.lab.slurm import slurm_lab
from tests.lab.slurm_books import AccountedLab

World = Any  # see conftest.py
pytestmark = pytest.mark.nightly
CONFIG = """
state_dir = "state"
models = []
[daemon]
cycle = "1s"
heartbeat = "1s"
[[pools]]
name = "cluster"
platform = "slurm"
accelerator = "H100"
devices_per_session = 2
setup = "1m"
start_delay = "0s"
session_min = "5m"
options = {{ gres = "gpu:h100", slurm_conf = "{conf}", command_seconds = "60" }}
"""
SCRIPT = """
import time
from trainer_kit import Training
training, step = Training(), 0
while not training.should_stop:
    step += 1
    time.sleep(0.05)
    training.progress(step)
training.checkpoint(step, lambda folder: (folder / "step").write_text(str(step)), {})
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[AccountedLab]:
    """A cluster with accounts."""
    with slurm_lab(AccountedLab) as made:
        assert isinstance(made, AccountedLab)
        yield made


@pytest.fixture(autouse=True)
def _unlimited(lab: AccountedLab) -> Iterator[None]:
    yield
    for account in ("uff", "lab"):
        lab.limit(-1, account)


def left(world: World, account: str = "") -> int | None:
    """The seconds that a new adapter says are left."""
    options = {"account": account} if account else {}
    told = world.adapter(**options).read_quota(int(real_now()))
    return told[0].left_seconds if told else None


def test_the_tightest_limit_of_the_account_and_those_above_it_is_read(world: World, lab: AccountedLab) -> None:
    assert left(world) is None
    assert world.adapter().capabilities.reports_quota
    used = lab.used()
    lab.limit(used + 101)
    assert left(world) == left(world, "uff") == 100 * 60
    lab.limit(used + 31, "lab")
    assert left(world) == 30 * 60
    world.launch("one", adapter=world.adapter(gres="gpu:h100"), seconds=600, devices=2)
    world.until("one", SessionState.RUNNING)
    # Two GPUs for ten minutes are promised to it.
    until(lambda: left(world) == 10 * 60, "what it was promised", every=1)


def test_a_job_that_the_account_cannot_pay_waits_and_says_so(world: World, lab: AccountedLab) -> None:
    lab.limit(lab.used() + 10)
    world.launch("one", adapter=world.adapter(gres="gpu:h100"), seconds=3600, devices=1)
    told = world.until("one", SessionState.QUEUED)
    until(lambda: "GPU minutes are used up" in world.find("one").detail, "the reason")
    assert told.waits is None or told.waits.starts_at is None


@pytest.fixture
def _small(lab: AccountedLab) -> Iterator[None]:
    """A QOS that root may use, and uses by default."""
    lab.book("add", "qos", "small", "GrpTRESMins=gres/gpu=600", "GrpTRES=gres/gpu=6", "MaxTRESPU=gres/gpu=4")
    lab.book("modify", "user", "root", "set", "qos+=small", "defaultqos=small")
    yield
    lab.clear()
    lab.book("modify", "user", "root", "set", "defaultqos=-1")
    lab.book("modify", "user", "root", "set", "qos-=small")
    lab.book("delete", "qos", "small")


@pytest.mark.usefixtures("_small")
def test_what_a_qos_has_left_is_read_and_what_its_caps_would_keep_waiting_is_not_launched(
    world: World, lab: AccountedLab
) -> None:
    adapter = world.adapter(gres="gpu:h100")

    def minutes(**options: str) -> int | None:
        told = (world.adapter(**options) if options else adapter).read_quota(int(real_now()))
        return told[0].left_seconds // 60 if told else None

    # The minute that is not over counts as used.
    until(lambda: minutes() == minutes(qos="small") == 599, "the default QOS", every=1)
    assert minutes(qos="normal") is None
    lab.limit(lab.used() + 101)
    assert minutes() == 100
    lab.limit(-1)
    with pytest.raises(Refused, match="you in the QOS small may hold 4 GPUs at once: 0 now, and 5 more asked"):
        world.launch("five", adapter=adapter, devices=5)
    world.launch("three", adapter=adapter, seconds=600, devices=3)
    world.until("three", SessionState.RUNNING)
    until(lambda: minutes() == 569, "what it was promised", every=1)
    with pytest.raises(Refused, match="you in the QOS small may hold 4 GPUs at once: 3 now, and 2 more asked"):
        world.launch("two", adapter=adapter, seconds=600, devices=2)
    # Slurm thinks alike: what asks it without a look at the books waits for that reason.
    world.launch("two", adapter=world.adapter(gres="gpu:h100"), seconds=600, devices=2)
    until(lambda: "QOSMaxGRESPerUser" in world.find("two").detail, "the reason")
    world.launch("one", adapter=adapter, seconds=600, devices=1)
    world.until("one", SessionState.RUNNING)
    check = checkup("slurm", {"slurm_conf": str(lab.conf)}, {}, real_now(), probe=False)["account"]()
    assert check.grade == "ok"
    assert "you in the QOS small may have 4 GPUs at once, 4 now" in check.found


def test_a_daemon_plans_what_the_account_has_left_and_slurm_starts_it(tmp_path: Path, lab: AccountedLab) -> None:
    lab.limit(lab.used() + 91)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "config.toml").write_text(CONFIG.format(conf=lab.conf))
    environ = {**os.environ, "HOME": str(tmp_path), "SCHEDCTL_CONFIG": str(tmp_path / "config.toml")}
    program = str(Path(sys.executable).with_name("schedctl"))

    def schedctl(*words: str) -> Any:
        done = subprocess.run([program, *words, "--json"], cwd=tmp_path, env=environ, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    schedctl("init")
    words = ("--target-step", "1000000", "--steps-per-hour", "70000", "--probe", "0")
    schedctl("submit", "train.py", *words)
    with (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([program, "daemon"], cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        until(lambda: schedctl("runs", "list")["runs"], "a session")
        run = schedctl("runs", "list")["runs"][0]
        assert 30 * 60 < run["deadline"] - run["planned_start"] <= 45 * 60
        until(lambda: "RUNNING" in lab.say("squeue", "-h", "-o", "%j %T"), "its start")
        (meter,) = schedctl("quota")["quotas"]
        assert (meter["quota"], meter["source"]) == ("account", "slurm account")
        assert meter["limit"] <= 45 * 60
        assert meter["free"] < 15 * 60
        schedctl("queue", "cancel", "--all", "--yes")
        until(lambda: schedctl("runs", "list")["runs"][0]["state"] == "ended", "its end")
    finally:
        daemon.terminate()
        daemon.wait(timeout=PATIENCE_SECONDS)
        lab.clear()
