"""Packed rows: every token is trained on once, none sees another document, on however many devices."""

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.payload.trainers.tuning.data.documents import documents
from jobs.payload.trainers.tuning.data.reader import files
from jobs.payload.trainers.tuning.data.rows import RowOrder, Rows, pack, place_pieces
from jobs.payload.trainers.tuning.data.tally import Tally
from jobs.payload.trainers.tuning.errors import UnreadableData
from jobs.payload.trainers.tuning.options import read_options, rows_at_once, unfit_devices


class Letters:
    """A tokenizer of single characters, with a mark before and after, and a chat template of its own."""

    bos_token, eos_token, bos_token_id, eos_token_id = "<", ">", 1, 2
    chat_template = "yes"
    init_kwargs: ClassVar[dict[str, Any]] = {}

    def __call__(self, text: Any, *, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, Any]:
        """Return the characters' numbers."""
        if isinstance(text, list):
            return {"input_ids": [self(one, add_special_tokens=False)["input_ids"] for one in text]}
        return {"input_ids": [self.bos_token_id] * add_special_tokens + [ord(letter) for letter in text]}

    def decode(self, ids: list[int], **_: Any) -> str:
        """Return text again."""
        return "".join(map(chr, ids))

    def get_vocab(self) -> dict[str, int]:
        """Return nothing: what names it does not matter here."""
        return {}

    def apply_chat_template(self, messages: list[Any], *, tokenize: bool, add_generation_prompt: bool) -> str:
        """Return a conversation as text."""
        assert not tokenize
        text = "".join(f"[{message['role']}]{message['content']};" for message in messages)
        return text + "[assistant]" * add_generation_prompt


def write(folder: Path, records: list[Any]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    (folder / "train-0.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return files(folder, "train-*")


def learned(rows: Rows) -> str:
    """All targets of all rows, as text, row after row."""
    batch = rows.batch(range(len(rows)))
    return "".join(chr(target) for target in batch.targets.flatten() if target >= 0)


@given(st.lists(st.integers(1, 64), max_size=200))
def test_pieces_lie_in_rows_without_touching(sizes: list[int]) -> None:
    row_of, first_of, rows = place_pieces(sizes, 64)
    places = list(zip(row_of.tolist(), first_of.tolist(), strict=True))
    taken = np.zeros((rows, 64), int)
    for size, (row, first) in zip(sizes, places, strict=True):
        assert first + size <= 64
        taken[row, first : first + size] += 1
    assert taken.max(initial=0) <= 1
    assert taken.sum() == sum(sizes)
    assert rows <= 2 * -(-sum(sizes) // 64), "best fit is never worse than twice the least"


@given(st.lists(st.text("abc\n ", min_size=1, max_size=40), min_size=1, max_size=30))
def test_every_token_is_a_target_once_and_sees_its_own_document_only(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    rows = pack(write(folder, [{"text": text} for text in texts]), Letters(), 16, folder / "cache")
    # A cut document's later pieces begin with a token that nothing before it predicts.
    pieces = [("<" + text + ">")[at : at + 16] for text in texts for at in range(0, len(text) + 2, 16)]
    expected = sorted("".join(piece[1:] for piece in pieces if len(piece) > 1))
    assert sorted(learned(rows).replace("\2", ">")) == expected
    batch = rows.batch(range(len(rows)))
    assert rows.targets(range(len(rows))) == len(expected)
    changes = np.diff(batch.documents, axis=1, prepend=0) > 0
    assert (batch.positions[changes] == 0).all()
    assert (np.diff(batch.positions, axis=1)[~changes[:, 1:]] == 1).all()
    lost = batch.targets[:, :-1][changes[:, 1:]]
    assert (lost == -100).all(), "the first token of a document is not learned from the one before"


@given(st.integers(1, 50), st.integers(1, 8), st.integers(0, 2**40))
def test_every_row_comes_once_before_one_comes_again(rows: int, per_step: int, seed: int) -> None:
    order = RowOrder(rows, per_step, seed)
    steps = 3 * rows
    seen = [row for step in range(steps) for row in order.step(step)]
    for first in range(0, len(seen) - rows + 1, rows):
        assert sorted(seen[first : first + rows]) == list(range(rows))
    assert RowOrder(rows, per_step, seed).step(steps - 1) == order.step(steps - 1), (
        "found at once, without what came before"
    )


@given(st.integers(1, 16), st.integers(1, 16), st.sampled_from([1, 2, 4]))
def test_a_steps_rows_are_shared_by_devices(batch: int, accumulate: int, devices: int) -> None:
    options = read_options(["--model", "m", "--batch", str(batch), "--accumulate", str(accumulate)])
    if batch * accumulate % devices:
        with pytest.raises(ValueError, match="cannot be shared"):
            rows_at_once(options, devices)
        return
    at_once = rows_at_once(options, devices)
    assert 1 <= at_once <= batch
    assert batch * accumulate // devices % at_once == 0


def test_kto_has_two_rows_on_every_device() -> None:
    """TRL ends in a traceback on two devices after hours on one."""
    words = ["--model", "m", "--stage", "kto", "--batch", "2", "--accumulate"]
    assert rows_at_once(read_options([*words, "1"]), 1) == 2
    with pytest.raises(ValueError, match=r"each of 2 devices would take one at a time: .* and 4 rows a step"):
        rows_at_once(read_options([*words, "1"]), 2)
    assert unfit_devices(read_options([*words, "1"])) == [2, 4, 8]
    assert unfit_devices(read_options([*words, "4"])) == [8]


def test_what_is_learned_of_instructions(tmp_path: Path) -> None:
    """Of a prompt nothing, of a conversation what the assistant wrote."""
    talk = [("user", "hi"), ("assistant", "yo"), ("user", "so"), ("assistant", "ok")]
    records = [
        {"prompt": "2+2=", "completion": "4"},
        {"messages": [{"role": role, "content": content} for role, content in talk]},
        {"text": "ab"},
        "no record",
        {"text": 3},
        {"messages": [{"role": "user", "content": "nobody answers"}]},
    ]
    rows = pack(write(tmp_path, records), Letters(), 128, tmp_path / "cache")
    assert len(rows) == 1
    assert learned(rows) == "yo;" + "ok;" + "4\2" + "ab\2", "the longest first"


def test_a_conversation_needs_a_template(tmp_path: Path) -> None:
    bare = Letters()
    bare.chat_template = ""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    with pytest.raises(UnreadableData, match=r"train-0\.jsonl:1 is a conversation"):
        list(documents(write(tmp_path, [{"messages": messages}]), bare, Tally()))


def test_packed_rows_are_found_again_and_depend_on_all_that_made_them(tmp_path: Path) -> None:
    paths = write(tmp_path, [{"text": "abc"}])
    cache = tmp_path / "cache"

    def made() -> int:
        return len(list(cache.iterdir()))

    pack(paths, Letters(), 8, cache)
    assert made() == 1
    pack(paths, Letters(), 8, cache)
    assert made() == 1
    pack(paths, Letters(), 16, cache)
    assert made() == 2
    pack(write(tmp_path, [{"text": "abd"}]), Letters(), 8, cache)
    assert made() == 3


def test_a_cut_off_packing_is_never_used(tmp_path: Path) -> None:
    class Broken(Letters):
        def __call__(self, text: Any, **options: Any) -> dict[str, Any]:
            """Fail at the first document."""
            if isinstance(text, list):
                raise MemoryError
            return super().__call__(text, **options)

    paths, cache = write(tmp_path, [{"text": "abc"}]), tmp_path / "cache"
    with pytest.raises(MemoryError):
        pack(paths, Broken(), 8, cache)
    assert list(cache.iterdir()) == []


def test_a_tokenizer_that_loses_what_it_was_given_trains_nothing(tmp_path: Path) -> None:
    class Lossy(Letters):
        def decode(self, ids: list[int], **_: Any) -> str:
            """Return text without its spaces."""
            return super().decode(ids).replace(" ", "")

    with pytest.raises(UnreadableData, match="turns 'a b' of the corpus into 'ab'"):
        pack(write(tmp_path, [{"text": "a b"}]), Lossy(), 8, tmp_path / "cache")
