"""Jobs and runs on SQLite and PostgreSQL: one contract."""

import dataclasses

import pytest

from jobs.lane_report import LaneReport
from jobs.problem import Refusal
from jobs.spec import Gate, JobSpec, Mixture, Needs, Share
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.job import Active, Held, Queued
from scheduler.core.run import Lane, Outcome, Reserved, Run
from scheduler.store import events, jobs, runs
from scheduler.store.engine import Database
from scheduler.store.errors import Refused, Stale
from scheduler.store.jobs import UnknownJob

NOW = 1_795_000_000


FULL_SPEC = JobSpec(
    name="ufm",
    role="manager",
    command=("{python}", "{payload}/train.py", "--name", "Zoë \N{SNOWMAN}"),
    target_step=2_000,
    steps_per_hour=120.5,
    weight=2.5,
    needs=Needs(1, 2, 14.5, "fp16"),
    mixture=Mixture("finance", 0.25),
    gate=Gate("uff-main", 0.2),
    share=Share("uff-main", 30),
    pools=("kaggle", "local"),
    seed=7,
    setup_seconds=300,
    checkpoint_seconds=30,
    device_speedup=(1.0, 1.8),
    environment={"A": "1", "B": "2"},
    not_before=NOW + 10,
    deadline=NOW + 99_999,
)


def plain_spec(name: str) -> JobSpec:
    return JobSpec(name=name, role="manager", command=("train",), target_step=100, steps_per_hour=10.0)


def a_run(key: str, *lanes: tuple[str, int], pool: str = "kaggle", start: int = NOW) -> Run:
    planned_lanes = tuple(Lane(index, job, attempt, (index,), None) for index, (job, attempt) in enumerate(lanes))
    return Run(key, pool, planned_lanes, start, start + 3_600, start + 3_700, Reserved(start))


def reserve(database: Database, run: Run) -> None:
    with database.write() as tx:
        for lane in run.lanes:
            jobs.add(tx, plain_spec(lane.job), NOW)
            jobs.note_launch(tx, lane.job, run.pool)
        runs.insert(tx, run, NOW)


# Jobs


def test_a_definition_comes_back_as_it_was(database: Database) -> None:
    with database.write() as tx:
        added = jobs.add(tx, FULL_SPEC, NOW)
    with database.read() as tx:
        assert jobs.get(tx, "ufm") == added
        assert jobs.get(tx, "ufm").spec == FULL_SPEC
        assert jobs.get(tx, "ufm").state == Queued(NOW)


def test_a_name_cannot_be_used_twice(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, plain_spec("ufm"), NOW)
        with pytest.raises(Refusal, match="ufm"):
            jobs.add(tx, plain_spec("ufm"), NOW)


def test_an_unknown_job_is_answered_with_names_like_it(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, plain_spec("uff-main"), NOW)
    with database.read() as tx, pytest.raises(UnknownJob) as caught:
        jobs.get(tx, "uf-main")
    assert caught.value.close_matches == ("uff-main",)


def test_jobs_are_listed_in_queue_order_and_by_state(database: Database) -> None:
    with database.write() as tx:
        for name in ("c", "a", "b"):
            jobs.add(tx, plain_spec(name), NOW)
        jobs.change_state(tx, "a", Queued(NOW), Held("ann", "later", NOW), "hold", NOW)
    with database.read() as tx:
        assert [record.spec.name for record in jobs.everything(tx)] == ["c", "a", "b"]
        assert [record.spec.name for record in jobs.everything(tx, {"queued"})] == ["c", "b"]
        assert [record.spec.name for record in jobs.everything(tx, ["held", "active"])] == ["a"]
        with pytest.raises(ValueError, match="Queued"):
            jobs.everything(tx, ["Queued"])


def test_a_changed_state_is_stored_with_its_event(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, plain_spec("ufm"), NOW)
        jobs.change_state(tx, "ufm", Queued(NOW), Active("run-1", NOW + 1), "activate", NOW + 1, pool="kaggle")
    with database.read() as tx:
        assert jobs.get(tx, "ufm").state == Active("run-1", NOW + 1)
        event = events.tail(tx)[-1]
    assert (event.kind, event.subject, event.at, event.by) == ("job.activate", "ufm", NOW + 1, "daemon")
    assert event.data["pool"] == "kaggle"
    assert event.data["from"] == {"state": "queued", "since": NOW, "retry_at": None}
    assert event.data["to"] == {"state": "active", "run": "run-1", "since": NOW + 1, "wish": None, "by": "", "why": ""}


@pytest.mark.parametrize("believed", [Queued(NOW, NOW + 5), Queued(NOW - 1), Held("", "", NOW), Active("r", NOW)])
def test_a_state_that_is_not_exactly_the_believed_one_is_not_overwritten(
    database: Database, believed: job_arrows.JobState
) -> None:
    with database.write() as tx:
        jobs.add(tx, plain_spec("ufm"), NOW)
    with pytest.raises(Stale, match="found Queued"), database.write() as tx:
        jobs.change_state(tx, "ufm", believed, Held("ann", "", NOW), "hold", NOW)
    with database.read() as tx:
        assert jobs.get(tx, "ufm").state == Queued(NOW)
        assert [event.kind for event in events.tail(tx)] == ["job.added"]


def test_changing_the_definition_keeps_what_was_before_in_the_event(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, FULL_SPEC, NOW)
        changed = jobs.change_spec(tx, "ufm", NOW, "ann", weight=4.0, pools=("aws",), deadline=None)
    assert changed.spec == dataclasses.replace(FULL_SPEC, weight=4.0, pools=("aws",), deadline=None)
    with database.read() as tx:
        assert jobs.get(tx, "ufm") == changed
        event = events.tail(tx, kinds=["job.changed"])[0]
    assert event.by == "ann"
    assert event.data["old"] == {"weight": 2.5, "pools": ["kaggle", "local"], "deadline": NOW + 99_999}
    assert event.data["new"] == {"weight": 4.0, "pools": ["aws"], "deadline": None}


def test_a_field_that_no_definition_has_is_refused(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, FULL_SPEC, NOW)
        with pytest.raises(TypeError, match="colour"):
            jobs.change_spec(tx, "ufm", NOW, "ann", colour="red")


@pytest.mark.parametrize(
    ("moved", "position", "expected"),
    [("d", 1, "dabc"), ("a", 3, "bcad"), ("b", 2, "abcd"), ("a", 99, "bcda"), ("c", -5, "cabd")],
)
def test_a_moved_job_takes_the_place_and_the_others_make_way(
    database: Database, moved: str, position: int, expected: str
) -> None:
    with database.write() as tx:
        for name in "abcd":
            jobs.add(tx, plain_spec(name), NOW)
        jobs.change_spec(tx, moved, NOW, "ann", position=position)
    with database.read() as tx:
        found = jobs.everything(tx)
    assert "".join(record.spec.name for record in found) == expected
    assert [record.position for record in found] == [1, 2, 3, 4]


def test_launches_are_counted_and_failures_kept(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, plain_spec("ufm"), NOW)
        assert jobs.note_launch(tx, "ufm", "kaggle") == 1
        assert jobs.note_launch(tx, "ufm", "local") == 2
        jobs.note_failures(tx, "ufm", 3)
        with pytest.raises(UnknownJob):
            jobs.note_launch(tx, "nobody", "local")
        with pytest.raises(UnknownJob):
            jobs.note_failures(tx, "nobody", 1)
    with database.read() as tx:
        record = jobs.get(tx, "ufm")
    assert (record.attempts, record.last_pool, record.failures) == (2, "local", 3)


def test_progress_never_goes_backwards_but_by_a_fork(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, plain_spec("ufm"), NOW)
        jobs.note_progress(tx, "ufm", 50, "key-50")
        jobs.note_progress(tx, "ufm", 50, "key-50b")
        with pytest.raises(Refusal, match="step 49 is below the 50"):
            jobs.note_progress(tx, "ufm", 49, "key-49")
        assert jobs.get(tx, "ufm").checkpoint == "key-50b"
        jobs.note_progress(tx, "ufm", 20, "key-20", fork=True)
        assert jobs.get(tx, "ufm").done_step == 20
        with pytest.raises(UnknownJob):
            jobs.note_progress(tx, "nobody", 1, "key")


# Runs


def test_a_run_with_two_lanes_comes_back_as_it_was(database: Database) -> None:
    run = a_run("run-1", ("ufm", 1), ("ucm", 1))
    reserve(database, run)
    with database.read() as tx:
        assert runs.get(tx, "run-1") == run
        assert runs.live(tx) == [run]
        with pytest.raises(runs.UnknownRun):
            runs.get(tx, "run-2")


def test_the_life_of_a_run(database: Database) -> None:
    run = a_run("run-1", ("ufm", 1), ("ucm", 1))
    reserve(database, run)
    submitting = run_arrows.submit(run.state, NOW)
    running = run_arrows.accept(submitting, "remote-1", NOW + 5)
    ended = run_arrows.end(running, Outcome.YIELDED, NOW + 900, NOW + 5)
    with database.write() as tx:
        runs.change_state(tx, "run-1", run.state, submitting, "submit", NOW)
        runs.change_state(tx, "run-1", submitting, running, "accept", NOW + 5)
        runs.close_lane(tx, "run-1", 1, Outcome.FAILED, 40, "oom", "out of memory \ud800\0", NOW + 60)
    with database.read() as tx:
        assert runs.live(tx)[0].state == running
    with database.write() as tx:
        runs.close_lane(tx, "run-1", 0, Outcome.YIELDED, 90, None, "", NOW + 900)
        runs.change_state(tx, "run-1", running, ended, "end", NOW + 900, why="deadline")
    with database.read() as tx:
        stored = runs.get(tx, "run-1")
        assert runs.live(tx) == []
        kinds = [event.kind for event in events.tail(tx, subject="run-1")]
    assert stored.state == ended
    assert stored.lanes[1].outcome is Outcome.FAILED
    assert (stored.lanes[1].end_step, stored.lanes[1].error_class) == (40, "oom")
    assert stored.lanes[1].message.startswith("out of memory ")
    assert kinds == ["run.reserved", "run.submit", "run.accept", "lane.failed", "lane.yielded", "run.end"]


def test_a_stale_run_is_not_overwritten(database: Database) -> None:
    run = a_run("run-1", ("ufm", 1))
    reserve(database, run)
    with pytest.raises(Stale), database.write() as tx:
        runs.change_state(tx, "run-1", Reserved(NOW - 1), run_arrows.Submitting(NOW, 1), "submit", NOW)
    with database.read() as tx:
        assert runs.get(tx, "run-1") == run


def test_a_lane_has_one_outcome_only(database: Database) -> None:
    reserve(database, a_run("run-1", ("ufm", 1)))
    with database.write() as tx:
        runs.close_lane(tx, "run-1", 0, Outcome.LOST, None, None, "", NOW)
        with pytest.raises(Stale):
            runs.close_lane(tx, "run-1", 0, Outcome.FINISHED, 100, None, "", NOW)
        with pytest.raises(Stale):
            runs.close_lane(tx, "run-1", 7, Outcome.FINISHED, 100, None, "", NOW)


def test_a_closed_lane_frees_its_job_while_the_run_goes_on(database: Database) -> None:
    reserve(database, a_run("run-1", ("ufm", 1), ("ucm", 1)))
    with database.write() as tx:
        runs.close_lane(tx, "run-1", 0, Outcome.FINISHED, 100, None, "", NOW)
        runs.insert(tx, a_run("run-2", ("ufm", 2)), NOW)
    with pytest.raises(Refused), database.write() as tx:
        runs.insert(tx, a_run("run-3", ("ucm", 2)), NOW)


def test_an_ended_run_frees_its_jobs(database: Database) -> None:
    run = a_run("run-1", ("ufm", 1))
    reserve(database, run)
    with database.write() as tx:
        ended = run_arrows.end(run.state, Outcome.REJECTED, NOW, None)
        runs.change_state(tx, "run-1", run.state, ended, "end", NOW)
        runs.insert(tx, a_run("run-2", ("ufm", 2)), NOW)


def test_runs_are_found_newest_first_by_pool_and_by_job(database: Database) -> None:
    with database.write() as tx:
        for name in ("a", "b", "c"):
            jobs.add(tx, plain_spec(name), NOW)
        for number, (name, pool) in enumerate([("a", "kaggle"), ("b", "local"), ("c", "kaggle")]):
            runs.insert(tx, a_run(f"run-{name}", (name, 1), pool=pool), NOW + number)
    with database.read() as tx:
        assert [run.key for run in runs.recent(tx)] == ["run-c", "run-b", "run-a"]
        assert [run.key for run in runs.recent(tx, limit=2)] == ["run-c", "run-b"]
        assert [run.key for run in runs.recent(tx, pool="kaggle")] == ["run-c", "run-a"]
        assert [run.key for run in runs.recent(tx, job="b")] == ["run-b"]


def test_since_gives_live_runs_and_those_that_ended_after(database: Database) -> None:
    with database.write() as tx:
        for name in ("old", "new", "live"):
            jobs.add(tx, plain_spec(name), NOW)
            runs.insert(tx, a_run(f"run-{name}", (name, 1)), NOW)
        for name, at in (("old", NOW + 10), ("new", NOW + 11)):
            ended = run_arrows.Ended(Outcome.REJECTED, at, None)
            runs.change_state(tx, f"run-{name}", Reserved(NOW), ended, "end", at)
    with database.read() as tx:
        assert {run.key for run in runs.since(tx, NOW + 10)} == {"run-new", "run-live"}


def test_a_run_needs_a_lane(database: Database) -> None:
    with database.write() as tx, pytest.raises(ValueError, match="no lane"):
        runs.insert(tx, a_run("run-1"), NOW)


def test_only_the_newest_heartbeat_of_a_lane_is_kept(database: Database) -> None:
    reserve(database, a_run("run-1", ("ufm", 1), ("ucm", 1)))
    with database.write() as tx:
        runs.note_heartbeat(tx, "run-1", 1, {"step": 1})
        runs.note_heartbeat(tx, "run-1", 1, {"step": 2, "loss": 0.5})
        runs.note_heartbeat(tx, "nobody", 0, {"step": 3})
    with database.read() as tx:
        assert runs.heartbeats(tx, ["run-1", "nobody"]) == {
            ("run-1", 1): LaneReport("run-1", 1, "ucm", step=2, loss=0.5)
        }
        assert runs.heartbeats(tx, []) == {}
