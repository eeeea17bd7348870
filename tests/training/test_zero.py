"""All weights trained by DeepSpeed's ZeRO: the same training, kept in the same form and moved like any other."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("deepspeed")
from jobs.payload.trainers.tuning.devices import zero
from tests.lab.desk import REPOSITORY, Desk, accelerators

STEPS = 12
ALWAYS = ("--batch", "3", "--report-every", "1")  # six rows a step, for one process, two or three
CLOSE = 1e-3 if accelerators() else 1e-4  # devices sum in other orders


def losses(desk: Desk) -> list[float]:
    """What the newest run told."""
    return [loss for _, loss in desk.losses() if loss is not None]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Desk:
    """A training on one device, without ZeRO."""
    desk = Desk(tmp_path_factory.mktemp("alone"), model, *ALWAYS, target=STEPS)
    run = desk.run()
    assert run.codes == [0], run.said
    return desk


@pytest.mark.parametrize(
    "options",
    [
        ("--zero", "1"),
        ("--zero", "2", "--offload", "--precision", "bf16"),
        ("--zero-stage=3", "--offload", "--gradient-checkpointing"),
    ],
    ids=" ".join,
)
def test_each_stage_learns_the_same_and_is_resumed_with_the_same_bits(
    options: tuple[str, ...], make_desk: Callable[..., Desk], alone: Desk
) -> None:
    whole, broken = (make_desk(name, *options, *ALWAYS, target=STEPS) for name in ("whole", "broken"))
    run = whole.run(ranks=2)
    assert run.codes == [0, 0], run.said
    assert losses(whole) == pytest.approx(losses(alone), abs=2e-2 if "bf16" in options else CLOSE)
    first = broken.run(ranks=2, cut=3, told=1)
    assert first.codes == [0, 0], first.said
    told = losses(broken)
    assert len(told) < STEPS
    second = broken.run(ranks=2)
    assert second.codes == [0, 0], second.said
    assert ", E0:" in second.said
    assert told + losses(broken) == losses(whole)
    assert broken.state() == whole.state()
    form = [desk.metrics_kept().keys() for desk in (alone, whole)]
    assert form[0] == form[1]


def test_it_moves_between_stages_shares_and_one_device(make_desk: Callable[..., Desk], alone: Desk) -> None:
    """Three processes divide no weight of 64 values evenly: the last part is filled up, and nobody sees that."""
    moved = make_desk("moved", *ALWAYS, target=2)
    told: list[float] = []
    for ranks, target, options in (
        (1, 2, ()),
        (2, 4, ("--zero", "2", "--offload")),
        (3, 6, ("--shard", "on")),
        (3, 8, ("--zero", "3")),
        (1, 10, ("--zero", "3", "--offload")),
        (1, 11, ("--offload",)),
        (1, STEPS, ()),
    ):
        moved.target = target
        run = moved.run(*options, "--schedule", "constant", ranks=ranks)
        assert run.codes == [0] * ranks, run.said
        told += losses(moved)
    steady = make_desk("steady", *ALWAYS, "--schedule", "constant", target=STEPS)
    assert steady.run().codes == [0]
    assert told == pytest.approx(losses(steady), abs=CLOSE)
    kept = moved.kept("state.json")["resumptions"]
    assert [entry["class"] for entry in kept] == ["E1"] * 6
    changes = [{name: now for name, _, now in entry["changed"]}.get("shared out") for entry in kept]
    assert changes == ["ZeRO-2, offloaded", True, "ZeRO-3", "ZeRO-3, offloaded", "ZeRO-2, offloaded", None]
    assert moved.state().keys() == steady.state().keys()


def test_under_the_agent_it_is_cut_and_goes_on(make_desk: Callable[..., Desk]) -> None:
    if accelerators() == 1:
        pytest.skip("a session of two devices needs two accelerators, or none: then processors stand for them")
    desk = make_desk("desk", "--zero", "2", "--offload", "--batch", "4", target=10_000)
    first = desk.session(cut=3, devices=2)
    assert first["outcome"] == "preempted", desk.log()
    desk.command += ["--accept-inexact"]
    desk.target = first["checkpoint_step"] + 2
    second = desk.session()
    assert (second["outcome"], second["restored_step"]) == ("finished", first["checkpoint_step"]), desk.log()
    assert "devices was 2 and is 1" in desk.log()


def test_a_machine_whose_memory_is_too_small_is_told_before_anything_is_loaded(
    make_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    if accelerators():
        pytest.skip("memory is made short inside a forked trainer; with an accelerator none is forked")
    monkeypatch.setattr(zero, "free_memory", lambda: 1 << 20)
    refused = make_desk("desk", "--offload").run()
    assert refused.codes == [1]
    assert "of the machine's memory, and 0.0 GB are free" in refused.said


def test_without_deepspeed_it_says_what_to_do(make_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    if accelerators():
        pytest.skip("it is hidden from a forked trainer; with an accelerator none is forked")
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    refused = make_desk("desk", "--zero", "2").run()
    assert refused.codes == [1]
    assert "name deepspeed in the job's requirements, or replace --zero by --shard" in refused.said


def test_a_file_of_deepspeeds_own_says_more_of_zero(make_desk: Callable[..., Desk], tmp_path: Path) -> None:
    said = {
        "train_batch_size": "auto",
        "fp16": {"enabled": "auto"},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": "auto",
            "offload_optimizer": {"device": "cpu"},
        },
    }
    (tmp_path / "ds_config.json").write_text(json.dumps(said))
    desk = make_desk("desk", "--deepspeed", str(tmp_path / "ds_config.json"), target=2)
    run = desk.run()
    assert run.codes == [0], run.said
    assert "(ZeRO-3 and host memory)" in run.said
    assert desk.kept("fingerprint.json")["place"]["shared out"] == "ZeRO-3, offloaded"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--zero", "2", "--lora", "4"), "an adapter has a hundredth of them"),
        (("--offload", "--optimizer", "adamw8bit"), "its states are those of --optimizer adamw"),
        (("--zero", "1", "--shard", "on"), "--shard on shards weights without DeepSpeed"),
        (("--zero", "1", "--stage", "dpo"), "it is for --stage sft"),
        (("--zero", "1", "--no-deepspeed"), "contradicts"),
        (("--deepspeed", "nowhere.json"), "nowhere.json"),
        (("--local_rank=0",), "start this program without a launcher"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_zero_cannot_do_is_told_with_what_to_do(options: tuple[str, ...], told: str, model: Path) -> None:
    program = REPOSITORY / "jobs/payload/trainers/finetune.py"
    words = [sys.executable, str(program), "--model", str(model), *options]
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert told in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("zero_said", "told"),
    [
        ({"stage": 0}, 'it has no "zero_optimization" with a "stage" of 1, 2 or 3'),
        ({"stage": 3, "offload_param": {"device": "nvme"}}, "offload_param to 'nvme' is not supported"),
        (None, "stage"),
    ],
)
def test_a_file_that_asks_for_what_there_is_not_is_refused(
    zero_said: dict[str, object] | None, told: str, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": zero_said}))
    program = REPOSITORY / "jobs/payload/trainers/finetune.py"
    words = [sys.executable, str(program), "--model", str(model), "--deepspeed", str(path)]
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert told in " ".join(refused.stderr.split())
