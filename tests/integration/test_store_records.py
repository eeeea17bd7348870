"""Ledger, events, checkpoints, plans and smaller tables on SQLite and PostgreSQL: one contract."""

import dataclasses

import pytest
from sqlalchemy import text

from jobs.payload.bounds import INSTANT_MAX
from jobs.payload.store.manifest import Component, Manifest, manifest_key
from jobs.problem import NotFound, Refusal
from jobs.spec import JobSpec
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Deferral, Placement, Plan, PlannedLane
from scheduler.core.quota import ObservedLimit
from scheduler.core.reasons import NoAllowedPool, QuotaEmpty
from scheduler.core.run import Lane, Reserved, Run
from scheduler.store import checkpoints, due, events, jobs, ledger, limits, outbox, plans, rates, runs
from scheduler.store.engine import Database
from scheduler.store.errors import Refused, Stale

NOW = 1_795_000_000


def plain_spec(name: str) -> JobSpec:
    return JobSpec(name=name, role="manager", command=("train",), target_step=100, steps_per_hour=10.0)


def a_run(key: str, *lanes: tuple[str, int], pool: str = "kaggle", start: int = NOW) -> Run:
    planned_lanes = tuple(Lane(index, job, attempt, (index,), None) for index, (job, attempt) in enumerate(lanes))
    return Run(key, pool, planned_lanes, start, start + 3_600, start + 3_700, Reserved(start))


def a_manifest(job: str, step: int, attempt: int = 1) -> Manifest:
    return Manifest(
        job=job,
        step=step,
        attempt=attempt,
        run="run-1",
        lane=0,
        parent=None,
        created_at=10**30,  # whatever a hostile platform wrote
        trained_seconds=60,
        components=(Component("model", "a" * 64, 3),),
        metrics={"loss": 1.5},
    )


def reserve(database: Database, run: Run) -> None:
    with database.write() as tx:
        for lane in run.lanes:
            jobs.add(tx, plain_spec(lane.job), NOW)
            jobs.note_launch(tx, lane.job, run.pool)
        runs.insert(tx, run, NOW)


# History


@pytest.mark.parametrize("table", ["events", "ledger"])
@pytest.mark.parametrize("change", ["UPDATE {} SET at = 0", "DELETE FROM {}"])
def test_history_cannot_be_changed_even_by_hand(database: Database, table: str, change: str) -> None:
    reserve(database, a_run("run-1", ("ufm", 1)))
    with database.write() as tx:
        ledger.append(tx, [LedgerEntry(EntryKind.HOLD, "kaggle", "run-1", NOW, NOW + 1, NOW)])
    with pytest.raises(Refused, match="append-only"), database.write() as tx:
        tx.execute(text(change.format(table)))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR REPLACE INTO ledger SELECT * FROM ledger WHERE kind = 'hold'",
        "INSERT OR REPLACE INTO ledger SELECT id, 'hold', pool, run, 0, 0, 0, credit, 0, '' FROM ledger LIMIT 1",
        "REPLACE INTO ledger SELECT NULL, kind, pool, run, 0, 0, 0, credit, 0, '' FROM ledger WHERE kind = 'spend'",
        "REPLACE INTO ledger SELECT NULL, 'release', pool, run, 0, 0, 0, credit, 0, '' FROM ledger WHERE id = 2",
        "REPLACE INTO events SELECT * FROM events",
    ],
)
def test_history_cannot_be_replaced_either(database: Database, statement: str) -> None:
    """REPLACE deletes what is in its way, and SQLite fires no trigger for that."""
    reserve(database, a_run("run-1", ("ufm", 1)))
    with database.write() as tx:
        for kind in (EntryKind.HOLD, EntryKind.SPEND):
            ledger.append(tx, [LedgerEntry(kind, "kaggle", "run-1", NOW, NOW + 1, NOW)])
        before = tx.execute(text("SELECT * FROM ledger")).all()
    with pytest.raises(Refused, match="append-only"), database.write() as tx:
        tx.execute(text(statement))
    with database.read() as tx:
        assert tx.execute(text("SELECT * FROM ledger")).all() == before


def test_old_events_are_pruned_in_portions_and_never_the_newest(database: Database) -> None:
    with database.write() as tx:
        ids = [events.append(tx, "kind", "subject", NOW + n) for n in range(6)]
    with database.write() as tx:
        assert events.prune(tx, NOW + 4, 3) == 3
        assert events.pruned_up_to(tx) == ids[2]
    with database.write() as tx:
        assert [events.prune(tx, NOW + 4, 3), events.prune(tx, NOW + 4, 3)] == [1, 0]
        assert [event.id for event in events.tail(tx)] == ids[4:]
        assert events.prune(tx, NOW + 1_000, 3) == 1
        assert [event.id for event in events.tail(tx)] == ids[5:]
        assert events.append(tx, "kind", "subject", NOW + 9) > ids[5]
    with pytest.raises(Refused, match="append-only"), database.write() as tx:
        tx.execute(text("DELETE FROM events"))


def test_an_event_from_a_clock_that_was_wrong_leaves_no_hole(database: Database) -> None:
    """Events of a clock set back lie among newer ones; what is left of the log is whole."""
    with database.write() as tx:
        ids = [events.append(tx, "kind", "subject", at) for at in (NOW, NOW + 100, NOW + 1, NOW + 200)]
        assert events.prune(tx, NOW + 50, 10) == 1
        assert [event.id for event in events.tail(tx)] == ids[1:]


def test_where_nothing_has_happened_the_newest_event_is_none(database: Database) -> None:
    with database.read() as tx:
        assert (events.newest_id(tx), events.tail(tx), events.kinds_after(tx, 0)) == (0, [], [])


def test_events_come_oldest_first_and_can_be_followed(database: Database) -> None:
    with database.write() as tx:
        ids = [events.append(tx, f"kind.{n % 2}", f"subject-{n % 3}", NOW + n, by="ann", n=n) for n in range(7)]
    assert ids == sorted(ids)
    with database.read() as tx:
        assert [event.data["n"] for event in events.tail(tx, limit=3)] == [4, 5, 6]
        assert [event.data["n"] for event in events.tail(tx, after_id=ids[1], limit=3)] == [2, 3, 4]
        assert [event.data["n"] for event in events.tail(tx, kinds=["kind.1"])] == [1, 3, 5]
        assert [event.data["n"] for event in events.tail(tx, subject="subject-0")] == [0, 3, 6]
        assert events.tail(tx, after_id=ids[-1]) == []


# What the database refuses by itself


@pytest.mark.parametrize(
    "statement",
    [
        (
            "INSERT INTO lanes (run, lane, job, attempt, devices, live, message) "
            "VALUES ('run-1', 5, 'ufm', 9, '[]', true, '')"
        ),
        (
            "INSERT INTO lanes (run, lane, job, attempt, devices, live, message) "
            "VALUES ('run-1', 5, 'ufm', 1, '[]', false, '')"
        ),
        "UPDATE lanes SET outcome = 'lost'",
        (
            "INSERT INTO lanes (run, lane, job, attempt, devices, live, message) "
            "VALUES ('run-1', 5, 'nobody', 1, '[]', true, '')"
        ),
        "UPDATE runs SET state = 'ended'",
        "UPDATE runs SET state = 'sleeping'",
        "UPDATE jobs SET state = 'sleeping'",
        "UPDATE jobs SET done_step = -1",
        "DELETE FROM jobs",
        "INSERT INTO lease (id, holder, epoch, until) VALUES (2, 'me', 1, 0)",
        (
            "INSERT INTO ledger (kind, pool, starts_at, ends_at, at, credit, price_microdollars_per_hour, evidence) "
            "VALUES ('hold', 'kaggle', 0, 1, 0, false, 0, '')"
        ),
        (
            "INSERT INTO ledger (kind, pool, starts_at, ends_at, at, credit, price_microdollars_per_hour, evidence) "
            "VALUES ('adjust', 'kaggle', 1, 0, 0, false, 0, '')"
        ),
    ],
)
def test_the_database_refuses_what_code_forgot(database: Database, statement: str) -> None:
    reserve(database, a_run("run-1", ("ufm", 1)))
    with pytest.raises(Refused) as caught, database.write() as tx:
        tx.execute(text(statement))
    assert "schedctl" in str(caught.value)


def test_nothing_of_a_transaction_that_fails_is_kept(database: Database) -> None:
    def add_twice() -> None:
        with database.write() as tx:
            jobs.add(tx, plain_spec("ufm"), NOW)
            jobs.add(tx, plain_spec("ufm"), NOW)

    with pytest.raises(Refusal):
        add_twice()
    with database.read() as tx:
        assert jobs.everything(tx) == []
        assert events.tail(tx) == []


def test_a_read_sees_one_instant_while_others_write(database: Database) -> None:
    with database.read() as tx:
        assert jobs.everything(tx) == []
        with database.write() as other:
            jobs.add(other, plain_spec("ufm"), NOW)
        assert jobs.everything(tx) == []
    with database.read() as tx:
        assert len(jobs.everything(tx)) == 1


# Checkpoints


def test_checkpoints_are_recorded_once_and_found_highest_step_first(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, plain_spec("ufm"), NOW)
        for step in (10, 30, 20):
            assert checkpoints.record(tx, a_manifest("ufm", step), NOW)
        assert not checkpoints.record(tx, a_manifest("ufm", 30), NOW + 9)
        checkpoints.quarantine(tx, manifest_key("ufm", 30, 1), "digest differs", NOW)
    with database.read() as tx:
        assert [found.manifest.step for found in checkpoints.newest(tx, "ufm")] == [20, 10]
        assert [found.manifest.step for found in checkpoints.newest(tx, "ufm", limit=1)] == [20]
        assert [found.manifest.step for found in checkpoints.everything(tx)] == [30, 20, 10]
        assert checkpoints.everything(tx, "nobody") == []
        bad = checkpoints.get(tx, manifest_key("ufm", 30, 1))
        with pytest.raises(NotFound):
            checkpoints.get(tx, "nothing")
    assert bad == checkpoints.CheckpointRecord(
        # No calendar shows the instant that was written.
        dataclasses.replace(a_manifest("ufm", 30), created_at=INSTANT_MAX),
        NOW,
        "quarantined",
        "digest differs",
        pinned=False,
    )


def test_a_pinned_checkpoint_does_not_expire(database: Database) -> None:
    key = manifest_key("ufm", 10, 1)
    with database.write() as tx:
        jobs.add(tx, plain_spec("ufm"), NOW)
        checkpoints.record(tx, a_manifest("ufm", 10), NOW)
        checkpoints.pin(tx, key, True, NOW, "ann")
        with pytest.raises(Stale, match="pinned"):
            checkpoints.expire(tx, key, "old", NOW)
        checkpoints.pin(tx, key, False, NOW, "ann")
        checkpoints.expire(tx, key, "old", NOW)
        with pytest.raises(Stale):
            checkpoints.pin(tx, key, True, NOW, "ann")
        with pytest.raises(Stale):
            checkpoints.quarantine(tx, key, "bad", NOW)
        assert checkpoints.get(tx, key).state == "expired"
        assert [event.kind.partition(".")[2] for event in events.tail(tx, subject=key)] == [
            "seen",
            "pinned",
            "unpinned",
            "expired",
        ]


# Plans, rates, limits, duties, outbox


def a_plan(made_at: int) -> Plan:
    return Plan(
        made_at=made_at,
        placements=(
            Placement("kaggle", made_at, made_at + 60, (PlannedLane("ufm", 1, 40), PlannedLane("ucm", 1, 41))),
        ),
        deferrals=(
            Deferral("urm", QuotaEmpty("kaggle", "week", made_at + 5)),
            Deferral("ulm", NoAllowedPool(("x", "y"))),
        ),
        value=0.1 + 0.2,
        bound=1 / 3,
        made_by="dispatch",
        warnings=("no solver",),
    )


def test_plans_come_back_as_they_were_made(database: Database) -> None:
    with database.write() as tx:
        assert plans.newest(tx) is None
        assert plans.reason(tx, "ufm") is None
        for made_at in (NOW, NOW + 1, NOW + 2):
            plans.save(tx, a_plan(made_at), made_at)
    with database.read() as tx:
        newest = plans.newest(tx)
        assert newest == a_plan(NOW + 2)
        assert newest is not None
        assert newest.digest == a_plan(NOW + 2).digest
        assert plans.previous(tx, NOW + 2) == a_plan(NOW + 1)
        assert plans.previous(tx, NOW) is None
        assert plans.reason(tx, "ulm") == NoAllowedPool(("x", "y"))
        assert plans.reason(tx, "ufm") is None


def test_old_plans_are_dropped(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "KEPT", 20)
    with database.write() as tx:
        for number in range(150):
            plans.save(tx, Plan(NOW + number, (), ()), NOW)
        kept = tx.execute(text("SELECT min(made_at), max(made_at) FROM plans")).one()
    assert tuple(kept) == (NOW + 130, NOW + 149)


def test_rates_are_replaced(database: Database) -> None:
    first = rates.RateRecord(0.1, 0.2, 0, 600, 60, job="ufm", pool="kaggle", at=NOW)
    second = dataclasses.replace(first, steps_per_second=1 / 3, samples=4)
    with database.write() as tx:
        jobs.add(tx, plain_spec("ufm"), NOW)
        rates.put(tx, first)
        rates.put(tx, second)
        rates.put(tx, dataclasses.replace(first, pool="local"))
    with database.read() as tx:
        found = rates.everything(tx)
    assert found[("ufm", "kaggle")] == second
    assert set(found) == {("ufm", "kaggle"), ("ufm", "local")}


def test_the_newest_observation_of_a_window_counts(database: Database) -> None:
    limit = ObservedLimit("week", NOW, NOW + 100, 108_000, NOW, "api")
    less = dataclasses.replace(limit, limit=90_000, at=NOW + 5)
    other = dataclasses.replace(limit, start=NOW + 100, end=NOW + 200, at=NOW + 1)
    with database.write() as tx:
        limits.observe(tx, "kaggle", limit)
        limits.observe(tx, "kaggle", less)
        limits.observe(tx, "kaggle", limit)
        limits.observe(tx, "kaggle", dataclasses.replace(less, at=NOW + 6))
        limits.observe(tx, "kaggle", other)
    with database.read() as tx:
        assert limits.observed(tx) == {"kaggle": (other, dataclasses.replace(less, at=NOW + 6))}
        changes = [event.data["limit"] for event in events.tail(tx, kinds=["limit.observed"])]
    assert changes == [108_000, 90_000, 108_000]


def test_pools_close_and_open(database: Database) -> None:
    with database.write() as tx:
        limits.close_pool(tx, "kaggle", NOW + 60, "refused", NOW)
        limits.close_pool(tx, "kaggle", None, "switched off", NOW)
        limits.close_pool(tx, "local", NOW + 60, "busy", NOW)
        limits.open_pool(tx, "local", NOW)
        limits.open_pool(tx, "local", NOW)
        assert limits.closures(tx) == {"kaggle": (None, "switched off")}
        kinds = [event.kind for event in events.tail(tx)]
    assert kinds == ["pool.closed", "pool.closed", "pool.closed", "pool.opened"]


def test_duties_are_kept(database: Database) -> None:
    with database.write() as tx:
        due.set_due(tx, "report", NOW)
        due.set_due(tx, "report", NOW + 7)
        due.set_due(tx, "backup", NOW)
        assert due.next_due(tx) == {"report": NOW + 7, "backup": NOW}


def test_a_message_is_sent_once_per_period_and_channel(database: Database) -> None:
    with database.write() as tx:
        assert outbox.add(tx, "weekly", "2026-W47", "mail", {"subject": "Week"}, NOW)
        assert not outbox.add(tx, "weekly", "2026-W47", "mail", {"subject": "again"}, NOW)
        assert outbox.add(tx, "weekly", "2026-W47", "slack", {}, NOW)
        mail, slack = outbox.pending(tx, NOW)
        assert (mail.body, mail.attempts) == ({"subject": "Week"}, 0)
        outbox.failed(tx, mail.id, NOW + 60, "no route to host")
        outbox.sent(tx, slack.id, NOW)
        assert outbox.pending(tx, NOW + 59) == []
        (again,) = outbox.pending(tx, NOW + 60)
        assert (again.id, again.attempts, again.why) == (mail.id, 1, "no route to host")
        with pytest.raises(Stale):
            outbox.sent(tx, slack.id, NOW)
        with pytest.raises(Stale):
            outbox.failed(tx, slack.id, NOW, "late")
        assert outbox.add(tx, "weekly", "2026-W47", "slack", {}, NOW) is False


def test_what_was_sent_is_forgotten_in_parts_and_never_sent_again(database: Database) -> None:
    with database.write() as tx:
        for period in ("1", "2", "3"):
            assert outbox.add(tx, "weekly", period, "mail", {"subject": period}, NOW)
        first, second, _ = outbox.pending(tx, NOW)
        outbox.sent(tx, first.id, NOW)
        outbox.sent(tx, second.id, NOW + 1)
        assert outbox.sent_by_period(tx, "weekly") == {
            "1": {"mail": NOW},
            "2": {"mail": NOW + 1},
            "3": {"mail": None},
        }
        assert outbox.empty(tx, NOW + 1, 10) == 1
        assert outbox.find(tx, "weekly", "1", "mail") == (NOW, {})
        assert outbox.find(tx, "weekly", "2", "mail") == (NOW + 1, {"subject": "2"})
        assert outbox.find(tx, "weekly", "4", "mail") is None
        assert outbox.empty(tx, NOW + 9, 1) == 1, "what is empty already takes no place"
        assert outbox.empty(tx, NOW + 9, 1) == 0
        assert not outbox.add(tx, "weekly", "1", "mail", {}, NOW + 9)


def test_a_channel_is_stuck_until_it_takes_a_later_message(database: Database) -> None:
    with database.write() as tx:
        assert outbox.add(tx, "alert", "1", "mail", {}, NOW)
        (message,) = outbox.pending(tx, NOW)
        outbox.failed(tx, message.id, outbox.NEVER, "no such user")
        assert [one.channel for one in outbox.stuck(tx, 9, NOW)] == ["mail"]
        assert outbox.stuck(tx, 9, NOW + 1) == []
        for period, at, left in (("2", NOW, 1), ("3", NOW + 1, 0)):
            assert outbox.add(tx, "alert", period, "mail", {}, NOW)
            (other,) = outbox.pending(tx, NOW)
            outbox.sent(tx, other.id, at)
            assert len(outbox.stuck(tx, 9)) == left


def test_a_channel_is_stuck_while_a_message_fails_again_and_again(database: Database) -> None:
    """Whatever else it takes; and beside one that is well again."""
    retries = {"mail": outbox.NEVER, "slack": NOW + 60, "web": NOW + 60}
    with database.write() as tx:
        for channel, retry_at in retries.items():
            for period in ("1", "2"):
                assert outbox.add(tx, "alert", period, channel, {}, NOW)
            first, second = outbox.pending(tx, NOW)
            outbox.failed(tx, first.id, NOW, "busy")
            outbox.failed(tx, first.id, retry_at, f"{channel} is busy")
            outbox.sent(tx, second.id, NOW + 1)
        web = outbox.StuckMessage("web", 1, 2, NOW, "web is busy")
        assert outbox.stuck(tx, 2) == [outbox.StuckMessage("slack", 1, 2, NOW, "slack is busy"), web]
        assert outbox.stuck(tx, 3) == []
        assert outbox.add(tx, "alert", "3", "web", {}, NOW)
        third = outbox.pending(tx, NOW)[0]
        for why in ("a", "b", "c"):
            outbox.failed(tx, third.id, NOW + 60, why)
        assert outbox.stuck(tx, 2)[1:] == [dataclasses.replace(web, messages=2, why="c")]
