"""Rows with images, for models such as Qwen2-VL: each record is a row, and an image in it takes several tokens.

Messages have ``{"type": "image", "image": ...}`` parts: a path below the data folder, or the file in base64. Each image
is read and resized once; rows and images are cached on disk under a digest of everything that they depend on. Rows are
padded, not packed, because image tokens have three-dimensional positions.
"""

import base64
import binascii
import io
import json
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import TrainingRefused
from .documents import digest, document_of, named_images
from .forms import OddRecord
from .reader import data_digest, records
from .rows import Batch, Rows, encoded, find_or_make
from .tally import Tally

FORMAT = 3  # of the rows on disk
PREPROCESSOR = "preprocessor_config.json"
KINDS = ("qwen2_vl", "qwen2_5_vl")
_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"}
_TURNED = 0x0112  # EXIF orientation
_PIXELS_MAX = 100_000_000  # a stored image with more pixels is a mistake or an attack


class Sight(NamedTuple):
    """The image settings of a model. ``token`` is its image token; ``merge`` squared patches make one token."""

    token: int
    patch: int
    merge: int
    frames: int  # the model sees an image as so many equal frames
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    most: int  # tokens per image

    @property
    def side(self) -> int:
        """The side of a token in pixels."""
        return self.patch * self.merge

    def size(self, wide: int, high: int) -> tuple[int, int]:
        """Return columns and rows, in tokens, for an image in pixels: same proportions, at most ``most`` tokens."""
        shrink = min(1.0, math.sqrt(self.most * self.side**2 / (wide * high)))
        columns, rows = (max(1, round(shrink * length / self.side)) for length in (wide, high))
        while columns * rows > self.most:
            columns, rows = (columns - 1, rows) if columns >= rows else (columns, rows - 1)
        return columns, rows

    def patches(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the patches of an image (bytes; height, width, 3) in the model's input form, ordered by token."""
        mean, deviation = (np.asarray(part, np.float32) for part in (self.mean, self.deviation))
        values = (pixels.astype(np.float32) / 255 - mean) / deviation
        rows, columns = (length // self.side for length in pixels.shape[:2])
        parts = values.reshape(rows, self.merge, self.patch, columns, self.merge, self.patch, 3)
        parts = parts.transpose(0, 3, 1, 4, 6, 2, 5)  # token, patches, colours, lines
        parts = np.repeat(parts[:, :, :, :, :, None], self.frames, axis=5)
        return parts.reshape(rows * columns * self.merge**2, -1)


def find_sight(source: str, image_tokens: int) -> Sight | None:
    """Return the image settings of a model (folder or name); None for a text model. Raises TrainingRefused."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source)
    if config.model_type not in KINDS:
        return None
    vision = config.vision_config
    try:
        settings = json.loads(preprocessor(source))
        mean, deviation = tuple(settings["image_mean"]), tuple(settings["image_std"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingRefused(f"the {PREPROCESSOR} of {source} does not say what its images are: {error}") from None
    merge, frames = vision.spatial_merge_size, vision.temporal_patch_size
    return Sight(config.image_token_id, vision.patch_size, merge, frames, mean, deviation, image_tokens)


def preprocessor(source: str) -> bytes:
    """Return the content of preprocessor_config.json. Raises OSError if there is none."""
    from transformers.utils import cached_file

    return Path(str(cached_file(source, PREPROCESSOR))).read_bytes()


class ImageRows(Rows):
    """Rows on disk, with their images."""

    def __init__(self, folder: Path, sight: Sight) -> None:
        super().__init__(folder)
        self._sight = sight
        self._places = np.load(folder / "places.npy")  # per image: row, offset, height, width
        size = (folder / "images.bin").stat().st_size
        self._pixels: np.ndarray[Any, Any] = (
            np.memmap(folder / "images.bin", np.uint8, "r") if size else np.zeros(0, np.uint8)
        )
        self._first = np.searchsorted(self._places[:, 0], np.arange(len(self) + 1))

    def batch(self, indexes: Sequence[int]) -> Batch:
        """Return the rows of ``indexes`` with their images, if any."""
        batch = super().batch(indexes)
        patches, grids = [], []
        for index in indexes:
            for _, begin, high, wide in self._places[self._first[index] : self._first[index + 1]]:
                pixels = self._pixels[begin : begin + high * wide * 3].reshape(high, wide, 3)
                patches.append(self._sight.patches(pixels))
                grids.append((1, high // self._sight.patch, wide // self._sight.patch))
        if not patches:
            return batch
        images = {
            "pixel_values": np.concatenate(patches),
            "image_grid_thw": np.asarray(grids, np.int64),
            "mm_token_type_ids": (batch.tokens == self._sight.token).astype(np.int64),
        }
        return batch._replace(images=images)


def image_digest(folder: Path) -> str:
    """Return the SHA-256 over names and contents of all images below the data folder."""
    return data_digest(sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES))


def lay(
    paths: Sequence[Path],
    folder: Path,
    tokenizer: Any,
    sight: Sight,
    length: int,
    cache: Path,
    rows_max: int | None = None,
    stops: Collection[int] | None = None,
) -> ImageRows:
    """Return the rows of files whose images are below ``folder``, from ``cache``, or created and stored there."""
    depends = [FORMAT, data_digest(paths), image_digest(folder), digest(tokenizer), list(sight), length, rows_max]

    def write(partial: Path) -> dict[str, Any]:
        tally = Tally()
        rows = _rows(paths, folder, tokenizer, sight, length, tally, stops)
        return {**_write(partial, rows, tokenizer, length, rows_max), "data": tally.facts()}

    return ImageRows(find_or_make(cache, [*depends, sorted(stops or ())], write), sight)


class _Row(NamedTuple):
    tokens: list[int]
    marks: bytes
    images: list[np.ndarray[Any, Any]]


def _rows(
    paths: Sequence[Path],
    folder: Path,
    tokenizer: Any,
    sight: Sight,
    length: int,
    tally: Tally,
    stops: Collection[int] | None,
) -> Iterator[_Row]:
    """Yield records as rows. A record longer than a row is skipped, because half an image is meaningless."""
    for record, place in records(paths, tally):
        document = document_of(record, tokenizer, place, tally)
        if document is None:
            continue
        try:
            images = [_read(source, folder, sight, tally) for source in named_images(record)]
        except OddRecord as odd:
            tally.leave(place, str(odd), document.form)
            continue
        sizes = iter([image.shape[0] * image.shape[1] // sight.side**2 for image in images])
        for tokens, marks in encoded(iter([document]), tokenizer, tally, stops):
            if (written := tokens.count(sight.token)) != len(images):
                why = f"it has {len(images)} images, and the chat template writes {written}: use the model's tokenizer"
                tally.leave(place, why, document.form)
                continue
            times = [next(sizes) if token == sight.token else 1 for token in tokens]
            if sum(times) > length:
                tally.leave(place, f"it is longer than --length {length}", document.form)
                continue
            yield _Row(
                [token for token, count in zip(tokens, times, strict=True) for _ in range(count)],
                bytes(mark for mark, count in zip(marks, times, strict=True) for _ in range(count)),
                images,
            )


def _read(source: object, folder: Path, sight: Sight, tally: Tally) -> np.ndarray[Any, Any]:
    """Return a resized image as bytes of shape (height, width, 3). Raises OddRecord if it cannot be used."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise TrainingRefused("images need pillow, which is not installed: name it in the job's requirements") from None
    label = repr(source if not isinstance(source, str) or len(source) <= 80 else f"{source[:60]}...")
    try:
        with Image.open(_file(source, folder)) as stored:
            if stored.width * stored.height > _PIXELS_MAX:
                raise ValueError(f"it has {stored.width} x {stored.height} pixels")
            tally.since(3, changed=stored.getexif().get(_TURNED, 1) != 1)
            image = ImageOps.exif_transpose(stored)  # servers rotate images in the same way
            columns, rows = sight.size(image.width, image.height)
            sized = image.convert("RGB").resize((columns * sight.side, rows * sight.side), Image.Resampling.BICUBIC)
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        reason = "it is no image that can be read" if isinstance(error, UnidentifiedImageError) else str(error)
        raise OddRecord(
            f"the image {label} cannot be used: {reason}. An image is a path below the data folder, or a file in base64"
        ) from None
    return np.asarray(sized)


def _file(source: object, folder: Path) -> Path | io.BytesIO:
    """Return a path or file for Pillow. Raises ValueError if ``source`` is neither a path in the folder nor base64."""
    if not isinstance(source, str) or not source:
        raise ValueError("it is not a text")
    head, comma, body = source.partition(",")
    if source.startswith("data:") and comma and head.endswith(";base64"):
        return io.BytesIO(_bytes(body))
    if Path(source).suffix.lower() in _SUFFIXES:
        path = (folder / source).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError("it lies outside of the folder")
        return path
    return io.BytesIO(_bytes(source))


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"it is no file of {', '.join(sorted(_SUFFIXES))}, and no base64") from None


def _write(folder: Path, rows: Iterator[_Row], tokenizer: Any, length: int, rows_max: int | None) -> dict[str, int]:
    """Write rows and images one by one; return the counts of rows and tokens, and the row length."""
    filler, count, written, begin = tokenizer.eos_token_id or 0, 0, 0, 0
    places: list[tuple[int, int, int, int]] = []
    files = [(folder / name).open("wb") for name in ("tokens.bin", "marks.bin", "images.bin")]
    with files[0] as tokens_file, files[1] as marks_file, files[2] as images_file:
        for tokens, marks, images in rows:
            space = length - len(tokens)
            tokens_file.write(np.asarray([*tokens, *[filler] * space], np.int32).tobytes())
            marks_file.write(marks + bytes(space))  # tokens do not attend to the padding after them
            for image in images:
                places.append((count, begin, image.shape[0], image.shape[1]))
                images_file.write(image.tobytes())
                begin += image.size
            count, written = count + 1, written + len(tokens)
            if count == rows_max:
                break
    np.save(folder / "places.npy", np.asarray(places, np.int64).reshape(-1, 4))
    return {"rows": count, "length": length, "tokens": written}
