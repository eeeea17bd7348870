"""The places and stores that the conformance suites run against.

A new adapter joins with one function that yields a Place, and one line in PLACES; that of a plug-in by its entry point
``uff_scheduler.conformance``. See docs/inside/adding-a-platform.md.
"""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.clock import Clock
from platforms.artifacts.base import BlobStore, open_store
from platforms.base import LaunchRequest, Platform
from platforms.kaggle.session.observer import LaunchRecords, Record
from platforms.local.processes import MARK
from platforms.manual.adapter import ManualPlatform
from platforms.registry import PlatformContext, load
from platforms.wrap import Guarded
from scheduler.clock import real_now, stopwatch
from tests.lab.aws import FLIPPED_AWS, FaultyPlace, FaultyServer, Shortages
from tests.lab.conformance import AGENT, SESSIONS_MAX, Place
from tests.lab.fake import FakeCloud, FakePlatform, Script
from tests.lab.faults import Fault
from tests.lab.kaggle import FLIPPED, SPARED, Habits, PublishingPlace, PublishingServer, drawn_answers
from tests.lab.patience import pause, until
from tests.lab.person import Person
from tests.lab.sky_places import real_skypilot, skypilot
from tests.lab.skypilot import SkyLab, sky_lab
from tests.lab.slurm import slurm_lab


@contextmanager
def fake(folder: Path) -> Iterator[Place]:
    """The scripted place; time passes only when the suite lets it."""
    cloud = FakeCloud(sessions_max=SESSIONS_MAX)
    present = [1_000_000]

    def script(key: str, lasting: bool) -> None:
        output = f"hello from {key}\n".encode()
        cloud.scripts = deque([Script(runs_seconds=None if lasting else 30, stop_seconds=30, output=output)])

    def launch_lost(request: LaunchRequest) -> None:
        cloud.scripts = deque([Script(queued_seconds=1_000_000)])
        FakePlatform(cloud).launch(request, present[0])

    @contextmanager
    def outage() -> Iterator[None]:
        cloud.outage = {"launch", "find", "stop", "logs", "sweep"}
        yield
        cloud.outage = set()

    def later() -> None:
        present[0] += 60

    yield Place(lambda: FakePlatform(cloud), lambda: present[0], later, script, launch_lost, outage)


@contextmanager
def wrapped(folder: Path) -> Iterator[Place]:
    """The scripted place seen through every wrapper: none of them may change what the port promises."""
    with fake(folder) as place:
        bare = place.adapter

        def adapter() -> Platform:
            return Guarded(bare(), "fake", stopwatch=stopwatch, note=lambda event, fields: None)

        place.adapter = adapter
        yield place


@contextmanager
def local(folder: Path) -> Iterator[Place]:
    """This machine. Fails when a session leaves a process behind."""
    state, bundle = folder / "state", folder / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)

    def adapter(python: str = sys.executable) -> Platform:
        return load("local", {}, PlatformContext(state, python, bundle, sessions_max=SESSIONS_MAX))

    def launch_lost(request: LaunchRequest) -> None:
        # The folder appears, but whoever should have started the keeper is gone.
        order = {"launched_at": 0, "claim_by": 0, "deadline": request.deadline, "devices": []}
        (state / request.key).mkdir()
        (state / request.key / "order.json").write_text(json.dumps(order))

    @contextmanager
    def outage() -> Iterator[None]:
        state.rename(folder / "unmounted")
        yield
        (folder / "unmounted").rename(state)

    platform = adapter()
    yield Place(
        adapter,
        lambda: int(real_now()),
        pause,
        lambda key, lasting: None,
        launch_lost,
        outage,
        str(bundle),
        None,
        lambda key: [path for path in (state / key).glob("*.json") if path.name != "launch.json"],
        lambda _key: not processes_of(state),
    )
    for session in state.iterdir():
        platform.stop(session.name, int(real_now()), force=True)
    until(lambda: not processes_of(state), "the end of all processes")


@contextmanager
def kaggle(folder: Path, *, shape: str = "NvidiaTeslaT4", **habits: Any) -> Iterator[Place]:
    """Kaggle's adapter against the emulator, over HTTP. Fails when a kernel leaves a process behind."""
    bundle = folder / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    (folder / "kaggle.json").write_text(json.dumps({"username": "alice", "key": "the-key"}))
    (folder / "kaggle.json").chmod(0o600)
    most: dict[str, Any] = {"gpu_sessions_max": SESSIONS_MAX, "tpu_sessions_max": SESSIONS_MAX}
    rules = Habits(**most, queue_seconds=0.02, dataset_seconds=0.02, **habits)
    place = PublishingPlace(folder / "emulator", Clock(), "alice", "the-key", rules)
    context = PlatformContext(folder / "state", sys.executable, bundle, sessions_max=SESSIONS_MAX)

    with PublishingServer(place) as server:
        settings = {
            "emulator": server.address,
            "credentials": str(folder / "kaggle.json"),
            "slug_prefix": "uff-",
            "machine_shape": shape,
            "pause_milliseconds": "0",
            "idle_milliseconds": "50",
        }

        def launch_lost(request: LaunchRequest) -> None:
            # The record says that a push was about to be made, and Kaggle has never heard of it.
            records = LaunchRecords(folder / "state" / "launches")
            records.write(Record(request.key, f"uff-{request.key}", "intent", 0, void_from=0))

        @contextmanager
        def outage() -> Iterator[None]:
            place.faults.always["*"] = Fault.SERVER_ERROR
            yield
            place.faults.always.clear()

        yield Place(
            lambda: load("kaggle", settings, context),
            lambda: int(real_now()),
            pause,
            lambda key, lasting: None,
            launch_lost,
            outage,
            str(bundle),
            place.faults,
            lambda key: [folder / "state" / "launches" / f"{key}.json"],
            lambda _key: not any(session.live for session in place.sessions()),
            asks_to_leave=False,
        )
    assert processes_of(folder / "emulator") == []


@contextmanager
def sagemaker(folder: Path, types: str = "ml.g4dn.xlarge", **answers: Any) -> Iterator[Place]:
    """SageMaker's adapter against the emulator, over HTTP. Fails when a job leaves a process behind."""
    bundle = folder / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    rules = Shortages(SESSIONS_MAX, queue_seconds=0.02, download_seconds=0.02, upload_seconds=0.02, **answers)
    place = FaultyPlace(folder / "emulator", Clock(), rules)
    context = PlatformContext(folder / "state", sys.executable, bundle, sessions_max=SESSIONS_MAX)

    with FaultyServer(place) as server, pytest.MonkeyPatch.context() as patch:
        server.make_bucket("uff-conformance")
        patch.setattr("platforms.artifacts.s3.client._ATTEMPTS", 1)
        settings = {
            "endpoint": server.address,
            "region": "us-east-1",
            "bucket": "uff-conformance",
            "prefix": f"{folder.name}/",
            "poll_seconds": "0",
            "role": "arn:aws:iam::123456789012:role/uff-execution",
            "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10",
            "instance_types": types,
        }

        def launch_lost(request: LaunchRequest) -> None:
            rules.no_capacity.add(request.key)
            load("sagemaker", settings, context).launch(request, int(real_now()))

        @contextmanager
        def outage() -> Iterator[None]:
            place.faults.always["*"] = Fault.SERVER_ERROR
            yield
            place.faults.always.clear()

        yield Place(
            lambda: load("sagemaker", settings, context),
            lambda: int(real_now()),
            pause,
            lambda key, lasting: None,
            launch_lost,
            outage,
            str(bundle),
            place.faults,
            is_over=lambda key: not place.jobs[key].live,
        )
    assert processes_of(folder / "emulator") == []


@contextmanager
def slurm(folder: Path) -> Iterator[Place]:
    """Slurm's adapter on a real controller with two nodes. Fails when a job leaves a process behind."""
    bundle = folder / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    context = PlatformContext(folder / "state", sys.executable, bundle, sessions_max=SESSIONS_MAX)
    with slurm_lab() as lab:
        settings = {"slurm_conf": str(lab.conf), "command_seconds": "60"}

        def adapter() -> Platform:
            return load("slurm", settings, context)

        def launch_lost(request: LaunchRequest) -> None:
            # The order is written, and whoever should have submitted the job is gone.
            adapter().find([], int(real_now()))
            (folder / "state" / "sessions" / request.key).mkdir()
            order = {"at": 0, "deadline": request.deadline}
            (folder / "state" / "sessions" / request.key / "order.json").write_text(json.dumps(order))

        @contextmanager
        def outage() -> Iterator[None]:
            (folder / "state" / "cluster").rename(folder / "unmounted")
            yield
            (folder / "unmounted").rename(folder / "state" / "cluster")

        yield Place(
            adapter,
            lambda: int(real_now()),
            pause,
            lambda key, lasting: None,
            launch_lost,
            outage,
            str(bundle),
            None,
            lambda key: list((folder / "state" / "sessions" / key).glob("*.json")),
            lambda _key: not processes_of(folder / "state"),
        )
        lab.clear()
        until(lambda: not processes_of(folder / "state"), "the end of all processes")


@contextmanager
def manual(folder: Path) -> Iterator[Place]:
    """A place where a person, here a quick and reliable one, starts every session."""
    state, bundle = folder / "state", folder / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    context = PlatformContext(state, sys.executable, bundle, sessions_max=SESSIONS_MAX)
    (folder / "desk").mkdir()
    person = Person(ManualPlatform({}, context), folder / "desk")

    def later() -> None:
        pause()
        person.look()

    def launch_lost(request: LaunchRequest) -> None:
        ManualPlatform({"take_within_seconds": "0"}, context).launch(request, int(real_now()))

    @contextmanager
    def outage() -> Iterator[None]:
        state.rename(folder / "unmounted")
        yield
        (folder / "unmounted").rename(state)

    yield Place(
        lambda: load("manual", {}, context),
        lambda: int(real_now()),
        later,
        lambda key, lasting: None,
        launch_lost,
        outage,
        str(bundle),
        None,
        lambda key: [path for path in (state / key).glob("*.json") if path.name != "launch.json"],
    )
    person.leave()


def processes_of(state: Path) -> list[int]:
    """Agents, whatever they started, and keepers: all that work for the sessions below ``state``."""
    mark, folder = f"{MARK}={state}/".encode(), f"{state}/".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(mark) for word in environment) or any(word.startswith(folder) for word in words):
            found.append(int(process.name))
    return found


PLACES = {
    "fake": fake,
    "kaggle": kaggle,
    "local": local,
    "manual": manual,
    "sagemaker": sagemaker,
    "skypilot": skypilot,
    "slurm": slurm,
    "wrapped": wrapped,
    **{found.name: found.load() for found in entry_points(group="uff_scheduler.conformance")},
}


@pytest.fixture(scope="module")
def sky() -> Iterator[SkyLab]:
    """A real SkyPilot, for all tests that need one."""
    with sky_lab() as made:
        yield made


Opened = Callable[[Path, pytest.FixtureRequest], AbstractContextManager[Place]]


def _flipped(habits: dict[str, Any]) -> Opened:
    """Return Kaggle as it is when our assumptions about it are wrong, but that a deletion ends a session."""
    return lambda folder, _request: kaggle(folder, **habits)


def _flipped_aws(rules: dict[str, Any]) -> Opened:
    """Return SageMaker as it is when our assumptions about it are wrong, for a pool of two types of instance."""
    return lambda folder, _request: sagemaker(folder, "ml.g4dn.xlarge,ml.g5.xlarge", **rules)


LONG: dict[str, Opened] = {
    "skypilot-real": lambda folder, request: real_skypilot(folder, request.getfixturevalue("sky")),
    "kaggle: TPU": lambda folder, _request: kaggle(folder, shape="TpuV5E8"),
    **{f"kaggle: {question}": _flipped(habits) for question, habits in FLIPPED.items() if question != SPARED},
    **{f"kaggle: answers {seed}": _flipped(drawn_answers(seed, without=SPARED)) for seed in range(5)},
    **{f"sagemaker: {question}": _flipped_aws(rules) for question, rules in FLIPPED_AWS.items()},
    **{f"sagemaker: answers {seed}": _flipped_aws(drawn_answers(seed, answers=FLIPPED_AWS)) for seed in range(5)},
}


MARKS = {"slurm": pytest.mark.services, **dict.fromkeys(LONG, pytest.mark.nightly)}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in (*sorted(PLACES), *sorted(LONG))])
def place(request: pytest.FixtureRequest, tmp_path: Path, aws_credentials: None) -> Iterator[Place]:
    """Each place in turn, empty; those that take long at night."""
    name = request.param
    with LONG[name](tmp_path, request) if name in LONG else PLACES[name](tmp_path) as made:
        yield made


STORES: dict[str, Callable[[pytest.FixtureRequest, Path], BlobStore]] = {
    "directory": lambda request, folder: open_store("directory", folder / "store", {}),
    "s3-moto": lambda request, folder: _s3(request.getfixturevalue("moto_s3"), folder),
    "s3-rclone": lambda request, folder: _s3(request.getfixturevalue("rclone_s3"), folder),
}


def _s3(server: Any, folder: Path) -> BlobStore:
    return open_store("s3", folder / "store", server.options(prefix="team/uff/"))


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """Each artifact store in turn, empty."""
    return STORES[request.param](request, tmp_path)
