"""Rows with images: a model of Qwen2-VL's shape learns what it sees, cut anywhere, and odd images are told."""

import base64
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("peft")
pytest.importorskip("PIL")
from PIL import Image

from jobs.payload.trainers.tuning.data.documents import load_tokenizer
from jobs.payload.trainers.tuning.data.images import Sight, find_sight, image_digest, lay
from tests.lab.desk import Desk, make_seeing_model

COLOURS = {"red": (220, 30, 30), "green": (20, 200, 40), "blue": (20, 40, 230), "white": (240, 240, 240)}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that sees."""
    return make_seeing_model(tmp_path_factory.mktemp("seeing"))


def picture(colour: str, wide: int, high: int) -> Any:
    return Image.new("RGB", (wide, high), COLOURS[colour])


def in_base64(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def asked(images: list[str], answer: str) -> dict[str, Any]:
    """A record: images, a question, and what is to be said."""
    content: list[dict[str, str]] = [{"type": "image", "image": image} for image in images]
    content.append({"type": "text", "text": "colour?"})
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]}


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """Files below the folder, images in base64, two of them, and text alone, in turn; the answer is what is seen."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    names = list(COLOURS)
    for number in range(64):
        colour, wide = names[number % 4], 8 + 8 * (number % 3)
        image = picture(colour, wide, 16)
        if number % 8 == 7:
            yield {"text": f"nothing is seen {number}"}
        elif number % 8 == 5:
            yield asked([in_base64(image), f"data:image/png;base64,{in_base64(picture('red', 8, 8))}"], colour)
        elif number % 8 == 3:
            yield asked([in_base64(image)], colour)
        else:
            image.save(folder / f"images/{number}.png")
            yield asked([f"images/{number}.png"], colour)


@pytest.fixture
def make_seeing(tmp_path: Path, seeing: Path) -> Callable[..., Desk]:
    """Makes desks of a model that sees."""

    def make(name: str, *options: str, target: int = 12) -> Desk:
        desk = Desk(tmp_path / name, seeing, "--report-every", "1", "--rate", "1e-2", *options, target=target)
        desk.fill(records(desk.store / "data"))
        return desk

    return make


WAYS = {"lora": ("--lora", "8"), "all weights": ("--rate", "1e-3"), "qlora": ("--use-4bit", "--gradient-checkpointing")}


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_training_with_images_ends_with_the_bits_of_one_that_was_not(
    way: str, make_seeing: Callable[..., Desk]
) -> None:
    whole, broken = (make_seeing(name, *WAYS[way]) for name in ("whole", "broken"))
    run = whole.run()
    assert run.codes == [0], run.said
    losses = [entry for entry in whole.losses() if entry[1] is not None]
    assert broken.run(cut=4).codes == [0]
    told = [entry for entry in broken.losses() if entry[1] is not None]
    second = broken.run()
    assert second.codes == [0], second.said
    assert "E0" in second.said
    assert told + [entry for entry in broken.losses() if entry[1] is not None] == losses
    assert broken.state() == whole.state()


def test_it_learns_what_only_the_image_tells(make_seeing: Callable[..., Desk]) -> None:
    """Beside one that is shown the same image each time, which has to guess: nothing else differs between the rows."""
    names, ends = list(COLOURS), []
    for name in ("seen", "blind"):
        desk = make_seeing(name, "--rate", "3e-3", target=120)
        shown = [names[number % 4 if name == "seen" else 0] for number in range(64)]
        desk.fill(asked([in_base64(picture(colour, 8, 8))], names[at % 4]) for at, colour in enumerate(shown))
        run = desk.run()
        assert run.codes == [0], run.said
        ends.append(sum([loss for _, loss in desk.losses() if loss is not None][-20:]) / 20)
    seen, blind = ends
    assert seen < blind / 2


def test_the_tower_stays_as_it_was_and_the_checkpoint_can_be_used(
    make_seeing: Callable[..., Desk], seeing: Path
) -> None:
    from safetensors.torch import load_file

    desk = make_seeing("desk", target=3)
    assert desk.run().codes == [0]
    folder = desk.checkpoint()
    assert folder is not None
    before, after = (load_file(path / "model.safetensors") for path in (seeing, folder))
    same = {name for name in before if before[name].equal(after[name])}
    assert same == {name for name in before if "visual" in name}
    assert find_sight(str(folder), 9) == find_sight(str(seeing), 9)
    adapter = make_seeing("adapter", "--lora", "4", target=1)
    assert adapter.run().codes == [0]
    kept = adapter.checkpoint()
    assert kept is not None
    names = load_file(kept / "adapter_model.safetensors")
    assert names
    assert not [name for name in names if "visual" in name]


def test_another_size_of_images_and_another_image_are_another_training(make_seeing: Callable[..., Desk]) -> None:
    desk = make_seeing("desk", "--lora", "4", target=6)
    assert desk.run(cut=2).codes == [0]
    refused = desk.run("--image-tokens", "4")
    assert refused.codes == [1]
    assert "image tokens was 256 and is 4" in refused.said
    picture("blue", 8, 8).save(desk.store / "data/images/8.png")
    refused = desk.run()
    assert refused.codes == [1]
    assert "data was" in refused.said


BAD = {
    "missing": ("images/none.png", "No such file"),
    "broken": ("images/broken.png", "it is no image that can be read"),
    "cut off": ("images/cut.png", "truncated"),
    "outside": ("../heldout.png", "it lies outside of the folder"),
    "neither": ("what is this?", "no base64"),
    "nothing": (None, "it is not a text"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_image_that_cannot_be_used_is_told_with_its_record(name: str, make_seeing: Callable[..., Desk]) -> None:
    desk = make_seeing("desk", "--lora", "4")
    folder = desk.store / "data"
    (folder / "images/broken.png").write_bytes(b"no image")
    noise = Image.fromarray(np.random.RandomState(1).randint(0, 255, (64, 64, 3), np.uint8))
    noise.save(folder / "images/cut.png")
    (folder / "images/cut.png").write_bytes((folder / "images/cut.png").read_bytes()[:2_000])
    said, why = BAD[name]
    lines = (folder / "train-00000.jsonl").read_text().splitlines()
    lines.insert(4, json.dumps(asked([said], "red")))  # type: ignore[list-item] # what a stranger may write
    (folder / "train-00000.jsonl").write_text("\n".join(lines))
    refused = desk.run()
    assert refused.codes == [65], refused.said
    assert "(first: train-00000.jsonl:5)" in refused.said
    assert why in refused.said


def test_a_model_of_text_refuses_images(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk", "--lora", "4")
    desk.fill([asked(["x.png"], "red")] * 9)
    refused = desk.run()
    assert refused.codes == [65], refused.said
    assert "it has an image, and only Qwen2-VL" in refused.said
    assert "(first: train-00000.jsonl:1)" in refused.said


def test_rows_are_laid_once_and_what_is_too_long_is_left_out(
    seeing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sight, tokenizer = find_sight(str(seeing), 6), load_tokenizer(str(seeing))
    assert sight is not None
    path = tmp_path / "train-0.jsonl"
    path.write_text("\n".join(map(json.dumps, [*records(tmp_path), {"text": "long " * 200}])))
    rows = lay([path], tmp_path, tokenizer, sight, 64, tmp_path / "cache")
    assert rows.facts["data"]["left_out"] == [["it is longer than --length 64", 1, "train-0.jsonl:65"]]
    assert len(rows) == 64, "a record is a row, in order"
    batch = rows.batch([0, 5, 7])
    grids = batch.images["image_grid_thw"]
    assert grids.tolist() == [[1, 4, 2], [1, 4, 6], [1, 2, 2]]
    assert len(batch.images["pixel_values"]) == grids.prod(1).sum()
    assert batch.images["mm_token_type_ids"].sum(1).tolist() == [2, 7, 0]
    assert not rows.batch([7]).images
    monkeypatch.setitem(sys.modules, "PIL", None)
    again = lay([path], tmp_path, tokenizer, sight, 64, tmp_path / "cache")
    assert np.array_equal(again.batch([5]).images["pixel_values"], rows.batch([5]).images["pixel_values"])
    assert image_digest(tmp_path) != image_digest(tmp_path / "cache")


@pytest.mark.parametrize(("wide", "high"), [(8, 8), (1, 1), (1_000, 10), (10, 4_000), (640, 480)])
def test_an_image_is_as_large_as_its_tokens_allow(wide: int, high: int) -> None:
    columns, rows = Sight(1, 14, 2, 2, (0.5,) * 3, (0.5,) * 3, 64).size(wide, high)
    assert 1 <= columns * rows <= 64
    assert columns * 28 <= max(28, wide + 14)
    assert rows * 28 <= max(28, high + 14)


def test_patches_are_those_of_the_models_own_program(seeing: Path) -> None:
    processing = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    sight = find_sight(str(seeing), 99)
    assert sight is not None
    pixels = np.random.RandomState(3).randint(0, 255, (24, 16, 3), np.uint8)
    theirs = processing.Qwen2VLImageProcessorPil.from_pretrained(seeing, min_pixels=64, max_pixels=4_096)
    found = theirs(Image.fromarray(pixels), return_tensors="np")
    assert found["image_grid_thw"].tolist() == [[1, 6, 4]]
    assert np.allclose(found["pixel_values"], sight.patches(pixels), atol=1e-5)


def test_a_text_with_an_images_mark_is_text(seeing: Path, tmp_path: Path) -> None:
    sight = find_sight(str(seeing), 6)
    assert sight is not None
    path = tmp_path / "train-0.jsonl"
    path.write_text(json.dumps({"text": "see <|image_pad|>"}))
    rows = lay([path], tmp_path, load_tokenizer(str(seeing)), sight, 64, tmp_path / "cache")
    assert len(rows) == 1
    assert sight.token not in rows.batch([0]).tokens
