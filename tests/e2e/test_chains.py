"""Jobs that continue in a running session: real runners on each kind of place, and a daemon killed at a handover."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

from config.layers import shipped
from tests.lab.crashes.stage import Stage
from tests.lab.patience import slowness, until

# The rehearsal's three places with one session of one device each, at all hours.
ONE_SESSION = {
    'hours = ["20:00-08:00 Europe/Berlin"]\n': "",
    "devices_per_session = 2": "devices_per_session = 1",
    "sessions_max = 2": "sessions_max = 1",
    'session_min = "1h"': 'session_min = "10m"',
}
POOLS = ("kaggle", "sagemaker", "local")
DEFAULTS = """
[defaults]
role = "manager"
command = ["{python}", "{payload}/trainers/charlm.py", "--pace", "400", "--batch", "16", "--width", "32"]
target_step = 200
steps_per_hour = 400
setup = "1m"
checkpoint = "10s"
needs = { devices = 1, vram_gib = 4, dtype = "fp32" }
mixture = {}
stall = { first_progress = "off", no_progress = "off", checkpoint = "off" }
"""


def test_the_next_job_continues_on_every_place_though_the_daemon_is_killed_meanwhile(tmp_path: Path) -> None:
    before, mark, text = shipped("rehearsal.toml").read_text().partition("[[pools]]")
    del before
    for old, new in ONE_SESSION.items():
        assert old in text
        text = text.replace(old, new)
    jobs = [f'[[jobs]]\nname = "{pool}-{number}"\npools = ["{pool}"]\n' for pool in POOLS for number in (1, 2, 3)]
    models = DEFAULTS + "".join(jobs)
    with closing(
        Stage(tmp_path / "stage", pools=mark + text, models=models, hours=96.0, scale=1_200 / slowness())
    ) as stage:
        rehearsal = stage.begin("--json")
        until(lambda: (stage.week / "rehearsal.toml").exists() and stage.has_begun(), "a daemon")
        until(lambda: rehearsal.poll() is not None or '"run.chain"' in stage.log, "a job that continues", 300)
        stage.kill_daemon()
        until(lambda: rehearsal.poll() is not None, "the command notices")
        again = stage.resume()

        def states() -> set[str]:
            listed: list[dict[str, Any]] = stage.type("--json", "queue", "list", "--all").document["jobs"]
            return {job["state"] for job in listed}

        until(lambda: states() == {"done"} or again.poll() is not None, "the end of all jobs", 500, every=1)
        assert states() == {"done"}, stage.said(again).read_text()
        runs = stage.type("--json", "runs", "list").document["runs"]
    continued = Counter(run["pool"] for run in runs for lane in run["lanes"] if lane["begun_at"] is not None)
    assert continued.keys() == set(POOLS), continued
    for run in runs:
        lanes = sorted(run["lanes"], key=lambda lane: lane["index"])
        assert [len(list(same)) for _, same in groupby(lane["job"] for lane in lanes)] == [1] * len(lanes), run
