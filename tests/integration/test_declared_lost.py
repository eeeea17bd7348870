"""A session that a person declared dead: its run ends by that word, and is looked for all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.spec import JobSpec
from scheduler.core.job import Queued
from scheduler.core.ledger import EntryKind
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Ended, Outcome, Running
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Ports
from scheduler.service.requests.sessions import declare_lost, lost
from scheduler.store import jobs, ledger, runs, watched
from tests.lab.clocks import HandClock
from tests.lab.fake import FakeCloud, FakePlatform, Script

KEY = "uff-ufm-0001"


@pytest.mark.parametrize("is_watched", [False, True])
def test_its_run_ends_as_the_person_says(
    make_ports: Callable[..., Ports], hand_clock: HandClock, is_watched: bool
) -> None:
    cloud, began = FakeCloud(usual=Script(runs_seconds=None)), hand_clock.present
    placement = Placement("desk", began, began + 9 * HOUR, (PlannedLane("ufm", 1, 100),))
    plans = [Plan(began, (placement,), ())]
    ports = make_ports(
        platforms={"desk": FakePlatform(cloud)},
        pools={"desk": Pool("desk", "fake", "CPU")},
        plan=lambda snapshot, _: plans.pop() if plans else Plan(snapshot.now, (), ()),
    )
    with ports.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), 1_000, steps_per_hour=100.0), began)
    cycle = Cycle(ports)
    cycle.run()
    cloud.outage.add("find")
    hand_clock.present += HOUR
    cycle.run()
    with ports.write() as tx:
        assert isinstance(runs.get(tx, KEY).state, Running)
        found = lost(tx, KEY, began + 600, hand_clock.present)
        declare_lost(tx, found, "its node is off", hand_clock.present, "ann")
    cycle.run()
    with ports.database.read() as tx:
        run = runs.get(tx, KEY)
        assert run.state == Ended(Outcome.PREEMPTED, began + 600, began)  # nothing shows that it trained
        assert "declared lost by ann: its node is off" in run.lanes[0].message
        assert isinstance(jobs.get(tx, "ufm").state, Queued)
        (spent,) = [entry for entry in ledger.entries(tx) if entry.kind is EntryKind.SPEND]
        assert (spent.start, spent.end) == (began, began + 600)
        assert watched.keys(tx) == {KEY}
    if is_watched:  # it shows up after all, and goes on
        cloud.outage.clear()
        hand_clock.present += HOUR
        cycle.run()
        assert cloud.sessions[KEY].cut is not None
        with ports.database.read() as tx:
            assert watched.everything(tx)[0].booked == (began, runs.get(tx, KEY).held_until)
    with ports.write() as tx:
        declare_lost(tx, lost(tx, KEY, None, hand_clock.present), "I pulled its plug", hand_clock.present, "ann")
        assert watched.keys(tx) == set()
