"""Generated odd files: no reader fails, each record is read or counted as left out, and all users agree on which."""

import bz2
import codecs
import gzip
import json
import lzma
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.payload.trainers.tuning.data.forms import OddRecord, read_record
from jobs.payload.trainers.tuning.data.reader import files, records
from jobs.payload.trainers.tuning.data.tally import Tally
from tests.lab.records import lines_of, odd_file
from tests.lab.three_readers import agree

ENDINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress
}  # fmt: skip
KINDS = [kind + packing for kind in (".jsonl", ".ndjson", ".json", ".csv", ".tsv") for packing in ENDINGS]
DEEP = b"[" * 100_000 + b"]" * 100_000


@st.composite
def contents(draw: Any) -> bytes:
    """Lines of records, a table, an array, or any bytes; in some encoding; whole, cut off or damaged."""
    data = draw(st.one_of(
        st.integers(0, 2**32).map(lambda seed: odd_file(random.Random(seed), 12)),
        st.binary(max_size=300),
        st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")),
        st.lists(st.lists(st.text('a",\r\n\x00\ufeff', max_size=4), max_size=3)).map(
            lambda rows: b"text,label\n" + "\n".join(map(",".join, rows)).encode()
        ),
        st.lists(st.dictionaries(st.sampled_from(["text", "prompt", "messages"]), st.text(max_size=9))).map(
            lambda some: json.dumps(some).encode()
        ),
        st.sampled_from([DEEP, b'{"text": ' + DEEP + b"}", b"text\n" + DEEP, b"\x00" * 999, b"{" * 99_999]),
    ))  # fmt: skip
    if draw(st.integers(0, 3)) == 0:
        data = data.decode(errors="replace").encode(
            draw(st.sampled_from(["utf-16", "utf-8-sig", "utf-32", "cp037"])), "replace"
        )
    return bytes(data)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return data, in half of the cases cut off or with a changed byte."""
    at = draw.randrange(len(data) + 1)
    return draw.choice([data, data, data[:at], data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]])


@given(contents(), st.sampled_from(KINDS), st.sampled_from(list(ENDINGS)), st.booleans(), st.randoms())
def test_no_file_ends_a_training(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str, packing: str, right: bool, draw: random.Random
) -> None:
    """Also not one whose name has the ending of another kind."""
    folder = tmp_path_factory.mktemp("odd")
    ending = next(ending for ending in reversed(ENDINGS) if name.endswith(ending))
    (folder / f"train-0{name}").write_bytes(damaged(ENDINGS[ending if right else packing](data), draw))
    paths, tally = files(folder, "train-*"), Tally()
    read = list(records(paths, tally))
    assert len(paths) == 1
    assert len({place for _, place in read}) == len(read)
    assert all(place.startswith(f"train-0{name}") for _, place in read)
    assert all(place.startswith(f"train-0{name}") for _, place in tally.left_out.values())
    for record, _ in read:
        try:
            read_record(record)
        except OddRecord:
            continue


@given(st.integers(0, 2**32), st.integers(0, 30), st.sampled_from(list(ENDINGS)))
def test_what_is_read_and_what_is_left_out_are_all_lines(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, packing: str
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    data = odd_file(random.Random(seed), count)
    if data.lstrip().startswith(b"["):
        data = b"{}\n" + data  # or a file of one line would be an array
    (folder / f"train-0.jsonl{packing}").write_bytes(ENDINGS[packing](data))
    tally = Tally()
    read = list(records(files(folder, "train-*"), tally))
    assert len(read) + sum(number for number, _ in tally.left_out.values()) == lines_of(data)


@given(contents(), st.sampled_from(KINDS), st.randoms())
def test_trainings_corpora_and_item_sets_read_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str, draw: random.Random
) -> None:
    """Except for bytes that are not UTF-8 within an array or a table: a corpus guesses their encoding."""
    if ".csv" in name or ".tsv" in name:
        data = b"text,label\n" + data.decode(errors="replace").encode()
    elif data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        data = data.decode(errors="replace").encode()
    path = tmp_path_factory.mktemp("odd") / f"train-0{name}"
    ending = next(ending for ending in reversed(ENDINGS) if name.endswith(ending))
    packed = ENDINGS[ending](data)
    if ending:
        packed = damaged(packed, draw)
    path.write_bytes(packed)
    agree(path)
