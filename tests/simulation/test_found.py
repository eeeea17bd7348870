"""What the simulation found once, each in the smallest form that shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from jobs.lane_report import LaneReport
from jobs.nouns.window import DAY
from jobs.payload.store.manifest import Component, Manifest
from jobs.spec import Gate
from platforms.base import Observed, SessionState
from scheduler.core import job as arrows
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.reconcile import Accept, Facts, Finish, Sighting, reconcile
from scheduler.core.run import Lane, Outcome, Run, Running, Submitting
from scheduler.notify.deliver import deliver
from scheduler.service.cycle.late_sessions import observe_late
from scheduler.service.cycle.stops import Stops
from scheduler.service.facts.apply import LINGERS_SECONDS, apply
from scheduler.service.facts.observation import Observation
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.requests import queue
from scheduler.store import checkpoints, events, jobs, ledger, outbox, rates, runs, watched
from scheduler.store.errors import Fenced
from tests.lab.simulation.checks import check_learned, net_of
from tests.lab.simulation.database import Laboratory
from tests.lab.simulation.faults import NO_RATES, Violation
from tests.lab.simulation.place import SimulatedPlatform
from tests.lab.simulation.scenario import steady_scenario
from tests.lab.simulation.simulation import SilentLog, Simulation

if TYPE_CHECKING:
    from scheduler.service.outside.ports import Ports


def _facts(*, complete: bool, results: dict[int, LaneReport]) -> Facts:
    run = Run("uff-main-0001", "weekly", (Lane(0, "main", 1, (0,), None),), 1_000, 5_000, 5_100, Running("r", 1_000))
    return Facts(run, Sighting("ended", "r", 1_000, 4_000), True, results, {}, 60, 300, complete)


def test_an_end_is_not_believed_until_the_artifact_store_has_told_what_was_published() -> None:
    # Closing the run during an outage of the store sent the job back to a step before one that was published.
    said = {0: LaneReport("uff-main-0001", 0, "main", outcome="yielded", checkpoint_step=7)}
    assert reconcile([_facts(complete=False, results=said)], 9_000_000) == []
    (step,) = reconcile([_facts(complete=True, results=said)], 6_000)
    assert isinstance(step, Finish)


def test_a_checkpoint_read_late_is_kept_to_fall_back_on(laboratory: Laboratory) -> None:
    # Marked as expired because a newer one was known, it was missing when the newer one proved to be damaged.
    def manifest(step: int) -> Manifest:
        component = Component("model.bin", "0" * 64, 1)
        return Manifest("main", step, 1, "uff-main-0001", 0, None, 1, 1, {}, (component,))

    scenario = steady_scenario()
    simulation = Simulation(laboratory, scenario)
    simulation.people.fill_queue()
    simulation.boot()
    assert simulation.ports is not None
    seen = Observation(manifests=[manifest(20)])
    for late in (seen, Observation(manifests=[manifest(10)]), Observation(bad=[(manifest(20).key, "damaged")])):
        with simulation.ports.write() as tx:
            apply(simulation.ports, tx, [], late, [], scenario.start)
    with laboratory.people.read() as tx:
        assert [found.manifest.step for found in checkpoints.newest(tx, "main")] == [10]
        assert jobs.get(tx, "main").done_step == 10


def test_an_intent_is_given_up_only_some_time_after_its_stop_flag_is_in_the_store(laboratory: Laboratory) -> None:
    # A platform that started the session later than promised, or hid it, had two sessions train the same job.
    simulation = Simulation(laboratory, steady_scenario())
    simulation.boot()
    assert simulation.ports is not None
    stops = Stops(simulation.ports)
    lane = Lane(0, "main", 1, (0,), None)
    run = Run("uff-main-0001", "weekly", (lane,), 1_000, 5_000, 5_100, Submitting(1_000, 1))
    step = Finish(run, Outcome.REJECTED, None, 2_000, (), "not on the platform", proven=False)
    simulation.world.shelves.down = True
    assert stops.fenced([step], {}) == []
    simulation.world.agenda.advance(simulation.world.now + 10_000)
    assert stops.fenced([step], {}) == []
    simulation.world.shelves.down = False
    assert stops.fenced([step], {}) == []
    assert "runs/uff-main-0001/stop" in simulation.world.shelves.objects
    simulation.world.agenda.advance(simulation.world.now + 300)
    assert stops.fenced([step], {}) == [step]
    refused = Finish(run, Outcome.REJECTED, None, 2_000, (), "the platform proves it never started")
    assert stops.fenced([refused], {}) == [refused]


def test_a_session_that_writes_is_not_given_up_however_long_its_platform_hides_it() -> None:
    run = Run("uff-main-0001", "weekly", (Lane(0, "main", 1, (0,), None),), 1_000, 5_000, 5_100, Submitting(1_000, 1))
    unseen = Facts(run, None, True, {}, {}, 60, 300, True)
    assert reconcile([unseen], 1_300) == []
    (given_up,) = reconcile([unseen], 1_400)
    assert isinstance(given_up, Finish)
    assert not given_up.proven
    (adopted,) = reconcile([replace(unseen, heard=True)], 1_400)
    assert adopted == Accept(run, "uff-main-0001", 1_000)


def test_the_report_of_a_week_that_passed_while_nobody_looked_is_sent_all_the_same(laboratory: Laboratory) -> None:
    # Ten days without a daemon swallowed the report of the first week.
    simulation = Simulation(laboratory, steady_scenario())
    simulation.boot()
    assert simulation.ports is not None
    world, post = simulation.world, simulation.post
    simulation.faults.set_rates(NO_RATES)
    world.calm_down()
    for days in (0, 17, 0, 0, 3):
        world.agenda.advance(world.now + days * DAY)
        post.look_after(simulation.ports, world.now)
    post.check_complete()
    assert len({key for _, key in post.arrived}) == 3


def _give_up(ports: Ports, key: str, start: int) -> None:
    """Launch a run at ``start`` that its platform does not show, and give it up."""
    planned_lane = Lane(0, "main", 1, (0,), None)
    run = Run(key, "weekly", (planned_lane,), start, start + 5_000, start + 5_100, Submitting(start, 1))
    hold = LedgerEntry(EntryKind.HOLD, "weekly", key, start, start + 5_100, start)
    given_up = Finish(run, Outcome.REJECTED, None, start + 700, (), "not on the platform", proven=False)
    with ports.write() as tx:
        runs.insert(tx, run, start)
        ledger.append(tx, [hold])
        apply(ports, tx, [run], Observation(), [given_up], start + 700)


def test_what_was_given_up_and_ran_after_all_is_booked_when_its_platform_shows_it(laboratory: Laboratory) -> None:
    simulation = Simulation(laboratory, steady_scenario())
    simulation.people.fill_queue()
    simulation.boot()
    ports = simulation.ports
    assert ports is not None
    key, start = "uff-main-0001", simulation.world.now
    _give_up(ports, key, start)
    with ports.database.read() as tx:
        assert ledger.charges(tx, 0).get("weekly", ()) == ()
    answers = [
        Observed(key, SessionState.RUNNING, "r", start + 900),
        Observed(key, SessionState.ENDED, "r", start + 900, start + 905),
    ]
    booked = []
    with ports.database.read() as tx:
        (unseen,) = watched.possible_charges(tx)["weekly"]
        assert (unseen.start, unseen.end, unseen.sign, unseen.is_certain) == (start, start + 5_100, 0, False)
        (view,) = (view for view in load_snapshot(tx, ports.pools, start, DAY).pools if view.pool.name == "weekly")
        assert view.charges == (unseen,)
    simulation.world.agenda.advance(start + 1_000)
    for answer in answers:
        with ports.database.read() as tx:
            found = watched.everything(tx)
        with patch.object(SimulatedPlatform, "find", return_value={key: answer}):
            observe_late(ports, found, simulation.world.now)
        with ports.database.read() as tx:
            booked.append(net_of(ledger.charges(tx, 0)["weekly"]))
    assert booked == [[(start + 900, start + 5_100)], [(start + 900, start + 905)]]
    with ports.database.read() as tx:
        # Its platform calls it over, and it left no last word: it is listened to for some time yet.
        assert [one.until for one in watched.everything(tx)] == [simulation.world.now + LINGERS_SECONDS]
        assert watched.possible_charges(tx) == {}
        assert [event.kind for event in events.tail(tx, kinds=["session.late"])] == ["session.late"] * 2


def test_what_ended_while_its_platform_was_asked_is_booked_until_the_answer(laboratory: Laboratory) -> None:
    # Seed 8009929: a platform that tells no times took 12 s to answer, and the books ended before the bill.
    simulation = Simulation(laboratory, steady_scenario())
    simulation.people.fill_queue()
    simulation.boot()
    ports, world = simulation.ports, simulation.world
    assert ports is not None
    key, start = "uff-main-0001", world.now
    _give_up(ports, key, start)
    world.agenda.advance(start + 1_000)
    with ports.database.read() as tx:
        found = watched.everything(tx)

    def slow(*_: object) -> dict[str, Observed]:
        world.agenda.advance(start + 1_012)
        return {key: Observed(key, SessionState.ENDED, "r")}

    with patch.object(SimulatedPlatform, "find", side_effect=slow):
        observe_late(ports, found, start + 1_000)
    with ports.database.read() as tx:
        (charge,) = ledger.charges(tx, 0)["weekly"]
    assert (charge.start, charge.end, charge.exact) == (start, start + 1_012, False)


def test_a_daemon_that_another_has_overtaken_sends_no_message_at_all(laboratory: Laboratory) -> None:
    simulation = Simulation(laboratory, steady_scenario())
    simulation.boot()
    overtaken, now, sent = simulation.ports, simulation.world.now, []
    assert overtaken is not None
    with overtaken.write() as tx:
        outbox.add(tx, "alerts", "1", "email", {"subject": "news", "text": "news"}, now)
    simulation.boot()

    class Carrier:
        def send(self, key: str, body: object) -> None:
            sent.append(key)

    with pytest.raises(Fenced):
        deliver(overtaken, {"email": Carrier()}, now)
    assert sent == []


def test_a_message_that_another_daemon_sent_while_this_one_stood_still_is_not_sent_again(
    laboratory: Laboratory,
) -> None:
    # Seed 2000012: the list of messages was read once, and the daemon stood still between the first and the second.
    simulation = Simulation(laboratory, steady_scenario())
    simulation.boot()
    ports, now, sent = simulation.ports, simulation.world.now, []
    assert ports is not None
    with ports.write() as tx:
        for channel in ("email", "slack"):
            outbox.add(tx, "alerts", "1", channel, {"subject": "news", "text": "news"}, now)

    class Carrier:
        def __init__(self, name: str) -> None:
            self.name = name

        def send(self, key: str, body: object) -> None:
            sent.append(self.name)

    carriers = {name: Carrier(name) for name in ("email", "slack")}

    class StandsStill(SilentLog):
        def info(self, event: str, **fields: object) -> None:
            simulation.boot()
            assert simulation.ports is not None
            deliver(simulation.ports, carriers, now)

    with pytest.raises(Fenced):
        deliver(replace(ports, log=StandsStill(simulation)), carriers, now)
    assert sent == ["email", "slack"]


@pytest.mark.parametrize(
    ("started", "ended", "certain"), [(200, 4_000, True), (None, 4_000, False), (200, None, False), (None, None, False)]
)
def test_a_session_is_booked_as_certain_only_when_its_platform_told_both_ends(
    laboratory: Laboratory, started: int | None, ended: int | None, *, certain: bool
) -> None:
    # Seed 1000008: a span that opens with the first use was taken to begin with a launch whose start nobody told.
    simulation = Simulation(laboratory, steady_scenario())
    simulation.people.fill_queue()
    simulation.boot()
    ports, now = simulation.ports, simulation.world.now
    assert ports is not None
    planned_lane = Lane(0, "main", 1, (0,), None)
    run = Run("uff-main-0001", "weekly", (planned_lane,), now, now + 5_000, now + 5_100, Running("r", now))
    began, over = (None if second is None else now + second for second in (started, ended))
    facts = Facts(run, Sighting("ended", "r", began, over), True, {}, {}, 60, 300)
    with ports.write() as tx:
        runs.insert(tx, run, now)
        ledger.append(tx, [LedgerEntry(EntryKind.HOLD, "weekly", run.key, now, now + 5_100, now)])
        apply(ports, tx, [run], Observation(), reconcile([facts], now + 4_300), now + 4_300)
        (charge,) = ledger.charges(tx, 0)["weekly"]
    assert (charge.start, charge.end) == (now + (started or 0), now + (ended or 4_300))
    assert charge.is_certain is certain


@pytest.mark.parametrize("takes_over", [False, True])
def test_reasons_are_looked_for_unless_another_daemon_took_over_after_the_plan(
    laboratory: Laboratory, *, takes_over: bool
) -> None:
    # Seed 2005270: the daemon stood still in its housekeeping; the one that took over ended a run, freed its job, and
    # failed to read before it could plan. The checks believed the first one's plan to be the newest word.
    simulation = Simulation(laboratory, steady_scenario())
    simulation.people.fill_queue()
    simulation.cycles = 15  # the next cycle is followed by housekeeping and by a look at everything

    def housekeeping(*_: object) -> None:
        if takes_over:
            simulation.boot()

    with (
        patch("tests.lab.simulation.simulation.run_due", housekeeping),
        patch("tests.lab.simulation.simulation.check_explained") as looked,
    ):
        simulation._tick()
    assert looked.called is not takes_over


@pytest.mark.parametrize(
    ("parent_step", "seated", "left"), [(2, False, False), (2, True, True), (3, False, True), (3, True, True)]
)
def test_only_a_gate_that_was_not_passed_lets_a_job_stay_unfinished_behind_a_cancelled_one(
    laboratory: Laboratory, parent_step: int, *, seated: bool, left: bool
) -> None:
    # Seed 8010390: behind a gate that was open the job went on when its parent was cancelled, as it should; the
    # simulation took it for one that waits for ever, stopped the clock in the middle of its session, and blamed that.
    scenario = steady_scenario()
    parent, child = scenario.jobs[:2]
    parent, child = replace(parent, target_step=30), replace(child, gate=Gate(parent.name, 0.1))
    simulation = Simulation(laboratory, replace(scenario, jobs=(parent, child)))
    simulation.people.fill_queue()
    with laboratory.people.write() as tx:
        jobs.note_progress(tx, parent.name, parent_step, None)
        if seated:
            queued = jobs.get(tx, child.name).state
            active = arrows.activate(queued, "uff-manager-1-0001", scenario.start)
            jobs.change_state(tx, child.name, queued, active, "activate", scenario.start)
    assert simulation.people.unfinished() == [parent.name, child.name]
    queue.cancel(laboratory.people, parent.name, scenario.start, "people")
    assert simulation.people.unfinished() == ([child.name] if left else [])


@pytest.mark.parametrize(("samples", "setup"), [(0, 90_000), (1, 300), (1, 90_000)])
def test_a_set_up_that_no_job_has_is_seen_when_others_expect_it(
    laboratory: Laboratory, samples: int, setup: int
) -> None:
    # A command that neither reported nor saved made the sessions of every other job longer.
    scenario = steady_scenario()
    simulation = Simulation(laboratory, scenario)
    with laboratory.people.write() as tx:
        jobs.add(tx, scenario.jobs[0], scenario.start)
        learned = rates.RateRecord(0.1, 0.3, samples, setup, 20, job="main", pool="weekly", at=scenario.start)
        rates.put(tx, learned)
    if samples and setup > 10_000:
        with pytest.raises(Violation, match="what was never reached is no measure"):
            check_learned(simulation.world, laboratory.people)
    else:
        check_learned(simulation.world, laboratory.people)
