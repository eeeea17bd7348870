"""Long work: a store, a corpus or a mail server that takes for ever keeps nobody else's session waiting."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR, Calendar
from jobs.spec import JobSpec
from platforms.artifacts.base import StoreUnreachable
from platforms.artifacts.directory import DirectoryStore
from scheduler.app import load_app
from scheduler.core.job import Active, Held, Queued
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Ended, Running
from scheduler.core.snapshot import Snapshot
from scheduler.daemon import Daemon, ServiceManager
from scheduler.notify.mail import Mailing
from scheduler.service.cycle import cycle
from scheduler.service.outside.calls import Calls, tell
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.store import events, jobs, ledger, limits, runs
from scheduler.store.engine import Database, upgrade
from scheduler.views.long_work import LongWork, long_work
from scheduler.views.needs import needs
from tests.lab.fake import FakeCloud, FakePlatform, Script
from tests.lab.patience import until

NOW = 1_795_000_000
GOOD, BAD = "uff-good-0001", "uff-bad-0001"
_PATIENCE = 5.0  # of a whole cycle, real seconds; what does not hang answers in a thousandth of it
_HANGS_SECONDS = 40.0  # "for ever": whoever waits so long has failed the test


@dataclass
class Hanging:
    """Something that hangs until it is let go; ``waited_out`` are those that waited for it to the end."""

    free: threading.Event = field(default_factory=threading.Event)
    on: bool = False
    waited_out: list[str] = field(default_factory=list)

    def meet(self, who: str) -> None:
        """Hang."""
        if self.on and not self.free.wait(_HANGS_SECONDS):
            self.waited_out.append(who)
            raise StoreUnreachable("reach", who, "it hung")


class HangingStore(DirectoryStore):
    """A store that hangs whenever something of ``bad`` is asked for."""

    def __init__(self, root: Path, hanging: Hanging) -> None:
        super().__init__(root)
        self._hanging = hanging

    def _meet(self, key: str) -> None:
        if "bad" in key:
            self._hanging.meet(key)

    def read(self, key: str, limit_bytes: int = 1 << 24) -> bytes:
        """See BlobStore.read."""
        self._meet(key)
        return super().read(key, limit_bytes)

    def put(self, key: str, data: bytes) -> None:
        """See BlobStore.put."""
        self._meet(key)
        super().put(key, data)

    def size(self, key: str) -> int | None:
        """See BlobStore.size."""
        self._meet(key)
        return super().size(key)

    def keys(self, prefix: str) -> Iterator[str]:
        """See BlobStore.keys."""
        self._meet(prefix)
        return super().keys(prefix)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """What hangs in a test; it is let go at the end."""
    found = Hanging()
    yield found
    found.free.set()


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database, tmp_path: Path, hanging: Hanging) -> SimpleNamespace:
    """Two jobs, each with a pool of its own, and a store that may hang on one of them."""
    clouds = {name: FakeCloud(4, usual=Script(runs_seconds=None)) for name in ("bad", "good")}

    def plan(found: Snapshot, incumbent: Plan | None) -> Plan:
        free = [job.name for job in found.jobs if job.running is None and job.blocked is None]
        due = tuple(Placement(name, found.now, found.now + HOUR, (PlannedLane(name, 1, 100),)) for name in free)
        return Plan(found.now, due, ())

    ports = make_ports(
        platforms={name: FakePlatform(cloud) for name, cloud in clouds.items()},
        pools={name: Pool(name, "fake", "CPU") for name in clouds},
        plan=plan,
        artifacts=HangingStore(tmp_path / "store", hanging),
        calls=Calls(_PATIENCE),
    )
    with database.write() as tx:
        for name in clouds:
            jobs.add(tx, JobSpec(name, "manager", ("train",), 1_000, steps_per_hour=100.0), NOW)
    return SimpleNamespace(
        ports=ports, clouds=clouds, cycle=cycle.Cycle(ports), database=database, clock=ports.clock, hanging=hanging
    )


def turn(world: SimpleNamespace, seconds: int = 60) -> None:
    world.clock.present += seconds
    world.cycle.run()


def state(world: SimpleNamespace, name: str) -> Any:
    with world.database.read() as tx:
        return (runs.get(tx, name) if name.startswith("uff-") else jobs.get(tx, name)).state


def see_good_through(world: SimpleNamespace) -> None:
    """Have the good session observed, asked to stop, ended and booked, while something of the bad one hangs."""
    queue.hold(world.database, "good", "for a while", world.clock.now(), "ann")
    turn(world)
    assert world.ports.artifacts.size(f"runs/{GOOD}/stop") is not None
    world.clouds["good"].cut(GOOD, world.clock.present + 30, "stopped")
    turn(world)
    assert isinstance(state(world, GOOD), Ended)
    assert isinstance(state(world, "good"), Held)
    with world.database.read() as tx:
        (charge,) = ledger.charges(tx, 0)["good"]
    assert (charge.held, charge.end) == (False, world.clock.present - 30)
    assert world.hanging.waited_out == [], "nobody waits for what hangs"


def test_a_store_that_hangs_on_one_session_holds_up_no_other(world: SimpleNamespace) -> None:
    world.cycle.run()
    assert isinstance(state(world, GOOD), Running)
    world.hanging.on = True
    queue.hold(world.database, "bad", "for a while", world.clock.now(), "ann")
    see_good_through(world)
    assert not isinstance(state(world, BAD), Ended)
    world.hanging.on = False
    world.hanging.free.set()
    world.clouds["bad"].cut(BAD, world.clock.present, "stopped")
    for _ in range(4):
        turn(world)
    assert isinstance(state(world, BAD), Ended)
    assert isinstance(state(world, "bad"), Held)


@pytest.mark.parametrize("late", ["in time", "closed since", "mostly over"])
def test_a_plan_that_takes_long_holds_up_nothing_and_is_carried_out_as_far_as_it_still_holds(
    world: SimpleNamespace, late: str
) -> None:
    turn(world)
    see_good_through(world)
    world.clouds["bad"].cut(BAD, world.clock.present, "ended")
    honest = world.ports.plan

    def plan(found: Snapshot, incumbent: Plan | None) -> Plan:
        made: Plan = honest(found, incumbent)
        world.hanging.meet("plan")
        return made

    world.ports = replace(world.ports, plan=plan)
    world.cycle, world.hanging.on = cycle.Cycle(world.ports), True
    queue.release(world.database, "good", world.clock.now(), "ann")
    turn(world)
    assert world.ports.calls.under_way("plan")
    turn(world)
    assert len(world.clouds["good"].sessions) == 1
    if late == "closed since":
        with world.database.write() as tx:
            limits.close_pool(tx, "good", None, "gone for repair", world.clock.now(), "ann")
    elif late == "mostly over":
        world.clock.present += HOUR // 2
    world.hanging.free.set()
    world.ports.calls.settle(("plan",), 10.0)
    world.cycle.run()
    assert len(world.clouds["good"].sessions) == (2 if late == "in time" else 1)
    assert world.hanging.waited_out == []


def test_what_was_read_of_a_store_before_a_session_ended_is_not_its_end(world: SimpleNamespace) -> None:
    """An answer that comes late is one of before: the last word, said meanwhile, must not be missed."""
    world.cycle.run()
    world.hanging.on = True
    turn(world)  # the store is asked while the session runs
    world.clouds["bad"].cut(BAD, world.clock.present, "exit code 0")
    assert world.ports.calls.under_way("reports") == {f"{BAD}, running"}
    world.hanging.free.set()
    world.ports.calls.settle(("reports",), 10.0)
    world.hanging.free.clear()
    turn(world)
    assert not isinstance(state(world, BAD), Ended)
    world.hanging.on = False
    world.hanging.free.set()
    for _ in range(3):
        turn(world)
    assert isinstance(state(world, BAD), Ended)


def test_a_store_that_is_always_late_is_believed_in_the_end(world: SimpleNamespace) -> None:
    """Its answers come one by one, and what it has told of an ended session is not asked for anew meanwhile."""
    world.cycle.run()
    asked, looks = world.ports.calls.gather, [0]

    def one_by_one(kind: str, work: Any) -> Any:
        answers = asked(kind, work)
        given = {"reports": looks[0] % 2 == 0, "manifests": looks[0] % 2 == 1}
        return answers if given.get(kind, True) else {}

    world.ports.calls.gather = one_by_one
    world.clouds["bad"].cut(BAD, world.clock.present, "over")
    for looks[0] in range(6):
        turn(world)
    assert isinstance(state(world, BAD), Ended)


def test_data_that_are_being_made_hold_up_no_other_session_and_are_there_before_their_own(
    world: SimpleNamespace,
) -> None:
    ready: list[str] = []

    def data(job: str) -> str:
        if job == "bad" and not ready:
            world.hanging.meet(f"data of {job}")
            ready.append(job)
        return f"data/{job}"

    world.ports = Ports(**{name: getattr(world.ports, name) for name in world.ports.__slots__} | {"data_prefix": data})
    world.cycle, world.hanging.on = cycle.Cycle(world.ports), True

    def is_launched() -> bool:
        world.cycle.run()  # on a busy machine the answer to the launch is heard by the next: the first one's time is up
        return isinstance(state(world, GOOD), Running)

    until(is_launched, "the good session")
    see_good_through(world)
    assert isinstance(state(world, "bad"), Queued), "not before its data are there"
    assert world.ports.calls.under_way("data") == {"bad"}, "once, however often it is planned"
    world.hanging.free.set()
    world.ports.calls.settle(("data",), 10.0)
    turn(world, 1)  # as soon as they are, not when the next plan would be made
    assert isinstance(state(world, "bad"), Active)
    assert world.clouds["bad"].sessions[BAD].request.launch["lanes"][0]["data"] == "data/bad"


def test_data_that_cannot_be_made_need_a_person_and_hold_up_nobody(world: SimpleNamespace) -> None:
    why = ["the sources are empty"]

    def data(job: str) -> str:
        if job == "bad" and why:
            raise LookupError(why[0])
        return ""

    world.ports = Ports(**{name: getattr(world.ports, name) for name in world.ports.__slots__} | {"data_prefix": data})
    world.cycle, work = cycle.Cycle(world.ports), LongWork()
    turn(world)
    work.record(world.ports, world.clock.now())
    assert isinstance(state(world, GOOD), Running)
    with world.database.read() as tx:
        found = [(one.what, one.subject, one.why) for one in needs(tx, ["bad", "good"], NOW, world.clock.now())]
    assert ("work failed", "training data of bad", "LookupError: the sources are empty") in found
    why.clear()
    turn(world, HOUR)
    work.record(world.ports, world.clock.now())
    assert isinstance(state(world, "bad"), Active)
    with world.database.read() as tx:
        assert long_work(tx) == []


def test_a_session_is_not_launched_while_what_its_job_left_is_being_deleted(world: SimpleNamespace) -> None:
    """It might be about to name just what is deleted: a component that is there is not uploaded again."""
    world.hanging.on = True
    calls = world.ports.calls
    calls._patience = 0.05
    assert calls.gather("components", {"bad": lambda: world.hanging.meet("components of bad")}) == {}
    calls._patience = _PATIENCE
    world.cycle.run()
    assert isinstance(state(world, "good"), Active)
    assert isinstance(state(world, "bad"), Queued)
    world.hanging.free.set()
    calls.settle(("components",), 10.0)
    turn(world, 1)
    assert isinstance(state(world, "bad"), Active)


def test_long_work_is_told_with_how_far_it_is_and_ends_with_its_daemon(
    make_ports: Callable[..., Ports], hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.views.long_work._DATA_SHOWN_WALL_SECONDS", 0.0)
    ports, work, hanging.on = make_ports(calls=Calls(0.05)), LongWork(), True

    def make() -> None:
        tell("reading the corpus, 35 % done")
        hanging.meet("corpus")

    ports.calls.gather("data", {"ufm": make})
    for later in (0, 60, 1_700):
        work.record(ports, NOW + later)
    with ports.database.read() as tx:
        assert [(one.what, one.state, one.told) for one in long_work(tx)] == [
            ("training data of ufm", "under way", "reading the corpus, 35 % done")
        ]
        assert len(events.tail(tx, kinds=("daemon.work",))) == 1, "only what is new is written"
    work.record(ports, NOW + 1_801)
    with ports.write() as tx:
        assert [need.what for need in needs(tx, [], NOW, NOW)] == ["work stands still"]
        events.append(tx, "daemon.started", "daemon", NOW + 1_802)
        assert long_work(tx) == []
    hanging.free.set()
    ports.calls.settle(("data",), 10.0)
    work.record(ports, NOW + 1_900)
    with ports.database.read() as tx:
        assert long_work(tx) == []


CONFIG = """
state_dir = "state"
models = []

[[pools]]
name = "desk"
platform = "local"
"""


def test_a_mail_server_that_hangs_holds_up_neither_the_list_of_needs_nor_the_stop(
    tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    app = load_app(tmp_path / "config.toml", {})
    upgrade(app.settings.database_url)
    hanging.on = True
    daemon = Daemon(app, structlog.get_logger(), manager=ServiceManager(""))
    daemon._calls._patience = 0.05
    daemon._use(app, app.ports(daemon.log, 0))
    monkeypatch.setattr("scheduler.notify.mail.write", lambda *_: hanging.meet("mail"))
    with app.database.write() as tx:
        jobs.add(tx, JobSpec("j", "main", ("true",), 10, 1.0), NOW)
    queue.hold(app.database, "j", "a question", NOW, "ann")
    app.__dict__["mailing"] = Mailing({}, "UTC", Calendar("week", "UTC"), 900, None)
    for _ in range(2):
        daemon._mail()
    assert daemon._actions == 1
    assert daemon._calls.under_way("letters") == {""}
    assert hanging.waited_out == []
    hanging.free.set()
    daemon._calls.settle(("letters",), 10.0)
    app.database.close()


class Turns(Calls):
    """Calls that note in which order turns begin and questions are asked."""

    def __init__(self) -> None:
        super().__init__(_PATIENCE)
        self.noted: list[str] = []

    def begin(self) -> None:
        """See Calls.begin."""
        self.noted.append("turn")
        super().begin()

    def gather(self, kind: str, work: Any) -> Any:
        """See Calls.gather."""
        self.noted.append("question")
        return super().gather(kind, work)


def test_every_cycle_is_a_turn_of_its_own_so_that_all_its_questions_share_one_patience(world: SimpleNamespace) -> None:
    calls = Turns()
    found = cycle.Cycle(replace(world.ports, calls=calls))
    for _ in range(2):
        calls.noted.clear()
        found.run()
        assert calls.noted[0] == "turn"
        assert calls.noted.count("turn") == 1
        assert "question" in calls.noted
