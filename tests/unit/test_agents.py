"""What coding agents may use without asking: whole seconds, a UTC day, one transaction; and what waits for a person."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from config.settings import AgentLimits, AgentSettings
from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR
from jobs.problem import NotFound, Refusal
from jobs.spec import TEST_SET, Evaluation, Halving, Input, JobSpec, QualityGate
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Lane, Reserved, Run
from scheduler.service.requests import agents, queue
from scheduler.service.requests.agents import NeedsApproval, Proposal
from scheduler.store import events, jobs, ledger, runs
from scheduler.store.engine import Database
from scheduler.views.needs import needs

MIDNIGHT = 20_000 * DAY
CLAUDE = "agent:claude"
LIMITS = AgentLimits(HOUR, 4 * HOUR)


def job(name: str, seconds: int = HOUR, **fields: Any) -> JobSpec:
    return JobSpec(name, "job", ("train",), 10, 100.0, budget_seconds=seconds, agent=CLAUDE, **fields)


def add(database: Database, *specs: JobSpec, now: int = MIDNIGHT, limits: AgentLimits | None = LIMITS) -> None:
    queue.add(database, specs, now, CLAUDE, limits=limits)


def reserved(database: Database, now: int = MIDNIGHT) -> int:
    with database.read() as tx:
        return agents.reserved_on_day(tx, now)


def test_exactly_the_hours_without_asking_are_allowed_and_a_second_more_is_not(database: Database) -> None:
    add(database, job("a"))
    with pytest.raises(NeedsApproval, match=r"1\.00 device hours are more than the 1 that"):
        add(database, job("b", HOUR + 1))
    with pytest.raises(NeedsApproval, match=r"1\.02 device hours"):  # of one change, whose jobs are all or none
        add(database, job("b", HOUR - 60), job("c", 120))
    assert reserved(database) == HOUR


def test_a_fraction_of_an_hour_is_whole_seconds(database: Database) -> None:
    limits = AgentSettings(hours_without_asking=4.35).limits  # 4.35 is no number of the machine
    assert limits == (15_660, 4 * HOUR)
    assert AgentSettings(hours_per_day=0).limits == (HOUR, 0)
    assert AgentSettings().limits is None
    add(database, job("a", 15_660), limits=AgentLimits(15_660, 15_660))
    with pytest.raises(NeedsApproval):
        add(database, job("b", 60), limits=limits)


def test_the_hours_of_a_day_end_at_midnight_utc(database: Database) -> None:
    for name in "abcd":
        add(database, job(name))
    late = MIDNIGHT + DAY - 1
    with pytest.raises(NeedsApproval, match=r"more than what agents may still use today: 0\.00 of 4"):
        add(database, job("e", 60), now=late)
    add(database, job("e"), now=late + 1)
    assert (reserved(database, late), reserved(database, late + 1)) == (4 * HOUR, HOUR)


def test_a_job_that_is_over_counts_with_what_it_used(database: Database) -> None:
    add(database, job("a"))
    run = Run("run-1", "desk", (Lane(0, "a", 1, (0,), None),), MIDNIGHT, MIDNIGHT + HOUR, MIDNIGHT + HOUR, Reserved(0))
    with database.write() as tx:
        runs.insert(tx, run, MIDNIGHT)
        ledger.hold(tx, run, MIDNIGHT, 0, "planned session")
        ledger.append(tx, [LedgerEntry(EntryKind.SPEND, "desk", "run-1", MIDNIGHT, MIDNIGHT + 700, MIDNIGHT + 700)])
    assert reserved(database) == HOUR
    queue.cancel(database, "a", MIDNIGHT + 800, "ann")
    assert reserved(database) == 700
    with database.read() as tx:
        listed, _ = ledger.page(tx, 10)
    assert [(entry.kind, entry.agent) for entry in listed] == [(EntryKind.SPEND, CLAUDE), (EntryKind.HOLD, CLAUDE)]
    queue.release(database, "a", MIDNIGHT + 900, "ann")
    assert reserved(database) == HOUR


def test_agents_that_come_at_once_never_share_the_same_hours(database: Database) -> None:
    refused: list[str] = []

    def ask(name: str) -> None:
        try:
            add(database, job(name, HOUR - 1))
        except NeedsApproval:
            refused.append(name)

    threads = [Thread(target=ask, args=(f"job-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 4
    assert reserved(database) == 4 * (HOUR - 1)


def test_a_halved_sweep_counts_once_with_its_budget(database: Database) -> None:
    rule = Halving("loss", HOUR, candidates=3, rungs=(10, 30))
    sweep = [replace(job(f"lr-{name}"), budget_seconds=None, sweep="lr", halving=rule) for name in "abc"]
    add(database, *sweep)
    assert reserved(database) == HOUR


def test_a_job_whose_evaluations_come_on_top_waits_for_a_person(database: Database) -> None:
    scored = Evaluation(("score",), Input(TEST_SET, "/data/test.jsonl", "d" * 64))
    with pytest.raises(NeedsApproval, match="evaluations"):
        add(database, job("a", 60, evaluation=scored, gates=(QualityGate("loss", "threshold", maximum=1.0),)))


def test_a_job_without_a_budget_gets_what_it_needs_with_its_set_ups() -> None:
    desk = Pool("desk", "fake", "CPU", session_cap_seconds=HOUR, overrun_seconds=60)
    spec = replace(job("a"), budget_seconds=None, target_step=200, setup_seconds=100, checkpoint_seconds=20)
    (named,) = agents.budgeted([spec], CLAUDE, {"desk": desk}, LIMITS)
    assert named.budget_seconds == 2 * HOUR + 2 * (100 + 20 + 60)  # two sessions
    assert agents.budgeted([job("a", 77)], CLAUDE, {}, LIMITS)[0].budget_seconds == 77
    assert agents.budgeted([spec], CLAUDE, {}, None)[0].budget_seconds is None
    assert agents.budgeted([replace(spec, agent="")], "ann", {}, LIMITS) == [replace(spec, agent="")]


def test_what_people_add_and_change_is_theirs(database: Database) -> None:
    queue.add(database, [replace(job("mine", 50 * HOUR), agent="")], MIDNIGHT, "ann")
    add(database, job("a"))
    record = queue.change(database, "a", MIDNIGHT, "ann", weight=2.0)
    edited, changed = queue.edit(
        database, "a", replace(record.spec, budget_seconds=3 * HOUR, agent=""), MIDNIGHT, "ann"
    )
    assert (edited.spec.agent, changed) == (CLAUDE, ["budget_seconds"])
    assert reserved(database) == 3 * HOUR


def proposal(**fields: Any) -> Proposal:
    usual: dict[str, Any] = {"since": MIDNIGHT, "agent": CLAUDE, "why": "2 h", "verb": "submit", "args": {"name": "x"}}
    return Proposal(**{"id": "f00d", "digest": "d", "preview": {"jobs": ["x"]}, **usual, **fields})


def test_a_proposal_waits_as_an_action_until_a_person_decides(database: Database) -> None:
    agents.propose(database, proposal())
    agents.propose(database, proposal(since=MIDNIGHT + 60, digest="e"))  # the same change, with other contents
    with database.read() as tx:
        assert agents.waiting(tx) == [proposal(since=MIDNIGHT + 60, digest="e")]
        (need,) = needs(tx, (), 0, MIDNIGHT + 60)
    assert (need.what, need.subject, need.why) == ("agent asks", "f00d", "2 h")
    assert need.remedy == "schedctl agents approve f00d"
    agents.close(database, proposal(), MIDNIGHT + 90, "ann", is_approved=True)
    with database.read() as tx:
        assert agents.waiting(tx) == []
        assert needs(tx, (), 0, MIDNIGHT + 60) == []
        (said,) = events.tail(tx, kinds=(agents.APPROVED,))
    assert (said.by, said.data["agent"]) == ("ann", CLAUDE)


def test_what_was_rejected_is_not_proposed_again_within_a_day(database: Database) -> None:
    agents.propose(database, proposal())
    agents.close(database, proposal(), MIDNIGHT + 10, "ann", is_approved=False, why="no data yet")
    with pytest.raises(NotFound):
        agents.close(database, proposal(), MIDNIGHT + 11, "bob", is_approved=True)
    with pytest.raises(Refusal, match="ann rejected this proposal: no data yet"):
        agents.propose(database, proposal(since=MIDNIGHT + 9 + DAY))
    agents.propose(database, proposal(since=MIDNIGHT + 10 + DAY))


def test_an_agent_cannot_flood_the_list_of_actions(database: Database) -> None:
    for number in range(50):
        agents.propose(database, proposal(id=f"{number:012x}"))
    agents.propose(database, proposal(id=f"{7:012x}"))
    with pytest.raises(Refusal, match="50 proposals wait"):
        agents.propose(database, proposal(id="another"))
    with database.read() as tx:
        assert jobs.everything(tx) == []
