"""The ledger on SQLite and PostgreSQL: what it folds to, however it is read, and what it refuses."""

from random import Random

import pytest
from sqlalchemy import Connection

from jobs.nouns.window import Window
from jobs.spec import JobSpec
from scheduler.core.ledger import Charge, EntryKind, LedgerEntry, device_seconds_within, fold, seconds_within
from scheduler.core.run import Lane, Reserved, Run
from scheduler.store import jobs, ledger, runs
from scheduler.store.engine import Database
from scheduler.store.errors import Refused

NOW = 1_795_000_000
POOLS = ("kaggle", "local")


def insert_run(tx: Connection, key: str, pool: str, start: int, devices: int = 1) -> None:
    """Insert a run of an hour, and the job it trains."""
    job = f"job-of-{key}"
    jobs.add(tx, JobSpec(name=job, role="manager", command=("x",), target_step=100, steps_per_hour=10.0), start)
    jobs.note_launch(tx, job, pool)
    lane = Lane(0, job, 1, tuple(range(devices)), None)
    runs.insert(tx, Run(key, pool, (lane,), start, start + 3_600, start + 3_700, Reserved(start)), start)


def test_the_ledger_folds_all_entries_of_a_run_together(database: Database) -> None:
    with database.write() as tx:
        insert_run(tx, "run-1", "kaggle", NOW)
    hold = LedgerEntry(EntryKind.HOLD, "kaggle", "run-1", NOW, NOW + 3_700, NOW, evidence="planned")
    spend = LedgerEntry(EntryKind.SPEND, "kaggle", "run-1", NOW, NOW + 500, NOW + 500)
    credit = LedgerEntry(
        EntryKind.ADJUST, "kaggle", None, NOW, NOW + 100, NOW, credit=True, price_microdollars_per_hour=7
    )
    with database.write() as tx:
        ledger.append(tx, [])
        ledger.append(tx, [hold, credit])
    with database.read() as tx:
        assert ledger.entries(tx) == [hold, credit]
        assert ledger.charges(tx, NOW + 50)["kaggle"][1] == Charge(
            NOW, NOW + 3_700, held=True, run="run-1", exact=False
        )
    with database.write() as tx:
        ledger.append(tx, [spend])
    with database.read() as tx:
        # The hold reaches past the instant and the spend does not: both must be read, or the hold would count.
        assert ledger.entries(tx, since=NOW + 1_000) == [hold, spend]
        assert ledger.charges(tx, NOW + 1_000) == {"kaggle": (Charge(NOW, NOW + 500, run="run-1", exact=False),)}
        assert ledger.entries(tx, since=NOW + 3_700) == []
        assert ledger.entries(tx, pool="local") == []
        assert ledger.entries(tx, since=NOW, pool="kaggle") == [hold, credit, spend]


@pytest.mark.parametrize("seed", range(12))
def test_charges_that_grow_with_the_ledger_are_those_of_a_first_reading(database: Database, seed: int) -> None:
    """One connection keeps what it folded and adds what came since; another has seen nothing and reads it all."""
    rng, now, begun = Random(seed), NOW, 0
    open_runs: list[tuple[str, str, int]] = []
    for _ in range(40):
        now += rng.choice((0, 0, 600, 3_600, 20_000))
        with database.write() as tx:
            draw = rng.random()
            pool = rng.choice(POOLS)
            if draw < 0.4:
                begun += 1
                key = f"run-{begun}"
                insert_run(tx, key, pool, now)
                open_runs.append((key, pool, now))
                ledger.append(tx, [LedgerEntry(EntryKind.HOLD, pool, key, now, now + 3_700, now)])
            elif draw < 0.7 and open_runs:
                key, pool, start = open_runs.pop(rng.randrange(len(open_runs)))
                kind = rng.choice((EntryKind.SPEND, EntryKind.RELEASE))
                ledger.append(tx, [LedgerEntry(kind, pool, key, start, start + rng.randrange(1, 9_000), now)])
            else:
                whose = rng.choice([None, *(f"run-{number + 1}" for number in range(begun))])
                start = now - rng.randrange(90_000)
                end = start + rng.randrange(1, 9_000)
                ledger.append(tx, [LedgerEntry(EntryKind.ADJUST, pool, whose, start, end, now, rng.random() < 0.5)])
        since = now - rng.choice((30_000, 60_000, 60_000, 60_000))
        with database.read() as tx:
            found, anew = ledger.charges(tx, since), fold(ledger.entries(tx, since))
            assert {pool: found.get(pool, ()) for pool in POOLS} == {pool: anew.get(pool, ()) for pool in POOLS}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (EntryKind.SPEND, EntryKind.SPEND),
        (EntryKind.RELEASE, EntryKind.RELEASE),
        (EntryKind.SPEND, EntryKind.RELEASE),
    ],
)
def test_a_run_is_settled_once(database: Database, first: EntryKind, second: EntryKind) -> None:
    with database.write() as tx:
        insert_run(tx, "run-1", "kaggle", NOW)
    with database.write() as tx:
        ledger.append(tx, [LedgerEntry(first, "kaggle", "run-1", NOW, NOW + 1, NOW)])
    with pytest.raises(Refused), database.write() as tx:
        ledger.append(tx, [LedgerEntry(second, "kaggle", "run-1", NOW, NOW + 1, NOW)])


def test_an_entry_tells_the_devices_of_its_run_and_one_of_none_is_of_one(database: Database) -> None:
    """They are read from the run's lanes, which databases of all versions have."""
    with database.write() as tx:
        insert_run(tx, "wide", "local", NOW, devices=4)
        ledger.append(
            tx,
            [
                LedgerEntry(EntryKind.HOLD, "local", "wide", NOW, NOW + 3_700, NOW),
                LedgerEntry(EntryKind.SPEND, "local", "wide", NOW, NOW + 100, NOW + 200),
                LedgerEntry(EntryKind.ADJUST, "local", "wide", NOW, NOW + 10, NOW + 300, credit=True),
                LedgerEntry(EntryKind.ADJUST, "local", None, NOW, NOW + 7, NOW + 300),
            ],
        )
    with database.read() as tx:
        assert [entry.devices for entry in ledger.entries(tx)] == [4, 4, 4, 1]
        assert [entry.devices for entry in ledger.of_runs(tx, ["wide"])] == [4, 4, 4]
        found = ledger.charges(tx, 0)["local"]
    assert seconds_within(found, Window(NOW, NOW + 3_600)) == 100 - 10 + 7
    assert device_seconds_within(found, Window(NOW, NOW + 3_600)) == 4 * (100 - 10) + 7
