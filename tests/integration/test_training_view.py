"""How training goes, as screens show it: read from what sessions tell while they run."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config.settings import ExportSettings
from jobs.lane_report import GpuMetrics
from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR, WEEK
from jobs.spec import JobSpec
from scheduler.notify.exports import export, newest
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Ports
from scheduler.store import events, jobs, plans, rates, runs, series
from scheduler.store.engine import Database
from scheduler.views.overview import pools_now
from scheduler.views.training import TrainingProgress, trainings
from tests.lab.fake import FakeCloud, FakePlatform, Script

NOW = 1_795_000_000
DESK = Pool("desk", "fake", "CPU", session_cap_seconds=4 * HOUR, setup_seconds=600, visibility_seconds=60)
BEAT = 30
SPEC = JobSpec("ufm", "manager", ("train",), 1_000, steps_per_hour=100.0, setup_seconds=60, checkpoint_seconds=10)


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> SimpleNamespace:
    """A job of a thousand steps, guessed at ten hours, in its first session on a desk."""
    cloud, planner = FakeCloud(usual=Script(runs_seconds=None)), Planner(PlannerOptions(search_steps=0))
    ports = make_ports(platforms={"desk": FakePlatform(cloud)}, pools={"desk": DESK}, plan=planner.plan)
    with database.write() as tx:
        jobs.add(tx, SPEC, NOW)
    cycle = Cycle(ports)
    cycle.run()
    return SimpleNamespace(ports=ports, clock=ports.clock, cycle=cycle, database=database)


def told(world: SimpleNamespace, after: int, **report: Any) -> None:
    """Let the session tell something ``after`` seconds, and a cycle read it."""
    world.clock.present += after
    usual = {"started_at": NOW, "setup_seconds": 60.0, "at": world.clock.present, "phase": "training"}
    document = json.dumps({**usual, **report}).encode()
    world.ports.artifacts.put("runs/uff-ufm-0001/lane-0/heartbeat.json", document)
    world.cycle.run()


def seen(world: SimpleNamespace, later: int = 0) -> TrainingProgress:
    now = world.clock.present + later
    with world.database.read() as tx:
        queue, live, plan = jobs.everything(tx), runs.live(tx), plans.newest(tx)
        (found,) = trainings(tx, queue, live, plan, world.ports.pools, BEAT, now)
    return found


def test_what_is_live_stands_beside_what_is_saved(world: SimpleNamespace) -> None:
    assert (seen(world).health, seen(world).guessed, seen(world).steps_per_hour) == ("sets up", True, 100.0)
    told(world, 600, step=50, loss=2.0, steps_per_second=0.1)
    told(world, 600, step=110, loss=1.5, held_out_loss=1.6, steps_per_second=0.1)
    found = seen(world)
    assert (found.saved_step, found.step, found.loss, found.held_out_loss) == (0, 110, 1.5, 1.6)
    assert (found.health, found.pool, found.run, found.told_at) == (
        "trains", "desk", "uff-ufm-0001", world.clock.present,
    )  # fmt: skip
    assert found.losses == ((50, 2.0), (110, 1.5))
    assert found.trend == pytest.approx(-0.25)
    assert not found.guessed
    assert found.steps_per_hour == pytest.approx(360)


def test_the_forecast_rests_on_the_measured_speed_and_is_as_wide_as_that_is_unsure(world: SimpleNamespace) -> None:
    for number in range(1, 9):
        told(world, 600, step=60 * number, loss=1.0, steps_per_second=0.1)
    found = seen(world)
    left = (1_000 - 480) / 0.1
    assert found.forecast is not None
    assert found.forecast.expected == world.clock.present + left
    assert found.forecast.latest - found.forecast.expected < 0.03 * left, "every ten minutes brought the same"


def test_a_session_that_says_nothing_more_is_silent(world: SimpleNamespace) -> None:
    told(world, 600, step=50, loss=2.0, steps_per_second=0.1)
    assert seen(world, 3 * BEAT + DESK.visibility_seconds).health == "trains"
    assert seen(world, 3 * BEAT + DESK.visibility_seconds + 1).health == "silent"


def test_a_speed_that_was_only_guessed_is_planned_with_as_soon_as_it_shows(world: SimpleNamespace) -> None:
    """Ten hours were guessed; after a minute of training it is known that it takes two."""
    told(world, 90, step=4, loss=2.0, steps_per_second=0.5)  # half a minute of training: not yet
    with world.database.read() as tx:
        assert rates.of_job(tx, "ufm") == []
        before = plans.newest_number(tx)
    told(world, 60, step=12, loss=2.0, steps_per_second=0.139)
    with world.database.read() as tx:
        (rate,) = rates.of_job(tx, "ufm")
        (event,) = events.tail(tx, kinds=("job.speed",))
        assert plans.newest_number(tx) > before
    assert rate.steps_per_second == 0.139
    assert (event.subject, event.data["pool"], event.data["steps_per_hour"]) == ("ufm", "desk", 500.4)


def test_a_first_impression_is_corrected_while_the_session_runs(world: SimpleNamespace) -> None:
    told(world, 150, step=12, loss=2.0, steps_per_second=0.139)
    told(world, 60, step=20, loss=2.0, steps_per_second=0.137)  # about the same: nothing is written
    told(world, 60, step=30, loss=2.0, steps_per_second=0.2)
    with world.database.read() as tx:
        (rate,) = rates.of_job(tx, "ufm")
        assert len(events.tail(tx, kinds=("job.speed",))) == 2
    assert (rate.steps_per_second, rate.samples) == (0.2, 1)


def test_the_most_memory_that_sessions_told_is_known_by_pool(world: SimpleNamespace) -> None:
    for step, told_bytes in ((50, 5 << 30), (110, 4 << 30)):
        told(world, 60, step=step, loss=2.0, steps_per_second=0.1, gpu_memory_bytes=told_bytes)
    with world.database.read() as tx:
        assert series.gpu_metrics(tx) == {("ufm", "desk"): GpuMetrics(gpu_memory_bytes=5 << 30)}


def test_what_its_gpus_report_is_shown_and_kept_as_series(world: SimpleNamespace) -> None:
    told(world, 60, step=50, gpu_memory_bytes=6 << 30, gpu_busy=0.41, gpu_watts=209.6, gpu_throttled=0.12)
    assert seen(world).gpu_use == "41 % busy, 6.0 of 16 GiB, 210 W, throttled 12 % of the time"
    with world.database.read() as tx:
        (pool,) = pools_now(tx, world.ports.pools, runs.live(tx), world.clock.present)
        (point,) = series.of_job(tx, "ufm")
    assert pool.gpu_use == seen(world).gpu_use
    assert (point.gpu_watts, point.gpu_throttled) == (209.6, 0.12)
    told(world, 60, step=110, gpu_busy=0.5, gpu_watts=None, gpu_throttled="often")
    assert seen(world).gpu_use == "50 % busy"


def test_of_many_points_as_many_are_kept_as_a_picture_shows(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, SPEC, NOW)
        for step in range(1, 1_001):
            series.add(tx, series.Point("ufm", 1, step, NOW + step, 1 / step, None), 100_000)
        assert [point.step for point in series.of_job(tx, "ufm")] == [1, 251, 501, 751]


def test_what_an_attempt_trained_anew_replaces_what_was_told_of_it_before() -> None:
    points = [series.Point("ufm", attempt, step, 0, loss, None) for attempt, step, loss in (
        (1, 10, 3.0), (1, 20, 2.0), (1, 30, 1.0), (2, 20, 2.5), (2, 40, 0.5),
    )]  # fmt: skip
    assert [(point.attempt, point.step) for point in series.curve(points)] == [(1, 10), (2, 20), (2, 40)]


def test_a_job_that_takes_a_removed_ones_name_has_a_curve_of_its_own(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, SPEC, NOW)
        series.add(tx, series.Point("ufm", 1, 5, NOW, 1.0, None), 100)
        jobs.remove(tx, "ufm", NOW, "me")
        jobs.add(tx, SPEC, NOW)
        assert series.of_job(tx, "ufm") == []


def test_a_loss_tells_how_it_changed_in_seven_days(world: SimpleNamespace) -> None:
    told(world, 600, step=50, loss=2.0, steps_per_second=0.1)
    assert seen(world).week_change is None
    told(world, 600, step=110, loss=1.5, steps_per_second=0.1)
    assert seen(world).week_change == pytest.approx(-0.5)
    told(world, 600, step=170, loss=1.2, steps_per_second=0.1)
    assert seen(world).week_change == pytest.approx(-0.8)
    assert seen(world, later=WEEK - 300).week_change == pytest.approx(-0.3), "counted from the last before the week"


def test_what_sessions_tell_is_exported_for_other_programs(world: SimpleNamespace, tmp_path: Path) -> None:
    wanted = ExportSettings(calendar=tmp_path / "training.ics", series=tmp_path / "series")
    told(world, 600, step=50, loss=2.0, steps_per_second=0.1)
    export(world.ports, wanted, world.clock.present)
    told(world, 600, step=110, loss=1.5, steps_per_second=0.1)
    export(world.ports, wanted, world.clock.present)
    assert "UID:uff-ufm-0001@uff-scheduler" in (tmp_path / "training.ics").read_text()
    rows = (tmp_path / "series" / "ufm" / "series.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows] == ["step", "50", "110"]
    (events_,) = (tmp_path / "series" / "ufm").glob("events.out.tfevents.*")
    assert newest(events_.read_bytes()) == (world.clock.present, events_.stat().st_size)


def test_a_folder_that_cannot_be_written_is_told_and_hurts_nothing(world: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    told(world, 600, step=50, loss=2.0, steps_per_second=0.1)
    export(world.ports, ExportSettings(series=tmp_path / "file"), world.clock.present)
    assert "exports.failed" in world.ports.log.said


def test_settings_of_mirrors_are_read_and_answered_with_the_program_that_serves_now(
    world: SimpleNamespace, tmp_path: Path
) -> None:
    told(world, 600, step=50, loss=2.0, steps_per_second=0.1)
    wanted = ExportSettings(series=tmp_path / "series", mlflow="https://mlflow.example.org", wandb=tmp_path)
    export(world.ports, wanted, world.clock.present)
    assert (tmp_path / "series" / "ufm" / "series.csv").exists()
    assert "export.mlflow and export.wandb: the daemon no longer sends this" in world.ports.log.lines[-1]
    assert "examples/trackers/send.py" in world.ports.log.lines[-1]
