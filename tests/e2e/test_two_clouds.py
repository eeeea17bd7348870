"""Jobs that move between Kaggle and SageMaker, by themselves and by hand, through real clients of both emulators."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from jobs.nouns.window import Window
from jobs.payload.clock import Clock
from platforms.emulators.kaggle.place import KaggleAccount, Kind
from platforms.emulators.kaggle.server import KaggleServer
from platforms.emulators.kaggle.storage import KaggleRules
from platforms.emulators.sagemaker.place import SageMakerAccount, SageMakerRules
from platforms.emulators.sagemaker.server import SageMakerServer
from scheduler.app import App, load_app
from scheduler.clock import ScaledClock
from scheduler.core.ledger import fold, seconds_within
from scheduler.store import ledger, runs
from tests.lab.clocks import starting_now
from tests.lab.crashes.processes import working_for
from tests.lab.patience import PATIENCE_SECONDS, slowness, until
from tests.lab.typed import told

NOON = 1_800_014_400 // 86_400 * 86_400 + 43_200
HOUR = 3_600
STEPS_PER_HOUR = 75
KINDS: tuple[Kind, ...] = ("GPU", "TPU")
CLOUDS = {"kaggle", "sagemaker"}
PATIENCE_HOURS = 24  # of the accounts' clock, which is slower on a machine under load
# Saved with each checkpoint: the steps at which its sessions began. Saved often, for the minutes that a session has
# for its last checkpoint are seconds here, which a machine under load may not give it.
TRAINING = """
import json, sys, time
from trainer_kit import Training
training = Training()
began = json.loads((training.resume_dir / "began.json").read_text()) if training.resume_dir else []
step = began.pop() if began else 0
began.append(step)
def write(folder):
    (folder / "began.json").write_text(json.dumps([*began, step]))
training.progress(step)
while step < training.target_step and not training.should_stop:
    if training.should_save or step % 15 == 14:
        training.checkpoint(step, write, {})
    time.sleep(float(sys.argv[1]))
    step += 1
    training.progress(step)
training.checkpoint(step, write, {})
"""


@dataclass
class TwoClouds:
    """A daemon with accounts on both emulators, and the bucket in which their sessions share checkpoints."""

    folder: Path
    clock: ScaledClock
    kaggle: KaggleAccount
    sagemaker: SageMakerAccount
    addresses: tuple[str, str]
    bucket: str
    daemon: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.folder / "config.toml"

    def begin(self, kaggle: dict[str, Any], sagemaker: dict[str, Any]) -> App:
        """Start the daemon, with what a test sets of the pools; return what reads its database."""
        common = {"session_min": "10m", "setup": "5m", "start_delay": "5m", "stop_margin": "15m", "overrun": "15m"}
        place = {"bucket": self.bucket, "region": "us-east-1", "endpoint": self.addresses[1]}
        key = str(self.folder / "kaggle.json")
        options = {"emulator": self.addresses[0], "credentials": key, "checkpoints": "direct"}
        quick = {"idle_milliseconds": "100", "pause_milliseconds": "0"}
        role, image = "arn:aws:iam::123456789012:role/uff", "123456789012.dkr.ecr.us-east-1.amazonaws.com/torch:2.10"
        machine = {"role": role, "image": image, "instance_types": "ml.g4dn.xlarge", "poll_seconds": "0"}
        week = {"name": "week", "kind": "week", "limit": "30h", "resets": "Saturday 00:00", "zone": "UTC"}
        tpu = {"name": "tpu", "accelerator": "TPU v5e-8", "quotas": [week | {"limit": "20h"}]}
        ours = {"platform": "kaggle", "visibility": "20m", **common, "options": options | quick}
        pools = [
            {"name": "kaggle", "accelerator": "T4", "quotas": [week], **ours, **kaggle},
            tpu | ours,
            {"name": "sagemaker", "platform": "sagemaker", "accelerator": "T4", "session_cap": "12h", **common,
             "options": place | machine, "price_per_hour": "$0.74", "visibility": "20m", **sagemaker},
        ]  # fmt: skip
        document = {
            "state_dir": str(self.folder / "state"),
            "models": [],
            "artifacts": {"kind": "s3", "root": str(self.folder / "artifacts"), "options": place},
            "daemon": {"cycle": "2m", "heartbeat": "3m", "grace": "12h", "retry_base": "3m"},
            "clock": self.clock.payload_clock(),
            "pools": pools,
        }
        self.config.write_text(tomli_w.dumps(document))
        (self.folder / "code").mkdir()
        (self.folder / "code" / "train.py").write_text(TRAINING)
        told(self.config, "db", "init")
        words = [sys.executable, "-m", "scheduler", "--config", str(self.config), "daemon"]
        with (self.folder / "daemon.log").open("wb") as log:
            self.daemon = subprocess.Popen(words, stdout=log, stderr=log)
        return load_app(self.config, {})

    def add(self, name: str, hours: float, *words: str) -> None:
        """Queue a job of so many scheduled hours of training."""
        pause = self.clock.wall_seconds(HOUR / STEPS_PER_HOUR)
        command = ["--name", name, "--command", f"{{python}} train.py {pause}", "--code", str(self.folder / "code")]
        amount = ["--target-step", str(round(hours * STEPS_PER_HOUR)), "--steps-per-hour", str(STEPS_PER_HOUR)]
        told(self.config, "queue", "add", *command, *amount, *words)

    def job(self, name: str) -> dict[str, Any]:
        """A job as `queue show` shows it."""
        job: dict[str, Any] = told(self.config, "queue", "show", name)["job"]
        return job

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """Wait; on failure show what the daemon said."""
        try:
            return until(look, what, self.clock.wall_seconds(PATIENCE_HOURS * HOUR), every=0.3)
        except AssertionError as error:
            raise AssertionError((self.folder / "daemon.log").read_text()[-6_000:]) from error

    def until_state(self, name: str, state: str = "done") -> None:
        """Wait until a job is in a state."""
        self.until(lambda: self.job(name)["state"] == state, f"{name} to be {state}")


@pytest.fixture
def clouds(tmp_path: Path, aws_credentials: None) -> Iterator[TwoClouds]:
    """Both accounts on one clock, on which an hour has the seconds that sessions need on this machine."""
    clock = starting_now(NOON, 300 / slowness())
    payload_clock = Clock(**clock.payload_clock())
    rules = KaggleRules(queue_seconds=60, dataset_seconds=30)
    kaggle = KaggleAccount(tmp_path / "kaggle", payload_clock, "alice", "the-key", rules)
    aws = SageMakerRules(queue_seconds=60, download_seconds=30, upload_seconds=30, grace_seconds=12 * HOUR)
    sagemaker = SageMakerAccount(tmp_path / "sagemaker", payload_clock, aws)
    (tmp_path / "kaggle.json").write_text(json.dumps({"username": "alice", "key": "the-key"}))
    (tmp_path / "kaggle.json").chmod(0o600)
    with KaggleServer(kaggle) as one, SageMakerServer(sagemaker) as two:
        bucket = f"two-clouds-{os.urandom(4).hex()}"  # the emulator keeps the objects of an earlier test
        two.make_bucket(bucket)
        made = TwoClouds(tmp_path, clock, kaggle, sagemaker, (one.address, two.address), bucket)
        yield made
        if made.daemon is not None:
            made.daemon.terminate()
            assert made.daemon.wait(PATIENCE_SECONDS) == 0
    assert not working_for(tmp_path)


def moves(app: App, job: str) -> list[str]:
    """Return the pools of a job's sessions in turn, each once for sessions in a row that trained."""
    with app.database.read() as tx:
        ran = runs.recent(tx, job=job)
    pools = [run.pool for run in sorted(ran, key=lambda run: run.planned_start)]
    return [pool for number, pool in enumerate(pools) if pools[:number][-1:] != [pool]]


def has_trained(app: App, job: str) -> bool:
    """Return whether a job's running session reported the steps of half an hour."""
    with app.database.read() as tx:
        mine = {(run.key, lane.index) for run in runs.live(tx) for lane in run.lanes if lane.job == job}
        reports = runs.heartbeats(tx, [key for key, _ in mine])
    return any(2 * (report.step or 0) >= STEPS_PER_HOUR for place, report in reports.items() if place in mine)


def check_training(app: App, job: str) -> None:
    """Assert that each session of a job began at a step that another had saved: none was lost, none trained twice."""
    key = max(app.artifacts.keys(f"jobs/{job}/manifests/"))
    parts = {part["name"]: part["sha256"] for part in json.loads(app.artifacts.read(key))["components"]}
    *began, last = json.loads(app.artifacts.read(f"jobs/{job}/blobs/{parts['began.json']}"))
    saved = {int(name.rpartition("/")[2].split("-")[0]) for name in app.artifacts.keys(f"jobs/{job}/manifests/")}
    with app.database.read() as tx:
        ran = [(run.pool, lane.restore_step, lane.outcome) for run in runs.recent(tx, job=job) for lane in run.lanes]
    assert began[0] == 0
    assert len(began) > 1, (sorted(saved), ran, (app.settings.state_dir.parent / "daemon.log").read_text()[-6_000:])
    assert all(one < other for one, other in pairwise([*began, last])), began
    assert set(began[1:]) <= saved


def check_bills(clouds: TwoClouds, app: App) -> None:
    """Assert that the ledger of each pool ends at the seconds that its platform billed."""
    start, end = map(int, clouds.kaggle.week(clouds.clock.now()))

    def booked() -> dict[str, int]:
        with app.database.read() as tx:
            charges = ledger.charges(tx, 0)
        return {
            pool: seconds_within(charges.get(pool, ()), Window(start, end)) for pool in ("kaggle", "tpu", "sagemaker")
        }

    def billed() -> dict[str, int]:
        used = {kind: math.ceil(clouds.kaggle.seconds_used(start, end, kind)) for kind in KINDS}
        return {"kaggle": used["GPU"], "tpu": used["TPU"], "sagemaker": clouds.sagemaker.billed_seconds()}

    clouds.until(lambda: booked() == billed(), f"a ledger like the bills: {billed()}, and it is {booked()}")
    assert min(booked()["kaggle"], booked()["sagemaker"]) > HOUR / 2
    with app.database.read() as tx:
        entries = ledger.entries(tx, pool="sagemaker")
    for name, job in clouds.sagemaker.jobs.items():
        charged = fold(entry for entry in entries if entry.run == name)["sagemaker"]
        assert seconds_within(charged, Window(start, end)) == job.billed_seconds, name


def test_a_job_goes_on_at_the_other_cloud_when_its_quota_ends(clouds: TwoClouds) -> None:
    """Kaggle to SageMaker, and SageMaker to Kaggle; nobody touches the queue."""
    clouds.kaggle.rules.gpu_seconds_per_week = 3 * HOUR // 2
    day = {"name": "day", "kind": "day", "limit": "150m", "zone": "UTC"}
    app = clouds.begin({}, {"hours": ["13:45-23:59 UTC"], "quotas": [day]})
    clouds.add("to-sagemaker", 1.5)
    clouds.until_state("to-sagemaker")
    clouds.add("to-kaggle", 2)
    clouds.until(
        lambda: "sagemaker" in moves(app, "to-kaggle") and clouds.job("to-kaggle")["state"] == "queued", "an end"
    )
    clouds.kaggle.rules.gpu_seconds_per_week = 20 * HOUR
    clouds.until_state("to-kaggle")
    assert moves(app, "to-sagemaker") == ["kaggle", "sagemaker"]
    assert moves(app, "to-kaggle") == ["sagemaker", "kaggle"]
    for job in ("to-sagemaker", "to-kaggle"):
        check_training(app, job)
    check_bills(clouds, app)
    app.database.close()


def test_jobs_are_moved_by_hand_between_clouds_that_have_hours(clouds: TwoClouds) -> None:
    """Each to the place of the other. Meanwhile the account's TPU trains the one job that names it."""
    app = clouds.begin({}, {"quotas": [{"name": "day", "kind": "day", "limit": "20h", "zone": "UTC"}]})
    start = {"to-kaggle": "sagemaker", "to-sagemaker": "kaggle"}
    for job, pool in start.items():
        clouds.add(job, 3, "--pool", pool)
    clouds.add("for-tpu", 1, "--accelerator", "tpu")
    for job in start:
        clouds.until(partial(has_trained, app, job), f"half an hour of {job}")
        told(clouds.config, "queue", "hold", job)
    for job, pool in start.items():
        clouds.until_state(job, "held")
        (other,) = CLOUDS - {pool}
        told(clouds.config, "queue", "edit", job, "--set", f"pools=['{other}']")
        told(clouds.config, "queue", "release", job)
    for job in (*start, "for-tpu"):
        clouds.until_state(job)
    assert moves(app, "for-tpu") == ["tpu"]
    for job, pool in start.items():
        assert moves(app, job) == [pool, *(CLOUDS - {pool})]
        check_training(app, job)
    check_bills(clouds, app)
    app.database.close()
