"""A hold moves with a session that waits in its platform's queue, as far as its pool has room for it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from jobs.lane_report import Accusation, LaneReport
from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import HOUR, Calendar
from jobs.payload.store.manifest import Component, Manifest, manifest_key
from jobs.spec import JobSpec
from scheduler.core.ledger import LedgerEntry
from scheduler.core.reconcile import Begin, Postpone
from scheduler.core.run import Lane, Reserved, Run, Running, RunState, Stopping
from scheduler.service.facts.apply import apply
from scheduler.service.facts.observation import Observation
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, events, jobs, ledger, runs

NOW = 1_795_000_000
OVERRUN, LATE, PRICE = 600, 1_800, 7
OWN, OTHER = "uff-own-0001", "uff-other-0001"


def pool(hours_left: int = 90 * HOUR, sessions: int = 2) -> Pool:
    quotas = (CalendarQuota("hours of the week", hours_left, Calendar("week", "UTC")),)
    return Pool("cluster", "fake", "CPU", quotas, sessions_max=sessions, overrun_seconds=OVERRUN)


def add_run(ports: Ports, key: str, place: str = "cluster", state: RunState | None = None, start: int = NOW) -> Run:
    job = key.split("-")[1]
    run = Run(key, place, (Lane(0, job, 1, (0,), None),), start, start + HOUR, start + HOUR + OVERRUN, Reserved(start))
    with ports.write() as tx:
        jobs.add(tx, JobSpec(job, "manager", ("x",), 100, 10.0), NOW)
        jobs.note_launch(tx, job, place)
        runs.insert(tx, run, NOW)
        ledger.hold(tx, run, NOW, PRICE, "planned")
        if state is not None:
            runs.change_state(tx, key, run.state, state, "start", NOW)
    return replace(run, state=state or run.state)


def postpone(ports: Ports, run: Run, now: int = NOW + LATE, by: int = 900) -> tuple[Run, LedgerEntry]:
    """Let the run need an hour from ``by`` seconds after ``now``; return it and its newest entry of the ledger."""
    with ports.write() as tx:
        apply(ports, tx, [run], Observation(), [Postpone(run, HOUR, now + by + HOUR)], now)
        return runs.get(tx, run.key), ledger.of_runs(tx, [run.key])[-1]


@pytest.mark.parametrize("state", [Running("there", NOW), None])
def test_deadline_and_hold_move_together(make_ports: Callable[..., Ports], state: RunState | None) -> None:
    ports = make_ports(pools={"cluster": pool()})
    moved, entry = postpone(ports, add_run(ports, OWN, state=state))
    deadline = NOW + LATE + 900 + HOUR
    assert (moved.deadline, moved.held_until, moved.state) == (deadline, deadline + OVERRUN, state or Reserved(NOW))
    assert (entry.start, entry.end, entry.price_microdollars_per_hour) == (NOW + LATE, deadline + OVERRUN, PRICE)
    assert entry.evidence == "it waits in its platform's queue"


def test_a_session_that_begins_late_is_charged_from_then_on(make_ports: Callable[..., Ports]) -> None:
    ports = make_ports(pools={"cluster": pool()})
    run = add_run(ports, OWN, state=Running("there", NOW))
    step = Begin(run, NOW + LATE, NOW + LATE + HOUR)
    with ports.write() as tx:
        apply(ports, tx, [run], Observation(), [step], NOW + LATE + 60)
        begun, entry = runs.get(tx, OWN), ledger.of_runs(tx, [OWN])[-1]
    assert (begun.state, begun.deadline) == (Running("there", NOW + LATE), NOW + LATE + HOUR)
    assert (entry.start, entry.end) == (NOW + LATE, NOW + LATE + HOUR + OVERRUN)
    assert entry.evidence == "it began later than planned"


@pytest.mark.parametrize(("short", "moves"), [(0, True), (1, False)])
def test_a_hold_moves_if_the_quota_covers_it_beside_what_others_hold(
    make_ports: Callable[..., Ports], short: int, moves: bool
) -> None:
    """Both hold an hour and the overrun; the run's own earlier hold does not count."""
    ports = make_ports(pools={"cluster": pool(2 * (HOUR + OVERRUN) - short)})
    add_run(ports, OTHER, state=Running("other", NOW))
    run = add_run(ports, OWN, state=Running("there", NOW))
    moved, _ = postpone(ports, run)
    if moves:
        assert isinstance(moved.state, Running)
        assert moved.deadline > run.deadline
    else:
        assert isinstance(moved.state, Stopping)
        assert "hours of the week leaves no more" in moved.state.why
        assert moved.deadline == run.deadline


@pytest.mark.parametrize(
    ("place", "start", "moves"),
    [
        ("cluster", NOW, False),
        ("cluster", NOW + LATE - HOUR - OVERRUN + 1, False),  # it holds its place for one more second
        ("cluster", NOW + LATE - HOUR - OVERRUN, True),
        ("desk", NOW, True),
    ],
)
def test_a_hold_moves_if_another_session_leaves_it_a_place(
    make_ports: Callable[..., Ports], place: str, start: int, moves: bool
) -> None:
    ports = make_ports(pools={"cluster": pool(sessions=1), "desk": replace(pool(), name="desk")})
    add_run(ports, OTHER, place, Running("other", NOW), start)
    moved, _ = postpone(ports, add_run(ports, OWN, state=Running("there", NOW)))
    assert isinstance(moved.state, Running) == moves
    assert moves or (isinstance(moved.state, Stopping) and "concurrency" in moved.state.why)


def test_a_launch_that_is_not_confirmed_is_postponed_without_room(make_ports: Callable[..., Ports]) -> None:
    """Only a session that is known to wait can be stopped."""
    ports = make_ports(pools={"cluster": pool(HOUR)})
    moved, _ = postpone(ports, add_run(ports, OWN))
    assert moved.deadline == NOW + LATE + 900 + HOUR


@pytest.mark.parametrize("told", [True, False])
def test_a_session_condemns_only_checkpoints_that_it_was_to_start_from(
    make_ports: Callable[..., Ports], told: bool
) -> None:
    """A run of an older version did not store them; there any of the newest may be condemned."""
    ports = make_ports(pools={"cluster": pool()})
    run = add_run(ports, OWN, state=Running("there", NOW))
    keys = [manifest_key("own", step, 1) for step in (10, 20)]
    with ports.write() as tx:
        for step in (10, 20):
            parts = (Component("model", "a" * 64, 3),)
            checkpoints.record(tx, Manifest("own", step, 1, OWN, 0, None, NOW, 60, {}, parts), NOW)
        if told:
            events.append(tx, "run.submit", OWN, NOW, restore={"own": keys[:1]})
        report = LaneReport(OWN, 0, "own", at=NOW, bad_manifests=tuple(Accusation(key, "torn") for key in keys))
        apply(ports, tx, [run], Observation(heartbeats={(OWN, 0): report}), [], NOW)
        states = [checkpoints.get(tx, key).state for key in keys]
    assert states == ["quarantined", "good" if told else "quarantined"]
