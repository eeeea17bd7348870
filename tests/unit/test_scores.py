"""Score files pass whole or not at all."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.scorers import items
from jobs.payload.scorers.given import OUTPUT_BYTES_MAX, read_outputs
from jobs.payload.scorers.items import BadItems, Header, Item, ScoreLine, read_items, records, write_scores
from jobs.scores import LINE_BYTES_MAX, METRICS_MAX, SCORES_MAX, Scores, ScoresError, read_scores

CHECKPOINT, SET, SCORER = "1" * 64, "2" * 64, "3" * 64
HEADER = {"schema": 1, "model": "ufm", "checkpoint": CHECKPOINT, "set": SET, "scorer": SCORER}
ITEMS = {name: Item(name, name[0], "python" if name == "a1" else "", {}) for name in ("a1", "a2", "b1")}


def line(item: str = "a1", **changed: Any) -> dict[str, Any]:
    return {"item": item, "cluster": item[:1], "metric": "loss", "value": 1.5} | changed


def read(*documents: Any, items: dict[str, Item] | None = None) -> Scores:
    """Read documents, or bytes as they are, one a line."""
    rows = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in documents]
    stream = io.BytesIO(b"".join(row + b"\n" for row in rows))
    return read_scores(stream, model="ufm", checkpoint=CHECKPOINT, test_set=SET, items=items)


def test_scores_are_read_by_metric_and_item() -> None:
    scores = read(HEADER, line("a1", example="it \x1b[31mfailed"), line("b1", value=-2), line("a1", metric="pass@1"))
    assert sorted(scores.by_metric) == ["loss", "pass@1"]
    assert scores.by_metric["loss"]["b1"].value == -2.0
    assert "\x1b" not in scores.by_metric["loss"]["a1"].example
    assert (scores.model, scores.checkpoint, scores.test_set, scores.scorer) == ("ufm", CHECKPOINT, SET, SCORER)


def test_what_the_payload_writes_is_what_is_read(tmp_path: Path) -> None:
    header = Header("ufm", CHECKPOINT, SET, SCORER, {"loss": [[8, 1], [2, 9]]}, ["sandbox: none"])
    lines = [ScoreLine(name, item.cluster, "loss", 0.5, "seen" * 1_000) for name, item in ITEMS.items()]
    assert write_scores(tmp_path / "scores.jsonl", header, lines) == 3
    with (tmp_path / "scores.jsonl").open("rb") as stream:
        scores = read_scores(stream, model="ufm", checkpoint=CHECKPOINT, test_set=SET, items=ITEMS)
    assert scores.by_metric["loss"].keys() == ITEMS.keys()
    assert scores.agreement == {"loss": ((8, 1), (2, 9))}
    assert scores.notes == ("sandbox: none",)


def test_nothing_that_is_not_finite_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="loss of a1 is nan"):
        write_scores(
            tmp_path / "scores.jsonl",
            Header("ufm", CHECKPOINT, SET, SCORER),
            [ScoreLine("a1", "a", "loss", float("nan"))],
        )
    assert not (tmp_path / "scores.jsonl").exists()


@pytest.mark.parametrize(
    ("documents", "where", "why"),
    [
        ((), 0, "empty"),
        ((HEADER,), 0, "no score"),
        ((b"{", line()), 1, "no JSON"),
        (([1], line()), 1, "no object"),
        ((HEADER | {"schema": 2}, line()), 1, "schema is 2"),
        ((HEADER | {"schema": True}, line()), 1, "schema is True"),
        ((HEADER | {"model": "ucm"}, line()), 1, "model is 'ucm' instead of 'ufm'"),
        ((HEADER | {"checkpoint": "9" * 64}, line()), 1, "checkpoint is"),
        ((HEADER | {"set": "9" * 64}, line()), 1, "set is"),
        ((HEADER | {"scorer": "mine"}, line()), 1, "not a digest"),
        ((HEADER | {"agreement": {"judge": [[1, 0], [0, 1]]}}, line()), 1, "not a table of metrics"),
        ((HEADER | {"agreement": {"loss": [[1, 0], [0]]}}, line()), 1, "not a square"),
        ((HEADER | {"agreement": {"loss": [[1, -1], [0, 1]]}}, line()), 1, "not a square"),
        ((HEADER | {"notes": [1]}, line()), 1, "notes are"),
        ((HEADER, line(value=float("nan"))), 2, "value is nan"),
        ((HEADER, line(value=float("inf"))), 2, "value is inf"),
        ((HEADER, b'{"item":"a1","cluster":"a","metric":"loss","value":1' + b"0" * 5_000 + b"}"), 2, "value is inf"),
        ((HEADER, line(value=True)), 2, "value is True"),
        ((HEADER, line(value="1")), 2, "not a number"),
        ((HEADER, line(), line(value=None)), 3, "value is None"),
        ((HEADER, line(), line()), 3, "stands twice"),
        ((HEADER, line(), line(metric="pass@1", cluster="b")), 3, "is of cluster 'a'"),
        ((HEADER, line(item="")), 2, "item is ''"),
        ((HEADER, line(item="a\n")), 2, "item is"),
        ((HEADER, line(metric="../x")), 2, "metric is"),
        ((HEADER, line(example=3)), 2, "example is 3"),
        ((HEADER, b"", line()), 2, "no JSON"),
        ((HEADER, b"[" * 9_000), 2, "no JSON"),
        ((HEADER, b"\xff\xfe"), 2, "no JSON"),
        ((HEADER, line(example="x" * LINE_BYTES_MAX)), 2, "longer than"),
    ],
)
def test_anything_wrong_says_where_and_what_to_do(documents: tuple[Any, ...], where: int, why: str) -> None:
    with pytest.raises(ScoresError, match=why.replace("[", r"\[")) as caught:
        read(*documents)
    assert caught.value.line == where
    assert caught.value.remedy


def test_every_item_of_the_set_has_a_value_and_no_other_has() -> None:
    whole = [HEADER, *(line(name) for name in ITEMS)]
    assert read(*whole, line("a1", metric="loss.python"), items=ITEMS).by_metric["loss.python"].keys() == {"a1"}
    with pytest.raises(ScoresError, match="loss has no value of 1 of 3 items, of 'b1'"):
        read(*whole[:-1], items=ITEMS)
    with pytest.raises(ScoresError, match="'c1' is no item"):
        read(*whole, line("c1"), items=ITEMS)
    with pytest.raises(ScoresError, match="which is not of domain 'python'"):
        read(*whole, line("a1", metric="loss.python"), line("b1", metric="loss.python"), items=ITEMS)
    with pytest.raises(ScoresError, match="is of cluster 'a', not 'z'"):
        read(HEADER, line("a1", cluster="z"), items=ITEMS)


class Endless(io.RawIOBase):
    """A header, then the same line for ever, with another item each time; counts what is asked of it."""

    def __init__(self) -> None:
        self.given = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return one more line."""
        self.given += 1
        document = HEADER if self.given == 1 else line(f"a{self.given}")
        return json.dumps(document).encode() + b"\n"


@pytest.mark.parametrize("most", [5_000, pytest.param(SCORES_MAX, marks=pytest.mark.nightly)])
def test_ten_million_lines_are_not_read(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("jobs.scores.SCORES_MAX", most)
    stream = Endless()
    with pytest.raises(ScoresError, match=f"more than {most:,} scores"):
        read_scores(stream, model="ufm", checkpoint=CHECKPOINT, test_set=SET)  # type: ignore[arg-type] # enough of one
    assert stream.given == most + 2


def test_metrics_are_few() -> None:
    with pytest.raises(ScoresError, match="more than 100 metrics"):
        read(HEADER, *(line(metric=f"m{number}") for number in range(METRICS_MAX + 1)))


def test_a_test_set_has_ids_clusters_and_a_digest_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"id": "a1", "cluster": "a", "prompt": "x"}\n\n{"id": "b1", "domain": "python"}\n')
    found = read_items(path)
    assert [(item.id, item.cluster, item.domain) for item in found.items.values()] == [
        ("a1", "a", ""),
        ("b1", "b1", "python"),
    ]
    assert found.items["a1"].task["prompt"] == "x"
    assert len(found.digest) == 64


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no item"),
        ('{"id": "a"}\n{"id": "a"}\n', "line 2: the id 'a' is used on an earlier line"),
        ('{"id": 3}\n', "line 1: id is 3"),
        ('{"id": "a", "cluster": null}\n', "cluster is None"),
        ('{"id": "a", "domain": "Any Thing"}\n', "domain is 'Any Thing'"),
        ("[]\n", "no item"),
        ("3\n", "line 1: 3 is not an object"),
        ("{\n", "not JSON"),
    ],
)
def test_a_test_set_that_cannot_be_used_says_which_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(text)
    with pytest.raises(BadItems, match=why):
        read_items(path)


def test_a_test_set_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b", "text": "' + "x" * items.LINE_BYTES_MAX + '"}\n')
    with pytest.raises(BadItems, match="line 2: longer than"):
        read_items(path)
    monkeypatch.setattr(items, "ITEMS_MAX", 3)
    path.write_text("".join(f'{{"id": "{number}"}}\n' for number in range(3)))
    assert len(read_items(path).items) == 3
    path.write_text("".join(f'{{"id": "{number}"}}\n' for number in range(4)))
    with pytest.raises(BadItems, match="line 4: more than 3 items"):
        read_items(path)


def test_what_a_model_wrote_is_read_line_by_line_and_damage_passed_over(tmp_path: Path) -> None:
    """An item whose line cannot be read has no output, and gets what that is worth."""
    path = tmp_path / "outputs.jsonl"
    good = [{"id": "a", "output": "1"}, {"id": "a", "output": "2"}, {"id": "b", "output": "3"}]
    rows = [json.dumps(row).encode() for row in good]
    long = b'{"id": "c", "output": "' + b"x" * OUTPUT_BYTES_MAX + b'"}'
    path.write_bytes(b"\n".join([rows[0], b"{", b"", b"[1]", rows[1], long, b'{"id": 3}', rows[2]]))
    found = read_outputs(path)
    assert {name: [record["output"] for record in of_item] for name, of_item in found.items()} == {
        "a": ["1", "2"],
        "b": ["3"],
    }
    assert [number for number, _ in records(path, OUTPUT_BYTES_MAX)] == [1, 2, 4, 5, 6, 7, 8]


def test_of_what_a_model_wrote_for_one_item_twenty_samples_count(tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text("".join(json.dumps({"id": "a", "output": str(number)}) + "\n" for number in range(21)))
    assert [record["output"] for record in read_outputs(path)["a"]] == [str(number) for number in range(20)]
