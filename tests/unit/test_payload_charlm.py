"""The character model: its gradient is the gradient, its data is read in bounded pieces, in a seeded order."""

import json
from pathlib import Path

import numpy as np
import pytest

from jobs.payload.trainers.charlm import (
    ALPHABET,
    BLOCK_BYTES,
    CharModel,
    CharShape,
    Stream,
    UnreadableCorpus,
    encode,
    held_out_sample,
    records,
)

SHAPE = CharShape(context=4, embedding=3, width=7)


def windows(count: int) -> np.ndarray:
    """Random windows of the model's context and one more."""
    return np.random.default_rng(1).integers(0, ALPHABET, (count, SHAPE.context + 1)).astype(np.uint8)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    """Central differences along random directions agree with what back-propagation says."""
    generator = np.random.default_rng(0)
    model = CharModel(SHAPE, generator)
    batch = windows(32)
    start = model.weights.copy()
    model.learn(batch, 1, 0.0)
    gradient = model._gradient.astype(np.float64)
    assert np.array_equal(model.weights, start)
    for _ in range(10):
        direction = generator.standard_normal(len(start)).astype(np.float32)
        direction *= 0.02 / np.linalg.norm(direction)
        model.weights[:] = start + direction
        above = model.loss(batch)
        model.weights[:] = start - direction
        slope = (above - model.loss(batch)) / 2
        assert slope == pytest.approx(float(gradient @ direction), rel=0.05, abs=2e-5)


def test_learning_a_batch_lowers_its_loss() -> None:
    model = CharModel(SHAPE, np.random.default_rng(0))
    batch = windows(16)
    before = model.loss(batch)
    for step in range(1, 101):
        model.learn(batch, step, 1e-2)
    assert model.loss(batch) < before / 2


def write_shards(folder: Path, texts: list[str]) -> None:
    (folder / "train-000.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_every_record_is_in_exactly_one_block(tmp_path: Path) -> None:
    """Lines longer and shorter than a block: none is lost at a border, none is read twice."""
    texts = [f"{number:05d}" * length for number, length in enumerate([3, 40_000, 1, 9_000, 2, 30_000, 70])]
    write_shards(tmp_path, texts)
    path = tmp_path / "train-000.jsonl"
    found = [text for start in range(0, path.stat().st_size, BLOCK_BYTES) for text in records(path, start, BLOCK_BYTES)]
    assert found == texts


def test_a_position_is_the_same_text_in_every_session(tmp_path: Path) -> None:
    write_shards(tmp_path, [f"{number} " * 5_000 for number in range(60)])
    first, again = Stream(tmp_path, 5, 8), Stream(tmp_path, 5, 8)
    first.seek(0)
    for position in range(12):
        first.seek(position)
        again.seek(position)
        assert first.position == again.position
        there, here = (stream.batch(np.random.default_rng(2), 9) for stream in (first, again))
        assert np.array_equal(there, here)


def test_another_seed_is_another_order(tmp_path: Path) -> None:
    write_shards(tmp_path, [chr(65 + number % 26) * 60_000 for number in range(20)])
    orders = []
    for seed in (1, 2):
        stream = Stream(tmp_path, seed, 8)
        order = []
        for position in range(6):
            stream.seek(position)
            order.append(int(stream.batch(np.random.default_rng(0), 1)[0, 0]))
        orders.append(order)
    assert orders[0] != orders[1]


def test_unknown_bytes_have_a_code_of_their_own() -> None:
    assert encode(iter(["a\n", "é\x00"])).tolist() == [67, 1, 1, 0, 0, 0]


def test_no_text_is_unreadable_data(tmp_path: Path) -> None:
    write_shards(tmp_path, [""])
    with pytest.raises(UnreadableCorpus, match="no record"):
        Stream(tmp_path, 0, 8).seek(0)


def test_the_held_out_sample_is_fixed(tmp_path: Path) -> None:
    assert held_out_sample(tmp_path, 8) is None
    (tmp_path / "heldout.jsonl").write_text(json.dumps({"text": "to be or not to be " * 200}) + "\n")
    sample, again = held_out_sample(tmp_path, 8), held_out_sample(tmp_path, 8)
    assert sample is not None
    assert again is not None
    assert sample.shape == (1024, 9)
    assert np.array_equal(sample, again)
