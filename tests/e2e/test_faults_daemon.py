"""The daemon's own end and start: SIGTERM in every phase, a second daemon, a database that cannot be used."""

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.store.schema import REVISIONS
from tests.lab.crashes.stage import Stage
from tests.lab.disk import read_only
from tests.lab.patience import until

Settled = Callable[[Stage], None]


@pytest.mark.parametrize("phase", ["", "daemon.started", "run.started", "checkpoint.seen"])
def test_sigterm_ends_the_daemon_cleanly_and_sessions_live_on(
    make_stage: Callable[..., Stage], settled: Settled, phase: str
) -> None:
    """In any phase, also while it still starts: what runs is left to run, and the next daemon adopts it."""
    stage = make_stage(hours=500.0)
    stage.prepare()
    daemon = stage.daemon()
    said = stage.said(daemon)
    until(lambda: phase in said.read_text() or daemon.poll() is not None, phase)
    before = stage.live()
    daemon.terminate()
    code = stage.ended(daemon).code
    # Before Python runs our first line, SIGTERM has its default effect; there is nothing yet to clean up.
    assert code == 0 or (not phase and code == -signal.SIGTERM), said.read_text()
    assert "Traceback" not in said.read_text()
    after = stage.live()
    assert all(after[key] == claim for key, claim in before.items() if stage_session_lives(stage, key))
    settled(stage)


def test_sigterm_stops_the_daemon_while_it_drains(make_stage: Callable[..., Stage], settled: Settled) -> None:
    """At the end of the time, when it waits for the last sessions to save: the week is over, or can be resumed."""
    stage = make_stage(hours=1.5)
    command = stage.begin()
    until(lambda: command.poll() is not None or (stage.has_begun() and stage.live()), "a live session")
    until(lambda: stage.now() >= stage.rehearsal.end or command.poll() is not None, "the end of the time")
    pid = stage.daemon_pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
    ended = stage.ended(command)
    if ended.code == 6:
        assert "--resume" in ended.err
        ended = stage.ended(stage.resume())
    assert ended.code == 0, stage.log
    settled(stage)


def test_a_second_daemon_on_the_same_state_folder_exits_with_8(running: Stage) -> None:
    first = running.daemon_pid()
    second = running.ended(running.daemon())
    assert second.code == 8, second.err
    assert f"process {first} holds the lock" in second.err
    assert "Traceback" not in second.err
    assert running.daemon_pid() == first


@pytest.fixture
def idle(stage: Stage) -> Stage:
    """A rehearsal that was prepared and that no daemon runs."""
    stage.prepare()
    return stage


def test_a_missing_database_is_said(idle: Stage) -> None:
    database_of(idle).unlink()
    refused(idle, "no database", "schedctl init")


def test_a_database_of_a_newer_version_is_never_touched(idle: Stage) -> None:
    with sqlite3.connect(database_of(idle)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999_tomorrow'")
    connection.close()
    before = database_of(idle).read_bytes()
    refused(idle, "database is newer", REVISIONS[-1])
    assert database_of(idle).read_bytes() == before


@pytest.mark.parametrize("page", ["first", "any"])
def test_a_damaged_page_ends_the_daemon_with_the_way_to_restore(idle: Stage, page: str) -> None:
    """At the start when it is met then, else in the cycle that meets it; nothing is launched on a guess."""
    path = database_of(idle)
    with path.open("r+b") as stream:
        if page == "any":
            stream.seek(4096)
            stream.write(b"\xa5" * (path.stat().st_size - 4096))
        else:
            stream.write(b"\xa5" * 4096)
    refused(idle, "schedctl db restore")
    assert idle.sessions() == []


@pytest.fixture
def frozen(idle: Stage) -> Iterator[Stage]:
    """Its state folder, mounted so that nothing can be written; even root must obey."""
    with read_only(idle.rehearsal.state):
        yield idle


def test_a_read_only_state_folder_is_said(frozen: Stage) -> None:
    ended = frozen.ended(frozen.daemon())
    assert ended.code in (4, 7), ended.err
    assert "ead-only" in ended.err
    assert "Traceback" not in ended.err


def database_of(stage: Stage) -> Path:
    return stage.rehearsal.state / "scheduler.db"


def refused(stage: Stage, *words: str) -> None:
    ended = stage.ended(stage.daemon())
    assert ended.code == 4, ended.err
    assert "Traceback" not in ended.err
    assert all(word in ended.err for word in words), ended.err


def stage_session_lives(stage: Stage, key: str) -> bool:
    """Whether a session has not ended by itself meanwhile."""
    return next(session.end() is None for session in stage.sessions() if session.key == key)
