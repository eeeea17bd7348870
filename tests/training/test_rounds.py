"""Self-training: what a reward lets pass is learned, a cut goes on with the same bits, and what goes wrong is told."""

import json
import random
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("peft")
import torch

from jobs.payload.trainers.trainer_kit import Training
from jobs.payload.trainers.tuning.data.documents import load_tokenizer
from jobs.payload.trainers.tuning.devices.card import find_card
from jobs.payload.trainers.tuning.devices.group import Group
from jobs.payload.trainers.tuning.options import read_options
from jobs.payload.trainers.tuning.rounds import Rounds
from tests.lab.desk import Desk, hidden
from tests.lab.records import lines_of, odd_file

# Counts the letter "e" of a text, or of letters that a record names.
LETTERS = """
import json, os, pathlib
items = {json.loads(line)["id"]: json.loads(line) for line in open(os.environ["SCHED_INPUT_SET"])}
with open(pathlib.Path(os.environ["SCHED_OUTPUT_DIR"]) / "scores.jsonl", "w") as file:
    for line in map(json.loads, open(os.environ["SCHED_INPUT_OUTPUTS"])):
        print(json.dumps({"item": line["id"], "value": line["output"].count(items[line["id"]]["letter"])}), file=file)
"""
OPTIONS = ("--generations", "8", "--new-tokens", "8", "--prompts", "8", "--round-steps", "4", "--report-every", "1")


@pytest.fixture
def make_rounds(make_desk: Callable[..., Desk], tmp_path: Path) -> Callable[..., Desk]:
    """Makes desks that train on what they write."""
    script = tmp_path / "letters.py"
    script.write_text(LETTERS)

    def make(name: str, *options: str, target: int = 12, letter: str = "e") -> Desk:
        reward = ("--reward", shlex.join([sys.executable, str(script)]))
        odd = ("--skip-at-most", "15")
        desk = make_desk(name, "--stage", "selftrain", *OPTIONS, *reward, *odd, *options, target=target)
        prompts: list[Any] = [f"say {number}" for number in range(20)]
        prompts += [[{"role": "user", "content": "say it"}], "", 7, []]
        desk.fill({"prompt": prompt, "letter": letter} for prompt in prompts)
        return desk

    return make


@pytest.mark.parametrize("cut", [2, 4, 9])
def test_a_cut_round_ends_with_the_bits_of_one_that_was_not(cut: int, make_rounds: Callable[..., Desk]) -> None:
    """Whether within a round or between two: what was written is in the checkpoint."""
    whole, broken = (make_rounds(name, "--lora", "4", "--dropout", "0.1", "--rate", "1e-2") for name in ("a", "b"))
    run = whole.run()
    assert run.codes == [0], run.said
    losses = [entry for entry in whole.losses() if entry[1] is not None]
    assert broken.run(cut=cut).codes == [0]
    told = [entry for entry in broken.losses() if entry[1] is not None]
    assert len(told) < whole.target
    second = broken.run()
    assert second.codes == [0], second.said
    assert "E0" in second.said
    assert told + [entry for entry in broken.losses() if entry[1] is not None] == losses
    assert broken.state() == whole.state()
    assert broken.kept("written.json") == whole.kept("written.json")


def test_what_is_rewarded_is_written_more_often_and_its_origin_is_kept(make_rounds: Callable[..., Desk]) -> None:
    options = ("--rate", "1e-2", "--round-steps", "10", "--accumulate", "8", "--least", "2", "--generations", "16")
    desk = make_rounds("desk", *options, target=60)
    run = desk.run()
    assert run.codes == [0], run.said
    written = desk.kept("written.json")
    rewards = [one["reward"] for one in written["rounds"]]
    assert [one["step"] for one in written["rounds"]] == [0, 10, 20, 30, 40, 50]
    assert rewards[0] < 1, "chance"
    assert rewards[-1] > rewards[0] + 1, f"from round to round: {rewards}"
    assert desk.metrics_kept()["reward"] == rewards[-1]
    for record in written["records"]:
        completion = record["completion"]  # in the form of its prompt
        text = completion if isinstance(completion, str) else completion[0]["content"]
        assert record["reward"] == text.count("e") >= 2
        assert record["model"] == {"job": "job", "step": 10 * record["round"]}


def test_on_two_devices_the_same_texts_are_written(make_rounds: Callable[..., Desk]) -> None:
    """Each writes for its part of the prompts, and all learn all of it."""
    alone, two = (make_rounds(name, "--lora", "4", target=3) for name in ("one", "two"))
    assert alone.run(environment=hidden(2)).codes == [0]  # on the same kind of device: another draws other texts
    run = two.run(ranks=2)
    assert run.codes == [0, 0], run.said
    assert two.kept("written.json") == alone.kept("written.json")


def test_another_reward_or_another_stage_is_another_training(make_rounds: Callable[..., Desk]) -> None:
    desk = make_rounds("desk", "--lora", "4", target=8)
    assert desk.run(cut=1).codes == [0]
    for option, number, told in (("--least", "2", "least was 1.0 and is 2.0"), ("--prompts", "4", "was 8 and is 4")):
        refused = desk.run(option, number)
        assert refused.codes == [1]
        assert told in refused.said
    desk.command[desk.command.index("selftrain")] = "sft"
    at = desk.command.index("--reward")
    del desk.command[at : at + 2]
    desk.fill({"text": f"text {number}"} for number in range(99))
    refused = desk.run()
    assert refused.codes == [1]
    assert "stage was selftrain and is None" in refused.said


def test_where_nothing_passes_it_says_so(make_rounds: Callable[..., Desk]) -> None:
    refused = make_rounds("desk", "--lora", "4", letter="no text has this").run()
    assert refused.codes == [1]
    assert "0 of 64 texts passed" in refused.said
    assert "none of the texts for 5 times 8 prompts had a reward of 1 (--least)" in refused.said
    nothing = make_rounds("nothing", "--lora", "4")
    nothing.fill({"text": f"text {number}"} for number in range(9))
    refused = nothing.run()
    assert refused.codes == [65]
    assert "6 of 6 records" in refused.said


def test_what_means_nothing_is_told(make_desk: Callable[..., Desk]) -> None:
    for options, why in (
        ((), "--stage selftrain needs --reward"),
        (("--reward", "x", "--new-tokens", "64"), "leave no room for a prompt"),
        (("--reward", "x", "--prompts", "0"), "--prompts must be at least 1"),
        (
            ("--reward", "x", "--new-tokens", "8", "--background-saves", "on"),
            "--background-saves on is for --stage sft",
        ),
    ):
        refused = make_desk(f"desk-{len(options)}-{why[-3:]}", "--stage", "selftrain", *options).run()
        assert refused.codes == [2], refused.said
        assert why in refused.said


def test_records_are_data_for_another_job(make_rounds: Callable[..., Desk]) -> None:
    """Each has its prompt and its completion, as a supervised training reads them."""
    desk = make_rounds("desk", "--lora", "4", target=1)
    assert desk.run().codes == [0]
    kept = desk.kept("written.json")["records"]
    assert kept
    assert all(set(json.loads(json.dumps(one))) == {"prompt", "completion", "reward", "round", "model"} for one in kept)


CHAT = [{"role": "user", "content": "say it"}]


@pytest.fixture
def make_read(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rounds]:
    """Makes rounds of the prompts in a file, before any is answered."""
    monkeypatch.setenv("SCHED_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))

    def make(lines: bytes, template: str = "") -> Rounds:
        path = tmp_path / "train-0.jsonl"
        path.write_bytes(lines)
        words = ["--model", str(model), "--stage", "selftrain", "--length", "64", "--new-tokens", "8", "--reward", "x"]
        options = read_options([*words, "--cache", str(tmp_path / "cache")])
        tokenizer = load_tokenizer(str(model))
        tokenizer.chat_template = template or tokenizer.chat_template
        return Rounds(options, Training(), Group("cpu"), tokenizer, [path])

    return make


@pytest.mark.parametrize("seed", range(2))
def test_every_record_is_accounted_for(seed: int, odd_records: int, make_read: Callable[..., Rounds]) -> None:
    lines = odd_file(random.Random(seed), odd_records)
    rounds = make_read(lines)
    assert len(rounds) == sum(rounds.facts["data"]["records"].values()) > 0
    assert len(rounds) + sum(count for _, count, _ in rounds.facts["data"]["left_out"]) == lines_of(lines)
    assert len(rounds.samples()) == 3


def test_what_is_written_ends_at_each_token_that_ends_an_answer(
    make_read: Callable[..., Rounds], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose generation_config.json knows fewer of them than the tokenizer would write on (open-r1#663)."""
    rounds = make_read(b'{"prompt": "say a"}')
    monkeypatch.setattr(rounds, "_stops", frozenset({7, 2}))
    asked: list[dict[str, Any]] = []

    class Whole(torch.nn.Module):  # type: ignore[misc]  # not there where types are checked
        def generate(self, **given: Any) -> Any:
            asked.append(given)
            return given["input_ids"]

    rounds.begin(SimpleNamespace(whole=Whole()), find_card(0, "fp32"), None)  # type: ignore[arg-type]  # a part of it
    rounds._texts(0, 1)
    assert asked[0]["eos_token_id"] == [2, 7]


def test_what_is_written_to_messages_is_learned_as_the_template_has_it(
    make_read: Callable[..., Rounds], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As text of the template its special tokens would be learned as somebody's words."""
    rounds = make_read(json.dumps({"prompt": CHAT}).encode())
    answer = [{"role": "assistant", "content": "bc"}]
    monkeypatch.setattr(rounds, "_kept", [{"prompt": CHAT, "completion": answer}])
    rows = rounds._packed()
    assert rows.facts["data"]["records"] == {"prompt": 1}
    tokenizer = rounds._tokenizer
    whole = tokenizer(tokenizer.apply_chat_template([*CHAT, *answer], tokenize=False), add_special_tokens=False)
    size = len(whole["input_ids"])
    assert rows.batch([0]).tokens[0, :size].tolist() == whole["input_ids"]
    learned = [token for token in rows.batch([0]).targets[0].tolist() if token >= 0]
    assert tokenizer.decode(learned) == "bc\n<eos>\n"
    assert tokenizer.eos_token_id in learned


@pytest.mark.parametrize(
    ("prompt", "template", "why"),
    [
        ("a<eos>b", "", "its text has <eos>, which is a special token"),
        ([{"role": "user", "content": "a<eos>b"}], "", "its text has <eos>, which is a special token"),
        (CHAT, "{% for m in messages %}{{ m['content'] }}{% endfor %}", "it teaches no end: generation stops at"),
        (["say"], "", "a message has no role"),
    ],
)
def test_a_prompt_from_which_something_else_would_be_learned_is_left_out(
    prompt: Any, template: str, why: str, make_read: Callable[..., Rounds]
) -> None:
    rounds = make_read(json.dumps({"prompt": prompt}).encode(), template)
    assert len(rounds) == 0
    ((reason, count, place),) = rounds.facts["data"]["left_out"]
    assert (why in reason, count, place) == (True, 1, "train-0.jsonl:1")
