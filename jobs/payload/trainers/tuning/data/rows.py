"""Sequence packing: tokenise documents and pack them once into rows of fixed length; and the order of the rows.

A document longer than a row is cut. Short documents share a row without attending to each other. Rows are stored in
two memory-mapped arrays: tokens, and marks of learned tokens and of beginnings of documents. So a corpus may exceed the
memory. The cache key is a digest of everything that the rows depend on.
"""

import bisect
import functools
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import unicodedata
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from ..errors import UnreadableData
from .documents import BEGIN, END, TokenDocument, digest, documents, first_lost, special_texts
from .reader import data_digest
from .tally import Tally, facts_told, shortened, training_data

if TYPE_CHECKING:
    from ...trainer_kit import Training  # calibrate.py, started as a script, has no package above this one

# Packing of pieces of documents into rows on disk.
LEARNED, BEGINS = 1, 2  # bits of a mark
FACTS = "rows.json"  # written last: marks a complete folder, unless its files were damaged later
_PIECES = 1 << 20  # packed together, in one window
_TOKENS_AT_ONCE = 1 << 22  # tokens of the rows assembled in memory


def write_rows(
    folder: Path,
    pieces: Iterator[tuple[Sequence[int], bytes]],
    filler: int,
    length: int,
    rows_max: int | None,
    *,
    alone: bool = False,
) -> Mapping[str, int]:
    """Write ``tokens.bin`` (int32) and ``marks.bin`` (uint8) in rows of ``length`` tokens; return their counts.

    ``pieces`` are (tokens, marks), each at most a row long; ``filler`` is the padding token. ``rows_max`` limits the
    rows, and the pieces that are read; None means all. ``alone``: each piece gets its own row.
    """
    rows = tokens = written = windows = 0
    enough = None if rows_max is None else rows_max * length
    with (
        _Flat(folder) as flat,
        (folder / "tokens.bin").open("wb") as first,
        (folder / "marks.bin").open("wb") as second,
    ):
        while enough is None or written < enough:
            sizes = array("i")
            for piece, marks in islice(pieces, _PIECES):
                flat.add(piece, marks)
                sizes.append(len(piece))
                tokens += len(piece)
                written += length if alone else len(piece)
                if enough is not None and written >= enough:
                    break
            if not sizes:
                break
            places = np.arange(len(sizes), dtype=np.int32), np.zeros(len(sizes), np.int32), len(sizes)
            placed = places if alone else place_pieces(sizes, length)
            count = placed[2] if rows_max is None else min(placed[2], rows_max - rows)
            for block, marks_block in _blocks(flat, np.frombuffer(sizes, np.int32), placed, count, (length, filler)):
                first.write(block.data)
                second.write(marks_block.data)
            rows, windows = rows + count, windows + 1
            flat.empty()
    facts = {"rows": rows, "length": length, "tokens": tokens, "windows": windows}
    return {**facts, "alone": 1} if alone else facts


def place_pieces(sizes: Sequence[int], length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """Return row and offset of each piece, and the number of rows. Algorithm: best-fit decreasing."""
    lengths = np.asarray(sizes, np.int32)
    row_of, first_of = np.zeros(len(lengths), np.int32), np.zeros(len(lengths), np.int32)
    open_rows: dict[int, list[int]] = {}  # row numbers by remaining space
    rooms: list[int] = []  # its keys, ascending
    rows = 0
    for piece in np.argsort(-lengths, kind="stable"):
        size = int(lengths[piece])
        at = bisect.bisect_left(rooms, size)
        if at < len(rooms):
            room = rooms[at]
            row = open_rows[room].pop()
            if not open_rows[room]:
                del open_rows[room], rooms[at]
        else:
            room, row, rows = length, rows, rows + 1
        row_of[piece], first_of[piece] = row, length - room
        if left := room - size:
            if left not in open_rows:
                open_rows[left] = []
                bisect.insort(rooms, left)
            open_rows[left].append(row)
    return row_of, first_of, rows


def seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Sync the files of a folder to disk, and write FACTS with their sizes, by which ``is_whole`` finds cut files."""
    sizes = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sizes[path.name] = path.stat().st_size
    (folder / FACTS).write_text(json.dumps({**facts, "files": sizes}))


def is_whole(folder: Path) -> bool:
    """Return whether the folder has FACTS, and all its files have the recorded size."""
    try:
        facts = json.loads((folder / FACTS).read_bytes())
        tokens = int(facts["rows"]) * int(facts["length"])
        sizes = facts.get("files") or {"tokens.bin": 4 * tokens, "marks.bin": tokens}  # older versions recorded none
        return all((folder / name).stat().st_size == size for name, size in sizes.items() if size)
    except (OSError, ValueError, KeyError, TypeError):
        return False


class _Flat:
    """Temporary files of the tokens and marks of all pieces in reading order, until they are packed."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / name for name in ("flat-tokens", "flat-marks")]
        self._files = [path.open("w+b") for path in self._paths]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink()

    def add(self, tokens: Sequence[int], marks: bytes) -> None:
        self._files[0].write(np.asarray(tokens, np.int32).tobytes())
        self._files[1].write(marks)

    def read(self, first: int, tokens: np.ndarray[Any, Any], marks: np.ndarray[Any, Any]) -> None:
        """Fill two arrays from the offset ``first``, in tokens."""
        os.preadv(self._files[0].fileno(), [tokens.data], 4 * first)
        os.preadv(self._files[1].fileno(), [marks.data], first)

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def empty(self) -> None:
        for file in self._files:
            file.seek(0)
            file.truncate()


def _blocks(
    flat: _Flat,
    sizes: np.ndarray[Any, Any],
    placed: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int],
    count: int,
    form: tuple[int, int],
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield tokens and marks of the first ``count`` rows in blocks. ``form``: row length, padding token."""
    row_of, first_of, _ = placed
    length, filler = form
    flat.flush()
    begins = np.cumsum(sizes, dtype=np.int64) - sizes
    order = np.lexsort((first_of, row_of))
    at_once = max(1, _TOKENS_AT_ONCE // length)
    for row in range(0, count, at_once):
        some = min(at_once, count - row)
        tokens, marks = np.full((some, length), filler, np.int32), np.zeros((some, length), np.uint8)
        ends = np.zeros(some, np.int64)
        where = np.searchsorted(row_of[order], (row, row + some))
        for piece in order[where[0] : where[1]]:
            own, first = row_of[piece] - row, first_of[piece]
            ends[own] = end = first + sizes[piece]
            flat.read(int(begins[piece]), tokens[own, first:end], marks[own, first:end])
        short = np.flatnonzero(ends < length)
        marks[short, ends[short]] |= BEGINS  # padding counts as a separate document: nothing attends to it
        yield tokens, marks


FORMAT = 3  # of the rows on disk
_DOCUMENTS_AT_ONCE, _CHARACTERS_AT_ONCE = 1_000, 1 << 22  # batch limits of the tokenizer
_ROUND_TRIPS = 200  # documents at the start of a corpus whose tokens are decoded and compared with the text
_IGNORED = -100  # target that the loss ignores


class Batch(NamedTuple):
    """A micro-batch, arrays of (rows, length). ``positions`` restart and ``documents`` counts up at each document."""

    tokens: np.ndarray[Any, Any]
    targets: np.ndarray[Any, Any]  # the next token, or -100 where nothing is learned
    positions: np.ndarray[Any, Any]
    documents: np.ndarray[Any, Any]
    images: Mapping[str, np.ndarray[Any, Any]] = {}  # image inputs, by argument name of the model


class Rows:
    """Packed rows of a corpus."""

    metrics: Mapping[str, float] = {}  # added to the metrics of each checkpoint

    def __init__(self, folder: Path) -> None:
        self.facts = json.loads((folder / FACTS).read_bytes())
        self.length = int(self.facts["length"])
        shape = (int(self.facts["rows"]), self.length)
        empty = not shape[0]  # an empty file cannot be memory-mapped
        self._tokens: np.ndarray[Any, Any] = (
            np.zeros(shape, np.int32) if empty else np.memmap(folder / "tokens.bin", np.int32, "r", shape=shape)
        )
        self._marks: np.ndarray[Any, Any] = (
            np.zeros(shape, np.uint8) if empty else np.memmap(folder / "marks.bin", np.uint8, "r", shape=shape)
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._tokens)

    @functools.cached_property
    def is_shared(self) -> bool:
        """Whether any row has a second document; padding after a document counts as a document."""
        some = max(1, (1 << 24) // self.length)
        parts = (self._marks[first : first + some, 1:] for first in range(0, len(self), some))
        return any(bool((part & BEGINS).any()) for part in parts)

    @property
    def highest_token(self) -> int:
        """The highest token ID; -1 if there are no rows."""
        some = max(1, (1 << 22) // self.length)
        return max((int(self._tokens[first : first + some].max()) for first in range(0, len(self), some)), default=-1)

    def batch(self, indexes: Sequence[int]) -> Batch:
        """Return the rows of ``indexes``. The target at a position is the next token of the same document."""
        tokens, marks = self._tokens[list(indexes)].astype(np.int64), self._marks[list(indexes)]
        begins = (marks & BEGINS) > 0
        places = np.broadcast_to(np.arange(self.length), tokens.shape)
        positions = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
        targets = np.full_like(tokens, _IGNORED)
        learned = ((marks & LEARNED) > 0) & ~begins
        targets[:, :-1] = np.where(learned, tokens, _IGNORED)[:, 1:]
        return Batch(tokens, targets, positions, np.cumsum(begins, axis=1))

    def targets(self, indexes: Sequence[int]) -> int:
        """Return the number of targets in the rows of ``indexes``."""
        marks = self._marks[list(indexes)][:, 1:]
        return int(np.count_nonzero((marks & (LEARNED | BEGINS)) == LEARNED))


class RowOrder:
    """The rows of each step, the same for any number of devices. An epoch has all rows, shuffled by seed and epoch."""

    def __init__(self, rows: int, rows_per_step: int, seed: int) -> None:
        self._rows, self._per_step, self._seed = rows, rows_per_step, seed
        self._round, self._shuffled = -1, np.zeros(0, np.int64)

    def step(self, step: int) -> list[int]:
        """Return the rows of a step, counted from 0."""
        first = step * self._per_step
        return [self._at(place) for place in range(first, first + self._per_step)]

    def _at(self, place: int) -> int:
        number, place = divmod(place, self._rows)
        if number != self._round:
            # RandomState, unlike numpy's Generator, guarantees the same stream in all future versions.
            self._shuffled = np.random.RandomState([self._seed & 0xFFFFFFFF, number]).permutation(self._rows)
            self._round = number
        return int(self._shuffled[place])


def pack(
    paths: Sequence[Path],
    tokenizer: Any,
    length: int,
    cache: Path,
    rows_max: int | None = None,
    *,
    alone: bool = False,
    stops: Collection[int] | None = None,
) -> Rows:
    """Return the packed rows of files, from ``cache``, or created there atomically.

    ``alone``: each document gets its own rows, for models that cannot isolate packed documents. ``stops``: see
    ``encoded``. ``rows_max`` None means all rows.
    """
    depends = [FORMAT, data_digest(paths), digest(tokenizer), length, rows_max, alone, sorted(stops or ())]

    def write(partial: Path) -> Mapping[str, Any]:
        tally = Tally()
        pieces = _cut(encoded(documents(paths, tokenizer, tally), tokenizer, tally, stops), length, tally)
        facts = write_rows(partial, pieces, tokenizer.eos_token_id or 0, length, rows_max, alone=alone)
        return {**facts, "data": tally.facts()}

    return Rows(find_or_make(cache, depends, write))


def find_or_make(cache: Path, depends: list[Any], write: Callable[[Path], Mapping[str, Any]]) -> Path:
    """Return the folder of rows named by ``depends``, created atomically by ``write`` if needed. Raises OSError."""
    folder = cache / hashlib.sha256(json.dumps(depends).encode()).hexdigest()
    if is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        if folder.exists():
            print(f"finetune: the rows in {folder} are not whole, and are made again", file=sys.stderr)
            folder.rename(partial / "broken")  # processes with open files can still read them
            shutil.rmtree(partial / "broken")
        seal(partial, {"format": FORMAT, **write(partial)})
        partial.rename(folder)
    except OSError:
        if not is_whole(folder):  # else another process created the same folder first
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def encoded(
    source: Iterator[TokenDocument], tokenizer: Any, tally: Tally, stops: Collection[int] | None = None
) -> Iterator[tuple[list[int], bytes]]:
    """Yield tokens and marks of documents. Documents whose tokens do not decode to their text are skipped and counted.

    Pieces are tokenised separately, as prompts are in inference, unless that changes the text. ``stops``: tokens at
    which generation ends; an answer must end with one of them. None skips that check.
    """
    before = tokens_before(tokenizer)
    tally.since(3, changed=tokenizer.eos_token_id in before)
    after = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    count = 0
    marks_of_tokenizer = special_texts(tokenizer)
    for batch in _batches(source):
        pieces = [piece for document in batch for piece in document.pieces]
        if count < _ROUND_TRIPS:
            plain = (piece.text for piece in pieces if not any(mark in piece.text for mark in marks_of_tokenizer))
            lost = first_lost(tokenizer, islice(plain, _ROUND_TRIPS))
            count += len(batch)
            if lost is not None:
                raise UnreadableData(f"the tokenizer turns {lost[0][:200]!r} of the corpus into {lost[1][:200]!r}")
        parts = iter(tokenizer([piece.text for piece in pieces], add_special_tokens=False, verbose=False)["input_ids"])
        for document in batch:
            ids = [next(parts) for _ in document.pieces]
            for number, piece in enumerate(document.pieces):
                if not piece.meant and any(mark in piece.text for mark in marks_of_tokenizer):
                    ids[number] = literal(tokenizer, piece.text)
                    tally.since(2, changed=True)
            body = _body(document, ids, tokenizer, marks_of_tokenizer, tally)
            if body is None:
                tally.leave(document.place, "the tokenizer does not decode its tokens to its text", document.form)
                continue
            tokens, marks = body
            if document.plain:
                tokens, marks = before + tokens + after, bytes(len(before)) + marks + bytes([LEARNED]) * len(after)
            if stops is not None and document.form != "text" and (why := endless(tokens, marks, tokenizer, stops)):
                tally.leave(document.place, why, document.form)
            elif not any(mark & LEARNED for mark in marks[1:]):
                tally.leave(document.place, "none of its tokens is to be learned", document.form)
            else:
                yield tokens, marks


def tokens_before(tokenizer: Any) -> list[int]:
    """Return the tokens that a tokenizer puts before a text (BOS); for OPT that is the EOS token."""
    alone, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    at = next((at for at in range(len(whole)) if whole[at : at + len(alone)] == alone), 0)
    before: list[int] = whole[:at]
    if not before and tokenizer.init_kwargs.get("add_bos_token"):  # configured, but the tokenizer does not add it
        before = [tokenizer.bos_token_id]
    return before


def literal(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text from the data, in which no string is parsed as a special token."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids


def _body(
    document: TokenDocument, ids: list[list[int]], tokenizer: Any, special: Sequence[str], tally: Tally
) -> tuple[list[int], bytes] | None:
    """Return tokens and marks of a document whose tokens decode to its text; None if they do not.

    Tokenizers such as Llama 2's add a space at the start of each piece. Then the whole text is tokenised at once, and a
    token that spans the end of a prompt and the start of its completion is learned.
    """
    tokens = [token for piece in ids for token in piece]
    text = "".join(piece.text for piece in document.pieces)
    proven = len(ids) == 1 and not any(mark in text for mark in special)  # by the first documents of the corpus
    if proven or _decodes_to(tokenizer, tokens, text, special):
        marked = zip(document.pieces, ids, strict=True)
        return tokens, b"".join(bytes([LEARNED if piece.learned else 0]) * len(part) for piece, part in marked)
    if len({piece.meant for piece in document.pieces}) > 1 or not getattr(tokenizer, "is_fast", False):
        return None
    arguments = {} if document.pieces[0].meant else {"split_special_tokens": True}
    whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False, **arguments)
    if not _decodes_to(tokenizer, whole["input_ids"], text, special):
        return None
    tally.since(2, changed=True)
    learned = np.zeros(len(text) + 1, bool)
    first = 0
    for piece in document.pieces:
        learned[first : first + len(piece.text)] = piece.learned
        first += len(piece.text)
    spans = whole["offset_mapping"]
    return whole["input_ids"], bytes(LEARNED * bool(learned[begin : max(end, begin + 1)].any()) for begin, end in spans)


def _decodes_to(tokenizer: Any, tokens: list[int], text: str, special: Sequence[str]) -> bool:
    """Return whether tokens decode to a text, up to Unicode NFC and a space that some decoders add after marks."""
    back = tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if back == text:
        return True
    after = re.compile(f"({'|'.join(map(re.escape, special))}) ") if special else None
    one, other = (
        unicodedata.normalize("NFC", part if after is None else after.sub(r"\1", part)) for part in (back, text)
    )
    return one == other


def endless(tokens: list[int], marks: bytes, tokenizer: Any, stops: Collection[int]) -> str:
    """Return why a document does not teach to stop; "" if its last learned token that is not blank is in ``stops``."""
    learned = [token for token, mark in zip(tokens, marks, strict=True) if mark & LEARNED]
    while learned and learned[-1] not in stops and not tokenizer.decode(learned[-1:]).strip():
        learned.pop()
    if not learned or learned[-1] in stops:
        return ""
    ends = ", ".join(repr(tokenizer.decode([token])) for token in sorted(stops)) or "no token at all"
    return (
        f"it teaches no end: generation stops at {ends}, and its answer ends with {tokenizer.decode(learned[-1:])!r}. "
        "Let the chat template end an answer with such a token, or name its own as eos_token in tokenizer_config.json "
        "or as eos_token_id in generation_config.json of the model"
    )


def _batches(source: Iterator[TokenDocument]) -> Iterator[list[TokenDocument]]:
    """Yield documents in batches that are small enough to keep memory low."""
    batch: list[TokenDocument] = []
    characters = 0
    for document in source:
        batch.append(document)
        characters += sum(len(piece.text) for piece in document.pieces)
        if len(batch) == _DOCUMENTS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _cut(source: Iterator[tuple[list[int], bytes]], length: int, tally: Tally) -> Iterator[tuple[list[int], bytes]]:
    """Yield documents split into pieces of at most a row; pieces without a target are skipped."""
    for tokens, marks in source:
        tally.cut += len(tokens) > length
        for first in range(0, len(tokens), length):
            piece = marks[first : first + length]
            if any(mark & LEARNED for mark in piece[1:]):
                yield tokens[first : first + length], bytes([piece[0] | BEGINS]) + piece[1:]


def draw_seed(seed: int, step: int, place: int) -> int:
    """Return the dropout seed of a micro-batch, from seed, step and its offset only, independent of RNG states."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step} {place}".encode()).digest()[:7], "big")


# Report of the training data before the first step: counts, and samples with marks around what is learned.
SAMPLES = 3
UNWRITTEN = f"{BEGIN}...{END}"  # placeholder for text that the model generates and learns later
_TEXT_MAX = 320  # characters of a sample, half of them from its end
_REASON_MAX = 160  # characters of a reason or a place
_LINE_MAX = 4_000  # bytes of a report: a line of progress has fewer than 4 KiB


def describe(
    training: "Training", facts: dict[str, Any], size: tuple[int, int], texts: Sequence[str], places: int = 0
) -> None:
    """Report and print the data: a tally's ``facts``, ``size`` (rows, tokens), samples, ``places`` (0: unknown)."""
    data = training_data(facts, size, places)
    data_text = data
    for most in (_TEXT_MAX, 160, 80, 40, 20):  # a character may take twelve bytes
        reasons = [[why[:most][:_REASON_MAX], count, at[-most:][-_REASON_MAX:]] for why, count, at in data["left_out"]]
        data_text = {**data, "left_out": reasons, "samples": [shortened(text, most) for text in texts]}
        if len(json.dumps(data_text)) < _LINE_MAX:
            break
    training.describe_data(data_text)
    lines = [f"sample {number}: {shortened(text, _TEXT_MAX)!r}" for number, text in enumerate(texts, 1)]
    print("\n".join(f"finetune: {line}" for line in (facts_told(data), *lines)), flush=True)


def spread(count: int) -> list[int]:
    """Return up to three evenly spaced indexes below ``count``, for samples."""
    return sorted({count * part // SAMPLES for part in range(SAMPLES)} if count else ())


def samples(rows: Rows, tokenizer: Any) -> list[str]:
    """Return the first document of up to three rows as text, with white brackets around what is learned."""
    texts = []
    for index in spread(len(rows)):
        batch = rows.batch([index])
        size = int(np.count_nonzero(batch.documents[0] == batch.documents[0, 0]))
        learned = np.concatenate(([False], batch.targets[0, : size - 1] >= 0))
        texts.append(marked(batch.tokens[0, :size].tolist(), learned.tolist(), tokenizer))
    return texts


def learned_after(text: str, whole: str) -> str:
    """Return the rest of ``whole`` after its common prefix with ``text``, in white brackets."""
    same = next((at for at, pair in enumerate(zip(text, whole, strict=False)) if pair[0] != pair[1]), len(text))
    return f"{BEGIN}{whole[same:]}{END}"


def marked(tokens: Sequence[int], learned: Sequence[bool], tokenizer: Any) -> str:
    """Return tokens as text, with white brackets around the learned ones."""
    text = ""
    for is_learned, part in groupby(zip(tokens, learned, strict=True), key=lambda pair: pair[1]):
        decoded = tokenizer.decode([token for token, _ in part], skip_special_tokens=False)
        text += f"{BEGIN}{decoded}{END}" if is_learned else decoded
    return text
