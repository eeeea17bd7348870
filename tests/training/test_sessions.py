"""Fine-tuning under the real agent: on one device and two, from another job's weights, and when it cannot."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.desk import REPOSITORY, Desk, accelerators


def test_a_session_on_two_devices_saves_when_asked_and_moves_to_one(make_desk: Callable[..., Desk]) -> None:
    """The agent asks by SIGUSR1, of which torchrun dies."""
    if accelerators() == 1:
        pytest.skip("a session of two devices needs two accelerators, or none: then processors stand for them")
    desk = make_desk("desk", "--lora", "4", target=300)
    first = desk.session(cut=20, devices=2)
    assert first["outcome"] == "preempted", desk.log()
    assert first["checkpoint_step"] >= 20
    assert re.search(r"3 steps of [\d,]+ tokens passed: .*[1-9][\d,]* tokens/s, loss \d+\.\d{4}\n", desk.log())
    kept = desk.newest()[1]
    assert {"adapter_model.safetensors", "adapter_config.json", "optimizer.pt", "state.json"} <= kept.keys()
    desk.command += ["--accept-inexact"]
    desk.target = first["checkpoint_step"] + 20
    assert first["tokens_per_second"] > 0
    assert first["step_seconds_p90"] > 0
    assert 0 <= first["padding"] < 1
    assert first["gradient_norm"] > 0
    second = desk.session()
    assert (second["outcome"], second["restored_step"]) == ("finished", first["checkpoint_step"]), desk.log()
    assert "E2: target step was 300" in desk.log()
    assert "devices was 2 and is 1" in desk.log()


def test_two_lanes_on_two_devices_disturb_each_other_in_no_bit(make_desk: Callable[..., Desk]) -> None:
    """The same training twice in one session, on a device each, and once alone."""
    if accelerators() == 1:
        pytest.skip("a session of two devices needs two accelerators, or none: then processors stand for them")
    desk = make_desk("desk", "--lora", "4", target=8)
    assert desk.session(beside="other")["outcome"] == "finished", desk.log()
    other = json.loads((desk.store / "runs/toy-0001/lane-1/result.json").read_bytes())
    assert (other["job"], other["outcome"]) == ("other", "finished"), desk.log()
    alone = desk.run()
    assert alone.codes == [0], alone.said
    digests = desk.state()
    for job in ("toy", "other"):
        step, files = desk.newest(job)
        assert (step, {name: files[name] for name in digests}) == (8, digests)


@pytest.mark.parametrize("options", [(), ("--lora", "4")], ids=["full", "lora"])
def test_a_job_begins_with_the_weights_of_another(make_desk: Callable[..., Desk], options: tuple[str, ...]) -> None:
    desk = make_desk("family", *options)
    assert desk.session()["outcome"] == "finished", desk.log()
    loss = desk.metrics()["held_out_loss"]
    (desk.store / "jobs/toy").rename(desk.store / "jobs/main")
    for path in (desk.store / "jobs/main/manifests").iterdir():
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "job": "main"}))
    key = max(path.relative_to(desk.store).as_posix() for path in desk.store.glob("jobs/main/manifests/*.json"))
    began = desk.session(parent=key)
    assert began["outcome"] == "finished", desk.log()
    assert desk.metrics()["start_held_out_loss"] == loss, "the parent's, not a beginner's"
    if options:
        desk.command += ["--lora", "0"]
        for path in desk.manifests():
            path.unlink()
        refused = desk.session(parent=key)
        assert refused["outcome"] == "failed"
        assert "Train this job with --lora" in refused["message"]


def test_an_adapter_of_another_form_is_no_beginning(make_desk: Callable[..., Desk], tmp_path: Path) -> None:
    """A parent's adapter kept its rank, alpha and dropout whatever the child asked for."""
    parent = make_desk("parent", "--lora", "4", "--dropout", "0.1", target=2)
    assert parent.run().codes == [0]
    given = {"SCHED_INPUT_PARENT": str(parent.checkpoint())}
    for options, told in (
        (("--lora", "8"), "has --lora 4, but this training sets --lora 8"),
        (("--lora", "4", "--alpha", "4"), "has --alpha 8, but this training sets --alpha 4"),
    ):
        refused = make_desk(options[-1] + "child", *options, target=2).run(environment=given)
        assert refused.codes == [1]
        assert told in refused.said
        assert f"Set {told.split(',')[0].removeprefix('has ')}" in refused.said
    child = make_desk("child", "--lora", "4", target=2)
    run = child.run(environment=given)
    assert run.codes == [0], run.said
    assert child.kept("adapter_config.json")["lora_dropout"] == 0


def test_data_that_fill_no_row_are_named(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk", "--lora", "4")
    (desk.store / "data/train-00000.jsonl").write_text("not json\n")
    result = desk.session()
    assert (result["outcome"], result["error_class"]) == ("failed", "data")
    assert "1 of 1 records" in result["message"]


def test_the_model_given_is_left_as_it_was(make_desk: Callable[..., Desk], model: Path) -> None:
    """The base of a job is a file of somebody else's."""
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in model.iterdir()}
    assert make_desk("desk", target=3).run().codes == [0]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in model.iterdir()} == before


def test_instructions_are_learned_without_their_prompts(make_desk: Callable[..., Desk]) -> None:
    """One answer to many questions: it is soon known by heart, and the questions are not."""
    desk = make_desk("desk", "--rate", "1e-2", "--clip", "0")
    desk.fill(
        {"messages": [{"role": "user", "content": os.urandom(12).hex()}, {"role": "assistant", "content": "ABCDEFGH"}]}
        for _ in range(60)
    )
    assert desk.run().codes == [0]
    assert desk.metrics_kept()["held_out_loss"] < 0.5, "the questions alone would keep it above 2"


def test_torchrun_is_refused_in_a_session(make_desk: Callable[..., Desk]) -> None:
    refused = make_desk("desk").run(environment={"TORCHELASTIC_RUN_ID": "1"})
    assert refused.codes == [2]
    assert "torchrun ends at SIGUSR1" in refused.said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--batch 1 --accumulate 3", "cannot be shared by 2 devices: choose a number that 2 divides"),
        ("--stage kto --batch 2 --accumulate 1", "each of 2 devices would take one at a time: choose a --batch of 2"),
    ],
)
def test_rows_that_cannot_be_shared_are_refused_before_anything_is_loaded(
    options: str, message: str, model: Path
) -> None:
    program = REPOSITORY / "jobs/payload/trainers/finetune.py"
    words = [sys.executable, str(program), "--model", str(model), "--devices", "2", *options.split()]
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert message in refused.stderr


@pytest.mark.parametrize(
    ("options", "devices", "message"),
    [
        (("--length", "2049"), 1, "--length 2049 is more than the 2048 positions"),
        (("--stage", "kto"), 4, "each of 4 devices would take one at a time"),
    ],
    ids=["length", "devices"],
)
def test_what_no_step_can_have_ends_the_session_before_it_trains(
    options: tuple[str, ...], devices: int, message: str, make_desk: Callable[..., Desk]
) -> None:
    """The daemon refuses such a job, unless the model lies elsewhere."""
    desk = make_desk("desk", "--lora", "4", *options)
    result = desk.session(devices=devices)
    assert (result["outcome"], result["error_class"], result["step"]) == ("failed", "code", None), desk.log()
    assert message in result["message"]


@pytest.mark.parametrize("stage", ["sft", "selftrain", "dpo", "kto", "grpo"])
def test_rows_longer_than_the_model_are_refused_in_every_stage(stage: str, make_desk: Callable[..., Desk]) -> None:
    reward = ("--reward", "x") if stage in ("selftrain", "grpo") else ()
    run = make_desk("desk", "--stage", stage, "--lora", "4", "--length", "2049", "--generations", "2", *reward).run()
    assert run.codes == [1], run.said
    assert "Say --length 2048 or less, or scale its positions in config.json (rope_scaling)" in run.said


def test_a_loss_that_is_no_number_leaves_the_weights_and_is_told(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk", "--lora", "4", "--rate", "1e30", "--clip", "0", "--warmup", "1", "--report-every", "1")
    result = desk.session()
    assert (result["outcome"], result["error_class"]) == ("failed", "diverged"), desk.log()


def test_a_loss_that_is_worse_than_guessing_for_long_ends_it(make_desk: Callable[..., Desk]) -> None:
    """A number all the time, and nothing that hours should be spent on."""
    options = ("--rate", "10", "--clip", "0", "--warmup", "1", "--schedule", "constant", "--accumulate", "1")
    desk = make_desk("desk", *options, "--report-every", "1", target=1_000)
    result = desk.session()
    assert (result["outcome"], result["error_class"]) == ("failed", "diverged"), desk.log()
    assert result["loss"] > 8
    assert 100 <= result["step"] < desk.target
    assert "Lower --rate" in result["message"]


def test_nobody_waits_for_a_process_that_is_gone(make_desk: Callable[..., Desk]) -> None:
    """The others would wait in a sum for ever; the launcher ends them."""
    desk = make_desk("desk", "--lora", "4", target=100_000)
    killed = desk.run(ranks=2, cut=5, told=1, sign=signal.SIGKILL)
    assert killed.codes[1] == -signal.SIGKILL
    assert killed.codes[0] != 0
