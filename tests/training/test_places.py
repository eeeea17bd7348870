"""One fine-tuning on three places in turn, planned by the daemon: the losses and the bits of one that was never cut."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lab.desk import Desk, digest
from tests.lab.elsewhere import Elsewhere, missing
from tests.lab.patience import until

LOSS = re.compile(r"step \d+ loss [\d.]+ norm [\d.]+")
STEPS = 300
PLACES = ("kaggle", "sagemaker", "local")
JOB = """
name = "toy"
role = "main"
command = {command}
inputs = {{ base = "{base}", data = "{data}" }}
environment = {{ OMP_NUM_THREADS = "1" }}
target_step = {steps}
steps_per_hour = 1000
seed = 3
setup = "5m"
checkpoint = "10s"
needs = {{ devices = 1, vram_gib = 1, dtype = "fp32" }}
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    """A daemon with its places, which opens none of them yet."""
    if why := missing():
        pytest.skip(f"the daemon and its emulators are NOT tested with the real trainer here: {why}")
    with Elsewhere(tmp_path / "elsewhere") as made:
        for place in PLACES:
            made.type("pools", "close", place)
        yield made


def test_it_is_cut_on_kaggle_moves_to_sagemaker_and_ends_here(
    elsewhere: Elsewhere, make_desk: Callable[..., Desk], model: Path, tmp_path: Path
) -> None:
    options = ("--lora", "4", "--dropout", "0.1", "--accumulate", "8", "--report-every", "1")
    steady = make_desk("steady", *options, target=STEPS)
    data = steady.store / "data"
    words = [sys.executable, *steady.command[1:]]
    words[words.index("--model") + 1] = "input:base"
    words[words.index("--cache") + 1] = "rows"
    command = json.dumps([*words, "--data", "input:data"])
    (tmp_path / "toy.toml").write_text(JOB.format(command=command, base=model, data=data, steps=STEPS))
    elsewhere.type("queue", "add", str(tmp_path / "toy.toml"))
    lanes: list[Any] = []
    said = ""
    for place in PLACES:
        run = begin(elsewhere, place)
        if place != PLACES[-1]:
            stop_after(elsewhere, run, lanes[-1]["end_step"] if lanes else 0)
        lanes.append(until(partial(ended, elsewhere, run), f"the end on {place}", every=1))
        said += elsewhere.printed(run)
    assert [one["outcome"] for one in lanes] == ["yielded", "yielded", "finished"], said
    assert [one["restore_step"] for one in lanes] == [None, *(one["end_step"] for one in lanes[:-1])]
    assert said.count(", E0: nothing has changed") == 2
    elsewhere.type("checkpoints", "pull", "toy", str(tmp_path / "pulled"))
    whole = steady.run()
    assert whole.codes == [0], whole.said
    assert LOSS.findall(said) == LOSS.findall(whole.said)
    assert {name: digest(tmp_path / "pulled" / name) for name in steady.state()} == steady.state()


def begin(elsewhere: Elsewhere, place: str) -> str:
    """Let one session begin on a place, and return its key."""
    elsewhere.type("pools", "open", place)
    runs = until(lambda: elsewhere.type("runs", "list", "--live", "--pool", place)["runs"], f"a session on {place}")
    elsewhere.type("pools", "close", place)
    return str(runs[0]["key"])


def stop_after(elsewhere: Elsewhere, run: str, step: int) -> None:
    """Ask a session to leave once it is further than a step."""

    def is_further() -> bool:
        (lane,) = elsewhere.type("runs", "show", run)["run"]["lanes"]
        assert lane["outcome"] is None, lane
        return ((lane["heartbeat"] or {}).get("step") or 0) > step

    until(is_further, f"a step of {run} beyond {step}", every=1)
    elsewhere.type("runs", "stop", run)


def ended(elsewhere: Elsewhere, run: str) -> Any:
    """Return the lane of a session that is over."""
    found = elsewhere.type("runs", "show", run)["run"]
    return found["lanes"][0] if found["state"] == "ended" else None
