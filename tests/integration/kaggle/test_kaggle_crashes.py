"""The daemon dies before or after any call to Kaggle, any note of the adapter and any file it brings home.

The next one, which knows only what is in the database, on disk and on Kaggle, must come to the truth: nothing runs
twice, nothing is left running or lying about, what was trained is kept, and the ledger ends at Kaggle's bill.
"""

import itertools
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import Calendar, Window
from jobs.payload import deadline
from jobs.spec import JobSpec
from platforms.artifacts.directory import DirectoryStore
from platforms.kaggle.api.wire import Wire
from platforms.kaggle.session.observer import LaunchRecords
from scheduler.clock import stopwatch
from scheduler.core.job import Done, Held, Queued
from scheduler.core.ledger import seconds_within
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Ended
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.calls import Calls
from scheduler.service.outside.ports import Policy, Ports
from scheduler.service.quota.audit import audit, settled_seconds
from scheduler.service.requests import queue
from scheduler.store import jobs, lease, ledger, runs
from scheduler.store.engine import Database, open_database, upgrade
from tests.lab.night import one_in
from tests.lab.patience import PATIENCE_SECONDS

Account = Any
SCALE, LONG_SCALE = 1_800.0, 600.0  # a session that waits to be held must not reach its limit on a slow machine
SESSION_SECONDS = 40_000
WEEK_SECONDS = 10**8  # of GPU time: more than is ever used, and no more than a week of a thousand sessions can be
LOOK_SECONDS = 0.05  # of real time between two cycles; who looks more often meets the same moments again and again
LAUNCH_MOMENTS = 24  # of a life; they are the same whatever comes later
VISIBLE_SECONDS, OVERDUE_SECONDS, LONG_OVERDUE_SECONDS = 900, 900, 36_000
# Stands in for the payload, which takes a second to load: publishes one checkpoint by the book and leaves its last
# word; or trains until the stop flag is there.
AGENT = """
import hashlib, json, pathlib, sys, time
launch = json.load(open(sys.argv[1]))
root, run, (lane,) = pathlib.Path(launch["store"]["root"]), launch["run"], launch["lanes"]
job, attempt, flag = lane["job"], lane["attempt"], root / "runs" / run / "stop"
print("training", flush=True)
if "wait" in lane["command"]:
    while not flag.exists():
        time.sleep(0.01)  # the pace of a training that looks for the flag at each step
step = lane["target_step"] // (2 if flag.exists() else 1)
blob = b"weights of %d" % step
sha256 = hashlib.sha256(blob).hexdigest()
manifest = {"format": 1, "job": job, "step": step, "attempt": attempt, "run": run, "lane": 0, "parent": None,
    "created_at": 1, "trained_seconds": 1, "components": [{"name": "w", "sha256": sha256, "bytes": len(blob)}]}
outcome = {"outcome": "yielded" if flag.exists() else "finished", "checkpoint_step": step}
for path, data in {
    f"jobs/{job}/blobs/{sha256}": blob,
    f"jobs/{job}/manifests/{step:012d}-{attempt:06d}.json": json.dumps(manifest).encode(),
    f"runs/{run}/lane-0/result.json": json.dumps(outcome).encode(),
}.items():
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)
"""


class InOrder(Calls):
    """Calls one after the other, so that what happens has numbers."""

    def gather(self, kind: str, work: Any) -> dict[str, Any]:
        """Do all of it."""
        del kind
        return {name: ask() for name, ask in work.items()}


class Died(BaseException):
    """Stands for a daemon that is killed: nothing may catch it and go on."""


@dataclass
class Fuse:
    """Lets the process die before (even) or after (odd) its step ``moment // 2``; what it does once dead is nothing."""

    moment: int | None = None
    steps: Iterator[int] = field(default_factory=itertools.count)
    blown: bool = False

    def step(self, work: Callable[[], Any]) -> Any:
        """Do one step, unless it is the one."""
        number = next(self.steps)
        if self.blown or self.moment == 2 * number:
            self.blown = True
            raise Died
        try:
            return work()
        finally:
            if self.moment == 2 * number + 1:
                self.blown = True
                raise Died


@dataclass
class World:
    """One pool on an emulated account, and a daemon that may be killed and started again at any time."""

    account: Account
    database: Database
    bundle: Path
    fuse: Fuse = field(default_factory=Fuse)
    daemon: Cycle | None = None
    overdue_seconds: int = OVERDUE_SECONDS

    def cycle(self) -> None:
        """One cycle of the daemon; after a death, of the next one, which knows nothing of what the old one did."""
        try:
            if self.daemon is None:
                self.daemon = self._start()
            self.daemon.run()
        except Died:
            self.daemon = None
            raise

    def _start(self) -> Cycle:
        taken = lease.acquire(self.database, "test", 600)
        assert taken is not None
        quota = CalendarQuota("GPU hours of the week", WEEK_SECONDS, Calendar("week", "UTC", 5))
        self.ports = Ports(
            database=self.database,
            artifacts=DirectoryStore(self.account.folder / "store"),
            platforms={"kaggle": self._adapter()},
            pools={"kaggle": Pool("kaggle", "kaggle", "T4 x2", quotas=(quota,), visibility_seconds=0)},
            clock=self.account.clock,
            policy=Policy(overdue_seconds=self.overdue_seconds),
            plan=lambda snapshot, _: self._plan(),
            data_prefix=lambda _: "",
            bundle=str(self.bundle),
            log=structlog.get_logger(),
            epoch=taken.epoch,
            calls=InOrder(),
        )
        return Cycle(self.ports)

    def _adapter(self) -> Any:
        """A push that died with its daemon does not arrive later, so an intent is given up soon."""
        adapter: Any = self.account.adapter(tries="1")
        adapter.capabilities = replace(adapter.capabilities, visibility_seconds=VISIBLE_SECONDS)
        return adapter

    def _plan(self) -> Plan:
        now = self.account.now()
        with self.database.read() as tx:
            waiting = [record.spec.name for record in jobs.everything(tx) if isinstance(record.state, Queued)]
        session = [
            Placement("kaggle", now, now + SESSION_SECONDS, (PlannedLane(name, 1, 100),)) for name in waiting[:1]
        ]
        return Plan(now, tuple(session), ())

    def live(self) -> list[Any]:
        """Sessions that the place still bills."""
        return [session for session in self.account.place.sessions() if session.live]

    def close(self) -> None:
        """End the place."""
        self.account.server.close()
        self.database.close()

    def settled(self) -> bool:
        """Whether the job is at its end and no run is open."""
        with self.database.read() as tx:
            return not runs.live(tx) and not isinstance(jobs.get(tx, "ufm").state, Queued)


@pytest.fixture
def world_at(
    account_at: Callable[..., Account], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., World]:
    """Open worlds whose daemons go by one fuse."""
    fuses: list[Fuse] = []
    bundle = tmp_path / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    # The notebook asks Kaggle by the payload's own client.
    shutil.copy(Path(deadline.__file__), bundle / "payload")
    for owner, name in (
        (Wire, "call"),
        (Wire, "put"),
        (Wire, "_receive"),
        (LaunchRecords, "write"),
        (DirectoryStore, "create"),
    ):
        monkeypatch.setattr(owner, name, _guarded(getattr(owner, name), fuses))

    def open_world(training: str, moment: int | None, **rules: Any) -> World:
        number = len(fuses)
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        upgrade(url)
        waits = training == "wait"
        account = account_at(scale=LONG_SCALE if waits else SCALE, gpu_seconds_per_week=WEEK_SECONDS, **rules)
        world = World(account, open_database(url), bundle, Fuse(moment))
        world.overdue_seconds = LONG_OVERDUE_SECONDS if waits else OVERDUE_SECONDS
        fuses.append(world.fuse)
        spec = JobSpec("ufm", "manager", ("{python}", training), target_step=100, steps_per_hour=1_000.0)
        queue.add(world.database, [spec], world.account.now(), "test")
        return world

    return open_world


def _guarded(work: Callable[..., Any], fuses: list[Fuse]) -> Callable[..., Any]:
    return lambda *words, **options: fuses[-1].step(lambda: work(*words, **options))


def live_through(world: World, heard: bool | None = None) -> int:
    """Run daemons until everything is settled, and return how many deaths there were.

    With ``heard`` the job is held, once its session has said whether it can be asked to save.
    """
    deaths, held = 0, heard is None
    end = stopwatch() + PATIENCE_SECONDS
    while not world.settled():
        if stopwatch() > end:
            with world.database.read() as tx:
                pytest.fail(f"it was never settled: {runs.live(tx)}, {jobs.get(tx, 'ufm').state}")
        try:
            world.cycle()
        except Died:
            deaths += 1
            world.fuse.blown, world.fuse.moment = False, None  # the next daemon lives
        if not held and any(said(world.account) is heard for _ in world.live()):
            queue.hold(world.database, "ufm", "test", world.account.now(), "test")
            held = True
        world.account.patience.wait(LOOK_SECONDS)
    return deaths


def said(account: Account) -> bool | None:
    """What the newest session has said of whether it can be asked."""
    return LaunchRecords(account.folder / "state" / "launches").report(max(account.place.kernels, default="")).hears


def audit_all(world: World, moment: int | None) -> None:
    """Nothing ran twice, nothing is left running or lying about, and the books agree to the second."""
    where = f"moment {moment}"
    world.fuse.moment = None
    sessions = world.account.place.sessions()
    assert not world.live(), where
    with world.database.read() as tx:
        ended = [run for run in runs.recent(tx, 100) if isinstance(run.state, Ended)]
    began = [run for run in ended if isinstance(run.state, Ended) and run.state.started is not None]
    assert len(sessions) == len(began) == 1, where  # what was trained is never trained again
    spans = sorted((session.started_at, session.ended_at) for session in sessions if session.started_at is not None)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans)), where
    clock = world.account.clock
    clock = replace(clock, epoch=clock.epoch + 2 * settled_seconds(clock))  # more of it the faster the clock goes
    later = clock.now()
    audit(replace(world.ports, clock=clock), later)
    start, end = world.account.place.week(later)
    with world.database.read() as tx:
        booked = seconds_within(ledger.charges(tx, 0)["kaggle"], Window(int(start), int(end)))
    assert booked == math.ceil(world.account.place.seconds_used(start, end)), where
    platform = world.ports.platforms["kaggle"]
    assert platform.orphans([], later) == [], where
    platform.sweep([run.key for run in ended], later + 8 * 86_400)
    assert world.account.place.kernels == {}, where
    assert [slug for slug, made in world.account.place.storage.datasets.items() if not made.deleted] == [], where


def _moments(world_at: Callable[..., World], training: str, heard: bool | None = None) -> int:
    """Return how many moments a life without death has; one that is looked at more often has more."""
    world = world_at(training, None, lets_kernels_in=heard is not False)
    assert live_through(world, heard) == 0
    audit_all(world, None)
    world.close()
    return 2 * next(world.fuse.steps)


@pytest.mark.parametrize("part", range(4))
def test_a_job_that_is_launched_polled_and_collected(world_at: Callable[..., World], part: int) -> None:
    moments = _moments(world_at, "finish")
    assert moments > 2 * LAUNCH_MOMENTS
    for moment in range(part, moments, 4 * one_in()):
        world = world_at("finish", moment)
        live_through(world)
        audit_all(world, moment)
        with world.database.read() as tx:
            record = jobs.get(tx, "ufm")
        assert isinstance(record.state, Done), f"moment {moment}"
        assert world.ports.artifacts.size(str(record.checkpoint)) is not None
        world.close()


@pytest.mark.parametrize("heard", [True, False])
def test_a_job_that_is_held_while_it_runs(world_at: Callable[..., World], heard: bool) -> None:
    """Asked where it can be asked, and ended by force where it cannot."""
    moments = _moments(world_at, "wait", heard=heard)
    for moment in range(LAUNCH_MOMENTS, moments, one_in()):
        world = world_at("wait", moment, lets_kernels_in=heard)
        live_through(world, heard=heard)
        audit_all(world, moment)
        with world.database.read() as tx:
            record = jobs.get(tx, "ufm")
        assert isinstance(record.state, Held), f"moment {moment}"
        assert record.done_step == (50 if heard else 0), f"moment {moment}"
        world.close()
