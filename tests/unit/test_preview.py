"""What `data check` reports of training data."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.trainers.tuning.data.preview import preview
from tests.lab.patience import PATIENCE_SECONDS

TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
YES: dict[str, Any] = {"role": "assistant", "content": "yes", "reasoning": "hm", "tool_calls": [{"name": "add"}]}


def write(folder: Path, *records: Any) -> list[Path]:
    path = folder / "train-0.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [path]


def test_records_are_shown_as_they_are_learned(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    paths = write(
        tmp_path,
        {"messages": [*TURNS, YES, TURNS[1], {"role": "assistant", "content": "no", "weight": 0}], "tools": tools},
        {"prompt": "2+2=", "completion": "4"},
        {"prompt": TURNS, "chosen": [{"role": "assistant", "content": "a"}], "rejected": [YES]},
    )
    report, facts = preview(paths, None, None, None)
    assert report["records"] == facts["records"] == {"messages": 1, "preference": 1, "prompt": 1}
    talk = "system: Be brief.\nuser: hi\nassistant: "
    assert report["samples"] == [
        f'tools: {json.dumps(tools)}\n{talk}⟦hm yes [{{"name": "add"}}]\n⟧',
        "2+2=⟦4⟧",
        f"{talk}⟦a\n⟧",
    ]


def test_sizes_copies_and_reasons_are_counted(tmp_path: Path) -> None:
    pair = {"prompt": "p", "chosen": "a", "rejected": "b"}
    image = {"role": "user", "content": [{"type": "image", "image": "a.png"}]}
    paths = write(
        tmp_path, *[{"text": "a" * size} for size in range(1, 101)], {"text": "a", "id": 7}, pair,
        {**pair, "rejected": "c"}, pair, {"messages": [image, YES]}, *[{"question": 1}] * 5, 3,
    )  # fmt: skip
    report, facts = preview(paths, None, None, 20)
    assert (report["unit"], report["sizes"]["median"], report["sizes"]["largest"]) == ("characters", 49, 100)
    assert report["longer"] == 20, "of more than 80 characters"
    assert (report["copies"], report["images"]) == (2, 1), "of all that is learned, the rejected answers too"
    odd, other = report["left_out"]
    assert (odd["records"], odd["places"]) == (5, [f"train-0.jsonl:{line}" for line in (106, 107, 108)])
    assert other == {"why": "it is not a JSON object", "records": 1, "places": ["train-0.jsonl:111"]}
    assert sum(facts["records"].values()) + 6 == 111
    empty, _ = preview(write(tmp_path), None, None, None)
    assert (empty["sizes"], empty["longer"], empty["samples"]) == ({}, None, [])


@pytest.mark.parametrize("library", ["torch", "numpy", "transformers"])
def test_no_library_is_needed(library: str, tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"text": "a"})
    code = (
        f"import sys, pathlib; sys.modules[{library!r}] = None\n"
        "from jobs.payload.trainers.tuning.data.preview import preview\n"
        f"print(preview([pathlib.Path({str(path)!r})], None, None, None)[0]['records'])"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.stdout == "{'text': 1}\n", done.stderr


def test_half_a_character_outside_of_what_is_learned_ends_nothing(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "\ud83d"}]
    report, _ = preview(write(tmp_path, {"conversations": talk}), None, None, None)
    assert report["records"] == {"sharegpt": 1}
