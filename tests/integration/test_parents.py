"""What a session could not start from: verified by the daemon, given to nobody meanwhile; and what it started from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.nouns.window import HOUR
from platforms.artifacts.base import StoreUnreachable
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, conditions, events, jobs, runs
from tests.lab.lineage import World, make_family


def unreachable(key: str, target: Path) -> None:
    """Fetch nothing."""
    raise StoreUnreachable("fetch", key, f"it is off, so nothing comes to {target}")


@pytest.fixture
def world(make_ports: Callable[..., Ports]) -> World:
    """The family, at NOW."""
    return make_family(make_ports)


@pytest.mark.parametrize("is_whole", [True, False])
def test_one_that_a_session_refuses_is_verified_by_the_daemon_and_given_to_nobody_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    """Of one damaged checkpoint six children paid a session each, the last sixteen hours after the first."""
    older, newer = world.save("uff-main", 150), world.save("uff-main", 200)
    world.store(older)
    world.store(newer, whole=is_whole)
    world.add_child("second")
    assert world.launch()["parent"] == newer.key
    with monkeypatch.context() as off:
        off.setattr(world.ports.artifacts, "fetch", unreachable)
        world.end(error_class="parent", message="the parent's checkpoint cannot be used: torn")
    assert world.launch("second")["parent"] == older.key, "nobody knows yet whether it is whole"
    world.end(outcome="yielded", error_class=None)
    with world.database.read() as tx:
        saved = checkpoints.get(tx, newer.key)
        assert not conditions.standing(tx, conditions.SUSPECTED)
        told = events.tail(tx, kinds=["checkpoint.verified"], subject=newer.key)
    assert len(told) == 1
    assert saved.state == ("good" if is_whole else "quarantined")
    assert world.record("uff-main").done_step == (200 if is_whole else 150)
    world.add_child("third")
    assert world.launch("third")["parent"] == (newer if is_whole else older).key


def test_one_that_was_chosen_and_is_being_verified_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = world.save("uff-main", 200)
    world.store(newer)
    world.add_child("second")
    assert world.launch("second")["parent"] == newer.key
    world.end()
    assert world.launch()["parent"] == newer.key
    with monkeypatch.context() as off:
        off.setattr(world.ports.artifacts, "fetch", unreachable)
        world.end(error_class="parent", message="the parent's checkpoint cannot be used: torn")
    assert world.reserves("second") == 0
    world.clock.present += HOUR
    world.cycle.run()
    assert world.launch("second")["parent"] == newer.key


def test_a_run_started_from_what_was_restored_whatever_was_planned(world: World) -> None:
    """It trained on from step 40, not from 80, which was damaged: so it got on, and has not failed in vain."""
    world.save("uff-main", 200)
    for step in (40, 80):
        world.save("ufm", step)
    with world.database.write() as tx:
        jobs.note_failures(tx, "ufm", 1)
    assert len(world.launch()["restore"]) == 2
    bad = [{"manifest": "jobs/ufm/manifests/000000000080-000001.json", "why": "torn"}]
    word = {"format": 1, "phase": "training", "step": 41, "restored_step": 40, "bad_manifests": bad}
    world.ports.artifacts.put(f"runs/{world.key}/lane-0/heartbeat.json", json.dumps(word).encode())
    world.cycle.run()
    with world.database.read() as tx:
        assert runs.get(tx, world.key).lanes[0].restore_step == 40
    world.save("ufm", 60)
    world.end(outcome="failed", error_class="code", restored_step=40)
    assert world.record().failures == 1  # it got on, so that the one before is forgotten
