"""Rows of a corpus: packed in memory that does not grow with it, and made anew where their files were cut off."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
from jobs.payload.trainers.tuning.data import rows as packing
from jobs.payload.trainers.tuning.data.rows import BEGINS, LEARNED, Rows
from tests.lab.desk import REPOSITORY, Desk

PACK = """
import json, resource, sys
from pathlib import Path
import numpy as np
from jobs.payload.trainers.tuning.data import rows as packing
from jobs.payload.trainers.tuning.data.rows import pack

class Bytes:
    eos_token_id, eos_token, bos_token, chat_template, init_kwargs = 0, "e", "b", None, {}
    def __call__(self, texts, **_):
        if isinstance(texts, str):
            return {"input_ids": list(texts.encode())}
        return {"input_ids": [list(text.encode()) for text in texts]}
    def decode(self, ids, **_):
        return bytes(ids).decode()
    def get_vocab(self):
        return {}

packing._PIECES = 2_000
folder = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = pack([folder / "train-0.jsonl"], Bytes(), 1024, folder / "cache")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"grown": (after - before) * 1024, "rows": len(rows), "windows": rows.facts["windows"]}))
"""


def packed(folder: Path, records: int) -> dict[str, int]:
    """Pack so many records of 1,000 bytes in a process of its own; return by how much its memory grew, and the rows."""
    folder.mkdir()
    text = "x = 1  # and so on\n" * 53
    with (folder / "train-0.jsonl").open("w") as lines:
        for number in range(records):
            lines.write(json.dumps({"text": text[: 900 + number % 100]}) + "\n")
    words = [sys.executable, "-c", PACK, str(folder)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    small, large = packed(tmp_path / "small", 4_000), packed(tmp_path / "large", 40_000)
    assert large["rows"] > 9 * small["rows"]
    assert (small["windows"], large["windows"]) == (2, 20)
    more_on_disk = (large["rows"] - small["rows"]) * 1_024 * 5
    assert more_on_disk > 170_000_000
    assert large["grown"] - small["grown"] < more_on_disk / 10


@pytest.mark.parametrize("pieces", [5, 1 << 20], ids=["in parts", "as one"])
def test_each_piece_has_one_place_and_no_two_share_it(
    pieces: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_PIECES", pieces)
    monkeypatch.setattr(packing, "_TOKENS_AT_ONCE", 32)
    draw = np.random.RandomState(3)
    given = [[100 * number + at for at in range(draw.randint(1, 17))] for number in range(1, 40)]
    marked = ((piece, bytes([LEARNED | BEGINS] + [LEARNED] * (len(piece) - 1))) for piece in given)
    facts = packing.write_rows(tmp_path, iter(marked), 7, 16, None)
    packing.seal(tmp_path, facts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks.bin", "rows.json", "tokens.bin"]
    batch = Rows(tmp_path).batch(range(facts["rows"]))
    found = []
    for tokens, documents in zip(batch.tokens, batch.documents, strict=True):
        pieces_here = [tokens[documents == number].tolist() for number in np.unique(documents)]
        found += [piece for piece in pieces_here if set(piece) != {7}]
    assert sorted(found) == sorted(given)
    assert facts["windows"] == (8 if pieces == 5 else 1)


def test_a_corpus_that_is_small_is_packed_as_ever() -> None:
    """Rows of a training that is under way must not change with the program: best fit, the longest first."""
    row_of, first_of, rows = packing.place_pieces([3, 8, 5, 5, 2, 1, 8, 4], 8)
    assert (row_of.tolist(), first_of.tolist(), rows) == ([3, 0, 2, 3, 2, 2, 1, 4], [5, 0, 0, 0, 5, 7, 0, 0], 5)


@pytest.mark.parametrize("name", ["tokens.bin", "marks.bin", "rows.json"])
def test_rows_that_were_cut_off_are_made_anew(name: str, make_desk: Callable[..., Desk]) -> None:
    """A machine that died, or a disk that was full, must not fail every session that follows."""
    desk = make_desk("desk", "--lora", "4", target=3)
    assert desk.run().codes == [0]
    paths = sorted((desk.folder / "cache").glob(f"*/{name}"))
    before = {path: path.read_bytes() for path in paths}
    assert len(before) == 2, "rows to train on, and rows held out"
    for path in paths:
        os.truncate(path, path.stat().st_size // 2)
    desk.target = 5
    again = desk.run("--schedule", "constant", "--accept-inexact")
    assert again.codes == [0], again.said
    assert again.said.count("are not whole, and are made again") == 2
    assert {path: path.read_bytes() for path in paths} == before
    assert not list((desk.folder / "cache").glob(".*"))
