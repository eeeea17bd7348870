"""The daemon's deployments: from what is in force to what a real folder serves, cut off at every step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs.payload.store.manifest import blob_key
from platforms.artifacts.base import StoreUnreachable
from platforms.targets.base import DeployOutcome, TargetContext, TargetUnreachable, open_target
from scheduler.core.plan import Plan
from scheduler.core.version import DeploymentRule
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.deploy.deployer import Deployer, Deployments, carry_out
from scheduler.service.outside.ports import Ports, ServedAt
from scheduler.service.versions.model_sync import read_watch, roll_back_by_votes
from scheduler.store import checkpoints, deployments, events
from scheduler.store.deployments import DAEMON
from scheduler.store.engine import Database
from tests.lab.clocks import HandClock
from tests.lab.releases import WEIGHTS, weights
from tests.lab.versions import make_version, put_in_force

if TYPE_CHECKING:
    from platforms.targets.base import Deployed, Release, Served, Target
    from scheduler.store.versions import Version

HEALTH = f"! grep -q bad $FOLDER/{WEIGHTS}"


@dataclass
class Shaken:
    """A target of which a test decides what happens around its calls."""

    target: Target
    before: Callable[[str], None] = lambda _call: None
    after: Callable[[str], None] = lambda _call: None

    def read(self, model: str, *, deep: bool = False) -> Served:
        """See Target.read."""
        self.before("read")
        return self.target.read(model, deep=deep)

    def deploy(self, release: Release) -> Deployed:
        """See Target.deploy."""
        self.before("deploy")
        done = self.target.deploy(release)
        self.after("deploy")
        return done

    def go_back(self, model: str, leaving: int) -> Deployed:
        """See Target.go_back."""
        self.before("go_back")
        return self.target.go_back(model, leaving)


@dataclass
class World:
    """A daemon's ports with one folder target, and models whose versions a test makes."""

    ports: Ports
    clock: HandClock
    root: Path
    target: Shaken

    def version(self, model: str, data: bytes) -> Version:
        """Save a checkpoint with these weights, and make a version of it in force."""
        return make_version(self.ports.database, self.ports.artifacts, self.clock.now(), data, model)

    def put_in_force(self, version: Version) -> None:
        """Promote a version, whatever it is."""
        put_in_force(self.ports.database, version, self.clock.now())

    def cycle(self, seconds: int = 60) -> None:
        """Let a new daemon look once, after some time."""
        self.clock.present += seconds
        Deployments(self.ports).look(self.clock.now())

    def rows(self, model: str = "ufm") -> list[tuple[int, str]]:
        """Return numbers and states of all deployments, the oldest first."""
        with self.ports.database.read() as tx:
            return [(row.number, row.state) for row in deployments.of_model(tx, model)]

    def serves(self, model: str = "ufm") -> bytes | None:
        """Return the weights that are pointed at."""
        place = self.root / "models" / model / "current" / WEIGHTS
        return place.read_bytes() if place.exists() else None

    def use(self, rule: DeploymentRule) -> None:
        """Let the settings name this target alone."""
        self.ports = replace(self.ports, targets={rule.name: ServedAt(rule, lambda: self.target)})


@pytest.fixture
def world(make_ports: Callable[..., Ports], hand_clock: HandClock, tmp_path: Path) -> World:
    options = {"path": str(tmp_path / "models"), "health": HEALTH}
    target = Shaken(open_target("griffith", "directory", options, TargetContext(Path, str)))
    made = World(make_ports(scratch=tmp_path / "scratch"), hand_clock, tmp_path, target)
    made.use(DeploymentRule("griffith", automatic=True))
    return made


def test_what_comes_in_force_is_deployed_and_recorded(world: World) -> None:
    world.version("ufm", b"one")
    world.cycle()
    assert (world.rows(), world.serves()) == ([(1, "serving")], weights(b"one"))
    assert not (world.root / "models/ufm/current/optimizer.pt").exists()
    world.version("ufm", b"two")
    world.cycle()
    assert (world.rows(), world.serves()) == ([(1, "replaced"), (2, "serving")], weights(b"two"))
    world.cycle()
    assert len(world.rows()) == 2
    assert not list((world.ports.scratch / "deployments").glob("*/*"))  # what was fetched is not kept twice


def test_a_version_that_does_not_answer_is_returned_and_not_tried_again_until_resumed(world: World) -> None:
    world.version("ufm", b"one")
    world.cycle()
    world.version("ufm", b"bad")
    world.cycle()
    assert (world.rows(), world.serves()) == ([(1, "serving"), (2, "returned")], weights(b"one"))
    world.cycle(86_400)
    assert len(world.rows()) == 2
    world.version("ufm", b"three")
    world.cycle()
    assert (len(world.rows()), world.serves()) == (2, weights(b"one"))
    with world.ports.database.write() as tx:
        events.append(tx, deployments.RESUMED, "ufm", world.clock.now(), "somebody")
    world.cycle()
    assert (world.rows()[-1], world.serves()) == ((3, "serving"), weights(b"three"))


def test_what_is_in_force_again_is_gone_back_to_without_being_sent(world: World) -> None:
    one = world.version("ufm", b"one")
    world.cycle()
    world.version("ufm", b"two")
    world.cycle()
    world.put_in_force(one)
    world.target.before = lambda call: pytest.fail("it lies there still") if call == "deploy" else None
    world.cycle()
    assert world.rows() == [(1, "replaced"), (2, "replaced"), (1, "serving")]
    assert world.serves() == weights(b"one")


def test_what_users_vote_out_is_gone_back_from_where_it_serves(world: World) -> None:
    world.version("ufm", b"one")
    world.cycle()
    two = world.version("ufm", b"two")
    world.cycle()
    votes = world.root / "votes.jsonl"
    said = ({"version": "ufm@2", "cluster": f"user-{number}", "worse": True} for number in range(30))
    votes.write_text("".join(f"{json.dumps(one)}\n" for one in said))
    with world.ports.write() as tx:
        roll_back_by_votes(tx, two, read_watch(two, votes, 0.5), world.clock.now(), "daemon")
    world.cycle()
    assert (world.rows()[-1], world.serves()) == ((1, "serving"), weights(b"one"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_daemon_that_dies_around_the_outer_act_leaves_an_intent_that_the_next_one_finishes(
    world: World, when: str
) -> None:
    class Killed(BaseException):
        """As a process that is no more: nothing after it runs."""

    def die(call: str) -> None:
        if call == "deploy":
            raise Killed

    world.version("ufm", b"one")
    world.cycle()
    world.version("ufm", b"two")
    setattr(world.target, when, die)
    with pytest.raises(Killed):
        world.cycle()
    assert world.rows() == [(1, "serving"), (2, "intended")]
    world.target.before = world.target.after = lambda _call: None
    world.cycle()
    assert (world.rows(), world.serves()) == ([(1, "replaced"), (2, "serving")], weights(b"two"))


def test_an_intent_whose_version_is_in_force_no_more_is_taken_back(world: World) -> None:
    one = world.version("ufm", b"one")
    world.cycle()
    world.version("ufm", b"two")
    off = TargetUnreachable("griffith", "reach it", "it is off")
    world.target.before = lambda _call: (_ for _ in ()).throw(off)
    world.cycle()
    assert world.rows() == [(1, "serving"), (2, "intended")]
    world.put_in_force(one)
    world.target.before = lambda _call: None
    world.cycle(7_200)
    assert (world.rows(), world.serves()) == ([(1, "serving"), (2, "failed")], weights(b"one"))


OFF = TargetUnreachable("griffith", "reach it", "it is off")
ERRORS = [OFF, OSError(28, "No space left on device"), ZeroDivisionError("nobody expected it")]


@pytest.mark.parametrize("error", ERRORS)
def test_a_target_that_gives_no_answer_is_asked_again_after_a_rest(world: World, error: Exception) -> None:
    """So is one with which something fails that nobody expected: no cycle fails with it."""
    asked: list[str] = []

    def off(call: str) -> None:
        asked.append(call)
        raise error

    world.version("ufm", b"one")
    world.target.before = off
    daemon = Deployments(world.ports)
    for seconds in (1, 30, 20, 20, 100, 30):  # asked at 1, 71 and 201: it rests a minute, then two
        world.clock.present += seconds
        daemon.look(world.clock.now())
    assert len(asked) == 3
    world.target.before = lambda _call: None
    world.clock.present += 3_600
    daemon.look(world.clock.now())
    assert world.rows() == [(1, "serving")]


def test_a_store_that_gives_no_answer_fails_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any) -> None:
        raise StoreUnreachable("fetch", "key", "it is off")

    world.version("ufm", b"one")
    with monkeypatch.context() as patch:
        patch.setattr(type(world.ports.artifacts), "fetch", unreachable)
        world.cycle()
    assert world.rows() == [(1, "intended")]
    world.cycle()
    assert world.rows() == [(1, "serving")]


def test_a_checkpoint_that_is_damaged_fails_with_the_file_and_stays_where_it_is(world: World) -> None:
    made = world.version("ufm", b"one")
    with world.ports.database.read() as tx:
        manifest = checkpoints.get(tx, made.checkpoint).manifest
    part = next(part for part in manifest.components if part.name == WEIGHTS)
    world.ports.artifacts.put(blob_key("ufm", part.sha256), b"other bytes")
    world.cycle()
    world.cycle()
    with world.ports.database.read() as tx:
        (row,) = deployments.of_model(tx, "ufm")
    assert (row.state, f"{WEIGHTS} is damaged" in row.why) == ("failed", True)
    assert world.serves() is None


def test_one_manager_goes_first_then_the_rest_one_by_one(world: World) -> None:
    world.use(DeploymentRule("griffith", automatic=True, first="uam", watch_seconds=3_600))
    for model in ("ucm", "uam", "ufm"):
        world.version(model, b"one")
    world.cycle()
    world.cycle()
    assert [world.serves(model) is not None for model in ("uam", "ucm", "ufm")] == [True, False, False]
    world.cycle(3_600)
    assert [world.serves(model) is not None for model in ("uam", "ucm", "ufm")] == [True, True, False]
    world.cycle()
    assert [world.serves(model) is not None for model in ("uam", "ucm", "ufm")] == [True, True, True]


def test_a_target_that_the_settings_name_no_more_ends_what_was_on_its_way(world: World) -> None:
    world.version("ufm", b"one")
    world.target.before = lambda _call: (_ for _ in ()).throw(TargetUnreachable("griffith", "reach it", "off"))
    world.cycle()
    world.use(DeploymentRule("elsewhere", automatic=False))
    world.cycle()
    with world.ports.database.read() as tx:
        (row,) = deployments.of_model(tx, "ufm")
    assert (row.state, row.why) == ("failed", "this target is no longer in the settings")


def test_where_nothing_answers_no_row_says_that_something_serves(world: World) -> None:
    world.version("ufm", b"one")
    world.cycle()
    world.target.target = open_target(
        "griffith",
        "directory",
        {"path": str(world.root / "models"), "restart": "exit 1"},
        TargetContext(Path, str),
    )
    world.version("ufm", b"two")
    world.cycle()
    assert world.rows() == [(1, "returned"), (2, "returned")]
    with world.ports.database.read() as tx:
        row = deployments.of_model(tx, "ufm")[-1]
    assert "the target does not answer" in row.why
    assert row.evidence["outcome"] == DeployOutcome.DOWN.value


def test_two_processes_of_a_machine_do_not_do_the_same_deployment(world: World, database: Database) -> None:
    made = world.version("ufm", b"one")
    with database.write() as tx:
        row = deployments.intend(tx, made, "griffith", world.clock.now(), "somebody")
    deployer = Deployer.of(world.ports)
    with deployer.alone("griffith", "ufm"):
        world.cycle()
        assert world.rows() == [(1, "intended")]
    assert carry_out(deployer, row).state == "serving"
    assert carry_out(deployer, row).state == "serving"  # as it was: nothing is done twice
    assert world.rows() == [(1, "serving")]


def test_two_targets_of_one_model_take_nothing_from_each_other(world: World, tmp_path: Path) -> None:
    """The first to finish removed what was on its way to the other, which then failed."""
    options = {"path": str(tmp_path / "second"), "health": HEALTH}
    second = open_target("second", "directory", options, TargetContext(Path, str))
    targets = dict(world.ports.targets) | {"second": ServedAt(DeploymentRule("second", automatic=True), lambda: second)}
    world.ports = replace(world.ports, targets=targets)
    version = world.version("ufm", b"one")
    with world.ports.write() as tx:
        rows = [deployments.intend(tx, version, name, world.clock.now(), DAEMON) for name in targets]
    deployer = Deployer.of(world.ports)

    def finish_the_other(call: str) -> None:
        if call == "deploy":
            assert carry_out(deployer, rows[1]).state == "serving"

    world.target.before = finish_the_other
    assert carry_out(deployer, rows[0]).state == "serving"
    assert world.serves() == weights(b"one")
    assert not list((world.ports.scratch / "deployments").glob("*/*"))


@pytest.mark.parametrize("error", ERRORS)
def test_what_a_target_lost_is_brought_there_again(world: World, error: Exception) -> None:
    def off(_call: str) -> None:
        raise error

    world.version("ufm", b"one")
    world.cycle()
    daemon = Deployments(world.ports)
    world.target.before = off
    world.clock.present += 700
    daemon.look(world.clock.now())
    assert world.rows() == [(1, "serving")]
    world.target.before = lambda _call: None
    (world.root / "models/ufm/current").unlink()
    world.clock.present += 700
    daemon.look(world.clock.now())
    assert (world.rows(), world.serves()) == ([(1, "replaced"), (1, "serving")], weights(b"one"))
    asked: list[str] = []
    world.target.before = asked.append
    world.clock.present += 60
    daemon.look(world.clock.now())
    assert asked == []  # not all the time
    world.clock.present += 700
    daemon.look(world.clock.now())
    assert (asked, len(world.rows())) == (["read"], 2)


def test_what_cannot_be_brought_there_again_is_tried_once_and_waits_for_a_person(world: World) -> None:
    world.version("ufm", b"one")
    world.cycle()
    options = {"path": str(world.root / "models"), "health": "exit 1"}
    world.target.target = open_target("griffith", "directory", options, TargetContext(Path, str))
    (world.root / "models/ufm/proven").write_text("0\n")
    for _ in range(3):
        world.cycle(700)
    assert world.rows() == [(1, "returned"), (1, "returned")]


def test_a_secret_that_a_health_check_says_is_kept_nowhere(world: World) -> None:
    options = {"path": str(world.root / "models"), "health": "echo token=hush-hush-123; exit 1"}
    world.target.target = open_target("griffith", "directory", options, TargetContext(Path, str))
    world.ports = replace(world.ports, redact=lambda text: text.replace("hush-hush-123", "[secret]"))
    world.version("ufm", b"one")
    world.cycle()
    with world.ports.database.read() as tx:
        (row,) = deployments.of_model(tx, "ufm")
    assert "token=[secret]" in row.why
    assert "hush-hush-123" not in f"{row.why} {row.evidence}"


def test_a_cycle_of_the_daemon_deploys_what_is_in_force(world: World) -> None:
    world.version("ufm", b"one")
    Cycle(replace(world.ports, plan=lambda snapshot, _: Plan(snapshot.now, (), ()))).run()
    assert world.serves() == weights(b"one")
