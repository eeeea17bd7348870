"""One `submit` of a folder, with packages and a repository of the Hub: it trains on every kind of place in turn."""

import json
import re
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from config.layers import shipped
from platforms.local.records import OUTPUT
from tests.lab.crashes.stage import Stage
from tests.lab.hub import NAME, StandInHub
from tests.lab.packages import use_index, write_wheel
from tests.lab.patience import slowness, until

# The rehearsal's three places, each for as short as makes the job move on to the next.
SHORT = {
    'session_cap = "12h"': 'session_cap = "2h"',
    'session_cap = "4h"': 'session_cap = "2h"',
    'session_cap = "8h"': 'session_cap = "2h"',
    'limit = "30h"': 'limit = "2h"',
    'limit = "4h"': 'limit = "2h"',
    'hours = ["20:00-08:00 Europe/Berlin"]\n': "",
    "devices_per_session = 2": "devices_per_session = 1",
    "sessions_max = 2": "sessions_max = 1",
    # The clouds' sessions get their packages as wheels from the daemon, the local ones ask the index.
    'expected_device = "NvidiaTeslaT4"': 'expected_device = "NvidiaTeslaT4", internet = "off"',
    'instance_types = "ml.g4dn.xlarge"': 'instance_types = "ml.g4dn.xlarge"\ninternet = "off"',
}
# The last of the three is the local one. Five hours of training do not fit into two of them on one day.
ALSO_SHORT = """
[[pools.quotas]]
name = "hours of the day"
kind = "day"
limit = "2h"
zone = "UTC"
"""
TRAINED_HOURS, STEPS = 5, 1_500
LATER = """
[defaults]
command = ["true"]
[[jobs]]
name = "later"
role = "main"
target_step = 10
steps_per_hour = 10
not_before = 2030-01-01T00:00:00Z
"""
TRAIN = """
import json, os, pathlib, time
import light, heavy
from trainer_kit import Training
base = pathlib.Path(os.environ["SCHED_INPUT_BASE"], "config.json").read_text()
training = Training()
step = json.loads((training.resume_dir / "step.json").read_text()) if training.resume_dir else 0
print("begins at", step, "with", light.VERSION, heavy.VERSION, base, flush=True)
training.progress(step)
while step < training.target_step and not training.should_stop:
    if training.should_save:
        training.checkpoint(step, lambda folder: (folder / "step.json").write_text(json.dumps(step)), {})
    time.sleep(SECONDS)
    step += 1
    training.progress(step, loss=1 / step)
training.checkpoint(step, lambda folder: (folder / "step.json").write_text(json.dumps(step)), {})
"""


@pytest.mark.nightly
def test_one_line_trains_on_every_place_and_its_checkpoint_comes_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_index(tmp_path / "index", monkeypatch)
    for name in ("light", "heavy"):
        write_wheel(tmp_path / "index", name, "1.0")
    pools = shipped("rehearsal.toml").read_text().partition("[[pools]]")
    text = pools[1] + pools[2]
    for old, new in SHORT.items():
        assert old in text
        text = text.replace(old, new)
    text = text.replace(
        'platform = "local"', 'platform = "local"\noptions = { pass_environment = "PIP_INDEX_URL,UV_DEFAULT_INDEX" }'
    )
    scale = round(1_800 / slowness())
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "train.py").write_text(TRAIN.replace("SECONDS", str(TRAINED_HOURS * 3_600 / STEPS / scale)))
    (mine / "requirements.txt").write_text("light\nheavy >= 1\n")
    place = Stage(tmp_path / "stage", pools=text + ALSO_SHORT, models=LATER, hours=60.0, scale=scale)
    with StandInHub({"config.json": b"tiny"}) as hub, closing(place) as stage:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        rehearsal = stage.begin("--json")
        until(lambda: (stage.week / "rehearsal.toml").exists() and stage.has_begun(), "a daemon")
        monkeypatch.chdir(mine)
        typed = stage.type(
            "submit", "train.py", "--name", "mine", "--target-step", str(STEPS), "--steps-per-hour", "300", "--input",
            f"base=hf:{NAME}",
        )  # fmt: skip
        assert typed.code == 0, typed.err
        (mine / "train.py").write_text("raise SystemExit('the file of after the submission')")
        until(lambda: rehearsal.poll() is not None or _job(stage)["state"] == "done", "the job's end", 600)
        stage.kill_daemon()
        assert stage.type("checkpoints", "pull", "mine", str(tmp_path / "home")).code == 0
        shown = _job(stage)
        assert (shown["state"], shown["done_step"]) == ("done", STEPS)
        left = stage.type("--json", "runs", "list", "--job", "mine").document["runs"]
        assert {run["pool"] for run in left} == {"kaggle", "sagemaker", "local"}, left
        assert {lane["code"] for run in left for lane in run["lanes"]} == {shown["spec"]["code"]["digest"]}
        assert json.loads((tmp_path / "home" / "step.json").read_text()) == STEPS
        said = "".join(path.read_text(errors="replace") for path in stage.week.rglob(OUTPUT))
        begun = sorted(int(at) for at in re.findall(r"begins at (\d+) with 1.0 1.0 tiny", said))
        assert begun[0] == 0
        assert all(later > earlier for earlier, later in pairwise(begun)), "each session went on where another was cut"


def _job(stage: Stage) -> Any:
    return stage.type("--json", "queue", "show", "mine").document["job"]
