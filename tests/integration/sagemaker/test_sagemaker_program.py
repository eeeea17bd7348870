"""The emulator as a program: what it knew survives its end by kill -9, and it ends when nobody needs it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from platforms.artifacts.base import open_store
from platforms.artifacts.directory import DirectoryStore
from platforms.artifacts.s3.client import connect
from platforms.base import LaunchRequest, Observed, SessionState
from platforms.registry import PlatformContext, load
from scheduler.clock import real_now
from tests.lab.patience import PATIENCE_SECONDS, until_state

AGENT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("hello", flush=True)
signal.pause()
"""


@contextmanager
def emulator(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program, and its address. It is ended if it has not ended by itself."""
    command = [sys.executable, "-m", "platforms.emulators.sagemaker", str(folder / "aws"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process, process.stdout.readline().strip()
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def kept(folder: Path) -> list[str]:
    return ["--bucket", "team", "--objects", str(folder / "kept"), "--region", "eu-central-1"]


@pytest.fixture
def folder(tmp_path: Path, aws_credentials: None) -> Path:
    """A folder with a payload that says hello and waits."""
    (tmp_path / "bundle" / "payload").mkdir(parents=True)
    (tmp_path / "bundle" / "payload" / "agent.py").write_text(AGENT)
    return tmp_path


def adapter(folder: Path, address: str) -> Any:
    options = {
        "endpoint": address,
        "region": "eu-central-1",
        "bucket": "team",
        "role": "arn:aws:iam::123456789012:role/uff-execution",
        "image": "123456789012.dkr.ecr.eu-central-1.amazonaws.com/pytorch-training:2.10",
        "instance_types": "ml.g4dn.xlarge",
        "poll_seconds": "0",
    }
    return load("sagemaker", options, PlatformContext(folder / "state", sys.executable, folder / "bundle"))


def until(folder: Path, platform: Any, key: str, state: SessionState) -> Observed:
    return until_state(lambda: platform.find([key], int(real_now())).get(key), state)


def test_an_emulator_that_was_killed_is_followed_by_one_that_knows_its_jobs_and_its_bucket(folder: Path) -> None:
    """The job that ran is told as failed and billed until then; no process of it is left; the bucket is a store."""
    clock = ["--scale", "100"]
    with emulator(folder, *kept(folder), *clock) as (process, address):
        options = {"bucket": "team", "region": "eu-central-1", "endpoint": address}
        store = open_store("s3", folder / "store", options)
        store.put("jobs/lm/note", b"kept")
        store.put("jobs/lm/gone", b"deleted")
        store.delete("jobs/lm/gone")
        (folder / "large").write_bytes(b"x" * (17 << 20))
        assert store.create("jobs/lm/large", folder / "large")
        platform, now = adapter(folder, address), int(real_now() * 100)
        document = {"run": "uff-lm-1", "store": {"kind": "presigned", "posts": [1]}}
        request = LaunchRequest("uff-lm-1", "aws", 1, now + 90_000, document, str(folder / "bundle"), {})
        platform.launch(request, now)
        until(folder, platform, "uff-lm-1", SessionState.RUNNING)
        process.kill()
        process.wait()
    with emulator(folder, *kept(folder), *clock) as (_, address):
        again = open_store("s3", folder / "store", {"bucket": "team", "region": "eu-central-1", "endpoint": address})
        assert again.read("jobs/lm/note") == b"kept"
        assert again.size("jobs/lm/gone") is None
        assert again.size("jobs/lm/large") == 17 << 20
        platform = adapter(folder, address)
        ended = until(folder, platform, "uff-lm-1", SessionState.ENDED)
        assert "InternalServerError" in ended.detail
        described = connect("sagemaker", region="eu-central-1", endpoint=address)
        bill = described.describe_training_job(TrainingJobName="uff-lm-1")["BillableTimeInSeconds"]
        assert ended.ended is not None
        assert ended.started is not None
        assert ended.ended - ended.started == bill > 0
        mark = f"{folder / 'aws' / 'disks'}/".encode()
        alive = [path for path in Path("/proc").glob("[0-9]*/environ") if mark in _content(path)]
        assert alive == []
    as_folder = DirectoryStore(folder / "kept")
    assert as_folder.read("jobs/lm/note") == b"kept"
    assert [key for key in as_folder.keys("jobs/") if "tmp" in key] == []


def test_an_emulator_that_nobody_asks_ends_by_itself(folder: Path) -> None:
    with emulator(folder, "--idle-seconds", "0.2") as (process, _):
        assert process.wait(PATIENCE_SECONDS) == 0


def test_objects_need_a_bucket_to_lie_in(folder: Path) -> None:
    command = [sys.executable, "-m", "platforms.emulators.sagemaker", str(folder), "--objects", str(folder / "kept")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--objects needs --bucket" in refused.stderr


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_what_the_emulator_keeps_of_a_job_is_json(folder: Path) -> None:
    """People may look at it, and rehearsals hold its bills against the ledger."""
    with emulator(folder, *kept(folder)) as (_, address):
        platform, now = adapter(folder, address), int(real_now())
        document = {"run": "uff-lm-1", "store": {"kind": "presigned", "posts": [1]}}
        platform.launch(LaunchRequest("uff-lm-1", "aws", 1, now + 900, document, str(folder / "bundle"), {}), now)
        record = json.loads((folder / "aws" / "jobs" / "uff-lm-1.json").read_text())
        assert record["request"]["TrainingJobName"] == "uff-lm-1"
        platform.stop("uff-lm-1", now, force=True)
