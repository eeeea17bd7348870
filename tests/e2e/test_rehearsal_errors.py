"""What is wrong with the settings of a rehearsal: one clear message, the documented exit code, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.crashes.stage import MODELS, POOLS, Stage
from tests.lab.typed import Typed

MakeStage = Callable[..., Stage]


def typed(stage: Stage, *words: str) -> Typed:
    """Begin a rehearsal that is refused before anything was touched."""
    ended = stage.refused(*words)
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert not stage.week.exists() or "--resume" in words
    return ended


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('session_cap = "3h"', "session_cap = 3h", "is not TOML"),
        ('session_cap = "3h"', 'sesion_cap = "3h"', "did you mean session_cap"),
        ('session_cap = "3h"', 'session_cap = "-3h"', "session_cap"),
        ('limit = "30h"', 'limit = "-30h"', "limit"),
        ('resets = "Saturday 00:00"', 'resets = "Saturday 00:00"\nzone = "Europe/Atlantis"', "Europe/Atlantis"),
        ('name = "desk"', 'name = "kaggle"', "kaggle"),
    ],
)
def test_bad_settings_exit_with_3_and_name_the_file_that_was_written(
    make_stage: MakeStage, old: str, new: str, said: str
) -> None:
    stage = make_stage(pools=POOLS.replace(old, new, 1))
    ended = typed(stage)
    assert ended.code == 3, ended.err
    assert said in ended.err
    assert str(stage.settings) in ended.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("target_step = 100_000", "target_step = -5", "target_step"),
        ("weight = 3", "weigth = 3", "did you mean weight"),
        ("seed = 1", 'seed = 1\ngate = { parent = "nobody", fraction = 0.5 }', "nobody"),
    ],
)
def test_bad_models_exit_with_3_and_name_the_file_that_was_written(
    make_stage: MakeStage, old: str, new: str, said: str
) -> None:
    stage = make_stage(models=MODELS.replace(old, new, 1))
    ended = typed(stage)
    assert ended.code == 3, ended.err
    assert said in ended.err
    assert str(stage.folder / "models.toml") in ended.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--hours", "-5"), 2, "--hours"),
        (("--hours", "many"), 2, "--hours"),
        (("--scale", "0"), 2, "--scale"),
        (("--epoch", "yesterday"), 6, "yesterday"),
        (("--epoch", "2026-11-21T00:00:00"), 6, "no zone"),
    ],
)
def test_bad_options_are_refused(stage: Stage, words: tuple[str, ...], code: int, said: str) -> None:
    ended = typed(stage, *words)
    assert ended.code == code, ended.err
    assert said in ended.err


def test_jobs_that_can_never_start_are_named_and_the_others_run(make_stage: MakeStage) -> None:
    """An impossible requirement, and a pool that does not exist."""
    models = MODELS.replace("seed = 1", "seed = 1\nneeds = { vram_gib = 4_000 }", 1)
    stage = make_stage(models=models.replace("seed = 2", 'seed = 2\npools = ["kagle"]', 1), hours=1.0)
    ended = stage.ended(stage.begin("--json"))
    assert ended.code == 0, ended.err
    for job, said in (("main", "4000 GiB"), ("left", "kagle")):
        (line,) = (line for line in ended.err.splitlines() if f"{job} can never start here" in line)
        assert said in line
    steps = {job["name"]: job["step"] for job in ended.document["jobs"]}
    assert steps["main"] == steps["left"] == 0


def test_nothing_to_resume_is_said(stage: Stage) -> None:
    ended = stage.type("rehearse", "--out", str(stage.week), "--resume", config=stage.settings)
    assert ended.code == 6
    assert "holds no rehearsal to resume" in ended.err


def test_a_typing_error_does_not_cost_the_earlier_rehearsal(make_stage: MakeStage) -> None:
    stage = make_stage(hours=0.5)
    assert stage.ended(stage.begin()).code == 0
    before = json.loads((stage.week / "week.json").read_bytes())
    stage.settings.write_text(stage.settings.read_text().replace('"3h"', '"three"'))
    assert stage.refused().code == 3
    assert json.loads((stage.week / "week.json").read_bytes()) == before


def test_a_folder_with_other_things_is_never_cleared(stage: Stage) -> None:
    stage.week.mkdir()
    (stage.week / "thesis.tex").write_text("years of work")
    ended = stage.refused()
    assert ended.code == 6
    assert (stage.week / "thesis.tex").exists()


def test_what_is_set_for_the_real_scheduler_stays_out_of_a_rehearsal(
    make_stage: MakeStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database of the environment is somebody's real one."""
    real = tmp_path / "real.db"
    monkeypatch.setenv("SCHEDCTL_DATABASE_URL", f"sqlite:///{real}")
    stage = make_stage(hours=0.5)
    assert stage.ended(stage.begin()).code == 0, stage.log
    assert not real.exists()
    assert (stage.rehearsal.state / "scheduler.db").exists()
