"""Weights that are shared out over devices: the same training, kept and moved like any other."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import torch
import transformers

from jobs.payload.trainers.tuning.devices import sharding
from jobs.payload.trainers.tuning.devices.card import Device
from jobs.payload.trainers.tuning.devices.group import Group
from jobs.payload.trainers.tuning.memory import TooLargeForOneDevice
from jobs.payload.trainers.tuning.options import read_options
from tests.lab.desk import REPOSITORY, Desk, accelerators

WAYS = {
    "full": (),
    "lora": ("--lora", "4", "--gradient-checkpointing"),
    "full in bf16": ("--precision", "bf16", "--gradient-checkpointing"),
}
ALWAYS = ("--batch", "4", "--report-every", "1", "--shard", "on")
CLOSE = 1e-3 if accelerators() else 1e-4  # devices sum in other orders


def losses(desk: Desk) -> list[float]:
    """What the newest run told."""
    return [loss for _, loss in desk.losses() if loss is not None]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_shared_out_learns_the_same_and_is_resumed_with_the_same_bits(
    way: str, make_desk: Callable[..., Desk]
) -> None:
    alone, whole, broken = (make_desk(name, *WAYS[way], *ALWAYS) for name in ("alone", "whole", "broken"))
    assert alone.run().codes == [0]
    run = whole.run(ranks=2)
    assert run.codes == [0, 0], run.said
    assert "sharded over 2 devices" in run.said
    assert losses(whole) == pytest.approx(losses(alone), abs=1e-2 if "bf16" in way else CLOSE)
    first = broken.run(ranks=2, cut=9, told=1)
    assert first.codes == [0, 0], first.said
    told = losses(broken)
    second = broken.run(ranks=2)
    assert second.codes == [0, 0], second.said
    assert ", E0:" in second.said
    assert told + losses(broken) == losses(whole)
    assert broken.state() == whole.state()


@pytest.mark.parametrize("way", ["full", "lora"])
def test_it_moves_between_numbers_of_devices(way: str, make_desk: Callable[..., Desk]) -> None:
    """From one device to two and to four, which share out, and back to one, which does not."""
    alone, moved = (make_desk(name, *WAYS[way], *ALWAYS) for name in ("alone", "moved"))
    assert alone.run().codes == [0]
    told: list[float] = []
    for ranks, cut in ((1, 6), (2, 14), (4, 22), (1, 30), (2, None)):
        run = moved.run(ranks=ranks, cut=cut, told=ranks - 1)
        assert run.codes == [0] * ranks, run.said
        told += losses(moved)
    assert told == pytest.approx(losses(alone), abs=CLOSE)
    assert [entry["class"] for entry in moved.kept("state.json")["resumptions"]] == ["E1"] * 4
    held_out = [desk.metrics_kept()["held_out_loss"] for desk in (alone, moved)]
    assert held_out[0] == pytest.approx(held_out[1], abs=CLOSE)
    name = "adapter_config.json" if way == "lora" else "config.json"
    told_of = [desk.kept(name) for desk in (alone, moved)]
    modules = [set(config.pop("target_modules", ())) for config in told_of]
    assert (told_of[0], modules[0]) == (told_of[1], modules[1])


def test_a_device_less_than_before_is_no_other_training(make_desk: Callable[..., Desk]) -> None:
    """Whether weights are shared out is a thing of the place: the class E1, with its name."""
    desk = make_desk("desk", "--lora", "4", "--batch", "4")
    assert desk.run(ranks=2, cut=5).codes == [0, 0]
    run = desk.run("--shard", "on", ranks=2)
    assert run.codes == [0, 0], run.said
    assert "E1: shared out was None and is True" in run.said


def test_tied_weights_are_one_and_a_kill_at_any_moment_costs_steps_only(
    make_desk: Callable[..., Desk], model: Path, tmp_path: Path
) -> None:
    tied = tmp_path / "tied"
    config = transformers.LlamaConfig.from_pretrained(model, tie_word_embeddings=True)
    transformers.set_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(tied)
    for path in model.glob("token*"):
        (tied / path.name).write_bytes(path.read_bytes())
    told = ("--model", str(tied), *ALWAYS, "--background-saves", "on")
    alone, broken = (make_desk(name, *told, target=100) for name in ("alone", "broken"))
    assert alone.run().codes == [0]
    asked: list[int] = []

    def disturb(process: int, step: int) -> None:
        if step >= 7 and not asked:
            asked.append(step)
            os.kill(process, signal.SIGUSR1)
        elif asked and broken.checkpoint() is not None:
            os.kill(process, signal.SIGKILL)

    killed = broken.run(ranks=2, disturb=disturb)
    assert -signal.SIGKILL in killed.codes
    run = broken.run(ranks=2)
    assert run.codes == [0, 0], run.said
    kept = broken.kept("state.json")["resumptions"]
    assert [entry["class"] for entry in kept] == ["E0"]
    assert losses(broken) == pytest.approx(losses(alone)[kept[0]["step"] :], abs=CLOSE)


@pytest.mark.parametrize(
    ("options", "memory", "shared"),
    [
        ((), 16 * 150_000, True),
        ((), 24 * 150_000, False),
        (("--lora", "4"), 2 * 150_000, True),
        (("--lora", "4"), 4 * 150_000, False),
        (("--use-4bit",), 150_000, False),
        (("--optimizer", "adamw8bit"), 1, False),
        (("--shard", "off"), 1, False),
    ],
    ids=["all", "all fit", "base", "base fits", "4 bits fit", "8 bits", "off"],
)
def test_weights_are_shared_out_where_they_do_not_fit_one_device(
    options: tuple[str, ...], memory: int, shared: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 100_000 < sharding.parameters(str(model)) < 150_000
    read = read_options(["--model", str(model), *options])
    card, group = Device("cuda:0", "a card", "bf16", compiles=False), Group("cpu")

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=memory))
    assert not sharding.is_shared(read, str(model), card, group), "alone there is nobody to share with"
    group.size = 2
    monkeypatch.setattr(group, "any", lambda *wishes: wishes)
    assert sharding.is_shared(read, str(model), card, group) == shared


@pytest.mark.parametrize(("options", "memory"), [((), 1), (("--shard", "on"), 150_000)], ids=["does not fit", "asked"])
def test_a_base_in_4_bits_needs_one_process_for_all_devices(
    options: tuple[str, ...], memory: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = read_options(["--model", str(model), "--use-4bit", *options])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=memory))
    group = Group("cpu")
    group.size = 2
    monkeypatch.setattr(group, "any", lambda *wishes: wishes)
    with pytest.raises(TooLargeForOneDevice):
        sharding.is_shared(read, str(model), Device("cuda:0", "a card", "bf16", compiles=False), group)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--shard", "on", "--optimizer", "adamw8bit"), "takes whole weights only"),
        (("--shard", "on", "--stage", "dpo"), "it is for --stage sft"),
    ],
)
def test_what_cannot_be_shared_out_is_told_with_what_to_do(options: tuple[str, ...], told: str, model: Path) -> None:
    program = REPOSITORY / "jobs/payload/trainers/finetune.py"
    words = [sys.executable, str(program), "--model", str(model), *options]
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert told in " ".join(refused.stderr.split())
