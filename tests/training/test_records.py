"""Records as the world has them: read in every usual form, learned as they stand, or left out and counted."""

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import tokenizers
import transformers

from jobs.payload.trainers.tuning.data.documents import load_tokenizer, stop_tokens
from jobs.payload.trainers.tuning.data.reader import files
from jobs.payload.trainers.tuning.data.rows import Rows, pack, samples
from jobs.payload.trainers.tuning.data.tally import check
from jobs.payload.trainers.tuning.errors import UnreadableData
from tests.lab.desk import Desk
from tests.lab.records import lines_of, odd_file

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = [{"role": "user", "content": "Say a."}, {"role": "assistant", "content": "a"}]


def like_llama_2() -> Any:
    """A tokenizer that puts a space before what it encodes, as SentencePiece's of Llama 2 do."""
    words = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True))
    words.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    words.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse(),
         tokenizers.decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, special_tokens=special)
    words.train_from_iterator(["def f ( x ) : return x + 1 say yes 4 no "] * 9, trainer)
    # Bytes are no special tokens, though the trainer of this library takes them for such.
    told = json.loads(words.to_str())
    told["added_tokens"] = told["added_tokens"][:5]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(told)), bos_token="<s>", eos_token="</s>",
        unk_token="<unk>",
    )  # fmt: skip


def packed(folder: Path, lines: Iterable[bytes], tokenizer: Any, stops: Any = None) -> Rows:
    folder.mkdir(exist_ok=True)
    (folder / "train-0.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return pack(files(folder, "train-*"), tokenizer, 512, folder / "cache", alone=True, stops=stops)


def of(*records: Any) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def learned(rows: Rows, tokenizer: Any) -> list[str]:
    """What is learned of each row."""
    targets = rows.batch(range(len(rows))).targets
    return [tokenizer.decode([token for token in row.tolist() if token >= 0]) for row in targets]


def test_the_joint_of_prompt_and_completion_is_as_it_was_given(tmp_path: Path) -> None:
    tokenizer = like_llama_2()
    apart = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("def f(x):", "return x")]
    assert tokenizer.decode([*apart[0], *apart[1]]) == "def f(x): return x", "as this kind of tokenizer does"
    rows = packed(tmp_path, of({"prompt": "def f(x):", "completion": "return x"}), tokenizer)
    batch = rows.batch([0])
    ids = batch.tokens[0, : int((batch.documents[0] == 1).sum())].tolist()
    assert tokenizer.decode(ids, skip_special_tokens=True) == "def f(x):return x"
    assert learned(rows, tokenizer) == ["return x</s>"]


@pytest.mark.parametrize("name", ["bytes", "llama 2"])
def test_a_special_token_in_somebodys_words_is_text(name: str, tmp_path: Path, model: Path) -> None:
    tokenizer = load_tokenizer(str(model)) if name == "bytes" else like_llama_2()
    mark = tokenizer.eos_token
    records = of(
        {"text": f"a{mark}b"}, {"prompt": f"a{mark}", "completion": f"b{mark}c"},
        {"messages": [{"role": "user", "content": f"a{mark}b"}, {"role": "assistant", "content": "c"}]},
    )  # fmt: skip
    tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
    rows = packed(tmp_path, records, tokenizer)
    ends = [row.count(tokenizer.eos_token_id) for row in rows.batch(range(len(rows))).tokens.tolist()]
    padding = [row.count(0) for row in rows.batch(range(len(rows))).documents.tolist()]
    assert padding == [0] * len(rows)
    begun = (rows.batch(range(len(rows))).documents == 1).sum(1)
    for row, size in zip(rows.batch(range(len(rows))).tokens.tolist(), begun.tolist(), strict=True):
        of_template = tokenizer.chat_template.count(mark) if mark in tokenizer.chat_template else 0
        assert row[:size].count(tokenizer.eos_token_id) <= max(1, of_template), ends


def test_what_teaches_no_end_is_left_out(tmp_path: Path, model: Path) -> None:
    tokenizer = load_tokenizer(str(model))
    stops = stop_tokens(str(model), tokenizer)
    assert tokenizer.eos_token_id in stops
    good = packed(tmp_path / "good", of({"messages": CHAT}), tokenizer, stops)
    assert good.facts["data"]["records"] == {"messages": 1}
    for name, template in (("no end", TEMPLATE.replace("<|im_end|>", "")), ("end is no token", TEMPLATE)):
        tokenizer.chat_template = template
        rows = packed(tmp_path / name, of({"messages": CHAT}), tokenizer, stops)
        assert len(rows) == 0
        with pytest.raises(UnreadableData, match=r"teaches no end: generation stops at '<eos>'.*train-0\.jsonl:1"):
            check(rows.facts["data"], 1, "here")


FORMS: dict[str, tuple[Any, str]] = {
    "text": ({"text": "abc"}, "bc<eos>"),  # nothing comes before its first letter
    "prompt": ({"prompt": "a", "completion": "bc"}, "bc<eos>"),
    "messages": ({"messages": CHAT}, "a\n<eos>\n"),
    "alpaca": ({"instruction": "Say it.", "input": "a", "output": "bc"}, "bc\n<eos>\n"),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "Say."}, {"from": "gpt", "value": "bc"}]},
        "bc\n<eos>\n",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read(form: str, tmp_path: Path, model: Path) -> None:
    record, answer = FORMS[form]
    tokenizer = load_tokenizer(str(model))
    rows = packed(tmp_path, of(record), tokenizer, stop_tokens(str(model), tokenizer))
    assert rows.facts["data"]["records"] == {form: 1}
    assert learned(rows, tokenizer)[0] == answer
    assert f"⟦{answer}⟧" in samples(rows, tokenizer)[0]


def test_alpaca_without_a_chat_template_is_written_as_its_authors_did(tmp_path: Path, model: Path) -> None:
    tokenizer = load_tokenizer(str(model))
    tokenizer.chat_template = None
    rows = packed(tmp_path, of(FORMS["alpaca"][0]), tokenizer)
    text = tokenizer.decode(rows.batch([0]).tokens[0].tolist())
    assert "### Instruction:\nSay it.\n\n### Input:\na\n\n### Response:\nbc<eos>" in text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_mark_of_byte_order_costs_nothing(encoding: str, tmp_path: Path, model: Path) -> None:
    text = "".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(3))
    (tmp_path / "train-0.jsonl").write_bytes(text.encode(encoding))
    (tmp_path / "train-1.jsonl").write_bytes(text.encode() + "\ufeff".encode() + text.encode())  # one after the other
    (tmp_path / "train-2.jsonl").write_text(json.dumps([{"text": "in an"}, {"text": "array"}], indent=1))
    rows = pack(files(tmp_path, "train-*"), load_tokenizer(str(model)), 64, tmp_path / "cache")
    assert rows.facts["data"]["records"] == {"text": 3 + 6 + 2}
    assert not rows.facts["data"]["left_out"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"text": "\\ud83d"}', "half of a character"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b"nothing", "not JSON"),
        (b"[" * 9_999, "not JSON"),
        (b'{"messages": [{"role": "user", "content": "hi"}]}', "no turn of the assistant"),
        (b'{"messages": []}', "no messages"),
        (b'{"messages": [{"role": "assistant"}]}', "no content"),
        (b'{"messages": [{"role": "system", "content": "be"}, {"role": "assistant", "content": "a"}]}', "refuses it"),
        (b'{"prompt": "a", "chosen": "b", "rejected": "c"}', "--stage dpo"),
        (b'{"question": "a", "answer": "b"}', "none of the known fields"),
        (b'{"instruction": "a", "output": ""}', "output is empty"),
        (b'{"conversations": [{"from": "dog", "value": "b"}]}', "from 'dog'"),
    ],
)
def test_an_odd_record_is_counted_and_ends_the_job_beyond_the_limit(
    line: bytes, why: str, tmp_path: Path, model: Path
) -> None:
    tokenizer = load_tokenizer(str(model))
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + (tokenizer.chat_template)
    )
    rows = packed(tmp_path, [*of({"text": "abc"}), line], tokenizer)
    (found,) = rows.facts["data"]["left_out"]
    assert why in found[0]
    assert found[1:] == [1, "train-0.jsonl:2"]
    check(rows.facts["data"], 50, "here")
    with pytest.raises(UnreadableData, match=r"1 of 2 records of here would be left out \(50 %.*--skip-at-most 50"):
        check(rows.facts["data"], 49, "here")


def test_a_job_ends_with_the_status_of_bad_data_and_says_where(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk", "--lora", "4", target=2)
    desk.fill([{"text": f"text {number} " * 9} for number in range(60)] + [{"wrong": 1}])
    run = desk.run()
    assert run.codes == [65], run.said
    assert "1 of 58 records" in run.said
    assert "train-00000.jsonl:58" in run.said
    run = desk.run("--skip-at-most", "2%")
    assert run.codes == [0], run.said
    assert "records: 57 of text; left out: 1: it has none of the known fields" in run.said
    assert "sample 1: '" in run.said


@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_accounted_for(seed: int, tmp_path: Path, model: Path, odd_records: int) -> None:
    """Records by a generator of odd ones: nothing but UnreadableData may come of them."""
    tokenizer = load_tokenizer(str(model))
    data = odd_file(random.Random(seed), odd_records)
    rows = packed(tmp_path, data.split(b"\n"), tokenizer, stop_tokens(str(model), tokenizer))
    facts = rows.facts["data"]
    lines = lines_of((tmp_path / "train-0.jsonl").read_bytes())
    assert sum(facts["records"].values()) + sum(count for _, count, _ in facts["left_out"]) == lines
    if rows.facts["rows"]:
        assert len(samples(rows, tokenizer)) > 0
