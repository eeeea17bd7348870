"""PostgreSQL lost in the middle of a transaction: nothing is half written, and the next cycles finish the work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.engine import make_url

from jobs.lane_report import LaneReport
from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.spec import JobSpec
from platforms.artifacts.directory import DirectoryStore
from scheduler.core.job import Active
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Ended, Outcome, Running
from scheduler.core.snapshot import Snapshot
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Policy, Ports
from scheduler.store import jobs, lease, runs
from scheduler.store.engine import Database, open_database
from scheduler.store.errors import StoreFailure
from scheduler.store.verify import verify
from tests.integration.conftest import AtOnce, Journal
from tests.lab.clocks import HandClock
from tests.lab.crashes.postgresql import Server
from tests.lab.fake import FakeCloud, FakePlatform, Script
from tests.lab.night import one_in

pytestmark = pytest.mark.postgres
_STATEMENTS_MIN = 60  # of the two cycles that each server is lost in
_TURNS = 6
_STRIDE = 3  # of the night; a loss before the next two statements is much the same


def plan(found: Snapshot, _: Plan | None) -> Plan:
    lanes = [(PlannedLane(job.name, 1, 100),) for job in found.jobs if job.running is None and job.blocked is None]
    return Plan(found.now, tuple(Placement("desk", found.now, found.now + HOUR, lane) for lane in lanes), ())


class World:
    """A job that is launched, saves and leaves, and is launched again, on a database of its own."""

    def __init__(self, database: Database, folder: Path) -> None:
        held = lease.acquire(database, "test", 10**6)
        assert held is not None
        self.database, self.clock, self.cloud = database, HandClock(), FakeCloud(9, usual=Script(runs_seconds=None))
        self.turning = False
        self.artifacts = DirectoryStore(folder)
        ports = Ports(
            database=database,
            artifacts=self.artifacts,
            platforms={"desk": FakePlatform(self.cloud)},
            pools={"desk": Pool("desk", "fake", "CPU", sessions_max=9)},
            clock=self.clock,
            policy=Policy(),
            plan=plan,
            data_prefix=lambda job: "",
            bundle="",
            calls=AtOnce(),
            log=Journal(),
            epoch=held.epoch,
        )
        self.cycle = Cycle(ports)
        with ports.write() as tx:
            jobs.add(tx, JobSpec("ufm", "manager", ("train",), 1_000, steps_per_hour=100.0), self.clock.present)

    def turn(self) -> None:
        """Let a minute pass and run a cycle; if the database is lost, see that nothing is half written."""
        self.clock.present += 60
        self.turning = True
        try:
            self.cycle.run()
        except StoreFailure:
            self.turning = False
            assert verify(self.database) == []
        self.turning = False

    def until_live(self, *before: str) -> str:
        """Run cycles until the job trains in another session than ``before``, and return its key.

        A loss may cost one cycle, and a launch that was not begun its number.
        """
        for _ in range(_TURNS):
            self.turn()
            with self.database.read() as tx:
                live = [run.key for run in runs.live(tx) if isinstance(run.state, Running)]
            if live and live[0] not in before:
                (key,) = live
                assert set(self.cloud.sessions) == {*before, key}
                return key
        pytest.fail(f"no session is live after {_TURNS} cycles")

    def story(self) -> None:
        """Launch, save and leave, launch again, and see that nothing was done twice or half."""
        first = self.until_live()
        said = LaneReport(first, 0, "ufm", at=self.clock.present, outcome="yielded", phase="ended", step=3)
        self.artifacts.put(f"runs/{first}/lane-0/result.json", json.dumps(said.document()).encode())
        self.cloud.cut(first, self.clock.present + 30, "over")
        second = self.until_live(first)
        assert verify(self.database) == []
        with self.database.read() as tx:
            assert isinstance(active := jobs.get(tx, "ufm").state, Active)
            assert active.run == second
            assert isinstance(ended := runs.get(tx, first).state, Ended)
            assert ended.outcome is Outcome.YIELDED


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[[str], World]]:
    """Makes worlds, each in a schema of its own on a server."""
    opened: list[Database] = []

    def make(server: str) -> World:
        name = f"lost_{len(opened)}"
        plain = make_url(server).set(drivername="postgresql").render_as_string()
        with psycopg.connect(plain, autocommit=True) as admin:
            admin.execute(f"CREATE SCHEMA {name}".encode())
        url = make_url(server).update_query_dict({"options": f"-c search_path={name}"}).render_as_string()
        opened.append(open_database(url, create=True))
        return World(opened[-1], tmp_path / name)

    yield make
    for database in opened:
        database.close()


@contextmanager
def lost(world: World, number: int, lose: Callable[[int], object]) -> Iterator[list[str]]:
    """Lose the server before a statement or commit, counted from 1, of cycles while the body runs; all are listed."""
    seen: list[str] = []

    def at(connection: Any, words: str) -> None:
        if not world.turning:
            return
        seen.append(words)
        if len(seen) == number:
            lose(connection.connection.dbapi_connection.info.backend_pid)

    def statement(connection: Any, _cursor: Any, words: str, *_: Any) -> None:
        at(connection, words)

    def commit(connection: Any) -> None:
        at(connection, "COMMIT")

    engine = world.database._engine
    event.listen(engine, "before_cursor_execute", statement)
    event.listen(engine, "commit", commit)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", statement)
        event.remove(engine, "commit", commit)


def test_a_connection_lost_before_any_statement_leaves_nothing_half_written(
    postgresql: str, make_world: Callable[[str], World]
) -> None:
    plain = make_url(postgresql).set(drivername="postgresql").render_as_string()
    with psycopg.connect(plain, autocommit=True) as admin:

        def terminate(pid: int) -> None:
            assert admin.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,)).fetchone() == (True,)

        world = make_world(postgresql)
        with lost(world, 0, terminate) as seen:
            world.story()
        assert len(seen) > _STATEMENTS_MIN
        assert seen.count("COMMIT") > 5
        for number in range(1, len(seen) + 1, _STRIDE * one_in()):
            world = make_world(postgresql)
            with lost(world, number, terminate):
                world.story()


@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
def test_a_server_killed_in_a_transaction_has_none_of_it_when_it_returns(
    make_world: Callable[[str], World], part: float
) -> None:
    """Its postmaster dies by SIGKILL: what was committed is there after its recovery, the rest is not."""
    with Server.running(durable=True) as server:
        world = make_world(server.url)
        with lost(world, 0, print) as seen:
            world.story()
        inserts = [at for at, words in enumerate(seen, 1) if words.startswith("INSERT")]
        world = make_world(server.url)

        def kill(_: int) -> None:
            server.kill()
            server.start()

        with lost(world, inserts[round(part * len(inserts))], kill):
            world.story()
