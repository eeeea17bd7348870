"""The circle closed with real sessions: trained, evaluated, judged, put in force, refused, and a child that waited."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jobs as product
from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.spec import Evaluation, Input, JobSpec, QualityGate, StartFrom
from platforms.registry import PlatformContext, load
from scheduler.core.job import Done
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.snapshot import Snapshot
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Policy, Ports
from scheduler.service.requests.stored import take_input
from scheduler.store import evaluations, generations, jobs, versions
from scheduler.store.engine import Database
from tests.lab.clocks import starting_now
from tests.lab.patience import until
from tests.lab.trained_model import SCORE, TRAIN

NOW = 1_795_000_000


def whatever_may_start(snapshot: Snapshot, incumbent: Plan | None) -> Plan:
    """A plan as simple as can be: the first job that nothing keeps, for an hour."""
    del incumbent
    now = snapshot.now
    free = [view for view in snapshot.jobs if view.blocked is None and view.running is None and not view.gate]
    lanes = (PlannedLane(free[0].name, 1, free[0].target_step),) if free else ()
    return Plan(now, (Placement("desk", now, now + HOUR, lanes),) if lanes else (), ())


@pytest.fixture
def ports(make_ports: Callable[..., Ports], tmp_path: Path) -> Ports:
    """A desk with real sessions, sixty times as fast as the clock on the wall."""
    clock = starting_now(NOW, 60.0)
    bundle = Path(product.__file__).parent
    context = PlatformContext(tmp_path / "state", sys.executable, bundle, 2, 43_200, clock.payload_clock())
    return make_ports(
        platforms={"desk": load("local", {}, context)},
        pools={"desk": Pool("desk", "local", "none", (), sessions_max=1)},
        plan=whatever_may_start,
        clock=clock,
        policy=Policy(retry_base_seconds=1, retry_cap_seconds=1),
        bundle=str(bundle),
    )


def test_a_model_is_trained_judged_and_put_in_force_and_the_next_one_refused(
    ports: Ports, database: Database, tmp_path: Path
) -> None:
    items = tmp_path / "held-out.jsonl"
    items.write_text("".join(json.dumps({"id": f"item-{number}"}) + "\n" for number in range(40)))
    test_set = take_input(database, ports.artifacts, Input("set", str(items)), NOW, print)
    command, start = ("{python}", "-c", TRAIN), StartFrom("ufm", "accepted")
    model = JobSpec(
        "ufm",
        "manager",
        command,
        100,
        1_000.0,
        environment={"SKILL": "0.95"},
        evaluation=Evaluation(("{python}", "-c", SCORE), test_set),
        gates=(QualityGate("atomicity", "threshold", minimum=0.9),),
    )
    child = JobSpec("child", "manager", command, 100, 1_000.0, start_from=start, environment={"SKILL": "1"})
    with database.write() as tx:
        jobs.add(tx, model, NOW)
        jobs.add(tx, child, NOW)
    cycle = Cycle(ports)

    def ended(*names: str) -> Any:
        cycle.run()
        with database.read() as tx:
            found = {record.spec.name: record.state for record in jobs.everything(tx)}
        return all(isinstance(found.get(name), Done) for name in names) and found

    def judged(number: int) -> Any:
        cycle.run()
        with database.read() as tx:
            version = versions.find(tx, "ufm", number)
        return version if version is not None and version.state not in {"candidate", "evaluating"} else None

    first = until(lambda: judged(1), "the first verdict")
    assert (first.state, first.why) == ("accepted", "1 gate passed")
    until(lambda: ended("child", "ufm-eval-1"), "the child")
    with database.write() as tx:
        began = generations.current(tx, "child")
        assert began is not None
        assert began.parent_key == first.checkpoint
        assert versions.in_force(tx, "ufm") == first
        jobs.change_spec(tx, "ufm", ports.clock.now(), "somebody", environment={"SKILL": "0.5"})
        jobs.restart(tx, "ufm", ports.clock.now(), "somebody")
    second = until(lambda: judged(2), "the second verdict")
    assert second.state == "rejected"
    assert "atomicity is 0.5, where at least 0.9 is required" in second.why
    with database.read() as tx:
        assert versions.in_force(tx, "ufm") == first
        (verdict,) = evaluations.verdicts_of(tx, second)
    assert [example["item"] for example in verdict.evidence["findings"][0]["examples"]][:2] == ["item-20", "item-21"]
