"""A job's own code from `queue add` to where it runs: stored once, whole or not there, kept while it is needed."""

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jobs
from jobs.nouns.pool import Pool
from jobs.payload.store.manifest import Component, Manifest
from jobs.payload.store.tree import CONTENT, LISTING, code_prefix
from jobs.spec import Code, JobSpec
from platforms.artifacts.base import Grant, StoreUnreachable
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest, SessionState
from platforms.registry import PlatformContext, load
from scheduler.core import run as arrows
from scheduler.core.retention import DAY
from scheduler.core.run import Lane, Outcome, Reserved, Run
from scheduler.service.facts.overheads import Overhead
from scheduler.service.launch.launch_document import launch_document
from scheduler.service.outside.ports import Policy, Ports
from scheduler.service.requests import queue
from scheduler.service.requests.stored import default_code, keep_code, pull_code
from scheduler.service.upkeep.housekeeping import retain_trees
from scheduler.store import checkpoints, events, runs, trees
from scheduler.store import jobs as job_rows
from scheduler.store.engine import Database
from scheduler.store.errors import Refused
from tests.lab.clocks import starting_now

NOW = 1_795_000_000
TRAINING = """
import json, os, pathlib
listed = sorted(os.listdir("."))
import helper
folder = pathlib.Path(os.environ["SCHED_CHECKPOINT_DIR"])
print("runs", helper.WORD, listed, flush=True)
open("left-behind", "w").close()
made = folder / "making"
made.mkdir()
(made / "weights.bin").write_text(helper.WORD)
(made / "meta.json").write_text(json.dumps({"step": 100, "metrics": {}}))
made.rename(folder / "step-00000100")
"""


class Counting:
    """A store that counts the bytes it is sent, and dies at a write when told to."""

    def __init__(self, inner: DirectoryStore, dies_at: int | None = None) -> None:
        self._inner, self.dies_at = inner, dies_at
        self.bytes = self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, key: str, source: Path | bytes) -> bool:
        """Write, unless this is the write at which it dies."""
        self.writes += 1
        if self.writes == self.dies_at:
            raise StoreUnreachable("create", key, "killed")
        self.bytes += len(source) if isinstance(source, bytes) else source.stat().st_size
        return self._inner.create(key, source)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty artifact store."""
    return DirectoryStore(tmp_path / "artifacts")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder."""
    made = tmp_path / "trainer"
    made.mkdir()
    (made / "train.py").write_text(TRAINING)
    (made / "helper.py").write_text("WORD = 'first'\n")
    return made


@pytest.fixture
def database_with(database: Database) -> Callable[[Code | None], Database]:
    """Adds the job ``ufm`` with a code that is stored."""

    def add(found: Code | None) -> Database:
        spec = JobSpec("ufm", "manager", ("{python}", "train.py"), target_step=100, steps_per_hour=10.0, code=found)
        queue.add(database, [spec], NOW, "test")
        return database

    return add


def test_an_unchanged_folder_is_sent_once(database: Database, store: DirectoryStore, folder: Path) -> None:
    first, second = Counting(store), Counting(store)
    one = keep_code(database, first, Code(str(folder)), NOW + DAY)
    two = keep_code(database, second, Code(str(folder)), NOW + DAY)
    assert one == two
    assert (first.bytes > 0, second.bytes) == (True, 0)
    assert sorted(store.keys("code/")) == [f"code/{one.digest}/{name}" for name in (CONTENT, LISTING)]


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_killed_upload_leaves_nothing_that_is_believed(
    database: Database, store: DirectoryStore, folder: Path, dies_at: int
) -> None:
    """The listing comes last, and what was sent before is not sent again."""
    with pytest.raises(StoreUnreachable):
        keep_code(database, Counting(store, dies_at), Code(str(folder)), NOW + DAY)
    assert not [key for key in store.keys("code/") if key.endswith(LISTING)]
    found = keep_code(database, store, Code(str(folder)), NOW + DAY)
    listing = store.read(f"{code_prefix(found.digest)}/{LISTING}")
    assert hashlib.sha256(listing).hexdigest() == found.digest


def test_a_job_keeps_its_code_through_the_database_and_changes_it_by_an_event(
    database_with: Callable[[Code], Database], store: DirectoryStore, folder: Path, database: Database
) -> None:
    first = keep_code(database, store, Code(str(folder)), NOW + DAY)
    database_with(first)
    with database.read() as tx:
        assert job_rows.get(tx, "ufm").spec.code == first
    (folder / "helper.py").write_text("WORD = 'second'\n")
    second = keep_code(database, store, Code(str(folder)), NOW + DAY)
    assert second.digest != first.digest
    queue.change(database, "ufm", NOW, "ann", code=second)
    with database.read() as tx:
        assert job_rows.get(tx, "ufm").spec.code == second
        (event,) = [found for found in events.tail(tx, subject="ufm") if found.kind == "job.code"]
    assert (event.by, event.data["old"]["code"]["digest"]) == ("ann", first.digest)
    assert event.data["new"]["code"]["digest"] == second.digest


def run_of(digest: str, attempt: int) -> Run:
    lane = Lane(0, "ufm", attempt, (0,), None, code=digest)
    return Run(f"uff-ufm-{attempt:04d}", "kaggle", (lane,), NOW, NOW + 3_600, NOW + 3_600, Reserved(NOW))


def test_code_stays_while_a_job_a_session_or_a_checkpoint_names_it(
    make_ports: Callable[..., Ports], database: Database, folder: Path, database_with: Callable[[Code], Database]
) -> None:
    ports = make_ports()
    store = ports.artifacts
    first = keep_code(database, store, Code(str(folder)), NOW + DAY)
    database_with(first)
    (folder / "helper.py").write_text("WORD = 'second'\n")
    second = keep_code(database, store, Code(str(folder)), NOW + DAY)

    def there() -> set[str]:
        return {key.split("/")[1] for key in store.keys("code/")}

    retain_trees(ports, NOW + 2 * DAY)
    assert there() == {first.digest}, "nobody came to need the second"
    keep_code(database, store, Code(str(folder)), NOW + 3 * DAY)
    lock = "b" * 64
    store.create(f"lock/{lock}/lock.json", b"{}")
    run = run_of(first.digest, 1)
    run = replace(run, lanes=(replace(run.lanes[0], trees={"lock": f"lock/{lock}"}),))
    with database.write() as tx:
        trees.record(tx, "lock", lock, NOW + 3 * DAY)
        job_rows.note_launch(tx, "ufm", "kaggle")
        runs.insert(tx, run, NOW)
    queue.change(database, "ufm", NOW, "ann", code=second)
    for day in (4, 6, 8):
        retain_trees(ports, NOW + day * DAY)
        assert there() == {first.digest, second.digest}, "a live session runs the first"
    manifest = Manifest("ufm", 40, 1, run.key, 0, None, NOW, 60, {}, (Component("model", "a" * 64, 3),))
    with database.write() as tx:
        checkpoints.record(tx, manifest, NOW)
        runs.close_lane(tx, run.key, 0, Outcome.LOST, 40, None, "", NOW)
        ended = arrows.end(run.state, Outcome.REJECTED, NOW, None)
        runs.change_state(tx, run.key, run.state, ended, "end", NOW)
    for day in (10, 12):
        retain_trees(ports, NOW + day * DAY)
        assert there() == {first.digest, second.digest}, "a checkpoint of it is kept"
        assert list(store.keys("lock/")), "with the packages that made it"
    with database.write() as tx:
        checkpoints.expire(tx, manifest.key, "old", NOW)
    retain_trees(ports, NOW + 14 * DAY)
    assert there() == {first.digest, second.digest}, "there is a grace"
    retain_trees(ports, NOW + 16 * DAY)
    assert there() == {second.digest}
    assert not list(store.keys("lock/"))
    with database.read() as tx:
        assert [found.digest for found in trees.everything(tx)] == [second.digest]


def test_what_is_being_deleted_cannot_come_to_be_needed_and_is_deleted_after_a_crash(
    make_ports: Callable[..., Ports], database: Database, folder: Path
) -> None:
    class Failing(Counting):
        """A store of which half is deleted."""

        def delete(self, key: str) -> bool:
            """Delete the listing alone."""
            if key.endswith(CONTENT):
                raise StoreUnreachable("delete", key, "killed")
            return DirectoryStore.delete(self._inner, key)

    ports = make_ports()
    found = keep_code(database, ports.artifacts, Code(str(folder)), NOW)
    retain_trees(replace(ports, artifacts=Failing(ports.artifacts)), NOW + 1)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="Try again in a minute"):
        keep_code(database, ports.artifacts, Code(str(folder)), NOW + DAY)
    retain_trees(ports, NOW + 2)
    assert list(ports.artifacts.keys("code/")) == []
    assert keep_code(database, ports.artifacts, Code(str(folder)), NOW + DAY) == found


def test_a_command_that_needs_the_folder_of_its_file_gets_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "job.toml"
    assert default_code(("{python}", "train.py"), file) == Code(str(folder))
    for command in (("{python}", "elsewhere.py"), ("{python}", "{payload}/trainers/charlm.py"), ("/bin/true",)):
        assert default_code(command, file) is None
    monkeypatch.chdir(folder)
    assert default_code(("python", "train.py", "--fast"), None) == Code(str(folder))


def test_a_session_runs_what_was_added_from_the_store_alone(
    tmp_path: Path, store: DirectoryStore, folder: Path, database_with: Callable[[Code], Database], database: Database
) -> None:
    """The folder changes and goes after the job was added; the second attempt starts from a fresh copy again."""
    kept = keep_code(database, store, Code(str(folder)), NOW + DAY)
    database_with(kept)
    (folder / "helper.py").write_text("WORD = 'changed'\n")
    folder.rename(tmp_path / "gone")
    clock = starting_now(1_000_000, 60.0)
    context = PlatformContext(
        tmp_path / "state", sys.executable, Path(jobs.__file__).parent, 1, 43_200, clock.payload_clock()
    )
    platform, patience = load("local", {}, context), threading.Event()
    for attempt in (1, 2):
        key = f"ufm-{attempt}"
        document = session_of(kept, key, attempt, clock, store)
        platform.launch(LaunchRequest(key, "pool", 1, clock.now() + 7_200, document, "", {}), clock.now())
        for _ in range(2_000):
            if platform.find([key], clock.now())[key].state == SessionState.ENDED:
                break
            patience.wait(0.01)
        platform.stop(key, clock.now(), force=True)
        output = b"".join(platform.logs(key, 0, 1 << 20)).decode()
        result = json.loads(store.read(f"runs/{key}/lane-0/result.json"))
        assert (result["outcome"], result["checkpoint_step"]) == ("finished", 100), output
        assert "runs first ['helper.py', 'train.py']" in output
        for old in list(store.keys("jobs/")):
            store.delete(old)
    damaged = store.read(f"{code_prefix(kept.digest)}/{CONTENT}")[:-9]
    store.put(f"{code_prefix(kept.digest)}/{CONTENT}", damaged)
    platform.launch(
        LaunchRequest("ufm-3", "pool", 1, clock.now() + 7_200, session_of(kept, "ufm-3", 3, clock, store), "", {}),
        clock.now(),
    )
    for _ in range(2_000):
        if platform.find(["ufm-3"], clock.now())["ufm-3"].state == SessionState.ENDED:
            break
        patience.wait(0.01)
    result = json.loads(store.read("runs/ufm-3/lane-0/result.json"))
    assert (result["outcome"], result["error_class"]) == ("failed", "store")
    assert "is damaged" in json.dumps(result)
    assert "schedctl queue update ufm" in json.dumps(result)


def session_of(kept: Code, key: str, attempt: int, clock: Any, store: DirectoryStore) -> dict[str, Any]:
    """The document of a session of that code, with its lane as the daemon writes it."""
    spec = JobSpec("ufm", "manager", ("{python}", "train.py"), target_step=100, steps_per_hour=10.0, code=kept)
    deadline = int(clock.now()) + 7_200
    lane = Lane(0, "ufm", attempt, (), None, code=kept.digest)
    run = Run(key, "pool", (lane,), int(clock.now()), deadline, deadline, Reserved(int(clock.now())))
    document = launch_document(
        run=run,
        pool=Pool("pool", "local", "cpu", ()),
        specs={"ufm": spec},
        overheads={"ufm": Overhead(60, 0.3, 10, 0.3)},
        stalls={"ufm": {}},
        restore={"ufm": ()},
        parents={},
        data={"ufm": ""},
        store=store.payload_address(Grant(key, ("ufm",), (), (code_prefix(kept.digest),), 60)),
        clock=clock.payload_clock(),
        policy=Policy(),
    )
    assert document["lanes"][0]["code"] == f"code/{kept.digest}"
    return document


def test_a_checkpoint_is_fetched_with_the_code_that_made_it(
    tmp_path: Path, store: DirectoryStore, folder: Path, database_with: Callable[[Code], Database], database: Database
) -> None:
    kept = keep_code(database, store, Code(str(folder)), NOW + DAY)
    database_with(kept)
    with database.write() as tx:
        job_rows.note_launch(tx, "ufm", "kaggle")
        runs.insert(tx, run_of(kept.digest, 1), NOW)
    manifest = Manifest("ufm", 40, 1, "uff-ufm-0001", 0, None, NOW, 60, {}, ())
    assert pull_code(database, store, manifest, tmp_path / "got-code") == kept.digest
    assert (tmp_path / "got-code" / "train.py").read_text() == TRAINING
    assert pull_code(database, store, replace(manifest, attempt=2), tmp_path / "other") is None
