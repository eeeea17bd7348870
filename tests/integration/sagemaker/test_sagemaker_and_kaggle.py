"""One job on two clouds in turn: a checkpoint of either is resumed on the other bit for bit, through one bucket."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jobs
from jobs.nouns.pool import Pool
from jobs.payload.clock import Clock
from jobs.payload.store.tree import code_prefix
from jobs.spec import Code, Input, JobSpec, Requirements
from platforms.base import Platform, SessionState
from platforms.emulators.kaggle.place import KaggleAccount
from platforms.emulators.kaggle.server import KaggleServer
from platforms.emulators.kaggle.storage import KaggleRules
from platforms.registry import PlatformContext, load
from scheduler.core.plan import Placement, PlannedLane
from scheduler.core.run import Lane
from scheduler.service.launch.launch_document import lane_packages, package_trees, with_packages
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.service.requests.stored import keep_code, keep_lock, take_input
from tests.lab.packages import use_index, write_wheel
from tests.lab.patience import until

World = Any  # see conftest.py

CHARLM = ["{python}", "{payload}/trainers/charlm.py", "--width", "24", "--batch", "16", "--report-every", "100"]
TARGET = 12_000  # far beyond what is trained while a session that is asked to leave learns of it
OPTIONS: dict[str, Any] = {"data": "corpus/v1/mixtures/lm", "target_step": TARGET}


@pytest.fixture
def kaggle(world: World, tmp_path: Path) -> Iterator[Platform]:
    """Kaggle's adapter and emulator on the clock of the world, whose sessions write to the world's bucket."""
    (tmp_path / "kaggle.json").write_text(json.dumps({"username": "alice", "key": "the-key"}))
    (tmp_path / "kaggle.json").chmod(0o600)
    clock = Clock(**world.clock.payload_clock())
    place = KaggleAccount(
        tmp_path / "kaggle", clock, "alice", "the-key", KaggleRules(queue_seconds=10, dataset_seconds=10)
    )
    with KaggleServer(place) as server:
        settings = {
            "emulator": server.address,
            "credentials": str(tmp_path / "kaggle.json"),
            "checkpoints": "direct",
            "pause_milliseconds": "0",
            "idle_milliseconds": "50",
        }
        bundle = Path(jobs.__file__).parent
        context = PlatformContext(tmp_path / "kaggle-state", sys.executable, bundle, clock=world.clock.payload_clock())
        yield load("kaggle", settings, context)


def trained_until(world: World, platform: Platform, key: str, attempt: int, step: int) -> int:
    """Train in a session that is asked to leave once it has passed ``step``; return the step of its checkpoint."""
    request = world.request(key, CHARLM, attempt=attempt, seconds=20_000, **OPTIONS)
    platform.launch(request, world.clock.now())

    def has_passed() -> bool:
        if world.store.size(f"runs/{key}/lane-0/heartbeat.json") is None:
            return False
        beat = json.loads(world.store.read(f"runs/{key}/lane-0/heartbeat.json"))
        return beat["phase"] == "ended" or (beat["step"] or 0) >= step

    until(has_passed, f"step {step}")
    world.store.put(f"runs/{key}/stop", json.dumps({"reason": "enough", "lane": None}).encode())
    world.until(key, SessionState.ENDED, platform=platform)
    result = world.result(key)
    assert result["outcome"] == "yielded", (result, b"".join(platform.logs(key, 0, 1 << 20)).decode())
    return int(result["checkpoint_step"])


def finished(world: World, platform: Platform, key: str, attempt: int) -> dict[str, Any]:
    """Train to the end; return the session's last word."""
    platform.launch(world.request(key, CHARLM, attempt=attempt, seconds=40_000, **OPTIONS), world.clock.now())
    world.until(key, SessionState.ENDED, platform=platform)
    result: dict[str, Any] = world.result(key)
    assert result["outcome"] == "finished", b"".join(platform.logs(key, 0, 1 << 20)).decode()
    return result


def what_was_trained(world: World) -> tuple[dict[str, str], dict[str, Any]]:
    """The sha256 of each component of the newest checkpoint, read back from the bucket, and its figures."""
    manifest = json.loads(world.store.read(max(world.store.keys("jobs/lm/manifests/"))))
    assert manifest["step"] == TARGET
    digests = {}
    for part in manifest["components"]:
        digest = hashlib.sha256(world.store.read(f"jobs/lm/blobs/{part['sha256']}")).hexdigest()
        assert digest == part["sha256"]
        digests[part["name"]] = digest
    digests.pop("meta.json")  # tells when it was written
    assert digests
    return digests, {name: manifest["metrics"][name] for name in ("loss", "held_out_loss")}


FOLDER_TRAINING = """
import json, os, pathlib, signal
listed = sorted(os.listdir("."))
from helper import WORD
import light
folder, resumed = pathlib.Path(os.environ["SCHED_CHECKPOINT_DIR"]), os.environ["SCHED_RESUME_DIR"]
done = int((pathlib.Path(resumed) / "step").read_text()) if resumed else 0
def save(step):
    made = folder / "making"
    made.mkdir()
    (made / "step").write_text(str(step))
    (made / "meta.json").write_text(json.dumps({"step": step, "metrics": {}}))
    made.rename(folder / f"step-{step:08d}")
def stop(*_):
    save(done + 40)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, stop)
WORD += (pathlib.Path(os.environ["SCHED_INPUT_TESTS"]) / "word").read_text()
print("runs", WORD, light.VERSION, "from", done, listed, flush=True)
if done < 40:
    with open(os.environ["SCHED_PROGRESS"], "w") as progress:
        progress.write('{"step": 1}\\n')
    signal.pause()
save(100)
"""


def packages_of(ports: Ports, file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Lock a requirement file and store its wheels, from an index that is gone then; return what sessions are told."""
    index = file.parent / "index"
    use_index(index, monkeypatch)
    write_wheel(index, "light", "0.1")
    pool = Pool("pool", "local", "cpu", options={"internet": "off"})
    ports = replace(ports, pools={"pool": pool})
    wanted = JobSpec("lm", "main", ("x",), 100, 1.0, requirements=Requirements(str(file)))
    spec = replace(wanted, requirements=keep_lock(ports.database, ports.artifacts, wanted, ports.pools, 0))
    queue.add(ports.database, [spec], 0, "test")
    until(lambda: with_packages(ports, [Placement("pool", 0, 3_600, (PlannedLane("lm", 1, 10),))]), "the wheels")
    told = lane_packages(Lane(0, "lm", 1, (), None, trees=package_trees(spec, pool)), spec, pool)
    assert told is not None
    return told


@pytest.mark.parametrize("first", ["kaggle", "sagemaker"])
def test_a_users_folder_is_cut_on_one_cloud_and_goes_on_on_the_other(
    world: World,
    kaggle: Platform,
    tmp_path: Path,
    make_ports: Callable[..., Ports],
    monkeypatch: pytest.MonkeyPatch,
    first: str,
) -> None:
    """Nothing of the folder and its packages but what the store holds is there; it has changed and gone since."""
    ports = replace(make_ports(), artifacts=world.store)
    folder = tmp_path / "trainer"
    folder.mkdir()
    (folder / "train.py").write_text(FOLDER_TRAINING)
    (folder / "helper.py").write_text("WORD = 'mine'")
    (folder / "requirements.txt").write_text("light\n")
    kept = keep_code(ports.database, world.store, Code(str(folder)), 0)
    packages = packages_of(ports, folder / "requirements.txt", monkeypatch)
    shutil.rmtree(folder)
    here, there = (kaggle, world.adapter()) if first == "kaggle" else (world.adapter(), kaggle)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "word").write_text("-and-read")
    given = take_input(ports.database, world.store, Input("tests", str(tmp_path / "tests")), 0, print)
    (tmp_path / "tests" / "word").unlink()
    trees = {"input.tests": f"input/{given.digest}"}
    lane = {"code": code_prefix(kept.digest), "trees": trees, "target_step": 100, "packages": packages}
    words = ["{python}", "train.py"]
    folders = (code_prefix(kept.digest), packages["lock"], packages["wheels"], *trees.values())
    here.launch(world.request("uff-lm-1", words, seconds=20_000, folders=folders, **lane), world.clock.now())
    for _ in range(2_000):
        if world.store.size("runs/uff-lm-1/lane-0/heartbeat.json") is not None:
            beat = json.loads(world.store.read("runs/uff-lm-1/lane-0/heartbeat.json"))
            if beat["phase"] == "ended" or beat["step"] == 1:
                break
        world.patience.wait(0.02)
    world.store.put("runs/uff-lm-1/stop", json.dumps({"reason": "enough", "lane": None}).encode())
    world.until("uff-lm-1", SessionState.ENDED, platform=here)
    said = b"".join(here.logs("uff-lm-1", 0, 1 << 20)).decode()
    assert (world.result("uff-lm-1")["outcome"], world.result("uff-lm-1")["checkpoint_step"]) == ("yielded", 40), said
    request = world.request("uff-lm-2", words, attempt=2, seconds=20_000, folders=folders, **lane)
    there.launch(request, world.clock.now())
    world.until("uff-lm-2", SessionState.ENDED, platform=there)
    said = b"".join(there.logs("uff-lm-2", 0, 1 << 20)).decode()
    assert "runs mine-and-read 0.1 from 40 ['helper.py', 'requirements.txt', 'train.py']" in said
    result = world.result("uff-lm-2")
    assert (result["outcome"], result["restored_step"], result["checkpoint_step"]) == ("finished", 40, 100), said


@pytest.mark.usefixtures("corpus")
# Either way there is a step from each cloud to the other: one way with every push, both in the night.
@pytest.mark.parametrize("first", ["kaggle", pytest.param("sagemaker", marks=pytest.mark.nightly)])
def test_a_checkpoint_of_one_cloud_is_resumed_on_the_other_and_back(world: World, kaggle: Platform, first: str) -> None:
    """There and back again, then all of it in one go on the other cloud: the same weights, the same losses."""
    here, there = (kaggle, world.adapter()) if first == "kaggle" else (world.adapter(), kaggle)
    one = trained_until(world, here, "uff-lm-1", 1, 500)
    two = trained_until(world, there, "uff-lm-2", 2, one + 500)
    assert world.result("uff-lm-2")["restored_step"] == one
    last = finished(world, here, "uff-lm-3", 3)
    assert last["restored_step"] == two
    assert 500 <= one < two < TARGET
    parted = what_was_trained(world)

    for key in list(world.store.keys("jobs/")):
        world.store.delete(key)
    assert finished(world, there, "uff-lm-4", 4)["restored_step"] is None
    assert what_was_trained(world) == parted
