"""`runs lost`: a person knows that a session is dead of which its platform tells nothing."""

from __future__ import annotations

from typing import Any

from jobs.lane_report import LaneReport
from scheduler.cli.shell.exits import Exit
from scheduler.core.run import Running
from scheduler.service.facts.observation import DECLARED
from scheduler.store import events, runs
from scheduler.store.engine import Database
from tests.integration.cli.conftest import NOW, Schedctl

KEY = "uff-uff-main-0001"
PROOF = "sacct: NODE_FAIL, and the node is off"


def _declared(world: Database) -> list[tuple[str, dict[str, Any]]]:
    with world.read() as tx:
        return [(event.by, event.data) for event in events.tail(tx, kinds=[DECLARED], subject=KEY)]


def test_it_is_recorded_with_who_and_why_and_charged_until_its_last_sign_of_life(
    world: Database, schedctl: Schedctl
) -> None:
    with world.write() as tx:
        state = runs.get(tx, KEY).state
        assert isinstance(state, Running)
        sign = state.started + 60
        runs.note_heartbeat(tx, KEY, 0, LaneReport(KEY, 0, "uff-main", at=sign).document())
    refused = schedctl("runs", "lost", KEY, "--proof", PROOF)
    assert refused.code == Exit.REFUSED  # nobody can be asked
    assert "its last sign of life" in refused.err
    assert _declared(world) == []
    assert schedctl("runs", "lost", KEY, "--proof", " ", "--yes").code == Exit.USAGE
    typed = schedctl("runs", "lost", KEY, "--proof", PROOF, "--yes")
    assert typed.code == 0
    assert "is declared dead, charged until" in typed.out
    assert _declared(world) == [("tester", {"ended": sign, "why": PROOF})]


def test_a_person_may_say_when_it_ended_but_not_before_it_began(world: Database, schedctl: Schedctl) -> None:
    assert schedctl("runs", "lost", KEY, "--proof", PROOF, "--ended", "yesterday", "--yes").code == Exit.USAGE
    early = schedctl("runs", "lost", KEY, "--proof", PROOF, "--ended", "2001-01-01T00:00:00Z", "--yes")
    assert early.code == Exit.REFUSED
    assert "cannot have ended then: it began at" in early.err
    assert schedctl("runs", "lost", "uff-ulm-0001", "--proof", PROOF, "--yes").code == Exit.REFUSED  # it has ended
    assert _declared(world) == []


def test_a_stop_of_a_session_that_nobody_can_reach_says_so(world: Database, schedctl: Schedctl) -> None:
    with world.write() as tx:
        events.append(tx, "run.unclear", KEY, NOW, why="Slurm does not know its job any more")
    typed = schedctl("runs", "stop", KEY)
    assert typed.code == 0
    assert f"Nobody can reach {KEY} now: Slurm does not know its job any more" in typed.out
    assert f"schedctl runs lost {KEY} --proof" in typed.out
