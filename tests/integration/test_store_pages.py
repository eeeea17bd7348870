"""Long tables are read page by page, on SQLite and PostgreSQL alike."""

from jobs.spec import JobSpec
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Plan
from scheduler.core.run import Lane, Outcome, Reserved, Run, end, submit
from scheduler.store import jobs, ledger, plans, runs
from scheduler.store.engine import Database

NOW = 1_795_000_000


def add_jobs(database: Database, *names: str) -> None:
    with database.write() as tx:
        for name in names:
            jobs.add(tx, JobSpec(name=name, role="manager", command=("t",), target_step=9, steps_per_hour=1.0), NOW)


def add_run(database: Database, key: str, job: str, start: int, pool: str, until: int | None) -> None:
    lane = Lane(0, job, int(key.rpartition("-")[2]), (0,), None)
    run = Run(key, pool, (lane,), start, start + 60, start + 60, Reserved(start))
    with database.write() as tx:
        runs.insert(tx, run, start)
        if until is not None:
            sent = submit(run.state, start)
            runs.change_state(tx, key, run.state, sent, "submit", start)
            runs.change_state(tx, key, sent, end(sent, Outcome.REJECTED, until, None), "end", until)


def test_jobs_come_by_the_page_in_queue_order_by_state_and_by_a_part_of_the_name(database: Database) -> None:
    add_jobs(database, "main", "ufm_a", "ufm-b", "ucm")
    with database.read() as tx:
        found, total = jobs.page(tx, 2, 1)
        assert ([record.spec.name for record in found], total) == (["ufm_a", "ufm-b"], 4)
        assert jobs.page(tx, 9, 0, {"held"}) == ([], 0)
        # "_" is no wildcard for people.
        assert [record.spec.name for record in jobs.page(tx, 9, part="m_")[0]] == ["ufm_a"]
        assert jobs.first_added(tx) == NOW


def test_runs_come_by_the_page_newest_first_of_one_pool_or_job(database: Database) -> None:
    add_jobs(database, "a", "b")
    for number, (job, pool) in enumerate((("a", "desk"), ("b", "desk"), ("a", "cloud"), ("a", "desk")), start=1):
        add_run(database, f"uff-{job}-{number}", job, NOW + number * 100, pool, NOW + number * 100 + 50)
    with database.read() as tx:
        found, total = runs.page(tx, 2, 1)
        assert ([run.key for run in found], total) == (["uff-a-3", "uff-b-2"], 4)
        assert [run.key for run in runs.page(tx, 9, pool="desk", job="a")[0]] == ["uff-a-4", "uff-a-1"]
        assert runs.page(tx, 9, pool="nowhere") == ([], 0)


def test_runs_between_two_instants_touch_the_span_and_live_ones_count_from_their_reservation(
    database: Database,
) -> None:
    add_jobs(database, "a", "b")
    add_run(database, "uff-a-1", "a", NOW, "desk", NOW + 50)
    add_run(database, "uff-a-2", "a", NOW + 100, "desk", NOW + 150)
    add_run(database, "uff-b-3", "b", NOW + 200, "desk", None)
    with database.read() as tx:
        assert [run.key for run in runs.between(tx, NOW + 50, NOW + 200)] == ["uff-a-2"]
        assert [run.key for run in runs.between(tx, NOW + 140, NOW + 900)] == ["uff-a-2", "uff-b-3"]
        assert runs.live_heartbeats(tx) == []
    with database.write() as tx:
        runs.note_heartbeat(tx, "uff-b-3", 0, {"step": 7})
        runs.note_heartbeat(tx, "uff-a-1", 0, {"step": 1})  # ended: of no interest
        assert runs.live_heartbeats(tx) == ['{"step":7}']


def test_the_ledger_comes_by_the_page_newest_first(database: Database) -> None:
    entries = [
        LedgerEntry(EntryKind.ADJUST, pool, None, NOW + at, NOW + at + 10, NOW) for at, pool in enumerate("xyxx")
    ]
    with database.write() as tx:
        ledger.append(tx, entries)
    with database.read() as tx:
        assert ledger.page(tx, 2, 1) == ([entries[2], entries[1]], 4)
        assert ledger.page(tx, 1, pool="x") == ([entries[3]], 3)


def test_the_number_of_the_newest_plan_grows_with_every_plan(database: Database) -> None:
    numbers = []
    for _ in range(3):
        with database.write() as tx:
            numbers.append(plans.newest_number(tx))
            plans.save(tx, Plan(NOW, (), ()), NOW)
    assert numbers == [0, 1, 2]
