"""Training jobs of ours that our books do not name are found, however many jobs the account has, and nobody else's."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from platforms.base import SessionState, Unreachable
from tests.lab.faults import Fault

if TYPE_CHECKING:
    from platforms.base import LaunchRequest

World = Any  # see conftest.py
Waiting = Callable[[str], "LaunchRequest"]


def test_live_jobs_of_ours_that_no_run_names_are_found(world: World, waiting: Waiting) -> None:
    """Over more than one page, some of which are empty; known ones, ended ones and somebody else's are left out."""
    world.place.rules.instances_max = 20
    ours, theirs = world.adapter(), world.adapter(owner="somebody-else")
    for number in range(3):
        ours.launch(waiting(f"uff-lm-{number}"), world.clock.now())
    theirs.launch(waiting("uff-lm-theirs"), world.clock.now())
    for number in range(12):
        key = f"uff-lm-over-{number}"
        ours.launch(waiting(key), world.clock.now())
        ours.stop(key, world.clock.now(), force=False)
        world.until(key, SessionState.ENDED, SessionState.ABSENT, platform=ours)
    known = {"uff-lm-1", "uff-lm-elsewhere"}
    found = ours.orphans(known, world.clock.now())
    assert [orphan.key for orphan in found] == ["uff-lm-0", "uff-lm-2"]
    assert all(orphan.state in {SessionState.QUEUED, SessionState.RUNNING} for orphan in found)
    assert ours.orphans({*known, "uff-lm-0", "uff-lm-2"}, world.clock.now()) == []


def test_an_account_that_does_not_answer_has_no_known_orphans(world: World) -> None:
    world.place.faults.always["*"] = Fault.THROTTLED
    with pytest.raises(Unreachable):
        world.adapter().orphans(set(), world.clock.now())
