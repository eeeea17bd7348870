"""Jobs that share hours: what each had is read off the ledger, and told where people ask."""

from __future__ import annotations

import pytest

from jobs.nouns.window import HOUR
from jobs.problem import Refusal
from jobs.spec import JobSpec, Share
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Ended, Lane, Outcome, Reserved, Run
from scheduler.core.snapshot import HourShare
from scheduler.service.facts.snapshot import gather
from scheduler.service.requests import queue
from scheduler.store import jobs, ledger, runs
from scheduler.store.engine import Database
from scheduler.views.training import share_now

NOW = 1_795_000_000


def spec(name: str, share: Share | None = None) -> JobSpec:
    return JobSpec(name, "manager", ("train",), 1_000, 10.0, share=share)


def ran(database: Database, start: int, hours: int, devices: dict[str, int], *, live: bool = False) -> None:
    """Let jobs have had a session of so many hours, each on so many devices; a live one holds that long."""
    lanes = tuple(
        Lane(at, name, start + at, tuple(range(10 * at, 10 * at + count)), None, None if live else Outcome.YIELDED)
        for at, (name, count) in enumerate(devices.items())
    )
    key, end = f"{next(iter(devices))}-{start}", start + hours * HOUR
    state = Reserved(start) if live else Ended(Outcome.YIELDED, end, start)
    entries = [LedgerEntry(EntryKind.HOLD, "kaggle", key, start, end if live else start + 99 * HOUR, start)]
    if not live:
        entries.append(LedgerEntry(EntryKind.SPEND, "kaggle", key, start, end, end))
    with database.write() as tx:
        runs.insert(tx, Run(key, "kaggle", lanes, start, end, end, state), start)
        ledger.append(tx, entries)


@pytest.fixture
def shared(database: Database) -> Database:
    """A job that had hours by itself before another was added that wants 30 % of them."""
    with database.write() as tx:
        jobs.add(tx, spec("ufm"), NOW - 99 * HOUR)
        jobs.add(tx, spec("alone"), NOW - 99 * HOUR)
        jobs.add(tx, spec("ufm-dpo", Share("ufm", 30)), NOW)
    ran(database, NOW - 50 * HOUR, 40, {"ufm": 1})
    return database


def test_device_hours_count_from_when_the_last_of_them_was_added(shared: Database) -> None:
    ran(shared, NOW + HOUR, 3, {"ufm": 2, "alone": 1})
    ran(shared, NOW + 5 * HOUR, 2, {"ufm-dpo": 1})
    ran(shared, NOW + 9 * HOUR, 2, {"ufm-dpo": 1}, live=True)
    with shared.read() as tx:
        snapshot = gather(tx, {}, NOW + 10 * HOUR, 7 * 24 * HOUR, {})
        told = share_now(tx, "ufm-dpo")
        rest = share_now(tx, "ufm")
        assert share_now(tx, "alone") is None
    assert {view.name: view.share for view in snapshot.jobs} == {
        "ufm": HourShare("ufm", 0.7, 6 * HOUR, 10 * HOUR),
        "ufm-dpo": HourShare("ufm", 0.3, 4 * HOUR, 10 * HOUR),
        "alone": None,
    }
    assert told is not None
    assert rest is not None
    assert told.words() == "30 % of its hours with ufm; 40 % so far"
    assert rest.words() == "70 % of its hours with ufm-dpo; 60 % so far"


def test_who_shared_with_a_job_that_is_gone_plans_by_itself(shared: Database) -> None:
    with shared.read() as tx:
        assert share_now(tx, "ufm-dpo") is not None
    queue.remove(shared, "ufm", NOW + 1, "ann")
    with shared.read() as tx:
        assert share_now(tx, "ufm-dpo") is None
        assert all(view.share is None for view in gather(tx, {}, NOW + 2, HOUR, {}).jobs)


def test_a_share_that_cannot_be_kept_is_refused(shared: Database) -> None:
    with pytest.raises(Refusal, match=r"there is no job gone to share hours with\. Add gone first"):
        queue.add(shared, [spec("new", Share("gone", 30))], NOW, "ann")
    with pytest.raises(Refusal, match="ufm-dpo shares its hours with ufm already"):
        queue.add(shared, [spec("new", Share("ufm-dpo", 30))], NOW, "ann")
    with pytest.raises(Refusal, match="those who share with ufm take 101 % together"):
        queue.add(shared, [spec("new", Share("ufm", 71))], NOW, "ann")
    with pytest.raises(Refusal, match=r"cannot edit ufm: ufm-dpo shares its hours with ufm already"):
        queue.edit(shared, "ufm", spec("ufm", Share("ufm-dpo", 30)), NOW, "ann")
    with pytest.raises(Refusal, match=r"cannot edit ufm: ufm shares its hours with alone already"):
        queue.edit(shared, "ufm", spec("ufm", Share("alone", 30)), NOW, "ann")
    record, changed = queue.edit(shared, "ufm-dpo", spec("ufm-dpo", Share("ufm", 40)), NOW, "ann")
    assert (record.spec.share, changed) == (Share("ufm", 40), ["share"])
