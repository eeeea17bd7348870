"""Rehearsals on two clouds with one bucket between them, and on a server that is nothing but an address."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.clock import Clock
from scheduler.clock import real_now
from tests.lab.aws import FLIPPED_AWS, FaultyPlace, FaultyServer, Shortages
from tests.lab.kaggle import drawn_answers
from tests.lab.patience import PATIENCE_SECONDS, slowness

EPOCH = 1_795_219_200  # a Saturday, 00:00 UTC
SETTINGS = """
models = ["models.toml"]

[corpus]
sources = ["{text}"]

[[pools]]
name = "kaggle"
platform = "{first}"
session_cap = "3h"
session_min = "30m"
setup = "10m"
start_delay = "5m"
stop_margin = "15m"
overrun = "10m"

[[pools.quotas]]
name = "GPU hours of the week"
kind = "week"
limit = "3h"
resets = "Saturday 00:00"

[[pools]]
name = "sagemaker"
platform = "{second}"
session_cap = "4h"
session_min = "30m"
setup = "10m"
start_delay = "5m"
stop_margin = "15m"
overrun = "10m"
price_per_hour = "$0.7364"

[pools.options]
region = "{region}"
bucket = "team"
role = "arn:aws:iam::123456789012:role/uff-execution"
image = "123456789012.dkr.ecr.{region}.amazonaws.com/emulated:1"
instance_types = "ml.g4dn.xlarge"

[[pools.quotas]]
name = "hours of the day"
kind = "day"
limit = "4h"
"""
MODELS = """
[[jobs]]
name = "lm"
role = "main"
command = ["{python}", "{payload}/trainers/charlm.py", "--pace", "200", "--batch", "16", "--width", "32"]
target_step = 100_000
steps_per_hour = 200
setup = "1m"
checkpoint = "10s"
needs = { devices = 1, vram_gib = 4, dtype = "fp32" }
mixture = {}
"""


@cache
def scale() -> int:
    """Return how fast clocks run: every one of this file alike."""
    return round(600 / slowness())


def typed(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Rehearse as a person would type it; the settings lie in ``folder``."""
    command = [sys.executable, "-m", "scheduler", "--config", str(folder / "settings.toml"), *words]
    known = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.run(
        command, env={**known, **environment}, capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS, check=False
    )


def rehearse(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return typed(folder, "--json", "rehearse", "--out", str(folder / "week"), *words, **environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with settings for two clouds, a model and some text."""
    (tmp_path / "text").mkdir()
    for number in range(40):
        words = f"The federation of node {number} shares its load and balances content formats. " * 20
        (tmp_path / "text" / f"{number}.txt").write_text(words)
    (tmp_path / "models.toml").write_text(MODELS)
    write(tmp_path)
    return tmp_path


def write(folder: Path, first: str = "kaggle", second: str = "sagemaker", region: str = "eu-central-1") -> None:
    text = SETTINGS.format(text=folder / "text", first=first, second=second, region=region)
    (folder / "settings.toml").write_text(text)


def bills(jobs: Path) -> dict[str, int]:
    """What the emulator asks for each training job."""
    found = {}
    for path in jobs.glob("*.json"):
        job = json.loads(path.read_text())
        if job["started_at"] is not None:
            found[path.stem] = round(job["ended_at"] - job["started_at"])
    return found


def check_bills(week: dict[str, Any], jobs: Path) -> None:
    """Each session's charge is its bill. Not the pool's charge within the span, which the last session may outlast."""
    assert week["violations"] == []
    charged = {run["key"]: run["end"] - run["start"] for run in week["runs"] if run["pool"] == "sagemaker"}
    assert {key: seconds for key, seconds in charged.items() if seconds} == bills(jobs)
    assert sum(charged.values()) > 0


def test_a_job_moves_between_kaggle_and_sagemaker_through_one_bucket(folder: Path) -> None:
    """The ledger is the bill; when all is over, the bucket is a folder that every command reads."""
    done = rehearse(folder, "--hours", "7", "--scale", str(scale()))
    assert done.returncode == 0, done.stderr
    week = json.loads(done.stdout)
    assert week["violations"] == []
    (job,) = week["jobs"]
    assert sorted(job["pools"]) == ["kaggle", "sagemaker"], job
    assert job["resumed_elsewhere"] >= 1, job
    assert job["loss_last"] < 1.0, (
        "a guess has ln 97 = 4.57; its first checkpoint may know the small text by heart already"
    )
    billed = bills(folder / "week" / "aws" / "jobs")
    assert billed
    ran = {run["key"]: run["end"] - run["start"] for run in week["runs"] if run["pool"] == "sagemaker"}
    assert {key: seconds for key, seconds in ran.items() if seconds} == billed

    config = str(folder / "week" / "rehearsal.toml")
    verified = typed(folder, "--config", config, "--json", "checkpoints", "verify", "lm")
    assert verified.returncode == 0, verified.stderr


@contextmanager
def server(folder: Path, *words: str) -> Iterator[str]:
    """The emulator as anybody else's program: an address, and a clock that runs."""
    figures = ["--epoch", str(EPOCH), "--origin", str(real_now()), "--scale", str(scale()), *words]
    command = [sys.executable, "-m", "platforms.emulators.sagemaker", str(folder / "theirs"), *figures]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0


def their_time(begun: float, speed: float) -> str:
    """What the server's clock shows now."""
    return datetime.fromtimestamp(EPOCH + (real_now() - begun) * speed, UTC).isoformat()


@pytest.mark.nightly  # Kaggle's twin of it runs with every push
def test_a_rehearsal_runs_on_a_server_that_is_only_an_address(folder: Path) -> None:
    """A pool named sagemaker becomes one of SageMaker's; what was in the bucket is left alone."""
    write(folder, first="local", second="local", region="us-east-1")
    text = (folder / "settings.toml").read_text()
    for option in ("image", "instance_types"):  # a server of one's own needs neither
        text, removed = re.subn(rf"^{option} = .*\n", "", text, flags=re.MULTILINE)
        assert removed == 1
    (folder / "settings.toml").write_text(text)
    with (folder / "settings.toml").open("a") as settings:
        settings.write('[artifacts]\nkind = "s3"\noptions = { bucket = "team", region = "us-east-1", ')
        settings.write('create_only = "client", profile = "ours" }\n')
    credentials = {"AWS_ACCESS_KEY_ID": "theirs", "AWS_SECRET_ACCESS_KEY": "not-to-be-seen"}
    (folder / "kept").mkdir()
    (folder / "kept" / "somebody-elses").write_text("precious")
    begun = real_now()
    with server(folder, "--bucket", "team", "--objects", str(folder / "kept")) as address:
        words = (
            "--hours",
            "7",
            "--scale",
            str(scale()),
            "--epoch",
            their_time(begun, scale()),
            "--aws-endpoint",
            address,
        )
        done = rehearse(folder, *words, **credentials)
    assert done.returncode == 0, done.stderr
    week = json.loads(done.stdout)
    check_bills(week, folder / "theirs" / "jobs")
    assert week["jobs"][0]["resumed_elsewhere"] >= 1
    tops = {path.name for path in (folder / "kept").iterdir()}
    assert tops - {"somebody-elses"}
    assert all(name.startswith("rehearsal-") for name in tops - {"somebody-elses"}), tops
    store = tomllib.loads((folder / "week" / "rehearsal.toml").read_text())["artifacts"]["options"]
    assert (store["create_only"], store.get("profile")) == ("client", None), "what is said of the server counts"
    for path in [*(folder / "week").rglob("*.log"), folder / "week" / "rehearsal.toml"]:
        assert "not-to-be-seen" not in path.read_text()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "answers",
    [
        *(pytest.param(answers, id=question) for question, answers in FLIPPED_AWS.items()),
        *(pytest.param(drawn_answers(seed, answers=FLIPPED_AWS), id=f"answers {seed}") for seed in range(5)),
    ],
)
def test_a_rehearsal_survives_either_answer(folder: Path, answers: dict[str, Any]) -> None:
    """To each question that only an account settles: the charge of each session is its bill, and training goes on."""
    answers = {**answers, "bill_delay_seconds": answers.get("bill_delay_seconds", 0) * 1_500}
    write(folder, first="local", region="us-east-1")
    text = (folder / "settings.toml").read_text().replace("ml.g4dn.xlarge", "ml.g4dn.xlarge,ml.g5.xlarge")
    store = '[artifacts]\nkind = "s3"\noptions = { bucket = "team", region = "us-east-1", create_only = "client" }\n'
    (folder / "settings.toml").write_text(text + store)
    speed = 600 / slowness()  # measured for each test: the night's load changes
    clock = Clock(epoch=float(EPOCH), origin=real_now(), scale=speed)
    rules = Shortages(**{"queue_seconds": 120, "download_seconds": 60, "upload_seconds": 20, **answers})
    place = FaultyPlace(folder / "theirs", clock, rules)
    keys = {"AWS_ACCESS_KEY_ID": "theirs", "AWS_SECRET_ACCESS_KEY": "not-to-be-seen"}
    with FaultyServer(place) as their:
        their.make_bucket("team")
        words = ("--hours", "7", "--scale", str(speed), "--epoch", their_time(clock.origin, speed))
        done = rehearse(folder, *words, "--aws-endpoint", their.address, **keys)
    assert done.returncode == 0, done.stderr
    week = json.loads(done.stdout)
    check_bills(week, folder / "theirs" / "jobs")
    (job,) = week["jobs"]
    assert job["loss_last"] < 4.5, job


def test_what_cannot_be_rehearsed_is_refused_before_anything_is_given_up(folder: Path) -> None:
    """An earlier rehearsal survives an unknown platform, a server that is not there, and a bucket that is not there."""
    (folder / "week").mkdir()
    (folder / "week" / "rehearsal.toml").write_text("# an earlier one\n")
    keys: dict[str, Any] = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}

    def refused(*words: str) -> tuple[int, str]:
        done = rehearse(folder, *words, **keys)
        assert "Traceback" not in done.stderr
        assert (folder / "week" / "rehearsal.toml").read_text() == "# an earlier one\n"
        return done.returncode, done.stderr

    code, said = refused("--aws-endpoint", "http://127.0.0.1:9")
    assert code == 6
    assert "no server answers" in said
    with server(folder) as address:
        code, said = refused("--aws-endpoint", address)
        assert code == 7
        assert "no bucket team" in said
    write(folder, second="sagemakr")
    code, said = refused()
    assert code == 3
    assert "did you mean sagemaker" in said
    assert "settings.toml" in said
    text = (folder / "settings.toml").read_text().replace("sagemakr", "sagemaker").replace("ml.g4dn", "g4dn")
    (folder / "settings.toml").write_text(text)
    code, said = refused()
    assert code == 7
    assert "instance_types" in said
    (folder / "settings.toml").write_text(text.split('[[pools]]\nname = "sagemaker"')[0])
    code, said = refused("--aws-endpoint", "http://127.0.0.1:9")
    assert code == 6
    assert "no pool of SageMaker" in said
