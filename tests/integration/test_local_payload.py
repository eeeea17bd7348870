"""The shipped payload on the local platform with the folder store: the path that a rehearsal takes."""

import json
import sys
from pathlib import Path

import pytest

import jobs
from platforms.artifacts.base import Grant
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest, SessionState
from platforms.registry import PlatformContext, load
from tests.lab.clocks import starting_now
from tests.lab.patience import until, until_state
from tests.lab.training import TRAINING

EPOCH = 1_000_000


@pytest.mark.parametrize(("training", "outcome", "step"), [("finish", "finished", 100), ("wait", "preempted", 50)])
def test_a_session_trains_and_leaves_a_checkpoint_and_a_result(
    tmp_path: Path, training: str, outcome: str, step: int
) -> None:
    """A polite stop of the platform reaches the training command, which saves before it leaves."""
    clock = starting_now(EPOCH, 60.0)
    store = DirectoryStore(tmp_path / "store")
    bundle = Path(jobs.__file__).parent
    context = PlatformContext(tmp_path / "state", sys.executable, bundle, 1, 43_200, clock.payload_clock())
    platform = load("local", {}, context)
    lane = {
        "index": 0,
        "job": "ufm",
        "attempt": 1,
        "devices": [],
        "seed": 1,
        "target_step": 100,
        "command": ["{python}", "-c", TRAINING, training],
        "environment": {},
        "data": "",
        "setup_seconds": 60,
        "checkpoint_seconds": 10,
        "restore": [],
    }
    launch = {
        "format": 1,
        "run": "ufm-1",
        "clock": clock.payload_clock(),
        "deadline": EPOCH + 7200,
        "stop_margin_seconds": 120,
        "heartbeat_seconds": 30,
        "grace_seconds": 600,
        "mtbf_seconds": 108_000,
        "store": store.payload_address(Grant("ufm-1", ("ufm",), (), (), 60)),
        "expected_devices": None,
        "lanes": [lane],
    }
    platform.launch(LaunchRequest("ufm-1", "pool", 1, EPOCH + 7200, launch, "", {}), clock.now())
    if training == "wait":
        until(lambda: b"training" in b"".join(platform.logs("ufm-1", 0, 1 << 20)), "the training")
        platform.stop("ufm-1", clock.now(), force=False)
    until_state(lambda: platform.find(["ufm-1"], clock.now())["ufm-1"], SessionState.ENDED)
    platform.stop("ufm-1", clock.now(), force=True)
    output = b"".join(platform.logs("ufm-1", 0, 1 << 20)).decode()
    assert platform.find(["ufm-1"], clock.now())["ufm-1"].detail == "exit code 0", output
    result = json.loads(store.read("runs/ufm-1/lane-0/result.json"))
    assert (result["outcome"], result["checkpoint_step"]) == (outcome, step), output
    (manifest,) = store.keys("jobs/ufm/manifests/")
    components = {part["name"]: part["sha256"] for part in json.loads(store.read(manifest))["components"]}
    assert store.read(f"jobs/ufm/blobs/{components['weights.bin']}") == b"weights of step %d" % step
