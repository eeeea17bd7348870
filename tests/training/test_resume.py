"""A training that was cut goes on as if it had not been, or says how exactly it does, or refuses."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import torch

from jobs.payload.trainers.tuning.devices.card import find_card
from jobs.payload.trainers.tuning.devices.fp8 import FP8_FROM
from jobs.payload.trainers.tuning.memory import STATUS
from jobs.payload.trainers.tuning.model import make_model
from jobs.payload.trainers.tuning.options import read_options
from tests.lab.desk import Desk, accelerators

WAYS = {
    "full": ("--batch", "2"),
    "lora": ("--lora", "4", "--dropout", "0.1"),
    "qlora": ("--use-4bit", "--lora", "4", "--gradient-checkpointing"),
    "bf16": ("--lora", "4", "--precision", "bf16"),
    "8bit": ("--lora", "4", "--optimizer", "adamw8bit"),
    "compiled": ("--lora", "4", "--compile", "on"),
    "fp8": ("--lora", "4", "--precision", "fp8"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_training_ends_with_the_bits_of_one_that_was_not(way: str, make_desk: Callable[..., Desk]) -> None:
    if way == "compiled" and not accelerators():
        pytest.skip("layers are compiled where Triton works, and there is no accelerator here")
    if way == "fp8" and not (accelerators() and torch.cuda.get_device_capability() >= FP8_FROM):
        pytest.skip("no device here has units for fp8")
    whole, broken = (make_desk(name, *WAYS[way], "--report-every", "7") for name in ("whole", "broken"))
    assert whole.run().codes == [0], whole.run().said
    losses = [entry for entry in whole.losses() if entry[1] is not None]
    first = broken.run(cut=9)
    assert first.codes == [0], first.said
    told = [entry for entry in broken.losses() if entry[1] is not None]
    step = broken.kept("meta.json")["step"]
    assert 9 <= step < whole.target
    second = broken.run()
    assert second.codes == [0], second.said
    assert f"resuming from step {step}, E0" in second.said
    assert broken.state() == whole.state()
    told += [entry for entry in broken.losses() if entry[1] is not None]
    assert told == losses, "also the first after the cut, which is a mean over steps before and after it"
    assert [entry["class"] for entry in broken.kept("state.json")["resumptions"]] == ["E0"]
    ends = [desk.kept("meta.json")["metrics"] for desk in (whole, broken)]
    assert ends[0]["held_out_loss"] == ends[1]["held_out_loss"]


def test_on_one_device_or_more_the_same_rows_are_learned(make_desk: Callable[..., Desk]) -> None:
    """From two devices to one and to four: rounding differs, the state does not."""
    alone, moved = (make_desk(name, "--lora", "4", "--batch", "4", "--report-every", "1") for name in ("one", "more"))
    assert alone.run().codes == [0]
    expected = [loss for _, loss in alone.losses() if loss is not None]
    told: list[float] = []
    for ranks, cut in ((2, 8), (1, 20), (4, None)):
        run = moved.run(ranks=ranks, cut=cut, told=ranks - 1)
        assert run.codes == [0] * ranks, run.said
        told += [loss for _, loss in moved.losses() if loss is not None]
    # One device is an accelerator where there is one, and sums in another order than processors do.
    assert told == pytest.approx(expected, abs=1e-3 if accelerators() else 1e-4)
    kept = moved.kept("state.json")["resumptions"]
    assert [entry["class"] for entry in kept] == ["E1", "E1"]
    # Four processors stand for the accelerators of a machine that has fewer: another device, and other precision.
    assert [[change for change in entry["changed"] if change[0] == "devices"] for entry in kept] == [
        [["devices", 2, 1]], [["devices", 1, 4]]
    ]  # fmt: skip
    assert moved.kept("meta.json")["metrics"]["exactness"] == 1


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("words", "again"),
    [((), 0), (("half",), 1), (("all",), 2), (("offload",), 2)],
    ids=["none", "half", "all", "offload"],
)
def test_what_is_computed_again_is_the_same(words: tuple[str, ...], again: int, make_desk: Callable[..., Desk]) -> None:
    """Of two layers none, one or both keep no activations; a training that changes between them is E1."""
    options = ("--gradient-checkpointing", *words) if words else ()
    whole, moved = (make_desk(name, "--lora", "4", "--report-every", "1", target=12) for name in ("whole", "moved"))
    assert whole.run().codes == [0]
    expected = [loss for _, loss in whole.losses() if loss is not None]
    assert moved.run(cut=4).codes == [0]
    told = [loss for _, loss in moved.losses() if loss is not None]
    run = moved.run(*options)
    assert run.codes == [0], run.said
    told += [loss for _, loss in moved.losses() if loss is not None]
    assert told == pytest.approx(expected, abs=1e-3 if accelerators() else 1e-6)
    (resumption,) = moved.kept("state.json")["resumptions"]
    was = [["gradient checkpointing", False, True if words == ("all",) else words[0]]] if words else []
    assert (resumption["class"], resumption["changed"]) == ("E1" if words else "E0", was)

    model = make_model(
        read_options(["--model", moved.command[3], "--lora", "4", "--compile", "off", *options]),
        moved.command[3],
        None,
        None,
        find_card(0),
    )
    computed: list[Any] = []
    for layer in model.layers:
        layer.mlp.register_forward_pre_hook(lambda part, _: computed.append(part))
    tokens = torch.arange(8)[None].to(find_card(0).device)
    model.summed_loss(tokens, tokens, None, None).backward()
    assert len(computed) == 2 + again


def test_all_processes_save_and_stop_at_the_step_of_which_one_was_told(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk", "--lora", "4", target=400)
    asked = desk.run(ranks=2, cut=5, told=1, sign=signal.SIGUSR1)
    assert asked.codes == [0, 0], asked.said
    steps = sorted(int(path.name.removeprefix("step-")) for path in (desk.folder / "checkpoints").glob("step-*"))
    assert len(steps) == 2, "when it was asked to, and at the target"
    assert 5 <= steps[0] < steps[1] == desk.target


CHANGES = {
    "seed": ((), {"SCHED_SEED": "4"}, "seed was 3 and is 4"),
    "rows a step": (("--accumulate", "4"), {}, "rows a step was 4 and is 8"),
    "length": (("--length", "32"), {}, "length was 64 and is 32"),
    "rate": (("--rate", "1e-3"), {}, "rate was 0.0002 and is 0.001"),
    "target step": ((), {"SCHED_TARGET_STEP": "60"}, "target step was 40 and is 60"),
    "adapter": (("--alpha", "3"), {}, "alpha was 8 and is 3"),
    "base": (("--use-4bit",), {}, "bits was 16 and is 4"),
    "optimizer": (("--optimizer", "adamw8bit"), {}, "optimizer was adamw and is adamw8bit"),
}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Desk:
    """A desk with a checkpoint of a LoRA training."""
    desk = Desk(tmp_path_factory.mktemp("interrupted"), model, "--lora", "4")
    run = desk.run(cut=3)
    assert run.codes == [0], run.said
    return desk


@pytest.mark.parametrize("name", CHANGES)
def test_what_decides_the_next_step_may_not_change_unseen(name: str, interrupted: Desk) -> None:
    options, environment, told = CHANGES[name]
    refused = interrupted.run(*options, environment=environment)
    assert refused.codes == [1]
    assert "(E2)" in refused.said
    assert told in refused.said


def test_other_data_or_another_model_are_noticed(interrupted: Desk) -> None:
    data = interrupted.store / "data/train-00000.jsonl"
    before = data.read_bytes()
    data.write_bytes(before + b'{"text": "one more"}\n')
    refused = interrupted.run()
    data.write_bytes(before)
    assert refused.codes == [1]
    assert "data was" in refused.said


def test_a_person_may_go_on_all_the_same_and_it_is_kept(interrupted: Desk) -> None:
    desk = interrupted
    before = desk.folder / "before"
    shutil.copytree(desk.folder / "checkpoints", before)
    step = desk.kept("meta.json")["step"]
    accepted = desk.run("--rate", "1e-3", "--accept-inexact")
    assert accepted.codes == [0], accepted.said
    kept = desk.kept("state.json")["resumptions"]
    assert [(entry["step"], entry["class"], entry["changed"]) for entry in kept] == [
        (step, "E2", [["rate", 0.0002, 0.001]])
    ]
    shutil.rmtree(desk.folder / "checkpoints")
    before.rename(desk.folder / "checkpoints")


def test_a_checkpoint_of_the_program_before_is_refused_with_its_class(interrupted: Desk) -> None:
    """It has no fingerprint; told to go on, its weights are taken and the optimiser begins anew."""
    folder = interrupted.checkpoint()
    assert folder is not None
    away = {name: (folder / name).read_bytes() for name in ("fingerprint.json", "state.json", "optimizer.pt")}
    for name in away:
        (folder / name).unlink()
    (folder / "recipe.json").write_text(json.dumps({"lora": 4}))
    refused = interrupted.run()
    assert refused.codes == [1]
    assert "(E2): program was one that kept no fingerprint" in refused.said
    accepted = interrupted.run("--accept-inexact", cut=1)
    assert accepted.codes == [0], accepted.said
    (folder / "recipe.json").unlink()
    for name, content in away.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", ["optimizer.pt", "state.json"])
def test_a_missing_part_is_no_fresh_start(name: str, interrupted: Desk) -> None:
    folder = next(iter(sorted((interrupted.folder / "checkpoints").glob("step-*"))))
    for later in sorted((interrupted.folder / "checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(later)
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    refused = interrupted.run()
    (folder / name).write_bytes(content)
    assert refused.codes == [1]
    assert f"has no {name}" in refused.said


def test_memory_that_is_too_small_is_told_by_a_status_and_remembered(
    make_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that holds one row: the launcher is told, tries less, and the next session begins with that."""
    if accelerators():
        pytest.skip("memory is made short inside a forked trainer; with an accelerator none is forked")
    import torch

    from jobs.payload.trainers.tuning.model import CausalLM

    whole = CausalLM.summed_loss

    def small(self: CausalLM, tokens: Any, *others: Any) -> Any:
        if len(tokens) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return whole(self, tokens, *others)

    monkeypatch.setattr(CausalLM, "summed_loss", small)
    desk = make_desk("desk", "--lora", "4")
    assert desk.run().codes == [STATUS]
    lowered = desk.run("--rows-at-once", "1", cut=5)
    assert lowered.codes == [0], lowered.said
    again = desk.run()
    assert again.codes == [0], again.said
    assert "E0" in again.said
