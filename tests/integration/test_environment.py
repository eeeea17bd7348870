"""A job's own packages, from a requirement file to the session that imports them."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jobs
from jobs.environment.tool import RequirementsError, here
from jobs.nouns.pool import Pool
from jobs.payload.lane.environment import MARK
from jobs.payload.store.lock import LOCK, WHEELS, lock_prefix, parse_lock, wheels_prefix
from jobs.spec import JobSpec, Requirements
from platforms.artifacts.base import Grant
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest, SessionState
from platforms.local.adapter import sweep_environments
from platforms.registry import PlatformContext, load
from scheduler.core.plan import Placement, PlannedLane
from scheduler.core.retention import DAY
from scheduler.core.run import Lane, Reserved, Run
from scheduler.service.facts.overheads import Overhead
from scheduler.service.launch.launch_document import launch_document, package_trees, with_packages
from scheduler.service.outside.ports import Policy, Ports
from scheduler.service.requests import queue
from scheduler.service.requests.stored import keep_lock
from scheduler.service.upkeep.housekeeping import retain_trees
from scheduler.store.engine import Database
from tests.lab.clocks import starting_now
from tests.lab.packages import digest_of, make_image, use_index, write_wheel
from tests.lab.patience import until

NOW = 1_795_000_000
TRAINING = """
import json, os, pathlib, subprocess, sys
import light, heavy
print("has", light.VERSION, heavy.VERSION, flush=True)
subprocess.run(["tool-of-image"], check=True)
made = pathlib.Path(os.environ["SCHED_CHECKPOINT_DIR"]) / "making"
made.mkdir()
(made / "weights.bin").write_text(sys.executable)
(made / "meta.json").write_text(json.dumps({"step": 100, "metrics": {}}))
made.rename(made.with_name("step-00000100"))
"""


class World:
    """A store, an index, an image and the local platform over it."""

    def __init__(self, root: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.database = root, database
        self.index = root / "index"
        self.store = DirectoryStore(root / "artifacts")
        self.passed = use_index(self.index, monkeypatch)
        self.clock = starting_now(1_000_000, 60.0)
        self.file = root / "requirements.txt"
        for version in ("1.5", "2.0"):
            write_wheel(self.index, "heavy", version, scripts={"tool-of-image": "heavy:main"})
        write_wheel(self.index, "light", "0.1", requires=["heavy>=1.0", "absent; extra == 'more'"])
        self.image = make_image(root / "image", [self.index / "heavy-1.5-py3-none-any.whl"])
        self.pool = Pool("pool", "local", "cpu")
        self.platform: Any = None
        self.environments = root / "state" / "pool" / ".cache" / "environments"

    def locked(self, text: str) -> Requirements:
        """Lock a requirement file."""
        self.file.write_text(text)
        spec = self.spec(Requirements(str(self.file)))
        found = keep_lock(self.database, self.store, spec, {"pool": self.pool}, NOW + DAY)
        assert found is not None
        return found

    @staticmethod
    def spec(requirements: Requirements) -> JobSpec:
        """A job that needs them."""
        command = ("{python}", "-c", TRAINING)
        return JobSpec("ufm", "manager", command, target_step=100, steps_per_hour=10.0, requirements=requirements)

    def session(self, key: str, requirements: Requirements) -> tuple[dict[str, Any], str]:
        """Run a session to its end; return its result and what it wrote."""
        context = PlatformContext(
            self.root / "state" / "pool",
            str(self.image),
            Path(jobs.__file__).parent,
            clock=self.clock.payload_clock(),
        )
        platform: Any = load("local", {"pass_environment": self.passed}, context)
        self.platform = platform
        request = LaunchRequest(key, "pool", 1, self.clock.now() + 7_200, self.document(key, requirements), "", {})
        platform.launch(request, self.clock.now())
        patience = threading.Event()
        for _ in range(6_000):
            if platform.find([key], self.clock.now())[key].state == SessionState.ENDED:
                break
            patience.wait(0.01)
        platform.stop(key, self.clock.now(), force=True)
        output = b"".join(platform.logs(key, 0, 1 << 20)).decode()
        return json.loads(self.store.read(f"runs/{key}/lane-0/result.json")), output

    def document(self, key: str, requirements: Requirements) -> dict[str, Any]:
        """What the daemon tells such a session."""
        spec, deadline = self.spec(requirements), int(self.clock.now()) + 7_200
        trees = package_trees(spec, self.pool)
        lane = Lane(0, "ufm", int(key.rpartition("-")[2]), (), None, trees=trees)
        run = Run(key, "pool", (lane,), int(self.clock.now()), deadline, deadline, Reserved(int(self.clock.now())))
        return launch_document(
            run=run,
            pool=self.pool,
            specs={"ufm": spec},
            overheads={"ufm": Overhead(60, 0.3, 10, 0.3)},
            stalls={"ufm": {}},
            restore={"ufm": ()},
            parents={},
            data={"ufm": ""},
            store=self.store.payload_address(Grant(key, ("ufm",), (), tuple(trees.values()), 60)),
            clock=self.clock.payload_clock(),
            policy=Policy(),
        )


@pytest.fixture
def world(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> World:
    """A small index and an image that has the first of two versions of a heavy package."""
    return World(tmp_path, database, monkeypatch)


def test_a_session_fetches_what_the_image_lacks_and_keeps_what_does(world: World) -> None:
    """The lock has heavy 2.0, and light is content with the image's 1.5."""
    kept = world.locked("light\n")
    lock = parse_lock(world.store.read(f"{lock_prefix(kept.digest)}/{LOCK}"), kept.digest)
    assert {pin.name: pin.version for pin in lock.targets[here().name]} == {"heavy": "2.0", "light": "0.1"}
    result, output = world.session("ufm-1", kept)
    assert (result["outcome"], "has 0.1 1.5" in output) == ("finished", True), output
    assert "fetched light 0.1," in output
    assert "the image's own versions are used of heavy 1.5" in output
    (place,) = [found for found in world.environments.iterdir() if found.is_dir()]
    assert f"1.5 {place}/bin/python" in output, "the image's own program runs where the packages are seen"
    _, again = world.session("ufm-2", kept)
    assert ("has 0.1 1.5" in again, "fetched" in again) == (True, False)


def test_what_the_image_has_too_old_is_fetched_and_told(world: World) -> None:
    kept = world.locked("light\nheavy>=2\n")
    result, output = world.session("ufm-1", kept)
    assert (result["outcome"], "has 0.1 2.0" in output) == ("finished", True), output
    assert "heavy 2.0 is fetched: the job requires heavy>=2, and heavy 1.5 is installed" in output


def test_a_lock_of_uv_is_followed_to_the_version(world: World, tmp_path: Path) -> None:
    """What a user locked is what runs, though another version would be allowed."""
    world.file = tmp_path / "pyproject.toml"
    packages = "".join(
        f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ registry = "https://index.example.org" }}\n'
        for name, version in (("heavy", "2.0"), ("light", "0.1"))
    )
    (tmp_path / "uv.lock").write_text(
        f'version = 1\n{packages}[[package]]\nname = "mine"\nsource = {{ virtual = "." }}\n'
    )
    kept = world.locked('[project]\nname = "mine"\nversion = "1"\ndependencies = ["light"]\n')
    result, output = world.session("ufm-1", kept)
    assert (result["outcome"], "has 0.1 2.0" in output) == ("finished", True), output


def test_a_file_that_is_not_the_locked_one_is_refused_and_nothing_is_left(world: World) -> None:
    kept = world.locked("light\n")
    write_wheel(world.index, "light", "0.1", requires=["heavy>=1.1"])
    result, output = world.session("ufm-1", kept)
    assert (result["outcome"], result["error_class"]) == ("failed", "environment"), output
    assert "hash" in result["message"].lower()
    assert not [found for found in world.environments.iterdir() if found.is_dir()]


def test_another_python_than_the_locked_one_is_told(world: World) -> None:
    kept = world.locked("light\n")
    document = world.document("ufm-1", kept)
    other = f"3.{sys.version_info[1] - 1}"
    told = {**document["lanes"][0]["packages"], "target": here().name.replace(here().python, other, 1)}
    document["lanes"][0]["packages"] = told
    world.document = lambda *_: document  # type: ignore[method-assign]
    result, output = world.session("ufm-1", kept)
    assert (result["outcome"], result["error_class"]) == ("failed", "environment"), output
    assert f'image_python = "{here().python}"' in result["message"]


def test_a_wheel_that_does_not_exist_for_a_pool_is_told_by_name(world: World) -> None:
    write_wheel(world.index, "newish", "1.0", tag=f"cp3{sys.version_info[1]}-none-any")
    pools = {"pool": world.pool, "old": Pool("old", "kaggle", "T4", options={"image_python": "3.9"})}
    world.file.write_text("newish\n")
    spec = world.spec(Requirements(str(world.file)))
    with pytest.raises(RequirementsError, match=r"(?s)no wheels for old \(Python 3.9.*newish"):
        keep_lock(world.database, world.store, spec, pools, NOW + DAY)
    assert list(world.store.keys("lock/")) == []
    named = replace(spec, pools=("pool",))
    found = keep_lock(world.database, world.store, named, pools, NOW + DAY)
    assert found is not None
    assert found.targets == (here().name,)


def test_a_session_without_internet_installs_from_the_wheels_that_were_carried(
    world: World, make_ports: Callable[..., Ports]
) -> None:
    ports = replace(make_ports(), artifacts=world.store)
    kept = world.locked("light\n")
    world.pool = Pool("pool", "local", "cpu", options={"internet": "off", "image_packages": "heavy"})
    queue.add(world.database, [world.spec(kept)], NOW, "test")
    due = [Placement("pool", NOW, NOW + 3_600, (PlannedLane("ufm", 1, 10),))]
    ports = replace(ports, pools={"pool": world.pool})
    until(lambda: with_packages(ports, due), "the wheels")
    listed = json.loads(world.store.read(f"{wheels_prefix(kept.digest, here().name)}/{WHEELS}"))["wheels"]
    assert listed == {"light-0.1-py3-none-any.whl": digest_of(world.index / "light-0.1-py3-none-any.whl")}
    world.index.rename(world.root / "gone")
    assert with_packages(ports, due) == due, "what is there is not fetched again"
    if os.geteuid() == 0:  # as root there is a machine without any network for it; elsewhere the index is gone
        alone = world.image.with_name("alone")
        alone.write_text(f'#!/bin/sh\nexec unshare --net "{world.image}" "$@"\n')
        alone.chmod(0o755)
        world.image = alone
    result, output = world.session("ufm-1", kept)
    assert (result["outcome"], "has 0.1 1.5" in output) == ("finished", True), output


def test_a_build_that_was_killed_is_not_believed(world: World, tmp_path: Path) -> None:
    """Its tool goes on writing, and whoever builds next waits for that; then all of it is made anew."""
    kept = world.locked("light\n")
    launch = tmp_path / "launch.json"
    stuck, go_on = tmp_path / "stuck", tmp_path / "go-on"
    os.mkfifo(stuck)
    os.mkfifo(go_on)
    tool = tmp_path / "bin" / "uv"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho begun > {stuck}\nread _ < {go_on}\ntouch half-written\n")
    tool.chmod(0o755)
    environments = tmp_path / "cache" / "environments"
    launch.write_text(json.dumps({**world.document("ufm-1", kept), "work_dir": "work", "cache": "cache"}))
    words = [str(world.image), "-c", BUILD, str(Path(jobs.__file__).parent.parent), str(launch)]
    killed = subprocess.Popen(words, env={**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"})
    told = os.open(stuck, os.O_RDONLY | os.O_NONBLOCK)
    until(lambda: killed.poll() is not None or os.read(told, 9) == b"begun\n", "the tool to begin")
    os.close(told)
    assert killed.poll() is None
    killed.kill()
    killed.wait()
    (place,) = [found for found in environments.iterdir() if found.is_dir()]
    with (environments / f"{place.name}.lock").open("a") as stream:
        with pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert sweep_environments(environments, time_of(place) + DAY) == []
        go_on.write_text("\n")
        fcntl.flock(stream, fcntl.LOCK_EX)
    assert (place / "half-written").exists()
    assert not (place / MARK).exists()
    subprocess.run(words, check=True)
    assert (place / MARK).exists()
    assert not (place / "half-written").exists()
    imported = subprocess.run(
        [place / "bin" / "python", "-c", "import light, heavy; print(light.VERSION, heavy.VERSION)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert imported.stdout == "0.1 1.5\n"
    assert sweep_environments(environments, time_of(place / MARK)) == []
    assert sweep_environments(environments, time_of(place / MARK) + 1) == [place.name]


BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from jobs.payload.lane.environment import build
from jobs.payload.lane.launch import read_launch
launch = read_launch(Path(sys.argv[2]))
build(launch, launch.lanes[0], launch.lanes[0].packages, launch.transport())
"""


def time_of(path: Path) -> float:
    """Return when a file was written."""
    return path.stat().st_mtime


def test_wheels_that_cannot_be_had_keep_back_their_job_alone(
    world: World, make_ports: Callable[..., Ports], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = replace(make_ports(), artifacts=world.store)
    kept = world.locked("light\n")
    queue.add(world.database, [world.spec(kept), replace(world.spec(kept), name="ulm", requirements=None)], NOW, "test")
    offline = Pool("pool", "local", "cpu", options={"internet": "off"})
    due = [Placement("pool", NOW, NOW + 3_600, (PlannedLane(name, 1, 10),)) for name in ("ufm", "ulm")]
    ports = replace(ports, pools={"pool": offline})
    monkeypatch.setenv("PIP_INDEX_URL", (world.root / "nothing").as_uri())
    until(lambda: with_packages(ports, due) == due[1:] and ports.calls.failures(), "the failure to be told")
    (why,) = ports.calls.failures().values()
    assert "heavy==2.0" in why
    assert list(world.store.keys("wheels/")) == []


def test_lock_and_wheels_leave_the_store_when_no_job_names_them(world: World, make_ports: Callable[..., Ports]) -> None:
    kept = world.locked("light\n")
    offline = Pool("pool", "local", "cpu", options={"internet": "off", "image_packages": "heavy"})
    ports = replace(make_ports(), artifacts=world.store, pools={"pool": offline})
    queue.add(world.database, [world.spec(kept)], NOW, "test")
    due = [Placement("pool", NOW, NOW + 3_600, (PlannedLane("ufm", 1, 10),))]
    until(lambda: with_packages(ports, due), "the wheels")
    for day in (2, 4, 6):
        retain_trees(ports, NOW + day * DAY)
    assert len([*world.store.keys("lock/"), *world.store.keys("wheels/")]) == 3
    queue.remove(world.database, "ufm", NOW, "test")
    for day in (8, 10):
        retain_trees(ports, NOW + day * DAY)
    assert [*world.store.keys("lock/"), *world.store.keys("wheels/")] == []
