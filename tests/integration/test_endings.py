"""The log says when sessions and jobs end and why; a rehearsal's summary says why nothing came of a pool or a job."""

from collections.abc import Callable
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.spec import JobSpec
from platforms.base import Refused
from scheduler.cli.commands.rehearse import show_week
from scheduler.cli.shell.output import Output
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Outcome
from scheduler.core.snapshot import Snapshot
from scheduler.report.week import to_json, week_of
from scheduler.service.cycle.cycle import Cycle, tell_endings
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.store import events, jobs, limits, runs
from scheduler.views.weekly_report import week_facts
from tests.lab.fake import FakeCloud, FakePlatform

POOLS = {name: Pool(name, "fake", "T4") for name in ("kaggle", "desk", "shut")}


class Refusing(FakePlatform):
    """A place that takes nothing."""

    def launch(self, request: Any, now: int) -> Any:
        """Say no, in its own words."""
        raise Refused("fake", "launch", "Phone verification is required", permanent=True)


def at_once(snapshot: Snapshot, _: Plan | None) -> Plan:
    """Place every waiting job on the place that refuses."""
    waiting = [job.name for job in snapshot.jobs if job.running is None and job.blocked is None]
    places = (
        Placement("kaggle", snapshot.now, snapshot.now + 3_600, (PlannedLane(name, 1, 10),)) for name in waiting[:1]
    )
    return Plan(snapshot.now, tuple(places), ())


@pytest.fixture
def ports(make_ports: Callable[..., Ports]) -> Ports:
    made = make_ports(pools=POOLS, platforms={"kaggle": Refusing(FakeCloud())}, plan=at_once)
    command = ("{python}", "-c", "pass")
    queue.add(made.database, [JobSpec(name, "manager", command, 100, 100.0) for name in ("ufm", "ucm")], 1, "test")
    return made


def week(ports: Ports) -> Any:
    now = ports.clock.now()
    return week_of(week_facts(ports.database, ports.pools, now - 86_400, now + 86_400, 1.0))


def test_a_place_that_refuses_everything_is_no_success(
    ports: Ports, journal: Any, hand_clock: Any, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    """Forty-five refused launches once passed as a week without a broken rule."""
    with ports.write() as tx:
        limits.close_pool(tx, "shut", None, "waits for a person: no credentials found", ports.clock.now())
        told = events.newest_id(tx)
    cycle = Cycle(ports)
    for _ in range(3):
        cycle.run()
        hand_clock.present += 700
        told = tell_endings(ports, told)
    found = week(ports)
    assert [line.split(": ")[0] for line in found.barred] == ["kaggle", "shut"]
    assert "all of its 2 launches were refused, the last: " in found.barred[0]
    assert "Phone verification is required" in found.barred[0]
    assert found.barred[1] == "shut: it is closed: waits for a person: no credentials found"
    document = to_json(found)
    pools = {pool["name"]: pool for pool in document["pools"]}
    assert (pools["kaggle"]["launches"], pools["kaggle"]["refused_launches"]) == (2, 2)
    assert pools["desk"]["why_idle"] == "no session was planned there"
    assert all("Phone verification" in job["why"] and job["state"] == "held" for job in document["jobs"])
    show_week(Output(as_json=False, colour=False, zone="UTC"), found, tmp_path)
    said = capsys.readouterr().out
    assert "kaggle did nothing: all of its 2 launches were refused" in said
    assert "desk did nothing: no session was planned there" in said
    assert "ufm is held: by the platform: fake: launch failed: Phone verification is required" in said
    ended = [line for line in journal.lines if " session.ended " in line]
    held = [line for line in journal.lines if " job.held " in line]
    assert len(ended) == len(held) == 2, "each once"
    assert all(line.startswith("warning") and "Phone verification" in line for line in [*ended, *held])
    assert all("'seconds': 0," in line for line in ended), "they never ran"


@pytest.mark.parametrize(
    ("outcome", "level"),
    [(Outcome.YIELDED, "info"), (Outcome.LOST, "warning"), (Outcome.FAILED, "warning"), (Outcome.PREEMPTED, "warning")],
)
def test_a_session_that_ends_is_told_with_what_was_booked(
    ports: Ports, journal: Any, outcome: Outcome, level: str
) -> None:
    """Whatever wrote it down, and after it was committed; what people did to a job is told, and is no warning."""
    from scheduler.core import job as job_arrows
    from scheduler.core import run as run_arrows
    from scheduler.core.run import Lane, Reserved, Run

    now = ports.clock.now()
    run = Run("uff-ufm-0001", "desk", (Lane(0, "ufm", 1, (0,), None),), now, now + 900, now + 900, Reserved(now))
    with ports.write() as tx:
        runs.insert(tx, run, now)
        before = events.newest_id(tx)
        jobs.change_state(
            tx,
            "ufm",
            jobs.get(tx, "ufm").state,
            job_arrows.activate(jobs.get(tx, "ufm").state, run.key, now),
            "activate",
            now,
        )
        submitting = run_arrows.submit(run.state, now)
        runs.change_state(tx, run.key, run.state, submitting, "submit", now)
        running = run_arrows.accept(submitting, "remote", now)
        runs.change_state(tx, run.key, submitting, running, "accept", now)
        runs.close_lane(tx, run.key, 0, outcome, 7, None, "CUDA out of memory", now + 600)
        ended = run_arrows.end(running, outcome, now + 600, now)
        runs.change_state(tx, run.key, running, ended, f"end_{outcome}", now + 600, why="its own end")
        active = jobs.get(tx, "ufm").state
        jobs.change_state(
            tx, "ufm", active, job_arrows.fail(active, "oom", "CUDA out of memory", now), "fail", now, run=run.key
        )
    queue.hold(ports.database, "ucm", "data are being cleaned", now, "anna")
    newest = tell_endings(ports, before)
    (line,) = [line for line in journal.lines if " session.ended " in line]
    assert line.startswith(level)
    for word in ("uff-ufm-0001", "desk", str(outcome), "its own end", "'seconds': 600", "CUDA out of memory"):
        assert word in line
    (failed,) = [line for line in journal.lines if " job.failed " in line]
    assert failed.startswith("warning")
    assert "oom: CUDA out of memory" in failed
    assert "'run': 'uff-ufm-0001'" in failed
    (held,) = [line for line in journal.lines if " job.held " in line]
    assert held.startswith("info")
    assert "anna" in held
    said = len(journal.lines)
    assert tell_endings(ports, newest) == newest
    assert len(journal.lines) == said


@pytest.mark.parametrize(
    ("outcome", "level", "told"),
    [
        ("failed", "warning", ["'outcome': 'failed'", "'retry_at': 1795000060"]),
        ("yielded", "info", ["'outcome': 'yielded'", "'retry_at': 1795000060"]),
        (None, "info", ["'by': 'daemon'"]),
    ],
)
def test_a_job_that_waits_again_is_told_with_what_ended_it(
    ports: Ports, journal: Any, outcome: str | None, level: str, told: list[str]
) -> None:
    from scheduler.core import job as job_arrows

    now = ports.clock.now()
    assert now == 1_795_000_000
    with ports.write() as tx:
        before = events.newest_id(tx)
        queued = jobs.get(tx, "ufm").state
        active = job_arrows.activate(queued, "uff-ufm-0001", now)
        jobs.change_state(tx, "ufm", queued, active, "activate", now)
        again = job_arrows.requeue(active, now, retry_at=None if outcome is None else now + 60)
        more = {} if outcome is None else {"outcome": outcome}
        jobs.change_state(tx, "ufm", active, again, "requeue", now, **more)
    tell_endings(ports, before)
    (line,) = [line for line in journal.lines if " job.queued " in line]
    assert line.startswith(level)
    assert all(word in line for word in told)
    assert ("outcome" in line, "retry_at" in line) == (outcome is not None, outcome is not None)


def test_of_very_many_ends_each_is_told_once(ports: Ports, journal: Any) -> None:
    with ports.write() as tx:
        told = before = events.newest_id(tx)
        for _ in range(501):
            events.append(tx, "job.release", "ufm", 1, to={"state": "queued"})
    for _ in range(3):
        told = tell_endings(ports, told)
    assert (told - before, len(journal.lines)) == (501, 501)


class Slow(Refusing):
    """A place that refuses when the session's whole time has gone by in being asked."""

    def __init__(self, cloud: FakeCloud, clock: Any) -> None:
        super().__init__(cloud)
        self.clock = clock

    def launch(self, request: Any, now: int) -> Any:
        """Refuse, too late."""
        self.clock.present = request.deadline + 1
        raise Refused("kaggle", "launch", f"the deadline {request.deadline} is not after {request.deadline + 1}")


def test_a_launch_that_came_too_late_says_nothing_of_its_pool(
    make_ports: Callable[..., Ports], hand_clock: Any
) -> None:
    """A machine that is slow to launch closed the pool for it, and a rehearsal ended with 9."""
    made = make_ports(pools=POOLS, platforms={"kaggle": Slow(FakeCloud(), hand_clock)}, plan=at_once)
    queue.add(made.database, [JobSpec("ufm", "manager", ("{python}", "-c", "pass"), 100, 100.0)], 1, "test")
    Cycle(made).run()
    with made.write() as tx:
        (late,) = runs.recent(tx)
        assert late.lanes[0].outcome is Outcome.REJECTED
        assert limits.standing(tx) == {}
    found = week(made)
    assert found.barred == ()
    (kaggle,) = (pool for pool in found.pools if pool.name == "kaggle")
    assert (kaggle.launches.launches, kaggle.launches.refused) == (0, 0)


def test_a_launch_that_was_refused_and_one_that_was_taken_are_counted(ports: Ports) -> None:
    cycle = Cycle(ports)
    cycle.run()
    with ports.write() as tx:
        (refused,) = runs.recent(tx)
        assert refused.lanes[0].outcome is Outcome.REJECTED
    once = week(ports)
    assert once.barred == ()  # one may be chance
    (kaggle,) = (pool for pool in once.pools if pool.name == "kaggle")
    assert kaggle.launches.why_idle.startswith("its only launch was refused, the last: ")
