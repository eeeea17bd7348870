"""What public reports say was lost in silence: each part of a record is learned as it was given, or named."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("peft")
import tokenizers
from PIL import Image

from jobs.payload.trainers.trainer_kit import Training
from jobs.payload.trainers.tuning.data.documents import load_tokenizer, stop_tokens
from jobs.payload.trainers.tuning.data.images import find_sight, lay
from jobs.payload.trainers.tuning.data.reader import files
from jobs.payload.trainers.tuning.data.rows import pack, samples
from jobs.payload.trainers.tuning.devices.group import Group
from jobs.payload.trainers.tuning.errors import UnreadableData
from jobs.payload.trainers.tuning.options import read_options
from jobs.payload.trainers.tuning.preferences import read_rows
from jobs.payload.trainers.tuning.rounds import Rounds
from tests.lab.desk import Desk, make_seeing_model, make_tokenizer

CHATML = (
    "{% for m in messages %}<bos>{{ m['role'] }}\n{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant\n{% endif %}"
)
# Of Qwen 2.5's kind: it writes tools, and calls of them as JSON.
TOOLS = (
    "{% if tools %}<bos>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<eos>\n{% endif %}"
    "{% for m in messages %}<bos>{{ m['role'] }}\n{{ m['content'] or '' }}{% for call in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<eos>\n{% endfor %}{% if add_generation_prompt %}<bos>assistant\n{% endif %}"
)
# One that DeepSeek takes: what is thought is cut off, and a system's message is not written.
R1 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}User: {{ m['content'] }}\n{% elif m['role'] == 'assistant' %}"
    "Assistant: {{ m['content'].split('</think>')[-1] }}<eos>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)
# One of DeepSeek V3's kind, that writes the arguments of calls as the texts that they are.
TEXTS = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] or '' }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name + ' ' + call.function.arguments }}{% endfor %}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
DATED = "{{ strftime_now('%d %B %Y') }}\n" + CHATML
ADD = {"name": "add", "parameters": {"type": "object"}}
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.fixture
def tokenizer(model: Path) -> Any:
    return load_tokenizer(str(model))


def sample(record: Any, template: str, folder: Path, model: Path) -> str:
    """Return what is learned of a record, marked, or why it is left out."""
    told = make_tokenizer(folder / "tokenizer")
    told.chat_template = template
    told.save_pretrained(folder / "tokenizer")
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    (folder / "train-0.jsonl").write_text(json.dumps(record) + "\n")
    stops = stop_tokens(str(model), tokenizer)
    rows = pack(files(folder, "train-*"), tokenizer, 256, folder / "cache", alone=True, stops=stops)
    found = [*samples(rows, tokenizer), *(why for why, _, _ in rows.facts["data"]["left_out"])]
    assert len(found) == 1
    assert rows.facts["data"]["newer"] == 3, "and a checkpoint of rows without it is of another training"
    return str(found[0])


@pytest.mark.parametrize(
    ("record", "template", "wanted"),
    [
        pytest.param(
            {"messages": [user("q"), said("x")], "tools": [ADD]}, TOOLS,
            '<bos>system\n{"type": "function", "function": ' + json.dumps(ADD) + "}\n<eos>\n<bos>user\nq<eos>\n"
            "<bos>assistant\n⟦x<eos>\n⟧",
            id="tools beside the messages (OpenRLHF#1228, open-instruct#1746)",
        ),
        pytest.param(
            {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": '{"name": "add", '
             '"arguments": {"a": 1}}'}], "tools": json.dumps([ADD])}, TOOLS,
            '<bos>system\n{"type": "function", "function": ' + json.dumps(ADD) + "}\n<eos>\n<bos>user\nq<eos>\n"
            '<bos>assistant\n⟦<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><eos>\n⟧',
            id="calls and tools of ShareGPT's form, which are JSON in texts",
        ),
        pytest.param(
            {"messages": [user("q"), said(None, tool_calls=[CALL])]}, TOOLS,
            '<bos>user\nq<eos>\n<bos>assistant\n⟦<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><eos>\n⟧',
            id="arguments encoded twice (oumi#2599, flama#258)",
        ),
        pytest.param(
            {"messages": [user("q"), said(None, tool_calls=[CALL])]}, TEXTS,
            'user: q<eos>\nassistant: ⟦add {"a": 1}<eos>\n⟧',
            id="a template that takes arguments as texts (mlx-lm#1371)",
        ),
        pytest.param(
            {"messages": [user("q"), said("", tool_calls=[CALL])]}, CHATML, "left out: tool_calls",
            id="calls that the template does not know",
        ),
        pytest.param(
            {"messages": [user("q"), said("x")], "tools": [ADD]}, CHATML, "left out: tools",
            id="tools that the template does not know (qvac#4120)",
        ),
        pytest.param(
            {"messages": [user([{"type": "text", "text": "q"}]), said([{"type": "text", "text": "x"}])]}, CHATML,
            "<bos>user\nq<eos>\n<bos>assistant\n⟦x<eos>\n⟧",
            id="content in parts, written as Python writes a list",
        ),
        pytest.param(
            {"messages": [user([{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "a.png"}}]),
             said("x")]}, CHATML, "left out: image",
            id="an image in OpenAI's form",
        ),
        pytest.param(
            {"prompt": [user([{"type": "image", "image": "a.png"}])], "completion": [said("x")]}, CHATML,
            "left out: image", id="an image in a prompt",
        ),
        pytest.param(
            {"messages": [user("<image>q"), said("x")], "images": ["a.png"]}, CHATML, "left out: images",
            id="images in a column (LlamaFactory)",
        ),
        pytest.param(
            {"messages": [{"role": "system", "content": "be brief"}, user("q"), said("x")]}, R1,
            "left out: 'system'", id="a system's message that the template leaves out",
        ),
        pytest.param(
            {"messages": [user("q"), said("<think>why</think>x")]}, R1, "left out: content",
            id="thoughts that the template cuts off (trl#6766)",
        ),
        pytest.param(
            {"messages": [user("q"), said("x", reasoning_content="why")]}, CHATML, "left out: reasoning_content",
            id="thoughts beside the content",
        ),
        pytest.param(
            {"messages": [user("q"), said("bad", weight=0), user("no"), said("good", weight=1)]}, CHATML,
            "<bos>user\nq<eos>\n<bos>assistant\nbad<eos>\n<bos>user\nno<eos>\n<bos>assistant\n⟦good<eos>\n⟧",
            id="an answer with a weight of 0 (axolotl#1702)",
        ),
        pytest.param(
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "bad", "train": False},
             {"from": "human", "value": "no"}, {"from": "gpt", "value": "good"}]}, CHATML,
            "<bos>user\nq<eos>\n<bos>assistant\nbad<eos>\n<bos>user\nno<eos>\n<bos>assistant\n⟦good<eos>\n⟧",
            id="an answer that is marked not to be trained (verl#5316)",
        ),
        pytest.param(
            {"messages": [user("q"), said("x", weight=0.5)]}, CHATML, "left out: weight", id="a weight between 0 and 1",
        ),
        pytest.param(
            {"messages": [user("q"), said(""), user("r"), said("x")]}, CHATML, "left out: empty", id="an empty answer",
        ),
        pytest.param(
            {"instruction": "q2", "output": "a2", "system": "be brief", "history": [["q1", "a1"]]}, CHATML,
            "<bos>system\nbe brief<eos>\n<bos>user\nq1<eos>\n<bos>assistant\n⟦a1<eos>\n⟧<bos>user\nq2<eos>\n"
            "<bos>assistant\n⟦a2<eos>\n⟧",
            id="system and history of Alpaca's form (LlamaFactory)",
        ),
        pytest.param(
            {"system": "be brief", "messages": [user("q"), said("x")]}, CHATML,
            "<bos>system\nbe brief<eos>\n<bos>user\nq<eos>\n<bos>assistant\n⟦x<eos>\n⟧",
            id="system beside the messages",
        ),
        pytest.param(
            {"system": "be brief", "prompt": "q", "completion": "x"}, CHATML, "left out: system",
            id="system beside a prompt that is text",
        ),
        pytest.param(
            {"messages": [user("q"), said("x")], "chat_template_kwargs": {"bos_token": "!"}},
            "{{ bos_token }}\n" + CHATML, "!\n<bos>user\nq<eos>\n<bos>assistant\n⟦x<eos>\n⟧",
            id="variables of the template (prime-rl#2988)",
        ),
        pytest.param(
            {"messages": [user("q"), said("x")]}, DATED, "26 July 2024\n<bos>user\nq<eos>\n<bos>assistant\n⟦x<eos>\n⟧",
            id="the date of today, by which rows change from day to day (unsloth#881)",
        ),
    ],
)  # fmt: skip
def test_no_part_of_a_record_is_lost(record: Any, template: str, wanted: str, tmp_path: Path, model: Path) -> None:
    found = sample(record, template, tmp_path, model)
    if wanted.startswith("left out: "):
        assert wanted.removeprefix("left out: ") in found
        assert "⟦" not in found
    else:
        assert found == wanted


def preferences(
    records: Sequence[Any], stage: str, folder: Path, model: Path, template: str = CHATML
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what TRL gets of records, and why others are left out."""
    tokenizer = load_tokenizer(str(model))
    tokenizer.chat_template = template
    reward = ("--reward", "x", "--new-tokens", "8") if stage == "grpo" else ()
    options = read_options(["--model", str(model), "--stage", stage, "--length", "64", *reward])
    (folder / "train-0.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    rows, tally, _ = read_rows(options, files(folder, "train-*"), tokenizer)
    return rows, [why for why, _, _ in tally.facts()["left_out"]]


PAIR = {"prompt": [user("q")], "chosen": [said("x")], "rejected": [said("y")]}


def test_answers_that_repeat_the_prompt_are_no_conversation_of_two_prompts(tmp_path: Path, model: Path) -> None:
    """As many public pairs are written (OpenRLHF#909)."""
    again = {name: [user("q"), *PAIR[name]] for name in ("chosen", "rejected")}
    assert preferences([{**PAIR, **again}], "dpo", tmp_path, model)[0] == [PAIR]
    text = "What is the name of it?"
    pair = {"prompt": text, "chosen": f"{text} a", "rejected": f"{text} b"}
    assert "twice" in preferences([pair], "dpo", tmp_path, model)[1][0]
    short = {"prompt": "a", "chosen": "ab", "rejected": "ac"}
    assert preferences([short], "dpo", tmp_path, model)[0] == [short]


@pytest.mark.parametrize(
    ("record", "stage", "why"),
    [
        ({**PAIR, "tools": [ADD]}, "dpo", "tools"),
        ({**PAIR, "chosen": [said("", tool_calls=[CALL])]}, "dpo", "tool_calls"),
        ({**PAIR, "chosen": [said("x", reasoning_content="why")]}, "dpo", "reasoning_content"),
        ({**PAIR, "chosen": [said("x", weight=0), user("r"), said("z")]}, "dpo", "not to be learned"),
        ({**PAIR, "images": ["a.png"]}, "dpo", "images"),
        ({"system": "be", "prompt": "q", "chosen": "x", "rejected": "y"}, "dpo", "system"),
        ({"prompt": [user("q")], "completion": [said("x")], "label": True, "tools": [ADD]}, "kto", "tools"),
        ({"prompt": [user("q")], "tools": [ADD]}, "grpo", "tools"),
        ({"prompt": [user([{"type": "image", "image": "a.png"}])]}, "grpo", "is not text"),
    ],
)
def test_what_a_stage_of_preferences_cannot_learn_is_named(
    record: Any, stage: str, why: str, tmp_path: Path, model: Path
) -> None:
    rows, left_out = preferences([record], stage, tmp_path, model)
    assert not rows
    assert why in left_out[0]


def test_a_system_beside_a_pair_is_part_of_its_prompt(tmp_path: Path, model: Path) -> None:
    system = {"role": "system", "content": "be brief"}
    rows, _ = preferences([{**PAIR, "system": "be brief"}], "dpo", tmp_path, model)
    assert rows == [{**PAIR, "prompt": [system, user("q")]}]
    rows, left_out = preferences([{**PAIR, "prompt": [system, user("q")]}], "dpo", tmp_path, model, R1)
    assert not rows
    assert "'system'" in left_out[0]
    rows, _ = preferences([{"prompt": [user("q")], "system": "be brief"}], "grpo", tmp_path, model)
    assert rows[0]["prompt"] == [system, user("q")]


def test_a_pair_with_a_token_that_the_model_has_not_is_refused(tmp_path: Path, model: Path) -> None:
    """It would end in the midst of a training, on an accelerator without a word that names it."""
    (tmp_path / "config.json").write_text(
        json.dumps({**json.loads((model / "config.json").read_bytes()), "vocab_size": 9})
    )
    options = read_options(["--model", str(tmp_path), "--stage", "dpo"])
    (tmp_path / "train-0.jsonl").write_text(json.dumps({"prompt": "q", "chosen": "x", "rejected": "y"}))
    with pytest.raises(UnreadableData, match="knows 9 tokens"):
        read_rows(options, files(tmp_path, "train-*"), load_tokenizer(str(model)))


@pytest.mark.parametrize("stage", ["grpo", "selftrain"])
def test_a_prompt_does_not_end_like_an_answer(
    stage: str, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokenizers with add_eos_token end prompts as well, and what is written after them is another text."""
    tokens = [("<bos>", tokenizer.bos_token_id), ("<eos>", tokenizer.eos_token_id)]
    words = tokenizer.backend_tokenizer
    words.post_processor = tokenizers.processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=tokens)
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(tokenizer)}))
    (tmp_path / "train-0.jsonl").write_text('{"prompt": "say a"}\n')
    words = ["--model", str(tmp_path / "model"), "--stage", stage, "--reward", "x", "--new-tokens", "8"]
    options, paths = read_options(words), files(tmp_path, "train-*")
    if stage == "grpo":
        rows, tally, _ = read_rows(options, paths, tokenizer)
        assert not rows
        assert "add_eos_token" in str(tally.facts()["left_out"])
        return
    monkeypatch.setenv("SCHED_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    rounds = Rounds(options, Training(), Group("cpu"), tokenizer, paths)
    ((record, said),) = rounds._prompts
    assert tokenizer.decode(rounds._tokens(record, said)) == "<bos>say a"


def test_a_text_begins_with_the_token_that_ends_it_where_the_tokenizer_says_so(tmp_path: Path, tokenizer: Any) -> None:
    """As OPT's does."""
    words = tokenizer.backend_tokenizer
    end = ("<eos>", tokenizer.eos_token_id)
    words.post_processor = tokenizers.processors.TemplateProcessing(single="<eos> $A", special_tokens=[end])
    (tmp_path / "train-0.jsonl").write_text('{"text": "abc"}\n{"prompt": "q", "completion": "x"}\n')
    rows = pack(files(tmp_path, "train-*"), tokenizer, 32, tmp_path / "cache", alone=True)
    assert sorted(samples(rows, tokenizer)) == ["<eos>q⟦x<eos>⟧", "<eos>⟦abc<eos>⟧"]


def test_a_photograph_is_learned_as_its_camera_was_held(tmp_path: Path) -> None:
    """The models' own servers turn it as well (sglang#33464, mistral-common#330)."""
    source = make_seeing_model(tmp_path / "model")
    upright = Image.fromarray(np.repeat(np.repeat(np.eye(2, 3, dtype=np.uint8) * 200, 8, 0), 8, 1)).convert("RGB")
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees to the right
    named: dict[str, Any] = {"image": {"type": "image", "image": "a.png"}}
    named["image_url"] = {"type": "image_url", "image_url": {"url": "a.png"}}
    sight = find_sight(str(source), 64)
    assert sight is not None
    tokenizer = load_tokenizer(str(source))
    tokenizer.chat_template = tokenizer.chat_template.replace("== 'image'", "in ('image', 'image_url')")
    found = []
    for name, image, form, noted in (
        ("upright", upright, "image", None), ("turned", turned, "image", exif), ("upright", upright, "image_url", None)
    ):  # fmt: skip
        folder = tmp_path / f"{name} {form}"
        folder.mkdir()
        file = io.BytesIO()
        image.save(file, "PNG", exif=noted)
        (folder / "a.png").write_bytes(file.getvalue())
        record = {"messages": [user([named[form], {"type": "text", "text": "?"}]), said("x")]}
        (folder / "train-0.jsonl").write_text(json.dumps(record))
        rows = lay(files(folder, "train-*"), folder, tokenizer, sight, 64, folder / "cache")
        assert (rows.facts["data"]["newer"] == 3) == (noted is not None or form == "image_url")
        found.append(rows.batch([0]).images)
    assert all(np.array_equal(found[0][part], other[part]) for other in found[1:] for part in found[0])


def test_files_that_are_not_read_and_odd_records_held_out_are_named(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk", "--lora", "4", "--warmup", "9", target=2)
    desk.fill({"text": f"text {number} " * 9} for number in range(60))
    (desk.store / "data/train.jsonl.gz").write_bytes(b"\x1f\x8b")
    (desk.store / "data/heldout.jsonl").write_text('{"text": "a b c"}\n{"question": "a"}\n')
    run = desk.run()
    assert run.codes == [65], run.said
    assert "1 of 58 records" in run.said
    assert ".parquet, .arrow (first: train.jsonl.gz)" in run.said
    run = desk.run("--skip-at-most", "2")
    assert run.codes == [0], run.said
    assert "left out of the held-out records: 1: it has none of the known fields" in run.said
    assert "--warmup 9 is longer than the training" in run.said
