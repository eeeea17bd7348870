"""Facts about a pool that later sessions contradict: each is one action for a person, until the fact is settled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from jobs.spec import JobSpec
from platforms.base import Capabilities, Observed, QuotaReading, SessionState, StopChannel
from platforms.facts import Facts, facts_of
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.report.report import Need
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.cycle.late_sessions import observe_late
from scheduler.service.facts.contradictions import settle
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import read_books, recheck
from scheduler.service.requests import sessions
from scheduler.store import jobs, ledger, runs, watched
from scheduler.views.needs import needs
from tests.lab.fake import FakeCloud, FakePlatform, Fault, Script

NOW = 1_795_000_000
KEY = "uff-ufm-0001"
QUOTA = CalendarQuota("GPU hours", 30 * HOUR, Calendar("week", "UTC", 5))
WINDOW = QUOTA.calendar.window_at(NOW)
CONFIRMED = {"visible": "within visibility", "stop-flag": "yes", "device": "yes, to a minute", "log-limit": "yes"}


class Frank(FakePlatform):
    """A platform whose ended sessions contradict facts, and may not be asked to leave."""

    def __init__(self, cloud: FakeCloud) -> None:
        super().__init__(cloud)
        self.shown: dict[str, str] = {}
        self.channel = StopChannel.STORE
        self.capabilities = Capabilities(reports_quota=bool(cloud.quota), bills_late=True)

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Report the sessions."""
        found = super().find(keys, now).items()
        return {key: replace(one, contradicts=self.shown, stop_channel=self.channel) for key, one in found}


@dataclass
class World:
    """A pool with facts that an acceptance run confirmed, and a job."""

    ports: Ports
    cloud: FakeCloud
    facts: Facts
    plans: list[Plan]
    cycle: Cycle

    @property
    def platform(self) -> Frank:
        """The pool's adapter."""
        platform = self.ports.platforms["paid"]
        assert isinstance(platform, Frank)
        return platform

    @property
    def now(self) -> int:
        """The present, in UTC seconds."""
        return self.ports.clock.now()

    def launch(self, script: Script) -> str:
        """Launch a session of two hours; return its run ID."""
        self.cloud.usual = script
        self.plans.append(Plan(self.now, (Placement("paid", self.now, self.now + 2 * HOUR, (LANE,)),), ()))
        self.after(0)
        with self.ports.database.read() as tx:
            (run,) = runs.live(tx)
        return run.key

    def after(self, *pauses: int) -> None:
        """Run a cycle after each pause, in seconds."""
        for seconds in pauses:
            self.ports.clock.present += seconds  # type: ignore[attr-defined]
            self.cycle.run()

    def required(self) -> list[Need]:
        """Return the actions about facts."""
        with self.ports.database.read() as tx:
            return [need for need in needs(tx, self.ports.pools, 0, self.now) if need.what == "fact contradicted"]

    def ended(self, waited: int) -> None:
        """Charge a session of an hour that waited before it began."""
        began, over = NOW - 2 * HOUR, NOW - HOUR
        pushed, lanes = began - waited, (Lane(0, "ufm", 1, (0,), None),)
        with self.ports.write() as tx:
            runs.insert(tx, Run(KEY, "paid", lanes, pushed, over, over, Ended(Outcome.FINISHED, over, began)), pushed)
            held = LedgerEntry(EntryKind.HOLD, "paid", KEY, pushed, over, pushed)
            ledger.append(tx, [held, replace(held, kind=EntryKind.SPEND, start=began, at=over)])


LANE = PlannedLane("ufm", 1, 500)


def confirmed(date: str) -> Facts:
    """Return the facts of an acceptance run."""
    return {
        name: {"value": value, "assumed": value, "source": f"acceptance {date}, {name}"}
        for name, value in CONFIRMED.items()
    }


@pytest.fixture
def world(make_ports: Callable[..., Ports]) -> World:
    plans, cloud = list[Plan](), FakeCloud(quota=[QuotaReading(QUOTA.name, WINDOW.start, WINDOW.end, 30 * HOUR, 0)])
    facts = confirmed("2026-11-20")
    ports = make_ports(
        platforms={"paid": Frank(cloud)},
        pools={"paid": Pool("paid", "fake", "T4", (QUOTA,), visibility_seconds=60)},
        plan=lambda snapshot, _: plans.pop() if plans else Plan(snapshot.now, (), ()),
        facts=lambda: {"paid": facts},
    )
    ports.clock.present = NOW  # type: ignore[attr-defined]
    with ports.write() as tx:
        jobs.add(tx, JobSpec("ufm", "main", ("train",), 500, 100.0), NOW)
    return World(ports, cloud, facts, plans, Cycle(ports))


def test_a_session_that_agrees_with_every_fact_requires_nothing(world: World) -> None:
    world.launch(Script(fault=Fault.LOST_ANSWER, hidden_seconds=50, runs_seconds=HOUR))
    world.after(30, 30, HOUR, 60)
    with world.ports.database.read() as tx:
        assert runs.live(tx) == []
    assert world.required() == []


def test_what_a_platform_reports_of_a_session_is_one_action_until_the_fact_is_settled(world: World) -> None:
    world.platform.shown = {"log-limit": "its log ends after 1.0 MB", "no-such-fact": "anything", "stop-flag": ""}
    key = world.launch(Script(runs_seconds=HOUR))
    at = world.now + 60
    world.after(60, 60)
    (need,) = world.required()
    assert (need.subject, need.remedy, need.since) == (
        "log-limit of paid",
        "schedctl acceptance paid --only log-limit",
        at,
    )
    assert need.why == (
        f"log-limit is yes (acceptance 2026-11-20, log-limit), but {key} shows otherwise: its log ends after 1.0 MB"
    )
    settle(world.ports, world.now)
    assert world.required() == [need], "nothing has changed"
    world.facts.update(confirmed("2026-11-29"))
    settle(world.ports, world.now)
    assert world.required() == []


def test_a_fact_that_is_gone_is_settled_and_none_is_required_without_one(world: World) -> None:
    world.platform.shown = {"log-limit": "its log ends after 1.0 MB"}
    world.launch(Script(runs_seconds=HOUR))
    world.after(60)
    assert len(world.required()) == 1
    world.facts.clear()
    settle(world.ports, world.now)
    world.after(60)
    assert world.required() == []


def test_a_session_that_is_listed_late_contradicts_the_visibility(world: World) -> None:
    key = world.launch(Script(fault=Fault.LOST_ANSWER, hidden_seconds=200))
    world.after(50, 50, 50, 60)
    (need,) = world.required()
    assert need.subject == "visible of paid"
    assert "visibility is 1m (acceptance 2026-11-20, visible)" in need.why
    assert f"{key} shows otherwise: its platform did not list it 150 s after its launch" in need.why


def test_a_daemon_that_was_away_shows_no_visibility(world: World) -> None:
    world.launch(Script(fault=Fault.LOST_ANSWER))
    world.after(300)
    assert world.required() == []


def test_a_session_that_shows_up_after_it_was_given_up_contradicts_the_visibility(world: World) -> None:
    given_up, lanes = Ended(Outcome.REJECTED, NOW - HOUR, None), (Lane(0, "ufm", 1, (0,), None),)
    with world.ports.write() as tx:
        runs.insert(tx, Run(KEY, "paid", lanes, NOW - 2 * HOUR, NOW, NOW, given_up), NOW - 2 * HOUR)
        watched.add(tx, KEY, NOW + DAY, None)
        late = watched.everything(tx)
    running = Observed(KEY, SessionState.RUNNING, "fake", NOW - HOUR)
    world.platform.find = lambda keys, now: {KEY: running}  # type: ignore[method-assign]
    observe_late(world.ports, late, NOW)
    (need,) = world.required()
    assert need.subject == "visible of paid"
    assert f"it ran {2 * HOUR} s after its launch, although its platform had not listed it" in need.why


@pytest.mark.parametrize(("channel", "subjects"), [(StopChannel.STORE, ["stop-flag of paid"]), (StopChannel.NONE, [])])
def test_a_session_that_ignores_its_stop_contradicts_the_stop_flag(
    world: World, channel: StopChannel, subjects: list[str]
) -> None:
    """Where it cannot be asked, that is known."""
    key = world.launch(Script(stop_seconds=None))
    sessions.stop(world.ports.database, world.ports.artifacts, key, "enough", world.now, "mia")
    world.platform.channel = channel
    world.after(60, 300)
    assert world.required() == []
    world.after(300)
    assert [need.subject for need in world.required()] == subjects


@pytest.mark.parametrize(("waited", "subjects"), [(0, []), (60, []), (600, ["device of paid"])])
def test_a_wait_that_is_billed_contradicts_the_bill(world: World, waited: int, subjects: list[str]) -> None:
    world.ended(waited)
    world.cloud.quota = [replace(world.cloud.quota[0], used_seconds=HOUR + waited)]
    read_books(world.ports, ["paid"])
    assert [need.subject for need in world.required()] == subjects
    assert all(f"{KEY} shows otherwise: {waited} s of its wait were billed" in need.why for need in world.required())


@pytest.mark.parametrize(("more", "subjects"), [(0, []), (60, []), (-61, ["device of paid"])])
def test_a_late_bill_that_differs_contradicts_the_bill(world: World, more: int, subjects: list[str]) -> None:
    world.ended(0)
    over = Observed(KEY, SessionState.ENDED, "fake", NOW - 2 * HOUR, NOW - HOUR + more)
    world.platform.find = lambda keys, now: {KEY: over}  # type: ignore[method-assign]
    recheck(world.ports, NOW)
    assert [need.subject for need in world.required()] == subjects
    assert all(f"its bill differs from our count by {more} s" in need.why for need in world.required())


def test_a_setting_is_no_fact() -> None:
    """It silences what is shipped and what was observed; other facts of the pool stay."""
    pool = Pool("tpu", "kaggle", "TPU v5e-8", options={"machine_shape": "other"})
    observed: Facts = {"visibility_seconds": {"value": 300, "assumed": "within visibility", "source": "acceptance"}}
    assert set(facts_of(replace(pool, options={}), observed, {})) == {
        "session_cap_seconds",
        "options.machine_shape",
        "visibility_seconds",
    }
    assert set(facts_of(pool, observed, {"session_cap": "6h"})) == {"visibility_seconds"}
    assert facts_of(pool, observed, {"session_cap": "6h", "visibility": "5m"}) == {}
