"""Held-out loss and the load test on checkpoints of finetune.py, whole and adapters."""

import argparse
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import torch
from safetensors.torch import load_file, save_file

from jobs.payload.scorers import heldout_loss, loads
from jobs.payload.scorers.given import NotGiven, ScorerInput
from jobs.payload.scorers.items import Item, ItemSet, ScoreLine
from tests.lab.desk import Desk, source_texts

# PEFT asks transformers by a name that the next major version drops.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
TEXTS = [*source_texts()[:3], "größer → 漢字\n"]
ITEMS = [Item(f"i{place}", f"i{place}", "python", {"text": text[:600]}) for place, text in enumerate(TEXTS)]


def given(folder: Path, base: str | None = None, **more: str) -> ScorerInput:
    options = argparse.Namespace(**{"base": base, "probe": None, "out": None, **more})
    return ScorerInput(ItemSet("0" * 64, {item.id: item for item in ITEMS}), {}, folder, options)


def losses(folder: Path, base: str | None = None) -> list[float]:
    lines: list[ScoreLine] = list(heldout_loss.score(ITEMS, given(folder, base), "loss"))
    assert len(lines) == 2 * len(ITEMS)  # by domain too
    return [line.value for line in lines if line.metric == "loss"]


def loaded(folder: Path, base: str | None = None) -> tuple[float, str]:
    lines = list(loads.score(ITEMS, given(folder, base), "loads"))
    return sum(line.value for line in lines) / len(lines), lines[0].example


@pytest.fixture
def adapter(make_desk: Callable[..., Desk]) -> Path:
    """A checkpoint of an adapter after forty steps."""
    desk = make_desk("adapter", "--use-lora", "--rate", "0.02")
    run = desk.run()
    assert run.codes == [0], run.said
    folder = desk.checkpoint()
    assert folder is not None
    return folder


def test_an_adapter_is_scored_on_its_base_and_no_other(adapter: Path, model: Path, tmp_path: Path) -> None:
    """It has learned what its base has not; the base beside it loads nowhere else."""
    own, bare = losses(adapter, str(model)), losses(model)
    assert bare[0] == pytest.approx(math.log(400), abs=0.5)
    assert sum(own[1:3]) < sum(bare[1:3]) - 0.1, (own, bare)
    assert loaded(adapter, str(model)) == (1.0, "")
    another = tmp_path / "another"
    shutil.copytree(model, another)
    weights = load_file(another / "model.safetensors")
    save_file({name: part + 0.001 for name, part in weights.items()}, another / "model.safetensors")
    with pytest.raises(NotGiven, match="is another base than this adapter was trained on"):
        losses(adapter, str(another))
    with pytest.raises(NotGiven, match="no folder of its base is given"):
        losses(adapter)


def test_the_base_may_be_an_input(adapter: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "SCHED_INPUT_BASE", str(model))
    assert losses(adapter, "input:base") == losses(adapter, str(model))


@pytest.mark.parametrize("damage", ["nan", "cut", "pickle", "no weights"])
def test_a_whole_model_that_is_damaged_is_worth_nothing(model: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "whole"
    shutil.copytree(model, folder)
    assert loaded(folder) == (1.0, "")
    weights = folder / "model.safetensors"
    if damage == "nan":
        save_file({name: torch.full_like(part, math.nan) for name, part in load_file(weights).items()}, weights)
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1_000])
    elif damage == "pickle":
        (folder / "pytorch_model.bin").write_bytes(b"anything")
    else:
        weights.unlink()
    share, why = loaded(folder)
    assert share == 0.0
    assert why.startswith("it does not load")


def test_what_a_model_says_to_a_prompt_is_written_down_for_deployments(model: Path, tmp_path: Path) -> None:
    """The same each time, one token after the other, with what each was worth."""
    told = []
    for turn in ("one", "two"):
        out = tmp_path / turn / "scores.jsonl"
        list(loads.score(ITEMS, given(model, probe="def check(", out=str(out)), "loads"))
        told.append(json.loads(out.with_name("probe.json").read_bytes()))
    assert told[0] == told[1]
    assert (told[0]["prompt"], len(told[0]["tokens"]), len(told[0]["logprobs"])) == ("def check(", 16, 16)
    assert all(isinstance(token, str) for token in told[0]["tokens"])
    assert all(value <= 0 for value in told[0]["logprobs"])
    with pytest.raises(NotGiven, match="none that loads"):
        list(loads.score(ITEMS, given(tmp_path, probe="p"), "loads"))
