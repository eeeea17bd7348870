"""The first minute of a job: every stage reports and prints what will be learned, before its first step."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("trl")
from jobs.payload.bounds import training_data as read_data
from jobs.payload.trainers.tuning.data.documents import load_tokenizer
from jobs.payload.trainers.tuning.data.rows import describe
from jobs.payload.trainers.tuning.options import STAGES
from tests.lab.desk import Desk

CHAT = [{"role": "user", "content": "say a"}]
# A record of each stage; its form, and its sample.
RECORDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "sft": (
        {"messages": [*CHAT, {"role": "assistant", "content": "a"}]},
        "messages", "<bos>### Instruction:\nsay a\n### Response:\n⟦a\n<eos>\n⟧",
    ),
    "dpo": ({"prompt": "say a", "chosen": " a", "rejected": " bb"}, "dpo", "say a⟦ a<eos>⟧ and not ⟦ bb<eos>⟧"),
    "kto": (
        {"prompt": CHAT, "completion": [{"role": "assistant", "content": "a"}], "label": False},
        "kto", "<bos>### Instruction:\nsay a\n### Response:\n⟦a\n<eos>\n⟧ (unwanted)",
    ),
    "grpo": ({"prompt": "say a"}, "grpo", "say a⟦...⟧"),
    "selftrain": ({"prompt": CHAT}, "prompt", "<bos>### Instruction:\nsay a\n### Response:\n⟦...⟧"),
}  # fmt: skip
REWARDED = ("--reward", "false", "--generations", "4", "--new-tokens", "8")


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_reports_what_it_will_learn(stage: str, make_desk: Callable[..., Desk]) -> None:
    """Also where the session then ends, as a reward that fails ends these."""
    record, form, sample = RECORDS[stage]
    reward = REWARDED if stage in ("grpo", "selftrain") else ()
    desk = make_desk("desk", "--stage", stage, "--lora", "4", "--skip-at-most", "10", *reward, target=1)
    desk.fill([*[record] * 23, {"prompt": 7}])
    run = desk.run()
    assert run.codes == [int(bool(reward))], run.said
    (data,) = (line["training_data"] for line in desk.told() if "training_data" in line)
    assert desk.told()[0] == {"training_data": data}, "before the first step"
    assert data["records"] == {form: 20}
    ((why, count, place),) = data["left_out"]
    assert (bool(why), count, place) == (True, 1, "train-00000.jsonl:21")
    assert data["tokens"] > 20
    assert data["rows"] == 20 if stage != "sft" else 1 <= data["rows"] <= 20
    assert (data["padding"] is None) == bool(reward), "it depends on what the model writes"
    assert 0 <= (data["padding"] or 0) < 0.6
    assert data["samples"][0] == sample
    assert 1 <= len(data["samples"]) <= 3
    assert read_data(data) == data
    assert f"20 of {form}; left out: 1: {why} (first: {place})" in run.said
    assert f"sample 1: {sample!r}\n" in run.said


def test_padding_is_what_fills_texts_that_are_taken_at_once(make_desk: Callable[..., Desk], model: Path) -> None:
    desk = make_desk("desk", "--stage", "dpo", "--lora", "4", target=1)
    desk.fill([{"prompt": "p", "chosen": "a", "rejected": "ab " * 9}] * 12)
    assert desk.run().codes == [0]
    (data,) = (line["training_data"] for line in desk.told() if "training_data" in line)
    short, long = (len(load_tokenizer(str(model))(f"p{text}<eos>")["input_ids"]) for text in ("a", "ab " * 9))
    assert data["tokens"] == 9 * (short + long)
    assert data["padding"] == pytest.approx(1 - (short + long) / (2 * long), abs=1e-4)


@pytest.mark.parametrize("character", ["a", "\N{CYRILLIC SMALL LETTER ZHE}", "\N{GRINNING FACE}"])
def test_a_report_is_a_line_of_less_than_4_kib(character: str, capsys: pytest.CaptureFixture[str]) -> None:
    reports: list[dict[str, Any]] = []

    class Recorder:
        def describe_data(self, facts: dict[str, Any]) -> None:
            reports.append(facts)

    left = [[character * 900, number, character * 900] for number in range(9)]
    describe(Recorder(), {"records": {"text": 1}, "left_out": left, "cut": 0}, (1, 9), [character * 9_999] * 3, 9)  # type: ignore[arg-type]
    assert len(json.dumps({"training_data": reports[0]})) < 4_096
    assert len(reports[0]["left_out"]) == 6
    assert all(" [...] " in sample for sample in reports[0]["samples"])
    assert character * 100 in capsys.readouterr().out
