"""Damaged checkpoints, a full disk, and backups: nothing that was kept is lost, and work goes on."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from platforms.local.adapter import Claim, Session
from scheduler.clock import stopwatch
from tests.lab.crashes.stage import MODELS, Stage
from tests.lab.disk import full, small_disk
from tests.lab.patience import until

Settled = Callable[[Stage], None]
ONE_MODEL = MODELS.partition('[[jobs]]\nname = "left"')[0]


@pytest.fixture
def mount() -> Iterator[Callable[[Path], object]]:
    """Mounts a disk of 24 MB on a folder."""
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(small_disk(folder, "24m"))


def flip(path: Path, at: int) -> None:
    """Flip one bit."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("part", ["component", "manifest"])
def test_a_damaged_checkpoint_is_quarantined_and_the_one_before_it_used(
    make_stage: Callable[..., Stage], settled: Settled, part: str
) -> None:
    """One flipped bit in the newest checkpoint: people see it in the listing, training goes on from the one before."""
    stage = make_stage(models=ONE_MODEL, hours=500.0)
    stage.begin()
    stage.until_saved("main", 2)
    assert stage.type("queue", "hold", "main").code == 0
    until(lambda: _state(stage) == "held", "the hold")
    before, newest = stage.manifests("main")[-2:]
    components = json.loads(newest.read_bytes())["components"]
    weights = next(entry["sha256"] for entry in components if entry["name"] == "weights.npy")
    if part == "manifest":
        flip(newest, newest.read_bytes().index(weights.encode()))
    else:
        flip(newest.parent.parent / "blobs" / weights, -1)
    assert stage.type("queue", "release", "main").code == 0
    stage.until_saved("main", len(stage.manifests("main")) + 1)
    until(lambda: _bad(stage), "the quarantine")
    follower = next(path for path in stage.manifests("main") if path > before and path != newest)
    assert json.loads(follower.read_bytes())["parent"].endswith(f"/{before.name}")
    (damaged,) = _bad(stage)
    assert damaged["key"].endswith(f"/{newest.name}")
    assert damaged["why"]
    assert "quarantined" in stage.type("checkpoints", "list", "main").out
    settled(stage)


def test_commits_wait_for_room_on_a_full_disk(
    make_stage: Callable[..., Stage], mount: Callable[[Path], object], settled: Settled
) -> None:
    """Database, sessions and artifacts on one full disk: the daemon says what is wrong, stays, and goes on."""
    stage = make_stage(hours=500.0)
    mount(stage.week)
    command = stage.begin()
    stage.until_saved(count=1)
    command.kill()
    command.wait()
    stage.kill_daemon()
    daemon = stage.daemon()  # its log is not on the small disk
    said = stage.said(daemon)
    until(lambda: "daemon.started" in said.read_text(), "the second daemon")
    with full(stage.week):
        until(lambda: "disk full" in said.read_text() or daemon.poll() is not None, "the daemon's complaint")
        known = stage.manifests()
    assert daemon.poll() is None, said.read_text()
    stage.until_saved(count=len(known) + 1)
    daemon.terminate()
    assert stage.ended(daemon).code == 0, said.read_text()
    settled(stage)


def test_checkpoints_wait_for_room_on_a_full_disk(
    make_stage: Callable[..., Stage], mount: Callable[[Path], object], settled: Settled
) -> None:
    """The store alone is full: the session says so in its log and its heartbeat, trains on, and saves when it can."""
    stage = make_stage(models=ONE_MODEL, hours=500.0)
    command = stage.begin()
    until(lambda: (stage.week / "artifacts").exists() or command.poll() is not None, "the store")
    store = stage.week / "artifacts" / "jobs"
    mount(store)
    complaint = b"the store's disk is full; trying again while time is left"

    def complaining() -> Session | None:
        """The live session that says so; on a slow machine the first are over before they have anything to save."""
        for session in stage.sessions():
            logged = complaint in _read(session.folder / "output.log")
            if logged and "disk is full" in _heartbeat(stage, session.key)["message"] and session.agent() is not None:
                return session
        return None

    with full(store):
        session = until(complaining, "a complaint in the log and in the heartbeat")
        assert stage.manifests() == []
    stage.until_saved()
    until(lambda: not _heartbeat(stage, session.key)["message"] or session.end() is not None, "the complaint's end")
    settled(stage)


def test_a_log_on_the_full_disk_does_not_bring_the_daemon_down(
    make_stage: Callable[..., Stage], mount: Callable[[Path], object], settled: Settled
) -> None:
    """The log on the full disk too, for a second: the rehearsal goes on to its end."""
    stage = make_stage(hours=500.0)
    mount(stage.week)
    stage.begin()
    stage.until_saved(count=1)
    pid = stage.daemon_pid()
    with full(stage.week):
        end = stopwatch() + 1.0
        until(lambda: stopwatch() > end, "a second to pass")
    stage.until_saved(count=len(stage.manifests()) + 1)
    assert stage.daemon_pid() == pid
    settled(stage)


def test_a_backup_taken_while_the_daemon_runs_is_restored_equal(running: Stage) -> None:
    """Row by row; not under a daemon that runs, and the next one starts on what was restored."""
    running.until_saved(count=1)
    copy = running.folder / "backup.db"
    assert running.type("db", "backup", str(copy)).code == 0
    rows = _rows(copy)
    refused = running.type("db", "restore", str(copy))
    assert refused.code == 4, refused.err
    running.until_saved(count=len(running.manifests()) + 1)
    running.kill_daemon()
    database = running.rehearsal.state / "scheduler.db"
    assert _rows(database)["events"][: len(rows["events"])] == rows["events"]
    restored = running.type("db", "restore", str(copy))
    assert restored.code == 0, restored.err
    again = _rows(database)
    assert [row for row in again.pop("due") if row[0] != "look-back"] == rows.pop("due")
    assert again == rows
    assert running.type("db", "verify").code == 0
    daemon = running.daemon()
    said = running.said(daemon)
    until(lambda: "daemon.started" in said.read_text() or daemon.poll() is not None, "the daemon on the backup")
    daemon.terminate()
    assert running.ended(daemon).code == 0, said.read_text()


def test_what_was_launched_after_a_backup_is_found_and_charged_after_a_restore(
    running: Stage, settled: Settled
) -> None:
    """Sessions that ended since, and those that still run: each in the books to the second, no job in two lanes."""
    running.until_saved(count=1)
    copy = running.folder / "backup.db"
    assert running.type("db", "backup", str(copy)).code == 0
    known = {run["key"] for run in running.type("runs", "list", "--json").document["runs"]}
    until(lambda: len({session.key for session in running.sessions()} - known) >= 3, "three more launches")
    running.kill_daemon()
    until(lambda: running.live().keys() - known, "a live session that the backup does not know")
    # One that no keeper took in time never ran.
    newer = {session.key for session in running.sessions() if isinstance(session.claim(), Claim)} - known
    restored = running.type("db", "restore", str(copy))
    assert restored.code == 0, restored.err
    daemon = running.daemon()
    said = running.said(daemon)
    until(lambda: "restore.looked_back" in said.read_text() or daemon.poll() is not None, "the end of the search")
    assert said.read_text().index("restore.session_found") < said.read_text().index("restore.looked_back")
    settled(running)
    listed = {run["key"] for run in running.type("runs", "list", "--json").document["runs"]}
    assert newer <= listed


def _bad(stage: Stage) -> list[dict[str, str]]:
    listed = stage.type("checkpoints", "list", "main", "--json").document["checkpoints"]
    return [entry for entry in listed if entry["state"] == "quarantined"]


def _state(stage: Stage) -> str:
    return str(stage.type("queue", "show", "main", "--json").document["job"]["state"])


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _heartbeat(stage: Stage, key: str) -> dict[str, str]:
    beat = stage.week / "artifacts" / "runs" / key / "lane-0" / "heartbeat.json"
    return json.loads(_read(beat) or b'{"message": ""}')  # type: ignore[no-any-return]


def _rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of every table."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables}  # noqa: S608
    finally:
        database.close()
