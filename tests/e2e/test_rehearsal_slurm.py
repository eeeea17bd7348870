"""A rehearsal with a real Slurm beside the emulated clouds: jobs move between them, and Slurm's accounting is ours."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from config.layers import shipped
from scheduler.core.ledger import fold
from scheduler.rehearsal.folder import reopen
from scheduler.rehearsal.run import open_app
from scheduler.rehearsal.stand_ins import disagreements
from scheduler.store import ledger
from tests.lab.crashes.processes import working_for
from tests.lab.patience import slowness
from tests.lab.slurm import slurm_lab

HOURS = 16.0  # of which the cluster is open for twelve


def rehearse(
    week: Path, environment: dict[str, str], *words: str, scale: int = 600
) -> subprocess.CompletedProcess[str]:
    """Run the shipped one, with sessions so short and training so slow that no job is done in one of them."""
    models, settings = (shipped(name).read_text() for name in ("models.toml", "rehearsal.toml"))
    pace = scale // 3  # steps in a real second
    week.with_name("models.toml").write_text(models.replace('"--pace", "400"', f'"--pace", "{pace}"'))
    settings = settings.replace('session_cap = "12h"', 'session_cap = "4h"')
    settings = settings.replace('"own_folder/models.toml"', f'"{shipped("own_folder/models.toml")}"')
    week.with_name("settings.toml").write_text(settings)
    command = [sys.executable, "-m", "scheduler", "--config", str(week.with_name("settings.toml"))]
    command += ["rehearse", "--slurm", "--out", str(week), "--scale", str(scale), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_jobs_move_between_the_cluster_and_the_clouds_and_the_accounting_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    week, scale = tmp_path / "week", max(300, round(600 / slowness()))
    with slurm_lab() as lab:
        done = rehearse(week, lab.environment(), "--hours", str(HOURS), "--json", scale=scale)
        assert done.returncode == 0, done.stderr
        for name, text in lab.environment().items():
            monkeypatch.setenv(name, text)
        document = json.loads(done.stdout)
        assert document["violations"] == document["barred"] == []
        # How many move and how often is a matter of the machine's load.
        pools = {job["name"]: set(job["pools"]) for job in document["jobs"]}
        assert any("slurm" in places and len(places) > 1 for places in pools.values()), pools
        assert any(job["resumed_elsewhere"] for job in document["jobs"]), document["jobs"]
        assert all(pool["useful_seconds"] for pool in document["pools"] if pool["name"] in {"slurm", "kaggle"})
        windows = [window for pool in document["pools"] for window in pool["windows"]]
        assert all(window["charged_seconds"] <= window["limit_seconds"] for window in windows)
        # Counted here from what Slurm wrote down, by another way than the rehearsal's own check.
        rehearsal = reopen(week)
        app = open_app(rehearsal)

        def scheduled(real: int) -> int:
            return int(rehearsal.epoch + (real - rehearsal.origin) * rehearsal.scale)

        with app.database.read() as tx:
            charges = fold(ledger.entries(tx))["slurm"]
        charged = sorted((one.run or "", one.start, one.end) for one in charges if one.sign and not one.held)
        at = [
            (name, scheduled(first), scheduled(last))
            for name, (first, last) in sorted(lab.books().items())
            if first < last
        ]
        assert charged == at != []
        # What differs by a second is told.
        off = disagreements(replace(rehearsal, origin=rehearsal.origin + 1), app)
        assert off
        assert all(words.startswith("accounting: of uff-") for words in off)
        assert disagreements(rehearsal, app) == ()
        app.database.close()
    assert not working_for(tmp_path)


def test_without_a_cluster_it_is_refused(tmp_path: Path) -> None:
    week = tmp_path / "week"
    nowhere = {**os.environ, "SLURM_CONF": "", "PATH": str(programs(tmp_path))}
    done = rehearse(week, nowhere)
    assert done.returncode == 6
    assert "no cluster of this machine answers" in done.stderr
    assert "Traceback" not in done.stderr
    assert not week.exists()


def programs(folder: Path) -> Path:
    """A folder with what scripts need, and nothing of Slurm."""
    made = folder / "programs"
    made.mkdir()
    for name in ("bash", "env", "id"):
        (made / name).symlink_to(f"/usr/bin/{name}")
    return made


def test_too_fast_a_clock_is_refused(tmp_path: Path) -> None:
    done = rehearse(tmp_path / "week", dict(os.environ), scale=3_600)
    assert done.returncode == 6
    assert "real seconds" in done.stderr
