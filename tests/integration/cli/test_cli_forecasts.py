"""`schedctl queue forecast` and `schedctl advise hours`: the text, the JSON, and the commands that are proposed."""

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path

import pytest

from jobs.payload.store.manifest import Component, Manifest
from jobs.spec import Code, Needs, QualityGate, StopRule
from scheduler.cli.shell.exits import Exit
from scheduler.store import checkpoints, jobs, rates, series
from scheduler.store.engine import Database
from scheduler.store.series import Point
from tests.integration.cli.conftest import NOW, spec
from tests.lab.typed import Typed

Schedctl = Callable[..., Typed]
FALLING = [2 + step**-0.5 for step in range(1, 11)]
FLAT = [2.1, *[2 + 0.001 * (step % 2) for step in range(19)]]


def saved(database: Database, job: str, values: Sequence[float], metric: str = "held_out_loss") -> None:
    """Let a job have a checkpoint with each value, ten steps apart and a day between them."""
    with database.write() as tx:
        for number, value in enumerate(values, 1):
            at = NOW - (len(values) - number) * 86_400
            part = Component("weights", "0" * 64, 1)
            manifest = Manifest(job, 10 * number, 1, "r", 0, None, at, 60, {metric: value}, (part,))
            checkpoints.record(tx, manifest, at)
            jobs.note_progress(tx, job, manifest.step, manifest.key)


def have(database: Database, job: str, **fields: object) -> None:
    """Change the definition of a job."""
    with database.write() as tx:
        jobs.change_spec(tx, job, NOW, "tester", **fields)


def long_and_slow(database: Database, job: str) -> None:
    """Let a job have 300 steps to train, ten an hour."""
    have(database, job, target_step=300, steps_per_hour=10.0)
    with database.write() as tx:
        rates.put(tx, rates.RateRecord(10 / 3_600, 0.1, 3, 240, 30, job=job, pool="kaggle", at=NOW))


@pytest.fixture
def curves(world: Database) -> Database:
    """A job that learns well and one that learned all it can."""
    for name, values in (("ufm", FALLING), ("ucm", FLAT), ("uff-main", FALLING)):
        saved(world, name, values)
        long_and_slow(world, name)
    return world


def test_a_forecast_shows_the_curve_its_goal_and_what_more_hours_buy(curves: Database, schedctl: Schedctl) -> None:
    have(curves, "ucm", stop=StopRule("held_out_loss", value=1.5, forecast=0.95))
    told = schedctl("queue", "forecast", "ufm", "--hours", "2")
    assert told.code == 0
    assert "held_out_loss  2.316 at step 100, by 10 checkpoints; lower is better" in told.out
    assert "h more" in told.out
    assert told.out.count("o") > 10
    assert "step 300" in told.out.splitlines()[-1]
    told = schedctl("queue", "forecast", "ucm")
    assert "goal             1.5 (stop rule): not in sight" in told.out
    assert "reached by then  0 %" in told.out


def test_the_document_of_a_forecast(curves: Database, schedctl: Schedctl) -> None:
    have(curves, "ufm", stop=StopRule("held_out_loss", value=2.25))
    one = schedctl("--json", "queue", "forecast", "ufm", "--hours", "4").document["forecast"]
    assert (one["metric"], one["aim"], one["goal"], one["goal_of"]) == ("held_out_loss", "low", 2.25, "stop rule")
    assert one["points"] == [[10 * step, value] for step, value in enumerate(FALLING, 1)]
    assert all(band["low"] <= band["middle"] <= band["high"] for band in one["bands"])
    assert (one["bands"][0]["step"], one["bands"][-1]["step"]) == (100, one["target"]["step"])
    assert 100 < one["goal_step"] < 300
    assert one["chance"] > 0.5
    assert (one["bought"]["hours"], one["bought"]["steps"]) == (4, 40)
    assert one["bought"]["gain"] == pytest.approx(4 * one["bought"]["gain_per_hour"])
    assert one["bought"]["gain"] > 0


def test_more_hours_than_a_forecast_reaches_buy_what_it_reaches(curves: Database, schedctl: Schedctl) -> None:
    bought = schedctl("--json", "queue", "forecast", "ufm", "--hours", "1000").document["forecast"]["bought"]
    assert (bought["hours"], bought["steps"], bought["band"]["step"]) == (30, 300, 400)
    have(curves, "ufm", target_step=401)
    told = schedctl("queue", "forecast", "ufm").out
    assert "at step 401    more than a forecast reaches, which is step 400" in told


def test_a_metric_that_shall_be_high_has_the_goal_of_its_gate(curves: Database, schedctl: Schedctl) -> None:
    saved(curves, "urm", [0.9 - 0.5 * step**-1.0 for step in range(1, 9)], "accuracy")
    have(curves, "urm", gates=(QualityGate("accuracy", "threshold", minimum=0.95),), target_step=200)
    one = schedctl("--json", "queue", "forecast", "urm", "--metric", "accuracy").document["forecast"]
    assert (one["aim"], one["goal"], one["goal_of"]) == ("high", 0.95, "quality gate")
    assert one["chance"] < 0.2
    assert one["now"] < one["bought"]["band"]["middle"] < 0.95


def test_without_enough_numbers_there_is_a_reason_and_no_forecast(world: Database, schedctl: Schedctl) -> None:
    saved(world, "ufm", [2.0, nan, 1.5, 1.4])
    told = schedctl("queue", "forecast", "ufm")
    why = "a forecast needs 4 checkpoints with held_out_loss, it has 3 checkpoints"
    assert told.out == f"ufm has no forecast: {why}.\n"
    document = schedctl("--json", "queue", "forecast", "ufm").document["forecast"]
    assert (document["why"], document["now"], document["bands"]) == (why, None, [])
    assert schedctl("queue", "forecast", "nobody").code == Exit.NOT_FOUND
    assert schedctl("queue", "forecast", "ufm", "--hours", "0").code == Exit.USAGE


def test_the_advice_ranks_jobs_and_names_what_to_type(curves: Database, schedctl: Schedctl) -> None:
    have(curves, "uff-main", target_step=110)
    advice = schedctl("--json", "advise", "hours").document["advice"]
    rows = {row["forecast"]["job"]: row for row in advice["jobs"]}
    order = [row["forecast"]["job"] for row in advice["jobs"]]
    assert order.index("ufm") < order.index("ucm") < order.index("urm")
    assert (rows["ucm"]["verdict"], rows["ucm"]["command"]) == ("stop", "schedctl queue cancel ucm")
    grow = rows["uff-main"]
    assert (grow["verdict"], grow["why"]) == ("grow", "it still learns at its target step")
    assert f"target_step={grow['forecast']['bought']['band']['step']}" in grow["command"]
    assert (rows["urm"]["verdict"], rows["urm"]["forecast"]["now"]) == ("", None)
    assert rows["ufm"]["used_steps"] == 70
    assert rows["ufm"]["used_gain"] == pytest.approx(FALLING[2] - FALLING[-1])
    assert advice["free_hours"]
    told = schedctl("advise", "hours")
    assert told.code == 0
    assert "Free until" in told.out
    assert "schedctl queue cancel ucm    # stop: 5 h more gain next to nothing" in told.out


def test_who_gains_much_more_or_much_less_than_usual_gets_more_or_fewer_hours(
    world: Database, schedctl: Schedctl
) -> None:
    names = {"ucm": 1.0, "urm": 0.3, "new": 0.05}
    with world.write() as tx:
        jobs.add(tx, spec("new"), NOW)
    for name, height in names.items():
        saved(world, name, [2 + height * step**-0.5 for step in range(1, 11)])
        long_and_slow(world, name)
    rows = {row["forecast"]["job"]: row for row in schedctl("--json", "advise", "hours").document["advice"]["jobs"]}
    assert {name: rows[name]["verdict"] for name in names} == {"ucm": "grow", "urm": "keep", "new": "halve"}
    for name in ("ucm", "new"):
        assert schedctl(*rows[name]["command"].split()[1:]).code == 0


def test_the_advice_names_jobs_that_could_use_a_tpu(world: Database, schedctl: Schedctl, tmp_path: Path) -> None:
    """While a pool has one; the command that it proposes works."""
    (tmp_path / "train.py").write_text("import jax\n")
    have(world, "ucm", command=("{python}", "train.py"), code=Code(str(tmp_path)))
    assert schedctl("--json", "advise", "hours").document["advice"]["for_tpu"] == []
    with (tmp_path / "config.toml").open("a") as settings:
        settings.write('\n[[pools]]\nname = "tpu"\nplatform = "kaggle"\naccelerator = "TPU v5e-8"\n')
    assert schedctl("--json", "advise", "hours").document["advice"]["for_tpu"] == ["ucm"]
    (line,) = [line for line in schedctl("advise", "hours").out.splitlines() if "JAX" in line]
    assert schedctl(*line.partition("#")[0].split()[1:]).code == 0
    assert schedctl("--json", "advise", "hours").document["advice"]["for_tpu"] == []
    refused = schedctl("advise", "deepseek-coder-1.3b", "--on", "tpu")
    assert "finetune needs torch with CUDA" in refused.err


def test_a_job_that_leaves_a_gpu_half_empty_is_offered_more_work_for_it(world: Database, schedctl: Schedctl) -> None:
    """On several devices also a partner in its session; the command for it is refused only while it trains."""

    def half_empty() -> list[tuple[str, str]]:
        advice = schedctl("--json", "advise", "hours").document["advice"]
        return [(row["job"], row["pool"]) for row in advice["half_empty"]]

    def report(step: int, memory_bytes: int, at: int = NOW - 60) -> None:
        gpus = {"gpu_busy": 0.41, "gpu_watts": 61.0}
        with world.write() as tx:
            series.add(tx, Point("uff-main", 1, step, at, 2.0, None, gpu_memory_bytes=memory_bytes, **gpus), 1_000)

    report(10, 9 << 30, NOW - 8 * 86_400)
    assert half_empty() == []
    report(20, 7 << 30)
    assert half_empty() == [("uff-main", "kaggle")]
    have(world, "uff-main", needs=Needs(devices_min=2, devices_max=2))
    (line,) = [line for line in schedctl("advise", "hours").out.splitlines() if "half" in line and "uff-main" in line]
    assert "a larger batch fits, or it could share the session with another job" in line
    assert line.endswith("(41 % busy, 7.0 of 15 GiB, 61 W)")
    assert "First let it end: schedctl queue hold uff-main" in schedctl(*line.partition("#")[0].split()[1:]).err
    report(30, 8 << 30)
    assert half_empty() == []
