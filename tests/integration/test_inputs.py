"""A job's inputs from `queue add` to the folder its command reads: pinned, fetched once for all, checked, read-only."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jobs
from jobs.inputs.folder import TreeError
from jobs.nouns.pool import Pool
from jobs.payload.store import hub
from jobs.payload.store.transport import DirectoryTransport
from jobs.payload.store.tree import fetch_tree, remove_tree
from jobs.secret_scan import SecretsFound
from jobs.spec import Input, JobSpec
from platforms.artifacts.base import Grant, StoreError
from platforms.artifacts.directory import DirectoryStore
from platforms.base import Capabilities, LaunchRequest, Platform, Published, SessionState
from platforms.registry import PlatformContext, load
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.retention import DAY
from scheduler.core.run import Lane, Outcome, Reserved, Run
from scheduler.core.snapshot import Snapshot
from scheduler.service.cycle import cycle
from scheduler.service.facts.overheads import Overhead
from scheduler.service.launch.inputs import trees_of, with_inputs
from scheduler.service.launch.launch_document import launch_document
from scheduler.service.outside.ports import Policy, Ports, no_account
from scheduler.service.requests import queue
from scheduler.service.requests.stored import change_inputs, folder_of, stored, take_input
from scheduler.service.upkeep.housekeeping import retain_trees
from scheduler.store import events, runs, trees
from scheduler.store import jobs as job_rows
from scheduler.store.engine import Database
from tests.lab.clocks import starting_now
from tests.lab.fake import FakeCloud, FakePlatform, Script
from tests.lab.hub import COMMIT, NAME, TOKEN, StandInHub

NOW = 1_795_000_000
TRAINING = """
import json, os, pathlib
given = pathlib.Path(os.environ["SCHED_INPUT_TESTS"])
print("reads", (given / "a" / "words").read_text(), "in", given.name, os.access(given, os.W_OK), flush=True)
made = pathlib.Path(os.environ["SCHED_CHECKPOINT_DIR"]) / "making"
made.mkdir()
(made / "meta.json").write_text(json.dumps({"step": 100, "metrics": {}}))
made.rename(made.with_name("step-00000100"))
"""


@dataclass(frozen=True)
class Places:
    """Where inputs are stored, and what opens them."""

    database: Database
    artifacts: Any
    token: str = ""
    pools: Mapping[str, Pool] = field(default_factory=dict)

    def published(self) -> Published:
        """Return what Kaggle holds."""
        return no_account()

    def hub_token(self) -> str:
        """Return what opens repositories of the Hub."""
        return self.token


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty artifact store."""
    return DirectoryStore(tmp_path / "artifacts")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder of tests."""
    made = tmp_path / "tests"
    (made / "a").mkdir(parents=True)
    (made / "a" / "words").write_text("first words")
    return made


@pytest.fixture
def add(database: Database, store: DirectoryStore, folder: Path) -> Callable[..., JobSpec]:
    """Adds a job with the folder as its input ``tests``."""

    def run(name: str = "ufm", artifacts: Any = store) -> JobSpec:
        command = ("{python}", "-c", TRAINING)
        spec = JobSpec(name, "manager", command, 100, 10.0, inputs=(Input("tests", str(folder)),))
        spec = stored(Places(database, artifacts), spec, NOW + DAY, print)
        queue.add(database, [spec], NOW, "test")
        return spec

    return run


class Desk:
    """A local pool and its sessions."""

    def __init__(self, folder: Path, store: DirectoryStore) -> None:
        self.clock = starting_now(1_000_000, 60.0)
        self.store = store
        self.cache = folder / "state" / ".cache"
        context = PlatformContext(
            folder / "state", sys.executable, Path(jobs.__file__).parent, 2, 43_200, self.clock.payload_clock()
        )
        self.platform: Platform = load("local", {}, context)
        self.keys: list[str] = []

    def run(self, *specs: JobSpec, attempt: int = 1, given: dict[str, str] | None = None) -> str:
        """Run a session of these jobs to its end; return what it printed."""
        key = f"{specs[0].name}-{attempt}"
        self.keys.append(key)
        now = self.clock.now()
        self.platform.launch(
            LaunchRequest(key, "desk", 1, now + 7_200, self.document(key, specs, attempt, given), "", {}), now
        )
        patience = threading.Event()
        for _ in range(3_000):
            if self.platform.find([key], self.clock.now())[key].state == SessionState.ENDED:
                break
            patience.wait(0.01)
        return b"".join(self.platform.logs(key, 0, 1 << 20)).decode()

    def result(self, key: str, lane: int = 0) -> dict[str, Any]:
        """What a lane left."""
        found: dict[str, Any] = json.loads(self.store.read(f"runs/{key}/lane-{lane}/result.json"))
        return found

    def document(
        self, key: str, specs: tuple[JobSpec, ...], attempt: int, given: dict[str, str] | None
    ) -> dict[str, Any]:
        """The launch document, with its lanes as the daemon writes them."""
        lanes = tuple(
            Lane(index, spec.name, attempt, (), None, trees=given or trees_of(spec, {}) or {})
            for index, spec in enumerate(specs)
        )
        deadline = int(self.clock.now()) + 7_200
        run = Run(key, "desk", lanes, int(self.clock.now()), deadline, deadline, Reserved(int(self.clock.now())))
        names = [spec.name for spec in specs]
        return launch_document(
            run=run,
            pool=Pool("desk", "local", "cpu", ()),
            specs={spec.name: spec for spec in specs},
            overheads=dict.fromkeys(names, Overhead(60, 0.3, 10, 0.3)),
            stalls={name: {} for name in names},
            restore=dict.fromkeys(names, ()),
            parents={},
            data=dict.fromkeys(names, ""),
            store=self.store.payload_address(Grant(key, tuple(names), (), (), 60)),
            clock=self.clock.payload_clock(),
            policy=Policy(),
        )


@pytest.fixture
def desk(tmp_path: Path, store: DirectoryStore) -> Iterator[Desk]:
    """A local pool; what it started is ended."""
    made = Desk(tmp_path, store)
    yield made
    for key in made.keys:
        made.platform.stop(key, made.clock.now(), force=True)


def test_two_lanes_and_later_sessions_share_what_was_fetched_once(
    add: Callable[..., JobSpec], desk: Desk, folder: Path
) -> None:
    """The folder changes after the jobs were added, and the store is not asked for a byte of it again."""
    first, second = add("ufm"), add("ucm")
    (folder / "a" / "words").write_text("other words")
    said = desk.run(first, second)
    name = f"input-{first.inputs[0].digest}"
    assert said.count(f"reads first words in {name} {os.geteuid() == 0}") == 2, said
    assert said.count("input tests: 1 files, 0.00 GB, verified") == 2, said
    assert [path.name for path in desk.cache.iterdir() if not path.name.startswith(".")] == [name]
    for key in list(desk.store.keys(f"input/{first.inputs[0].digest}/")):
        if not key.endswith("listing.json"):
            desk.store.delete(key)
    assert "reads first words" in desk.run(first, attempt=2)
    desk.platform.sweep([], desk.clock.now() + 6 * DAY)
    assert (desk.cache / name).is_dir(), "it was in use a moment ago"
    # The days of a rehearsal are minutes; what is kept is kept for days of the disk's own clock.
    desk.platform.sweep([], desk.clock.now() + 60 * 8 * DAY)
    assert list(desk.cache.iterdir()) == []


def test_what_is_damaged_in_the_store_ends_the_session_before_its_command(
    add: Callable[..., JobSpec], desk: Desk
) -> None:
    spec = add()
    (piece,) = [key for key in desk.store.keys("input/") if not key.endswith("listing.json")]
    desk.store.put(piece, bytes(len(desk.store.read(piece))))
    said = desk.run(spec)
    found = desk.result("ufm-1")
    assert (found["outcome"], found["error_class"]) == ("failed", "store")
    assert "the input tests" in json.dumps(found)
    assert "cannot be fetched: piece 0" in json.dumps(found)
    assert "reads" not in said


def test_a_job_keeps_its_inputs_through_the_database_and_changes_them_by_an_event(
    add: Callable[..., JobSpec], store: DirectoryStore, database: Database, folder: Path
) -> None:
    spec = add()
    with database.read() as tx:
        assert job_rows.get(tx, "ufm").spec == spec
    (folder / "a" / "words").write_text("other words")
    again = stored(Places(database, store), spec, NOW + DAY, print, spec)
    assert again == spec, "the same place is not taken anew"
    taken = take_input(database, store, Input("tests", str(folder)), NOW + DAY, print)
    record = change_inputs(database, "ufm", [taken], NOW, "ann")
    assert record.spec.inputs == (taken,)
    assert taken.digest != spec.inputs[0].digest
    with database.read() as tx:
        event = events.tail(tx, subject="ufm")[-1]
    assert (event.kind, event.by, event.data["new"]["inputs"][0]["digest"]) == ("job.changed", "ann", taken.digest)


def test_inputs_stay_while_a_job_or_a_live_session_names_them(
    make_ports: Callable[..., Ports], add: Callable[..., JobSpec], database: Database
) -> None:
    ports = make_ports()
    spec = add(artifacts=ports.artifacts)
    lane = Lane(0, "ufm", 1, (0,), None, trees=trees_of(spec, {}) or {})
    run = Run("uff-ufm-0001", "kaggle", (lane,), NOW, NOW + 3_600, NOW + 3_600, Reserved(NOW))
    retain_trees(ports, NOW + 30 * DAY)
    assert list(ports.artifacts.keys("input/")), "a job reads it"
    with database.write() as tx:
        job_rows.note_launch(tx, "ufm", "kaggle")
        runs.insert(tx, run, NOW)
        assert runs.get(tx, run.key).lanes[0].trees == {"input.tests": f"input/{spec.inputs[0].digest}"}
        job_rows.change_spec(tx, "ufm", NOW, "ann", inputs=())
    for day in (31, 33):
        retain_trees(ports, NOW + day * DAY)
        assert list(ports.artifacts.keys("input/")), "a live session reads it"
    with database.write() as tx:
        runs.close_lane(tx, run.key, 0, Outcome.LOST, None, None, "", NOW)
    for day in (35, 37):
        retain_trees(ports, NOW + day * DAY)
    assert not list(ports.artifacts.keys("input/"))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """A Hub with a repository that holds what the folder of tests does, and no token of whoever runs this."""
    with StandInHub({"a/words": b"words of the Hub", "a/large.bin": bytes(5_000)}) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield made


@pytest.fixture
def add_base(database: Database) -> Callable[..., JobSpec]:
    """Adds a job with the repository as its input ``tests``."""

    def run(artifacts: Any, token: str = "") -> JobSpec:
        command = ("{python}", "-c", TRAINING)
        spec = JobSpec("ufm", "manager", command, 100, 10.0, inputs=(Input("tests", f"hf:{NAME}@main"),))
        spec = stored(Places(database, artifacts, token), spec, NOW + DAY, print)
        queue.add(database, [spec], NOW, "test")
        return spec

    return run


def test_a_repository_is_pinned_when_the_job_is_added_and_fetched_by_the_session(
    place: StandInHub, add_base: Callable[..., JobSpec], desk: Desk, store: DirectoryStore
) -> None:
    spec = add_base(store)
    (given,) = spec.inputs
    assert (given.revision, given.files, given.bytes, given.at_home) == (COMMIT, 2, 5_016, False)
    assert trees_of(spec, {}) == {"input.tests": f"hub/{given.digest}"}
    said = desk.run(spec)
    assert "reads words of the Hub" in said, said
    place.habits.garbage = True
    said = desk.run(spec, attempt=2)
    assert "reads words of the Hub" in said, "it is in the cache, and nobody is asked"
    remove_tree(desk.cache / f"hub-{given.digest}")
    desk.run(spec, attempt=3)
    assert "does not have the digest that was pinned" in json.dumps(desk.result("ufm-3"))


@pytest.mark.parametrize("why", ["no internet", "only a token opens it"])
def test_what_sessions_cannot_fetch_the_daemon_brings_once_before_the_launch(
    place: StandInHub,
    add_base: Callable[..., JobSpec],
    make_ports: Callable[..., Ports],
    database: Database,
    desk: Desk,
    tmp_path: Path,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = TOKEN if why == "only a token opens it" else ""
    place.habits.gated = bool(token)
    internet = why != "no internet"
    here = SimpleNamespace(capabilities=Capabilities(internet=internet))
    ports = make_ports(
        platforms={"kaggle": here}, artifacts=desk.store, scratch=tmp_path / "scratch", hub_token=lambda: token
    )
    spec = add_base(ports.artifacts, token)
    placement = Placement("kaggle", NOW, NOW + 3_600, (PlannedLane("ufm", 1, 10),))
    assert trees_of(spec, {}, Capabilities(internet=internet)) is None, "not before it is there"
    place.habits.expired = 99
    monkeypatch.setattr(hub, "_WAIT_SECONDS_MAX", 0.0)
    assert with_inputs(ports, [placement]) == []
    ((_, failed),) = ports.calls.failures().items()
    assert "may have expired" in failed
    place.habits.expired = 0
    assert with_inputs(ports, [placement]) == [placement]
    asked = place.seen.asked.total()
    assert with_inputs(ports, [placement]) == [placement]
    assert place.seen.asked.total() == asked, "it was fetched once"
    assert [path.name for path in ports.scratch.iterdir() if not path.name.endswith(".lock")] == []
    with database.read() as tx:
        found = trees_of(spec, trees.copies(tx), Capabilities(internet=internet))
    assert found is not None
    assert found["input.tests"].startswith("input/")
    place.files = {}
    said = desk.run(spec, given=found)
    assert "reads words of the Hub" in said, said
    for day in (5, 30):
        retain_trees(ports, NOW + day * DAY)
    assert list(ports.artifacts.keys(f"{found['input.tests']}/")), "it is kept with the listing that it was made of"
    kept = b"".join(ports.artifacts.read(key) for key in ports.artifacts.keys(""))
    assert TOKEN.encode() not in kept


def test_the_cycle_launches_a_job_with_what_its_pool_needs_once_that_is_there(
    place: StandInHub, add_base: Callable[..., JobSpec], make_ports: Callable[..., Ports], database: Database
) -> None:
    clouds = {name: FakeCloud(4, usual=Script(runs_seconds=None)) for name in ("online", "offline")}
    platforms = {name: FakePlatform(cloud) for name, cloud in clouds.items()}
    platforms["offline"].capabilities = Capabilities(internet=False)
    wanted = "online"

    def plan(found: Snapshot, incumbent: Plan | None) -> Plan:
        free = [job.name for job in found.jobs if job.running is None and job.blocked is None]
        due = tuple(Placement(wanted, found.now, found.now + 3_600, (PlannedLane(name, 1, 100),)) for name in free)
        return Plan(found.now, due, ())

    pools = {name: Pool(name, "fake", "CPU") for name in clouds}
    ports = make_ports(platforms=platforms, pools=pools, plan=plan)
    (given,) = add_base(ports.artifacts).inputs
    cycle.Cycle(ports).run()
    ((_, online),) = clouds["online"].sessions.items()
    assert online.request.launch["lanes"][0]["trees"] == {"input.tests": f"hub/{given.digest}"}
    with database.read() as tx:
        submitted = next(event for event in events.tail(tx, subject="uff-ufm-0001") if event.kind == "run.submit")
    assert submitted.data["trees"] == {"ufm": {"input.tests": f"hub/{given.digest}"}}
    clouds["online"].cut("uff-ufm-0001", ports.clock.now(), "ended")
    wanted, turn = "offline", cycle.Cycle(ports)
    for _ in range(6):
        ports.clock.present += 600  # type: ignore[attr-defined] # a clock that a test moves
        turn.run()
    ((_, offline),) = clouds["offline"].sessions.items()
    prefix = offline.request.launch["lanes"][0]["trees"]["input.tests"]
    assert prefix.startswith("input/")
    assert list(ports.artifacts.keys(f"{prefix}/"))
    del place


def test_a_folder_of_a_bucket_is_fetched_when_the_job_is_added(
    s3_server: Any, database: Database, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, client = s3_server.new_bucket(), s3_server.client()
    for key, body in {"tests/a/words": b"of a bucket", "tests/b": b"", "tests-2/c": b"another's"}.items():
        client.put_object(Bucket=bucket, Key=key, Body=body)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    given = take_input(database, store, Input("tests", f"s3://{bucket}/tests"), NOW + DAY, print)
    target = store_folder(store) / "fetched"
    fetch_tree(DirectoryTransport(store_folder(store)), f"input/{given.digest}", target)
    assert {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()} == {
        "a/words": b"of a bucket",
        "b": b"",
    }
    with pytest.raises(TreeError, match="no objects below it"):
        take_input(database, store, Input("tests", f"s3://{bucket}/none"), NOW + DAY, print)
    with pytest.raises(StoreError, match="nowhere-at-all"):
        take_input(database, store, Input("tests", "s3://nowhere-at-all/x"), NOW + DAY, print)


def store_folder(store: DirectoryStore) -> Path:
    return Path(store.payload_address(Grant("", (), (), (), 0))["root"])


def test_a_link_to_a_file_is_scanned_for_secrets(tmp_path: Path) -> None:
    (tmp_path / "real.env").write_text(f"TOKEN=hf_{'aB3dE6' * 6}\n")
    (tmp_path / "link.env").symlink_to("real.env")
    with pytest.raises(SecretsFound, match=r"real\.env:1 \(Hugging Face token\)"):
        folder_of(tmp_path / "scratch", str(tmp_path / "link.env"), print)


def test_a_file_that_would_have_its_reader_wait_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /proc/kmsg, a regular file, where there is nothing left to read."""
    os.mkfifo(tmp_path / "kmsg")
    for module in ("stat", "pathlib"):
        monkeypatch.setattr(f"{module}.S_ISREG", lambda _: True)
    writer = os.open(tmp_path / "kmsg", os.O_RDWR)
    try:
        assert (folder_of(tmp_path / "scratch", str(tmp_path / "kmsg"), print) / "kmsg").read_bytes() == b""
    finally:
        os.close(writer)
