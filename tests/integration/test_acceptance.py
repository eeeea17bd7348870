"""`schedctl acceptance` on this machine, on a real Slurm, and on SkyPilot's emulator, each through its adapter."""

import sys
from pathlib import Path
from typing import Any

import pytest

from scheduler.app import load_app
from scheduler.host.acceptance import JOB, PROBES, Bench, ProbeFinding, run_probes
from scheduler.store.engine import open_database
from tests.lab.clocks import starting_now
from tests.lab.patience import until
from tests.lab.sky_server import SkyServer
from tests.lab.slurm import slurm_lab

STORE = 'kind = "directory"\nroot = "{folder}/store"'
SETTINGS = """
state_dir = "{folder}/state"

[artifacts]
{store}

[clock]
epoch = {epoch}
origin = {origin}
scale = {scale}

[[pools]]
name = "here"
platform = "{platform}"
price_per_hour = "$0.10"
options = {{ {options} }}
"""


def bench_of(folder: Path, platform: str, options: dict[str, str], *, scale: float = 1.0, store: str = STORE) -> Bench:
    clock = starting_now(1_800_000_000, scale).payload_clock()
    if scale == 1.0:
        clock = {"epoch": 0.0, "origin": 0.0, "scale": 1.0}
    words = ", ".join(f'{name} = "{text}"' for name, text in options.items())
    store = store.format(folder=folder)
    file = folder / "settings.toml"
    file.write_text(SETTINGS.format(folder=folder, platform=platform, options=words, store=store, **clock))
    app = load_app(file, {})
    (app.settings.state_dir / JOB / "here").mkdir(parents=True)
    open_database(app.settings.database_url, create=True).close()
    return Bench(app, "here", (7_200, 1_000_000), print)


def tried(bench: Bench, *names: str) -> dict[str, ProbeFinding]:
    mine = [one for one in PROBES if not one.platforms or bench.pool.platform in one.platforms]
    run_probes(bench, [one for one in mine if not names or one.name in names])
    return bench.state.findings


def different(findings: dict[str, ProbeFinding]) -> dict[str, ProbeFinding]:
    return {name: one for name, one in findings.items() if one.verdict != "as assumed"}


def test_all_answers_of_this_machine_are_as_assumed(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "local", {}, scale=10.0)
    findings = tried(bench)
    assert different(findings) == {}
    assert findings["job"].evidence["second"]["resumed"] == findings["job"].evidence["first"]["saved"] > 0
    assert [path.name for path in (bench.folder / "sessions" / "here").glob("uff-acc-*")] == []
    assert list(bench.base.artifacts.keys("")) == []


def test_a_session_that_does_not_start_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tmp_path, "local", {}, scale=200.0)
    monkeypatch.setitem(run_probes.__globals__, "JOB", "never printed")
    findings = tried(bench, "session", "visible")
    assert (findings["session"].verdict, "visible" in findings) == ("open", False)


@pytest.mark.services("slurmctld")
def test_a_real_slurm_is_tried_through_its_adapter(tmp_path: Path) -> None:
    with slurm_lab() as lab:
        options = {"slurm_conf": str(lab.conf), "command_seconds": "60", "python": sys.executable}
        bench = bench_of(tmp_path, "slurm", options)
        findings = tried(bench, "account", "books", "session", "visible", "stop-force")
        assert different(findings) == {}
        assert set(findings) == {"account", "books", "session", "visible", "stop-force"}
        assert lab.jobs(tmp_path) == [] or {state for _, state in lab.jobs(tmp_path)} <= {"COMPLETED", "CANCELLED"}


def test_skypilots_emulator_is_tried_through_its_adapter(tmp_path: Path, moto_s3: Any) -> None:
    options = ", ".join(f'{name} = "{text}"' for name, text in moto_s3.options().items())
    store = f'kind = "s3"\nroot = "{{folder}}/store"\noptions = {{{{ {options} }}}}'
    with SkyServer(tmp_path / "cloud") as server:
        chosen = {"address": server.address, "poll_seconds": "0", "python": sys.executable}
        bench = bench_of(tmp_path, "skypilot", chosen, store=store)
        findings = tried(bench, "account", "books", "session", "stop-force")
        assert different(findings) == {}
        until(lambda: not server.left(), "the end of all processes")
