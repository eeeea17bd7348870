"""What checkpoints that are found, or found damaged, do to progress and to the jobs that wait for it."""

from collections.abc import Callable
from typing import Any

import pytest

from jobs.payload.store.manifest import Component, Manifest, manifest_key
from jobs.spec import Gate, JobSpec
from scheduler.core.job import Held
from scheduler.service.facts.apply import apply
from scheduler.service.facts.observation import Observation
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, events, jobs

NOW = 1_795_000_000


def manifest(step: int, job: str = "main", attempt: int = 1) -> Manifest:
    parts = (Component("model", "a" * 64, 3),)
    return Manifest(job, step, attempt, "run-1", 0, None, NOW, 60, {"loss": 1.5}, parts)


@pytest.fixture
def ports(make_ports: Callable[..., Ports]) -> Ports:
    made = make_ports()
    with made.write() as tx:
        jobs.add(tx, JobSpec("main", "main", ("x",), 1_000, 100.0), NOW)
        for name, parent, fraction in (("at", "main", 0.3), ("beyond", "main", 0.301), ("other", "at", 0.3)):
            jobs.add(tx, JobSpec(name, "manager", ("x",), 100, 100.0, gate=Gate(parent, fraction)), NOW)
    return made


def see(ports: Ports, *steps: int, bad: tuple[int, ...] = ()) -> list[str]:
    """Apply what was seen of main; return the jobs whose gates opened by it."""
    with ports.write() as tx:
        before = events.newest_id(tx)
        seen = Observation(manifests=[manifest(step) for step in steps])
        seen.bad = [(manifest_key("main", step, 1), "digest differs") for step in bad]
        apply(ports, tx, [], seen, [], NOW)
        return [event.subject for event in events.tail(tx, before, kinds=("gate.opened",))]


def progress(ports: Ports) -> tuple[int, str | None]:
    with ports.database.read() as tx:
        record = jobs.get(tx, "main")
    return record.done_step, record.checkpoint


def test_a_gate_opens_with_the_very_step_it_waits_for_and_once(ports: Ports) -> None:
    assert see(ports, 299) == []
    assert see(ports, 300) == ["at"]
    assert see(ports, 300) == []
    assert see(ports, 301) == ["beyond"]
    assert see(ports, 1_000) == []


def test_a_gate_at_a_step_stays_there_when_the_target_changes(ports: Ports) -> None:
    with ports.write() as tx:
        jobs.add(tx, JobSpec("exact", "manager", ("x",), 100, 100.0, gate=Gate("main", 0.0, 250)), NOW)

    def planned() -> Gate | None:
        with ports.database.read() as tx:
            views = {view.name: view for view in load_snapshot(tx, {}, NOW, 3_600).jobs}
        return views["exact"].gate

    assert planned() == Gate("main", 0.25)
    with ports.write() as tx:
        jobs.change_spec(tx, "main", NOW, "test", target_step=2_000)
    assert planned() == Gate("main", 0.125)
    assert see(ports, 249) == []
    assert see(ports, 250) == ["exact"]


def test_a_gate_that_is_passed_by_a_leap_opens_and_only_for_jobs_that_wait(ports: Ports) -> None:
    with ports.write() as tx:
        state = jobs.get(tx, "beyond").state
        jobs.change_state(tx, "beyond", state, Held("anna", "not now", NOW), "hold", NOW)
    assert see(ports, 900) == ["at"]


@pytest.mark.parametrize("damaged", [(100,), (100, 200), ()])
def test_an_old_checkpoint_that_is_damaged_moves_no_progress(ports: Ports, damaged: tuple[int, ...]) -> None:
    see(ports, 100, 200, 300)
    before = progress(ports)
    assert before == (300, manifest_key("main", 300, 1))
    see(ports, bad=damaged)
    assert progress(ports) == before
    with ports.database.read() as tx:
        kept = [found.manifest.step for found in checkpoints.newest(tx, "main", 9)]
    assert kept == [step for step in (300, 200, 100) if step not in damaged]


@pytest.mark.parametrize(
    ("damaged", "left"), [((300,), 200), ((300, 200), 100), ((200, 300), 100), ((100, 200, 300), 0)]
)
def test_the_newest_that_is_damaged_leads_back_to_the_newest_that_is_good(
    ports: Ports, damaged: tuple[int, ...], left: int
) -> None:
    see(ports, 100, 200, 300)
    see(ports, bad=damaged)
    assert progress(ports) == (left, manifest_key("main", left, 1) if left else None)


def test_one_that_is_read_late_is_kept_to_fall_back_on(ports: Ports, journal: Any) -> None:
    see(ports, 300)
    assert see(ports, 200) == []
    assert progress(ports)[0] == 300
    see(ports, bad=(300,))
    assert progress(ports) == (200, manifest_key("main", 200, 1))
    assert "checkpoint.quarantined" in journal.said


def test_what_is_damaged_twice_or_never_was_there_is_told_once_or_not_at_all(ports: Ports, journal: Any) -> None:
    see(ports, 100)
    see(ports, bad=(100, 100, 700))
    see(ports, bad=(100,))
    assert journal.said.count("checkpoint.quarantined") == 1
    assert progress(ports) == (0, None)


def test_what_a_removed_job_saved_is_no_progress_of_the_next_of_its_name(ports: Ports) -> None:
    """Nor does the newer job go back to it; what it saves itself counts, however early."""
    with ports.write() as tx:
        for _ in range(2):
            jobs.note_launch(tx, "main", "p")
        jobs.remove(tx, "main", NOW, "anna")
        jobs.add(tx, JobSpec("main", "main", ("x",), 1_000, 100.0), NOW)
    for attempt, step, expected in ((1, 500, 0), (2, 600, 0), (3, 40, 40)):
        with ports.write() as tx:
            apply(ports, tx, [], Observation(manifests=[manifest(step, attempt=attempt)]), [], NOW)
        assert progress(ports)[0] == expected
    see_damage = Observation()
    see_damage.bad = [(manifest_key("main", 40, 3), "digest differs")]
    with ports.write() as tx:
        apply(ports, tx, [], see_damage, [], NOW)
    assert progress(ports) == (0, None)
