"""Two reports say the same of one week: what was made at its end, and what the next one says of the week before."""

from pathlib import Path

from jobs.nouns.pool import Pool
from jobs.payload.store.manifest import Component, Manifest, manifest_key
from jobs.spec import JobSpec
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Lane, Outcome, Reserved, Run
from scheduler.report.document import document_of
from scheduler.report.renderings import text_of
from scheduler.store import checkpoints, jobs, ledger, runs, series
from scheduler.store.engine import Database
from scheduler.store.series import Point
from scheduler.views.weekly_report import make_report, week_named
from tests.lab.databases import new_database

HOUR = 3_600
OVER = week_named("2026-W47", "UTC")
NEXT = week_named("2026-W48", "UTC")
POOL = Pool("desk", "local", "cpu", session_cap_seconds=40 * HOUR)
KEY = "uff-ufm-0001"
BEGAN, ENDED = OVER.end - 10 * HOUR, OVER.end + 5 * HOUR


def begin(database: Database) -> None:
    """A session begins ten hours before the week is over, and has saved once when it is."""
    run = Run(KEY, "desk", (Lane(0, "ufm", 1, (0,), None),), BEGAN, ENDED, ENDED, Reserved(BEGAN))
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("{python}", "train.py"), 9_000, 100.0), BEGAN - HOUR)
        jobs.note_launch(tx, "ufm", "desk")
        runs.insert(tx, run, BEGAN)
        ledger.append(tx, [LedgerEntry(EntryKind.HOLD, "desk", KEY, BEGAN, ENDED, BEGAN)])
        queued = jobs.get(tx, "ufm").state
        jobs.change_state(tx, "ufm", queued, job_arrows.activate(queued, KEY, BEGAN), "activate", BEGAN)
        submitting = run_arrows.submit(run.state, BEGAN)
        runs.change_state(tx, KEY, run.state, submitting, "submit", BEGAN)
        runs.change_state(tx, KEY, submitting, run_arrows.accept(submitting, "remote", BEGAN), "accept", BEGAN)
    save(database, 500, None, OVER.end - 2 * HOUR)


def save(database: Database, step: int, parent: str | None, at: int) -> None:
    """A checkpoint of seven hours of training arrives."""
    manifest = Manifest(
        job="ufm",
        step=step,
        attempt=1,
        run=KEY,
        lane=0,
        parent=parent,
        created_at=at,
        trained_seconds=7 * HOUR,
        components=(Component("weights", "0" * 64, 1),),
        metrics={"held_out_loss": 4 - step / 1_000},
    )
    with database.write() as tx:
        checkpoints.record(tx, manifest, at)
        jobs.note_progress(tx, "ufm", step, manifest.key)


def end(database: Database) -> None:
    """It ends in the next week, after a second checkpoint, and the platform bills an hour less than was held."""
    save(database, 900, manifest_key("ufm", 500, 1), ENDED - HOUR)
    with database.write() as tx:
        live = runs.get(tx, KEY).state
        runs.close_lane(tx, KEY, 0, Outcome.YIELDED, 900, None, "", ENDED)
        ended = run_arrows.end(live, Outcome.YIELDED, ENDED, BEGAN)
        runs.change_state(tx, KEY, live, ended, "end_yielded", ENDED)
        ledger.append(tx, [LedgerEntry(EntryKind.SPEND, "desk", KEY, BEGAN + HOUR, ENDED, ENDED)])


def test_a_week_comes_to_the_same_in_its_own_report_and_in_the_next(tmp_path: Path) -> None:
    database = new_database(tmp_path / "x.db")
    pools = {"desk": POOL}
    begin(database)
    sent = make_report(database, pools, OVER, "UTC", OVER.end)
    assert (sent.total.charged, sent.total.useful, sent.total.running) == (10 * HOUR, 7 * HOUR, 3 * HOUR)
    end(database)
    again = make_report(database, pools, OVER, "UTC", NEXT.end)
    following = make_report(database, pools, NEXT, "UTC", NEXT.end)
    assert sent.total == again.total == following.total_before
    assert f"goodput {sent.total.goodput:.1%}" in text_of(document_of(again))
    assert f"(last week {sent.total.goodput:.1%})" in text_of(document_of(following))
    # What the platform said later is told beside the figures, and the second part counts in its own week.
    assert "Corrected after the end of the week: -1.0 h" in text_of(document_of(again))
    assert (following.total.charged, following.total.useful) == (5 * HOUR, 4 * HOUR)
    database.close()


def test_the_week_that_goes_on_is_told_so_far(tmp_path: Path) -> None:
    database = new_database(tmp_path / "x.db")
    begin(database)
    now = OVER.end - HOUR
    assert week_named("this", "UTC", now) == OVER
    report = make_report(database, {"desk": POOL}, OVER, "UTC", now)
    assert (report.so_far, report.end) == (True, now)
    assert report.total.charged == 9 * HOUR  # nothing of the hour to come
    assert "2026-W47, so far" in document_of(report).title
    database.close()


def test_a_week_says_how_its_gpus_were_used(tmp_path: Path) -> None:
    database = new_database(tmp_path / "x.db")
    begin(database)
    assert "GPUs" not in [
        section.title for section in document_of(make_report(database, {"desk": POOL}, OVER, "UTC", NEXT.end)).sections
    ]
    with database.write() as tx:
        for step, at, busy in ((100, OVER.end - HOUR, 0.3), (200, OVER.end - 1, 0.5), (300, OVER.end, 0.9)):
            point = Point("ufm", 1, step, at, 2.0, None, gpu_memory_bytes=step << 25, gpu_busy=busy, gpu_watts=70.0)
            series.add(tx, point, 9_000)
    (gpus,) = (
        one
        for one in document_of(make_report(database, {"desk": POOL}, OVER, "UTC", NEXT.end)).sections
        if one.title == "GPUs"
    )
    assert gpus.table is not None
    assert gpus.table.rows == (("ufm", "desk", "40 % busy, 6.2 of 16 GiB, 70 W"),)
    assert gpus.lines == ("ufm leaves half of the memory on desk empty, a larger batch fits.",)
    database.close()
