"""What sessions and platforms say, driven through real cycles: believed as far as it can be, told once, never fatal."""

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.payload.bounds import Rejection
from jobs.payload.store.manifest import blob_key, manifest_key
from jobs.spec import JobSpec
from platforms.base import Observed, QuotaReading, Refused, SessionState
from scheduler.core.job import Queued
from scheduler.core.ledger import EntryKind
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Running, Submitting
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import read_books
from scheduler.store import checkpoints, events, jobs, ledger, limits, rates, runs, training_data
from scheduler.store.engine import Database
from tests.lab.border.fuzz import MEMORY_MAX, fuzz
from tests.lab.fake import FakeCloud, FakePlatform, Script
from tests.lab.night import share
from tests.lab.simulation.database import Laboratory

NOW = 1_795_000_000
DESK = Pool("desk", "fake", "CPU", session_cap_seconds=4 * HOUR, sessions_max=2)


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> SimpleNamespace:
    """Two jobs that train at a desk, each in a session of its own; ``says`` changes what the platform answers."""
    cloud, says = FakeCloud(2, usual=Script(runs_seconds=None)), SimpleNamespace(answer=lambda found: found, quota=[])

    class Talker(FakePlatform):
        def find(self, keys: Any, now: int) -> Any:
            return {key: says.answer(found) for key, found in super().find(keys, now).items()}

        def launch(self, request: Any, now: int) -> Any:
            return says.answer(super().launch(request, now))

        def read_quota(self, now: int) -> Any:
            return says.quota

    def plan(snapshot: Any, incumbent: Plan | None) -> Plan:
        free = [job.name for job in snapshot.jobs if job.running is None]
        due = tuple(Placement("desk", snapshot.now, snapshot.now + HOUR, (PlannedLane(name, 1, 100),)) for name in free)
        return Plan(snapshot.now, due, ())

    ports = make_ports(platforms={"desk": Talker(cloud)}, pools={"desk": DESK}, plan=plan)
    with database.write() as tx:
        for name in ("ufm", "victim"):
            jobs.add(tx, JobSpec(name, "manager", ("train",), 1_000, steps_per_hour=100.0), NOW)
    cycle = Cycle(ports)
    return SimpleNamespace(ports=ports, cloud=cloud, says=says, cycle=cycle, database=database, clock=ports.clock)


def said(world: SimpleNamespace, job: str, name: str = "heartbeat", **fields: Any) -> None:
    """Let a job's session leave a document."""
    key = f"runs/uff-{job}-0001/lane-0/{name}.json"
    world.ports.artifacts.put(key, json.dumps({"format": 1, **fields}).encode())


def published(world: SimpleNamespace, job: str, step: int, attempt: int = 1, **more: Any) -> str:
    """Let a job's session publish a checkpoint; return the manifest's key."""
    world.ports.artifacts.create(blob_key(job, "0" * 64), b"x")
    whole = {"format": 1, "job": job, "step": step, "attempt": attempt, "run": f"uff-{job}-{attempt:04d}", "lane": 0}
    whole |= {"parent": None, "created_at": world.clock.present, "trained_seconds": 60, "metrics": {"loss": 1.0}}
    whole |= {"components": [{"name": "model.bin", "sha256": "0" * 64, "bytes": 1}], **more}
    key = manifest_key(job, step, attempt)
    world.ports.artifacts.create(key, json.dumps(whole).encode())
    said(world, job, checkpoint_step=step, phase="training")
    return key


def turn(world: SimpleNamespace, seconds: int = 60) -> None:
    world.clock.present += seconds
    world.cycle.run()


def told(world: SimpleNamespace, subject: str) -> list[str]:
    """What was told of things not believed."""
    with world.database.read() as tx:
        return [str(event.data["why"]) for event in events.tail(tx, kinds=[border.REFUSED], subject=subject)]


def job(world: SimpleNamespace, name: str) -> Any:
    with world.database.read() as tx:
        return jobs.get(tx, name)


def test_metrics_may_have_any_name(world: SimpleNamespace) -> None:
    """A metric named ``step`` or ``event`` ended every cycle."""
    world.cycle.run()
    metrics = {"step": 1.0, "job": 2.0, "run": 3.0, "event": 4.0, "self": 5.0, "loss": 0.5}
    published(world, "ufm", 40, metrics=metrics)
    turn(world)
    assert job(world, "ufm").done_step == 40
    with world.database.read() as tx:
        assert checkpoints.newest(tx, "ufm")[0].manifest.metrics == metrics


@pytest.mark.parametrize(
    "change",
    [
        {"step": 1_001},
        {"attempt": 2},
        {"run": "uff-victim-0001"},
        {"lane": 1},
        {"created_at": 2**63 - 1},
        {"trained_seconds": 10**12},
        {"components": [{"name": "model.bin", "sha256": "0" * 64, "bytes": 2**62}]},
    ],
)
def test_a_manifest_that_no_launch_of_ours_can_have_made_is_refused_and_told_once(
    world: SimpleNamespace, change: dict[str, Any]
) -> None:
    world.cycle.run()
    published(world, "ufm", **{"step": 40, **change})
    said(world, "ufm", checkpoint_step=41, phase="training")  # has the daemon look
    for _ in range(3):
        turn(world)
    assert job(world, "ufm").done_step == 0
    assert len(told(world, "ufm")) == 1
    published(world, "ufm", 50)
    turn(world)
    assert job(world, "ufm").done_step == 50


def test_a_refusal_whose_event_was_not_written_is_told_the_next_time(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints = border.RejectionLog(world.ports)
    refused = [border.RejectedInput("ufm", "manifest", (Rejection("step", "not a number", "x"),))]
    with monkeypatch.context() as broken:
        broken.setattr(events, "append", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            complaints.report(refused, {"ufm"}, world.ports.clock.now())
    complaints.report(refused, {"ufm"}, world.ports.clock.now())
    with world.ports.database.read() as tx:
        assert [event.subject for event in events.tail(tx, kinds=["report.refused"])] == ["ufm"]


def test_a_wrong_clock_costs_no_checkpoint(world: SimpleNamespace) -> None:
    world.cycle.run()
    published(world, "ufm", 40, created_at=NOW - 9 * HOUR, trained_seconds=9 * HOUR)
    turn(world)
    with world.database.read() as tx:
        manifest = checkpoints.newest(tx, "ufm")[0].manifest
    assert (manifest.step, manifest.created_at, manifest.trained_seconds) == (40, NOW, 60)
    assert told(world, "uff-ufm-0001")


def test_a_session_condemns_no_checkpoint_but_those_it_was_given(world: SimpleNamespace) -> None:
    """Foreign keys in ``bad_manifests`` sent another job from step 500 to 0."""
    world.cycle.run()
    foreign = published(world, "victim", 500)
    own = published(world, "ufm", 30)  # made after the session was launched: it cannot have tried to restore it
    turn(world)
    said(world, "ufm", bad_manifests=[{"manifest": key, "why": "bad"} for key in (foreign, own)], checkpoint_step=30)
    turn(world)
    assert (job(world, "victim").done_step, job(world, "ufm").done_step) == (500, 30)
    assert len(told(world, "uff-ufm-0001")) == 1
    # The next session of the job is given the checkpoint, and may find it damaged.
    world.cloud.cut("uff-ufm-0001", world.clock.present, "over")
    turn(world)
    turn(world)
    beat = {"format": 1, "bad_manifests": [{"manifest": own, "why": "a component is damaged"}]}
    world.ports.artifacts.put("runs/uff-ufm-0002/lane-0/heartbeat.json", json.dumps(beat).encode())
    turn(world)
    assert job(world, "ufm").done_step == 0
    with world.database.read() as tx:
        assert checkpoints.get(tx, own).state == "quarantined"


@pytest.mark.parametrize("speed", [1e308, 5e-324, True, "fast", -1.0])
def test_no_speed_is_learned_that_nothing_can_have(world: SimpleNamespace, speed: Any) -> None:
    world.cycle.run()
    said(world, "ufm", steps_per_second=speed, checkpoint_seconds=5.0, setup_seconds=10.0, phase="training")
    turn(world)
    with world.database.read() as tx:
        assert rates.get(tx, "ufm", "desk") is None
    assert len(told(world, "uff-ufm-0001")) == 1


@pytest.mark.parametrize("speed", [1e308, 5e-324])
def test_speeds_that_an_older_version_believed_are_as_if_not_measured(world: SimpleNamespace, speed: float) -> None:
    """Every plan failed, and only surgery on the database helped."""
    with world.database.write() as tx:
        rates.put(tx, rates.RateRecord(speed, 1e300, 4, 10**15, 10**15, job="ufm", pool="desk", at=NOW))
    with world.database.read() as tx:
        found = rates.get(tx, "ufm", "desk")
        assert found is not None
        assert (found.samples, found.setup_seconds < 10**7) == (0, True)
        (view,) = (view for view in load_snapshot(tx, {"desk": DESK}, NOW, HOUR).jobs if view.name == "ufm")
    assert view.rates["desk"].steps_per_second == pytest.approx(100 / 3_600)


def test_a_bad_field_costs_itself_alone(world: SimpleNamespace) -> None:
    world.cycle.run()
    said(world, "ufm", step="x", loss=0.5, phase="training", at=2**63)
    turn(world)
    with world.database.read() as tx:
        (report,) = runs.heartbeats(tx, ["uff-ufm-0001"]).values()
    assert (report.step, report.loss, report.at) == (None, 0.5, None)


def test_what_a_job_learns_is_an_event_until_it_changes(world: SimpleNamespace) -> None:
    learned = {"records": {"messages": 7}, "left_out": [["no answer", 2, "train-0.jsonl:3"]], "tokens": 500}
    learned["samples"] = ["2+2=⟦4⟧"]
    world.cycle.run()
    for step, tokens in ((None, 500), (1, 500), (2, 700)):
        said(world, "ufm", step=step, phase="training", training_data={**learned, "tokens": tokens})
        turn(world)
    said(world, "victim", phase="training", training_data={**learned, "left_out": 3})
    turn(world)
    with world.database.read() as tx:
        changes = events.tail(tx, kinds=["training.data"])
        assert training_data.of_job(tx, "victim") is None
        assert training_data.of_job(tx, "ufm") == changes[-1].data["learned"]
    assert [(event.subject, event.data["learned"]["tokens"]) for event in changes] == [("ufm", 500), ("ufm", 700)]
    assert all(changes[0].data["learned"][name] == learned[name] for name in ("left_out", "samples"))
    assert told(world, "uff-victim-0001")


def test_what_a_finished_session_said_wrong_is_counted_at_its_end(world: SimpleNamespace) -> None:
    world.cycle.run()
    said(world, "ufm", step="x")
    turn(world)
    turn(world)
    world.cloud.cut("uff-ufm-0001", world.clock.present, "over")
    turn(world)
    turn(world)
    with world.database.read() as tx:
        (event,) = events.tail(tx, kinds=[border.REFUSED_IN_ALL], subject="uff-ufm-0001")
    assert event.data["counts"]["heartbeat of lane 0"] >= 2


@pytest.mark.parametrize(
    "wrong",
    [{"ended": 10**12}, {"ended": True}, {"started": 0}, {"started": 2**63}, {"started": NOW + 3_600, "ended": NOW}],
)
def test_no_instant_is_booked_that_cannot_be(world: SimpleNamespace, wrong: dict[str, Any]) -> None:
    world.cycle.run()
    turn(world, 600)
    world.says.answer = lambda found: replace(found, **{"state": SessionState.ENDED, "ended": NOW + 500, **wrong})
    turn(world)
    with world.database.read() as tx:
        spent = [entry for entry in ledger.entries(tx) if entry.kind is EntryKind.SPEND]
    assert len(spent) == 2
    for entry in spent:
        assert NOW - HOUR <= entry.start <= entry.end <= world.clock.present


@pytest.mark.parametrize("ahead", [0, 24, 299, 301, 1_800, 3_600])
def test_a_platform_whose_clock_is_ahead_of_ours_is_right_about_its_bill(world: SimpleNamespace, ahead: int) -> None:
    """Cut to our own time, a bill was booked short by as much as our clock was behind."""
    world.cycle.run()
    turn(world, 600)
    bill = {"started": NOW + 500, "ended": world.clock.present + ahead}
    world.says.answer = lambda found: replace(found, state=SessionState.ENDED, **bill)
    turn(world, 0)
    with world.database.read() as tx:
        spent = [entry for entry in ledger.entries(tx) if entry.kind is EntryKind.SPEND]
    assert [(entry.start, entry.end) for entry in spent] == [(bill["started"], bill["ended"])] * 2


@pytest.mark.parametrize("answer", [None, {}, 7, "ended", Observed("another", SessionState.ENDED, "")])
def test_an_answer_without_meaning_is_no_answer(world: SimpleNamespace, answer: Any) -> None:
    """Not the same as a key that the platform does not know: a launch on its way is not given up for it."""
    world.says.answer = lambda found: answer
    world.cycle.run()
    turn(world, 30 * HOUR)
    with world.database.read() as tx:
        assert isinstance(runs.get(tx, "uff-ufm-0001").state, Submitting)
    world.says.answer = lambda found: found
    world.cloud.sessions["uff-ufm-0001"] = replace(world.cloud.sessions["uff-ufm-0001"], launched_at=NOW)
    turn(world)
    assert told(world, "uff-ufm-0001")


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit_seconds": 2**63},
        {"limit_seconds": -1},
        {"used_seconds": True},
        {"start": NOW + 700_000, "end": NOW - 700_000},
        {"end": 10**15},
        {"start": 0},
        {"quota": None},
    ],
)
def test_a_quota_that_cannot_be_closes_the_pool_as_if_unread(
    world: SimpleNamespace, make_ports: Callable[..., Ports], wrong: dict[str, Any]
) -> None:
    platform = world.ports.platforms["desk"]
    platform.capabilities = replace(platform.capabilities, reports_quota=True)
    honest = QuotaReading("week", NOW - 1_000, NOW + 603_800, 108_000, 0)
    world.says.quota = [replace(honest, **wrong)]
    assert read_books(world.ports, ["desk"]) == set()
    with world.database.read() as tx:
        assert "its records are invalid" in limits.closures(tx)["desk"][1]
        assert not limits.observed(tx)
    world.says.quota = [honest]
    assert read_books(world.ports, ["desk"]) == {"desk"}


@pytest.mark.parametrize("until", [2**63, "soon", -5, True])
def test_a_refusal_until_an_instant_that_cannot_be_rests_the_pool_for_a_while(
    world: SimpleNamespace, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: Any, now: int) -> Any:
        raise Refused("fake", "launch", "not now \x1b[2J\0\ud800", wait_until=until)

    monkeypatch.setattr(world.ports.platforms["desk"], "launch", refuse)
    world.cycle.run()
    with world.database.read() as tx:
        closed_until, why = limits.closures(tx)["desk"]
    assert closed_until is not None
    assert NOW < closed_until <= NOW + HOUR
    assert why.replace("\N{REPLACEMENT CHARACTER}", "").isprintable()
    assert isinstance(job(world, "ufm").state, Queued)


def test_a_launch_that_its_adapter_stumbled_over_may_have_started(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = world.ports.platforms["desk"].launch

    def stumble(request: Any, now: int) -> Any:
        real(request, now)
        raise KeyError("status")

    monkeypatch.setattr(world.ports.platforms["desk"], "launch", stumble)
    world.cycle.run()
    turn(world)
    with world.database.read() as tx:
        assert isinstance(runs.get(tx, "uff-ufm-0001").state, Running)
    assert len(world.cloud.sessions) == 2


def test_thousands_of_odd_documents_and_answers_crash_no_cycle() -> None:
    """A share of what ``make fuzz`` tells; in between one honest job makes its steps, and no rule is broken."""
    count = share(3_000)
    with Laboratory() as laboratory:
        found = fuzz(laboratory, count, seed=7)
        assert found.check() == []
    assert found.told >= count
    assert found.saved > count // 2
    assert found.log.said["report.refused"] > count // 200
    assert max(found.memory) - found.memory[0] < MEMORY_MAX
