"""The manual platform: what a person takes trains for real, and what is handed in is checked before it counts."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jobs
from jobs.problem import Refusal
from platforms.artifacts.base import Grant
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest, Refused, SessionState
from platforms.bundle import BadArchive
from platforms.manual.adapter import ManualPlatform
from platforms.record_file import DamagedRecord
from platforms.registry import PlatformContext
from scheduler.cli.shell.exits import Exit, code_of
from scheduler.clock import SchedulerClock
from tests.lab.clocks import starting_now
from tests.lab.patience import PATIENCE_SECONDS

EPOCH = 1_000_000
HOUR = 3_600
# By the training contract: goes on from its checkpoint, and adds to what it finds there.
TRAINING = """
import json, random
from trainer_kit import Training
training = Training()
step, walk = 0, [0.0]
if training.resume_dir:
    step, walk, state = json.loads((training.resume_dir / "walk.json").read_text())
    random.setstate((state[0], tuple(state[1]), state[2]))
else:
    random.seed(training.seed)
def write(folder):
    (folder / "walk.json").write_text(json.dumps([step, walk, random.getstate()]))
training.progress(step)
while step < training.target_step and not training.should_stop:
    step, walk = step + 1, walk + [random.random()]
    training.progress(step, loss=1.0)
training.checkpoint(step, write, {"loss": 1.0})
"""


class Desk:
    """A manual pool with its store, and a person who works beside it."""

    def __init__(self, folder: Path, clock: SchedulerClock, **settings: str) -> None:
        self.folder, self.clock = folder, clock
        self.store = DirectoryStore(folder / "store")
        bundle = Path(jobs.__file__).parent
        context = PlatformContext(folder / "state", sys.executable, bundle, 1, 4 * HOUR, clock.payload_clock())
        self.platform = ManualPlatform(settings, context)

    def offer(self, key: str, target_step: int = 5, attempt: int = 1, restore: tuple[str, ...] = ()) -> None:
        """Launch a session of the job ufm."""
        lane = {
            "index": 0,
            "job": "ufm",
            "attempt": attempt,
            "devices": [],
            "seed": 7,
            "target_step": target_step,
            "command": ["{python}", "-c", TRAINING],
            "environment": {},
            "data": "",
            "setup_seconds": 60,
            "checkpoint_seconds": 10,
            "restore": list(restore),
        }
        now = self.clock.now()
        launch: dict[str, Any] = {
            "format": 1,
            "run": key,
            "clock": self.clock.payload_clock(),
            "deadline": now + 4 * HOUR,
            "stop_margin_seconds": 120,
            "heartbeat_seconds": 30,
            "grace_seconds": 600,
            "mtbf_seconds": 86_400,
            "store": self.store.payload_address(Grant(key, ("ufm",), (), (), HOUR)),
            "expected_devices": None,
            "lanes": [lane],
        }
        self.platform.launch(LaunchRequest(key, "studio-lab", 1, now + 4 * HOUR, launch, "", {}), now)

    def take(self, key: str) -> Path:
        """Take an offer; return the folder with what must be uploaded."""
        self.platform.take(key, "Ada", self.folder / "desk", self.clock.now())
        return self.folder / "desk"

    def run_cell(self, key: str) -> "subprocess.CompletedProcess[str]":
        """Run the notebook's cell as a kernel would."""
        cells = json.loads((self.folder / "desk" / f"{key}.ipynb").read_bytes())["cells"]
        (self.folder / "cell.py").write_text("".join(cells[1]["source"]))
        words = [sys.executable, str(self.folder / "cell.py")]
        return subprocess.run(
            words, cwd=self.folder / "desk", capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )

    def give(self, key: str, archive: Path | None = None) -> None:
        """Hand in a result and let the daemon collect it."""
        now = self.clock.now()
        self.platform.give(key, archive or self.folder / "desk" / f"{key}-result.zip", self.store, now)
        self.platform.collect(key, self.store, now)

    def state(self, key: str, after_seconds: int = 0) -> str:
        """What the pool says of a session."""
        return self.platform.find([key], self.clock.now() + after_seconds)[key].state

    def walk(self, manifest: str) -> Any:
        """What a checkpoint holds."""
        component = next(
            part for part in json.loads(self.store.read(manifest))["components"] if part["name"] == "walk.json"
        )
        return json.loads(self.store.read(f"jobs/ufm/blobs/{component['sha256']}"))


@pytest.fixture
def make_desk(tmp_path: Path) -> Callable[..., Desk]:
    """Makes desks on a clock sixty times as fast."""
    return lambda name="desk", **settings: Desk(tmp_path / name, starting_now(EPOCH, 60.0), **settings)


def test_a_session_run_by_hand_goes_on_where_the_last_one_stopped(make_desk: Callable[..., Desk]) -> None:
    """Two sessions of five steps, handed in one after the other, equal one of ten, bit for bit."""
    desk, whole = make_desk(), make_desk("whole")
    desk.offer("uff-ufm-0001")
    assert desk.state("uff-ufm-0001") == SessionState.QUEUED
    folder = desk.take("uff-ufm-0001")
    assert [path.name for path in folder.iterdir()] == ["uff-ufm-0001.ipynb"]
    assert desk.state("uff-ufm-0001") == SessionState.RUNNING
    ran = desk.run_cell("uff-ufm-0001")
    assert ran.returncode == 0, ran.stderr
    desk.give("uff-ufm-0001")
    ended = desk.platform.find(["uff-ufm-0001"], desk.clock.now())["uff-ufm-0001"]
    assert ended.state == SessionState.ENDED
    report = json.loads(desk.store.read("runs/uff-ufm-0001/lane-0/result.json"))
    assert (report["outcome"], report["checkpoint_step"]) == ("finished", 5)
    assert ended.ended == report["ended_at"], "what counts is when it ended, not when it was handed in"
    first = list(desk.store.keys("jobs/ufm/manifests/"))

    desk.offer("uff-ufm-0002", target_step=10, attempt=2, restore=(first[-1],))
    assert {path.name for path in desk.take("uff-ufm-0002").glob("uff-ufm-0002*")} == {
        "uff-ufm-0002.ipynb",
        "uff-ufm-0002-objects.tar",
    }
    assert desk.run_cell("uff-ufm-0002").returncode == 0
    desk.give("uff-ufm-0002")
    second = [key for key in desk.store.keys("jobs/ufm/manifests/") if key not in first]
    assert [json.loads(desk.store.read(key))["step"] for key in second] == [10]

    whole.offer("uff-ufm-0001", target_step=10)
    whole.take("uff-ufm-0001")
    assert whole.run_cell("uff-ufm-0001").returncode == 0
    whole.give("uff-ufm-0001")
    assert desk.walk(second[0]) == whole.walk(list(whole.store.keys("jobs/ufm/manifests/"))[-1])
    assert b"".join(desk.platform.logs("uff-ufm-0002", 0, 10_000)) != b""


def test_a_cell_run_again_trains_nothing_and_packs_what_there_is(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    desk.offer("uff-ufm-0001")
    result = desk.take("uff-ufm-0001") / "uff-ufm-0001-result.zip"
    desk.run_cell("uff-ufm-0001")
    first = zipfile.ZipFile(result).namelist()
    result.unlink()
    again = desk.run_cell("uff-ufm-0001")
    assert "started before" in again.stdout
    assert zipfile.ZipFile(result).namelist() == first


def test_missing_or_damaged_objects_are_told_before_anything_runs(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    desk.offer("uff-ufm-0001")
    desk.take("uff-ufm-0001")
    desk.run_cell("uff-ufm-0001")
    desk.give("uff-ufm-0001")
    desk.offer("uff-ufm-0002", 10, 2, tuple(desk.store.keys("jobs/ufm/manifests/"))[-1:])
    objects = desk.take("uff-ufm-0002") / "uff-ufm-0002-objects.tar"
    whole = objects.read_bytes()
    objects.unlink()
    assert "upload uff-ufm-0002-objects.tar beside this notebook" in desk.run_cell("uff-ufm-0002").stderr
    objects.write_bytes(whole[:-1])
    assert "is damaged or incomplete" in desk.run_cell("uff-ufm-0002").stderr
    objects.write_bytes(whole)
    assert desk.run_cell("uff-ufm-0002").returncode == 0


def test_an_offer_that_nobody_takes_lapses_and_the_pool_rests(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(take_within_seconds="600", rest_seconds="7200")
    desk.offer("uff-ufm-0001")
    assert desk.state("uff-ufm-0001", after_seconds=500) == SessionState.QUEUED
    assert desk.state("uff-ufm-0001", after_seconds=700) == SessionState.ABSENT
    with pytest.raises(Refusal, match="is not open: it was not claimed within 600 s"):
        desk.take("uff-ufm-0001")
    with pytest.raises(Refused, match="nobody took the last offer") as refused:
        desk.offer("uff-ufm-0002")
    assert refused.value.wait_until is not None
    assert refused.value.wait_until >= desk.clock.now() + 7_200


def test_a_session_whose_result_never_comes_is_over_at_its_deadline(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(result_within_seconds="3600")
    desk.offer("uff-ufm-0001")
    desk.take("uff-ufm-0001")
    desk.run_cell("uff-ufm-0001")
    assert desk.state("uff-ufm-0001", after_seconds=4 * HOUR + 3_000) == SessionState.RUNNING
    now = desk.clock.now() + 6 * HOUR
    ended = desk.platform.find(["uff-ufm-0001"], now)["uff-ufm-0001"]
    assert (ended.state, ended.detail) == (SessionState.ENDED, "no result was submitted")
    assert ended.started is not None
    assert ended.ended is not None
    assert 0 < ended.ended - ended.started <= 4 * HOUR
    with pytest.raises(Refusal, match="is over already"):
        desk.give("uff-ufm-0001")


def test_a_result_of_another_session_or_a_hostile_one_is_refused_and_the_right_one_still_taken(
    make_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    desk, other = make_desk(), make_desk("other")
    for each, key in ((desk, "uff-ufm-0001"), (other, "uff-ufm-0009")):
        each.offer(key)
        each.take(key)
        assert each.run_cell(key).returncode == 0
    with pytest.raises(Refusal, match="is not the result of uff-ufm-0001"):
        desk.give("uff-ufm-0001", other.folder / "desk" / "uff-ufm-0009-result.zip")
    for name in ("../up", "/etc/passwd", "store/../../up"):
        hostile = tmp_path / "hostile.zip"
        with zipfile.ZipFile(hostile, "w") as opened:
            opened.writestr("uff-ufm-0001", "")
            opened.writestr(name, "x")
        with pytest.raises(BadArchive):
            desk.give("uff-ufm-0001", hostile)
    (tmp_path / "no.zip").write_bytes(b"PK of no kind")
    with pytest.raises(BadArchive):
        desk.give("uff-ufm-0001", tmp_path / "no.zip")
    assert desk.state("uff-ufm-0001") == SessionState.RUNNING
    desk.give("uff-ufm-0001")
    assert desk.state("uff-ufm-0001") == SessionState.ENDED


def test_what_a_session_had_no_right_to_write_or_what_is_not_what_it_says_is_left_out(
    make_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    desk = make_desk()
    desk.offer("uff-ufm-0001")
    desk.take("uff-ufm-0001")
    archive = tmp_path / "result.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("uff-ufm-0001", "")
        opened.writestr(f"store/jobs/ufm/blobs/{'0' * 64}", "not of this digest")
        opened.writestr("store/jobs/ufm/manifests/000000000009-000001.json", "{}")
        opened.writestr("store/jobs/ucm/manifests/000000000009-000001.json", "{}")
        opened.writestr("store/runs/uff-ucm-0001/stop", "{}")
        opened.writestr("store/runs/uff-ufm-0001/lane-0/result.json", '{"ended_at": 1}')
    desk.give("uff-ufm-0001", archive)
    assert list(desk.store.keys("")) == ["runs/uff-ufm-0001/lane-0/result.json"]
    ended = desk.platform.find(["uff-ufm-0001"], desk.clock.now())["uff-ufm-0001"]
    assert ended.ended == ended.started, "a time before it was taken cannot be true"


@pytest.mark.parametrize("act", ["take", "give", "drop"])
def test_a_damaged_offer_is_told_with_its_file(make_desk: Callable[..., Desk], act: str, tmp_path: Path) -> None:
    """Whoever takes, hands in or drops it learns which file it is; no command calls that unexpected."""
    desk = make_desk()
    desk.offer("uff-ufm-0001")
    (damaged,) = tmp_path.rglob("uff-ufm-0001/offer.json")
    damaged.write_text("{")
    acts: dict[str, Callable[[], Any]] = {
        "take": lambda: desk.take("uff-ufm-0001"),
        "give": lambda: desk.platform.give("uff-ufm-0001", tmp_path / "result.tar", desk.store, desk.clock.now()),
        "drop": lambda: desk.platform.drop("uff-ufm-0001", "no time", desk.clock.now()),
    }
    with pytest.raises(DamagedRecord, match=r"offer\.json is damaged") as told:
        acts[act]()
    assert code_of(told.value) is Exit.PLATFORM


def test_dropping_withdraws_an_offer_and_ends_what_was_taken(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    desk.offer("uff-ufm-0001")
    desk.platform.drop("uff-ufm-0001", "no GPU to be had", desk.clock.now())
    assert desk.state("uff-ufm-0001") == SessionState.ABSENT
    desk.offer("uff-ufm-0002")
    desk.take("uff-ufm-0002")
    desk.platform.drop("uff-ufm-0002", "the runtime died", desk.clock.now())
    assert desk.state("uff-ufm-0002") == SessionState.ENDED
    for key, why in (("uff-ufm-0001", "no GPU to be had"), ("uff-ufm-0002", "the runtime died")):
        with pytest.raises(Refusal, match=f"{key} is over already: {why}"):
            desk.platform.drop(key, "dropped once more", desk.clock.now())


def test_a_wish_to_stop_reaches_the_person(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    desk.offer("uff-ufm-0001")
    desk.take("uff-ufm-0001")
    desk.platform.stop("uff-ufm-0001", desk.clock.now(), force=False)
    shown = desk.platform.show("uff-ufm-0001", desk.clock.now())
    assert shown is not None
    _, observed, wanted_back = shown
    assert observed.state == SessionState.RUNNING
    assert wanted_back
