"""Stages that learn what is better: cut anywhere they end with the same bits, and odd records and rewards are told."""

import json
import random
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("trl")
from jobs.payload.lane.failure import classify
from jobs.payload.trainers.tuning.data.documents import load_tokenizer
from jobs.payload.trainers.tuning.data.tally import check
from jobs.payload.trainers.tuning.errors import TrainingRefused, UnreadableData
from jobs.payload.trainers.tuning.options import read_options
from jobs.payload.trainers.tuning.preferences import read_rows
from jobs.payload.trainers.tuning.rounds import Reward, RewardSpread
from tests.lab.desk import REPOSITORY, Desk, accelerators, source_texts
from tests.lab.records import lines_of, odd_file

# More letters "e", more reward: a number for each text, in a program of its own.
MANY_E = """
import json, os, pathlib
said = [json.loads(line) for line in open(os.environ["SCHED_INPUT_OUTPUTS"])]
items = {json.loads(line)["id"]: json.loads(line) for line in open(os.environ["SCHED_INPUT_SET"])}
with open(pathlib.Path(os.environ["SCHED_OUTPUT_DIR"]) / "scores.jsonl", "w") as file:
    print(json.dumps({"header": 1}), file=file)
    for line in said:
        assert items[line["id"]]["letter"] == "e"
        print(json.dumps({"item": line["id"], "metric": "e", "value": line["output"].count("e")}), file=file)
"""
EQUAL = """
import json, os, pathlib
with open(pathlib.Path(os.environ["SCHED_OUTPUT_DIR"]) / "scores.jsonl", "w") as file:
    for line in open(os.environ["SCHED_INPUT_OUTPUTS"]):
        print(json.dumps({"item": json.loads(line)["id"], "value": 1}), file=file)
"""
RECORDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "dpo": lambda n: {"prompt": f"say {n}", "chosen": f" yes {n} yes", "rejected": f" no {n}"},
    "kto": lambda n: {"prompt": f"say {n}", "completion": f" yes {n}" if n % 2 else f" no {n}", "label": bool(n % 2)},
    "grpo": lambda n: {"prompt": f"say {n}", "letter": "e"},
}
STAGES = {
    "dpo": ("dpo", "--lora", "4", "--rate", "1e-3"),
    "dpo of all weights": ("dpo", "--rate", "1e-3"),
    "dpo in 4 bits": ("dpo", "--use-4bit", "--lora", "4", "--rate", "1e-3"),
    "kto": ("kto", "--lora", "4", "--rate", "1e-3"),
    "grpo": ("grpo", "--lora", "4", "--rate", "1e-3", "--generations", "4", "--new-tokens", "8", "--beta", "0.05"),
}


@pytest.fixture
def make_stage(make_desk: Callable[..., Desk], tmp_path: Path) -> Callable[..., Desk]:
    """Makes desks of a stage with records of it."""
    script = tmp_path / "many_e.py"
    script.write_text(MANY_E)

    def make(name: str, stage: str, *options: str, target: int = 8) -> Desk:
        reward = ("--reward", shlex.join([sys.executable, str(script)])) if stage == "grpo" else ()
        desk = make_desk(name, "--stage", stage, "--report-every", "1", *options, *reward, target=target)
        desk.fill(RECORDS[stage](number) for number in range(23))
        return desk

    return make


def losses(desk: Desk) -> list[tuple[int, float | None]]:
    """Steps with a loss that the newest run told."""
    return [entry for entry in desk.losses() if entry[1] is not None]


@pytest.mark.parametrize("name", STAGES)
def test_a_cut_stage_ends_with_the_bits_of_one_that_was_not(name: str, make_stage: Callable[..., Desk]) -> None:
    whole, broken = (make_stage(desk, *STAGES[name]) for desk in ("whole", "broken"))
    assert whole.run().codes == [0], whole.run().said
    told = losses(whole)
    assert [step for step, _ in told] == list(range(1, whole.target + 1))
    first = broken.run(cut=3)
    assert first.codes == [0], first.said
    again = losses(broken)
    step = broken.kept("meta.json")["step"]
    assert 3 <= step < whole.target
    second = broken.run()
    assert second.codes == [0], second.said
    assert "resuming, E0" in second.said
    assert broken.state() == whole.state()
    assert again + losses(broken) == told
    assert broken.metrics_kept()["exactness"] == 0


def test_the_reference_is_what_training_began_with_also_after_a_cut(make_stage: Callable[..., Desk]) -> None:
    """Under the real agent: another job's adapter is gone after the first session, but the checkpoint keeps a copy."""
    desk = make_stage("family", *STAGES["dpo"], target=40)
    desk.command[desk.command.index("dpo")] = "sft"
    desk.fill({"text": text} for text in source_texts())
    first = desk.session()
    assert (first["outcome"], [*first["training_data"]["records"]]) == ("finished", ["text"]), desk.log()
    assert 0 <= first["training_data"]["padding"] < 1
    desk.fill(RECORDS["dpo"](number) for number in range(23))
    (desk.store / "jobs/toy").rename(desk.store / "jobs/main")
    for path in (desk.store / "jobs/main/manifests").iterdir():
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "job": "main"}))
    key = max(path.relative_to(desk.store).as_posix() for path in desk.store.glob("jobs/main/manifests/*.json"))
    desk.command[desk.command.index("sft")] = "dpo"
    cut = desk.session(parent=key, cut=4)
    assert cut["outcome"] == "preempted", desk.log()
    assert cut["training_data"]["records"] == {"dpo": 20}
    assert cut["training_data"]["tokens"] > 23
    first = desk.newest()[1]
    done = desk.session(parent=key)
    assert (done["outcome"], done["restored_step"]) == ("finished", cut["checkpoint_step"]), desk.log()
    last = desk.newest()[1]
    name = "ref/adapter_model.safetensors"
    assert first[name] == last[name]
    assert first["adapter_model.safetensors"] != last["adapter_model.safetensors"]
    assert desk.metrics()["preferred"] > 0.5


def test_on_two_devices_the_same_pairs_are_learned(make_stage: Callable[..., Desk]) -> None:
    alone, moved = (make_stage(name, *STAGES["dpo"]) for name in ("one", "more"))
    assert alone.run().codes == [0]
    first = moved.run(ranks=2, cut=3, told=1)
    assert first.codes == [0, 0], first.said
    told = losses(moved)
    second = moved.run()
    assert second.codes == [0], second.said
    assert "devices was 2 and is 1" in second.said
    pairs = zip(told + losses(moved), losses(alone), strict=True)
    for (step, loss), (same, expected) in pairs:
        assert step == same
        assert loss == pytest.approx(expected, abs=1e-3 if accelerators() else 1e-4)  # of another kind of device


def test_a_checkpoint_of_another_stage_is_refused(make_stage: Callable[..., Desk]) -> None:
    desk = make_stage("desk", "kto", "--lora", "4", target=2)
    assert desk.run().codes == [0]
    desk.command[desk.command.index("kto")] = "dpo"
    desk.fill(RECORDS["dpo"](number) for number in range(9))
    refused = desk.run("--accept-inexact")
    assert refused.codes == [1]
    assert "of the stage kto, and this is dpo" in refused.said


def test_a_reward_raises_what_it_rewards_and_its_mean_is_kept(make_stage: Callable[..., Desk]) -> None:
    """All weights: an adapter can hardly steer a model whose frozen weights are chance."""
    rewards = []
    for name, rate in (("still", "1e-9"), ("learning", "1e-2")):
        options = ("--generations", "8", "--new-tokens", "8", "--batch", "16", "--accumulate", "1", "--rate", rate)
        desk = make_stage(name, "grpo", *options, target=30)
        assert desk.run().codes == [0]
        rewards.append(desk.metrics_kept()["reward"])
    still, learning = rewards
    assert still < 2, "chance writes less than one"
    assert learning > 4, "of eight tokens most become the letter"


def test_a_reward_that_lies_elsewhere_is_the_same_and_another_is_not(
    make_stage: Callable[..., Desk], tmp_path: Path
) -> None:
    """The interpreter and the payload have other paths on each platform."""
    desk = make_stage("desk", *STAGES["grpo"], target=4)
    assert desk.run(cut=1).codes == [0]
    (tmp_path / "elsewhere").mkdir()
    for name, goes_on in (("other.py", False), ("many_e.py", True)):
        moved = tmp_path / "elsewhere" / name
        moved.write_text(MANY_E)
        desk.command[-1] = shlex.join([sys.executable, str(moved)])
        run = desk.run()
        assert ("resuming, E0" in run.said) == goes_on, run.said
        assert ("reward was" in run.said) != goes_on


def test_data_of_an_input_are_taken_and_what_is_no_record_is_told(
    make_stage: Callable[..., Desk], tmp_path: Path
) -> None:
    desk = make_stage("desk", "dpo", "--lora", "4", "--data", "input:pairs", target=1)
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "train-0.jsonl").write_text('{"text": "x"}\n' + json.dumps(RECORDS["dpo"](1)) + "\nnot json\n")
    given = {"SCHED_INPUT_PAIRS": str(folder)}
    run = desk.run(environment=given)
    assert run.codes == [65], run.said
    assert "2 of 3 records" in run.said
    run = desk.run("--skip-at-most", "70", environment=given)
    assert run.codes == [0], run.said
    assert "it is not JSON (first: train-0.jsonl:3)" in run.said
    (folder / "train-0.jsonl").write_text("")
    refused = make_stage("other", "dpo", "--lora", "4", "--data", "input:pairs").run(environment=given)
    assert refused.codes == [65]
    assert "no record for --stage dpo" in refused.said


ODD = [
    "null", "[]", "17", '{"prompt": ""}', '{"prompt": "a"}', '{"prompt": "a", "chosen": "b", "rejected": "b"}',
    '{"prompt": "a", "chosen": 1, "rejected": "b"}', '{"prompt": "a", "chosen": [], "rejected": "b"}',
    '{"prompt": "a", "chosen": [{"role": "user"}], "rejected": "b"}', '{"prompt": [1], "chosen": "b", "rejected": "c"}',
    '{"prompt": "a", "chosen": "b"}', "{" * 50, "\ufffd", '{"prompt": "a", "completion": "b", "label": 1}',
]  # fmt: skip


def read(stage: str, model: Path, path: Path, *options: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of a stage and the facts of its records."""
    words = ["--model", str(model), "--stage", stage, "--length", "64", *options]
    rows, tally, _ = read_rows(read_options(words), [path], load_tokenizer(str(model)))
    return rows, tally.facts()


@pytest.mark.parametrize("stage", ["dpo", "kto"])
def test_odd_records_are_left_out_and_counted(stage: str, tmp_path: Path, model: Path) -> None:
    path = tmp_path / "train-0.jsonl"
    path.write_text("\n".join([*ODD, json.dumps(RECORDS[stage](1)), ""]))
    rows, facts = read(stage, model, path)
    assert rows == [RECORDS[stage](1)]
    assert sum(count for _, count, _ in facts["left_out"]) == len(ODD)


def test_what_does_not_fit_a_row_is_left_out_and_counted(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "train-0.jsonl"
    long = [RECORDS["dpo"](number) | {"prompt": "long " * 90} for number in range(36)]
    short = [RECORDS["dpo"](number) for number in range(3)]
    cut = {**RECORDS["dpo"](9), "chosen": "long " * 90}
    path.write_text("".join(json.dumps(record) + "\n" for record in [*long, *short, cut]))
    rows, facts = read("dpo", model, path)
    assert len(rows) == 4
    assert facts["cut"] == 1
    assert facts["left_out"] == [["its prompt fills --length 64", 36, "train-0.jsonl:1"]]
    with pytest.raises(UnreadableData, match=r"36 of 40 records of here would be left out \(90 %"):
        check(facts, 1, "here")
    _, facts = read("grpo", model, path, "--reward", "x", "--new-tokens", "32")
    assert facts["left_out"][0][1] == 36


def test_a_special_token_in_somebodys_words_is_not_learned_as_one(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "train-0.jsonl"
    path.write_text(json.dumps({**RECORDS["dpo"](1), "chosen": "a<eos>b"}) + "\n")
    rows, facts = read("dpo", model, path)
    assert not rows
    assert "<eos>, which is a special token" in facts["left_out"][0][0]


@pytest.mark.parametrize("stage", ["dpo", "kto"])
def test_an_answer_that_teaches_no_end_is_left_out(stage: str, tmp_path: Path, model: Path) -> None:
    path = tmp_path / "train-0.jsonl"
    said = {"prompt": [{"role": "user", "content": "a"}]}
    said |= {name: [{"role": "assistant", "content": name}] for name in RECORDS[stage](1) if name not in said}
    path.write_text(json.dumps({**said, "label": True} if stage == "kto" else said) + "\n")
    tokenizer = load_tokenizer(str(model))
    options = read_options(["--model", str(model), "--stage", stage, "--length", "64"])
    rows, *_ = read_rows(options, [path], tokenizer)
    assert len(rows) == 1
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    rows, tally, _ = read_rows(options, [path], tokenizer)
    assert not rows
    assert "it teaches no end: generation stops at '<eos>'" in tally.facts()["left_out"][0][0]


def test_a_model_at_whose_end_nothing_stops_is_refused(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.payload.trainers.tuning.data.documents.stop_tokens", lambda *_: frozenset())
    with pytest.raises(UnreadableData, match="stops at no token: name eos_token"):
        read("grpo", model, tmp_path / "none", "--reward", "x", "--new-tokens", "32")


@pytest.mark.parametrize("stage", ["dpo", "kto", "grpo"])
@pytest.mark.parametrize("seed", range(2))
def test_every_record_is_accounted_for(seed: int, stage: str, tmp_path: Path, model: Path, odd_records: int) -> None:
    path = tmp_path / "train-0.jsonl"
    path.write_bytes(odd_file(random.Random(seed), odd_records))
    rows, facts = read(stage, model, path, *(("--reward", "x", "--new-tokens", "32") if stage == "grpo" else ()))
    assert rows
    assert len(rows) + sum(count for _, count, _ in facts["left_out"]) == lines_of(path.read_bytes())


def test_texts_and_messages_are_not_mixed(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "train-0.jsonl"
    said, answers = [{"role": "user", "content": "a"}], [[{"role": "assistant", "content": text}] for text in "bc"]
    talk = {"prompt": said, "chosen": answers[0], "rejected": answers[1]}
    path.write_text(json.dumps(talk) + "\n" + json.dumps({**talk, "prompt": None, "chosen": said + answers[0],
                                                          "rejected": said + answers[1]}) + "\n")  # fmt: skip
    assert read("dpo", model, path)[0] == [talk, talk]
    path.write_text("".join(json.dumps(record) + "\n" for record in (talk, RECORDS["dpo"](1), RECORDS["dpo"](2))))
    rows, facts = read("dpo", model, path)
    assert rows == [RECORDS["dpo"](number) for number in (1, 2)]
    why = "its prompt is messages, and those of most records are text: give one kind"
    assert facts["left_out"] == [[why, 1, "train-0.jsonl:1"]]


def scored(program: str, tmp_path: Path, seconds: float = 60) -> Any:
    """What a reward makes of two texts, by a program of Python."""
    path = tmp_path / "reward.py"
    path.write_text("import os, pathlib\nto = pathlib.Path(os.environ['SCHED_OUTPUT_DIR'], 'scores.jsonl')\n" + program)
    reward = Reward(shlex.join([sys.executable, str(path)]), seconds)
    return reward(["a", "a"], ["x", [{"role": "assistant", "content": "y"}]], record=['{"prompt": "a"}'] * 2)


BAD_REWARDS = {
    "raise SystemExit('no licence')": "failed with status 1: no licence",
    "": "left no scores.jsonl",
    'to.write_text(\'{"item": "0", "value": 1}\')': "1 of 2 texts without a finite number",
    'to.write_text(\'{"item": "0", "value": NaN}\\n{"item": "1", "value": 1e999}\')': "2 of 2 texts",
    'to.write_text(\'[\' * 100000 + \'\\n{"item": -1, "value": 1}\\n{"item": "9", "value": 1}\')': "2 of 2 texts",
    "to.mkdir()": "left no scores.jsonl",
    "import time; time.sleep(60)": "ran for more than 2 s",
}


@pytest.mark.parametrize("program", BAD_REWARDS)
def test_a_reward_that_fails_says_why(program: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingRefused, match=BAD_REWARDS[program]):
        scored(program, tmp_path, seconds=2 if "sleep" in program else 60)
    with pytest.raises(TrainingRefused, match="cannot be started"):
        Reward(str(tmp_path / "missing"), 1)(["a"], ["x"], record=["{}"])


def test_several_metrics_of_a_text_count_by_their_mean(tmp_path: Path) -> None:
    lines = [
        {"item": "0", "value": 1},
        {"item": "0", "value": 0},
        {"item": "1", "value": -2},
        {"item": "2", "value": 7},
    ]
    program = f"import json\nto.write_text('\\n'.join(map(json.dumps, {lines!r})))"
    assert scored(program, tmp_path) == [0.5, -2.0]


def test_shipped_scorers_are_rewards(tmp_path: Path) -> None:
    """The same command as an evaluation's: what the scorers find in the environment is what a reward leaves there."""
    command = shlex.join([sys.executable, str(REPOSITORY / "jobs/payload/scorers"), "atomicity"])
    code = "def double(x):\n    return 2 * x\n"
    record = json.dumps({"prompt": "double", "cluster": "c", "language": "python"})
    good, bad = Reward(command, 60)(["p", "p"], [code, "def ("], record=[record, record])
    assert good > bad == 0


def test_rewards_that_are_all_equal_are_a_stall() -> None:
    spread = RewardSpread()
    for step in (10, 20):
        spread.note(step, 0.9)
    for step in (30, 40, 50, 60):
        spread.note(step, 1.0)
    with pytest.raises(TrainingRefused, match="the training stalled: in 50 steps"):
        spread.note(70, 1.0)
    spread = RewardSpread()
    for step in range(1, 50):
        spread.note(step, 1.0)
    with pytest.raises(TrainingRefused, match="stalled"):
        spread.note(50, 1.0)


def test_a_job_whose_rewards_are_all_equal_ends_as_stalled(
    make_stage: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.payload.trainers.tuning.rounds._STEPS_WITHOUT", 3)
    desk = make_stage("desk", *STAGES["grpo"], target=8)
    at = desk.command.index("--reward") + 1
    desk.command[at] = shlex.join([sys.executable, "-c", EQUAL])
    run = desk.run()
    if not accelerators():  # else a program of its own, which knows nothing of the smaller limit
        assert run.codes == [1], run.said
        assert "finetune: the training stalled: in 3 steps" in run.said
    verdict = classify(1, "finetune: the training stalled: in 50 steps no prompt had")
    assert verdict.error_class == "stalled"


def test_what_means_nothing_in_a_stage_is_told(model: Path, make_desk: Callable[..., Desk]) -> None:
    for options, why in (
        (("--stage", "dpo", "--reward", "x"), "--reward is for --stage grpo"),
        (("--stage", "grpo"), "needs --reward COMMAND"),
        (("--stage", "grpo", "--reward", "x", "--generations", "3"), "whole groups"),
        (("--stage", "kto", "--background-saves", "on"), "is for --stage sft"),
    ):
        refused = make_desk(why.split()[0] + str(len(options)) + why[-3:], *options).run()
        assert refused.codes == [2], refused.said
        assert why in refused.said
