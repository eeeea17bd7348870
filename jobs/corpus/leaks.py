"""Leaks: which items of a test set occur in a corpus, also reformatted, reworded or with other names.

Items are few and texts many: runs of words of the items are indexed, and only texts that share one are examined. That
gives the exact share of an item in a text; MinHash would estimate the similarity of both as a whole.
"""

import keyword
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from jobs.corpus.options import SHINGLE_WORDS
from jobs.payload.bounds import read_json

SHARED = 0.35  # of an item's runs of words in one text, without boilerplate
OF_EXCERPTS = 0.8  # the same with boilerplate, for excerpts of one project, which share passages
_RUNS_MIN = 4  # minimum of shared runs, or all of a shorter item
_PASSAGE_RUNS = 13 - SHINGLE_WORDS + 1  # 13 words in a row
_POPULAR_TEXTS = 20  # a run in more texts is boilerplate
_POPULAR_ITEMS = 0.01  # so is a run in a larger share of items
_ITEMS = (2, 20)  # minimum of these limits: for a run to be rare, and to be searched for at all
_SHAPE_RUN = 24  # tokens
_RUNS_MAX = 2_000_000  # indexed runs, half a gigabyte; of each item the first ones
_CANDIDATES_MAX = 64  # different parts of an item that are kept for comparison
_PLAIN = bytes(ord(chr(code).lower()) if chr(code).isalnum() and code < 128 else 32 for code in range(256))
_TOKEN = re.compile(r"(\"\"\"|''')[\s\S]*?\1|#[^\n]*|//[^\n]*|\"[^\"\n]*\"|'[^'\n]*'|[^\W\d]\w*|\d[\w.]*|\s+")
_KEPT = (*keyword.kwlist, "function", "let", "const", "new", "this", "null", "do", "end", "fn")
_SIGN_OF = {word: chr(0x100 + place) for place, word in enumerate(_KEPT)}


class _ItemView(NamedTuple):
    """An item as words or as the shape of code, and its length."""

    item: str
    is_shape: bool
    length: int


class ItemIndex:
    """An index of the items of a test set, for searching corpora."""

    def __init__(self, items: Mapping[str, str], shared: float = SHARED) -> None:
        """Index the items; an item is found in a text with at least the share ``shared`` of its runs."""
        self._shared = shared
        self._views: list[_ItemView] = []
        self._places: dict[int, list[tuple[int, int]]] = {}  # by run: (view, position)
        for item, text in items.items():
            for is_shape, (length, runs) in enumerate(_views(text)):
                for place, run in enumerate(islice(dict.fromkeys(runs), _RUNS_MAX // len(items))):
                    self._places.setdefault(run, []).append((len(self._views), place))
                self._views.append(_ItemView(item, bool(is_shape), length))
        few, many = (max(count, _POPULAR_ITEMS * len(items)) for count in _ITEMS)
        for run in [run for run, places in self._places.items() if len(places) > many]:
            del self._places[run]  # counting it would take a step per item and text
        self._whole = self._parts(self._places)
        self._common = self._parts(run for run, places in self._places.items() if len(places) > few)

    def seen_in(self, rows: Iterable[tuple[str, str]]) -> dict[str, dict[str, str]]:
        """Return the items found in ``rows`` (source, text), with ``kind`` and ``source`` of the best match."""
        texts_of: Counter[int] = Counter()
        held: defaultdict[int, dict[tuple[int, bool], str]] = defaultdict(dict)  # by view: part, exact -> source
        for source, number, candidate in self._matches(rows, texts_of):
            held[number].setdefault(candidate, source)
            if len(held[number]) > _CANDIDATES_MAX:
                del held[number][min(held[number], key=_size)]
        boilerplate_of = self._boilerplate(texts_of, _POPULAR_TEXTS)
        leaks: dict[str, dict[str, str]] = {}
        for number, candidates in held.items():
            boilerplate = boilerplate_of[number]
            best, own = max(candidates, key=_size), max((part & ~boilerplate).bit_count() for part, _ in candidates)
            if kind := self._kind(number, *best, own, boilerplate):
                leaks.setdefault(self._views[number].item, {"kind": kind, "source": candidates[best]})
        return leaks

    def texts_with_items(self, rows: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return the names of the ``rows`` (name, text) that hold an item, with the item.

        Of what is left, also of a part of it that is not much smaller, :meth:`seen_in` finds nothing: the limit beyond
        which a run of words is boilerplate depends on the number of texts, so that twice the limit is tried as well.
        """
        texts_of: Counter[int] = Counter()
        matches = [
            (name, number, candidate)
            for name, number, candidate in self._matches(rows, texts_of)
            if candidate[0].bit_count() >= min(_RUNS_MIN, self._whole[number].bit_count())
        ]
        holding: dict[str, str] = {}
        for boilerplate in (self._boilerplate(texts_of, times * _POPULAR_TEXTS) for times in (1, 2)):
            for name, number, (part, exact) in matches:
                if self._kind(number, part, exact, (part & ~boilerplate[number]).bit_count(), boilerplate[number]):
                    holding.setdefault(name, self._views[number].item)
        return holding

    def _matches(
        self, rows: Iterable[tuple[str, str]], texts_of: Counter[int]
    ) -> Iterator[tuple[str, int, tuple[int, bool]]]:
        """Yield (name of a row, view, (part of the item in the text, is all of it)); count the texts of each run."""
        for name, text in rows:
            for length, runs in _views(text):
                if self._places.keys().isdisjoint(runs):
                    continue
                shared = {run for run in runs if run in self._places}
                texts_of.update(shared)
                for number, part in self._parts(shared).items():
                    yield name, number, (part, part == self._whole[number] and length == self._views[number].length)

    def _boilerplate(self, texts_of: Mapping[int, int], limit: int) -> defaultdict[int, int]:
        """Return by view, as bits, which of its runs are in too many texts or items."""
        popular = self._parts(run for run, texts in texts_of.items() if texts > limit)
        for number, part in self._common.items():
            popular[number] |= part
        return popular

    def _parts(self, runs: Iterable[int]) -> defaultdict[int, int]:
        """Return by view, as bits, which of its runs are among ``runs``."""
        parts: defaultdict[int, int] = defaultdict(int)
        for run in runs:
            for number, place in self._places[run]:
                parts[number] |= 1 << place
        return parts

    def _kind(self, number: int, best: int, exact: bool, own: int, boilerplate: int) -> str:  # noqa: FBT001 - of a pair
        """Return how an item occurs in the text with its ``best`` part; "" if it does not. ``own``: its rare runs."""
        whole = self._whole[number]
        mostly = best.bit_count() >= OF_EXCERPTS * whole.bit_count()
        if self._views[number].is_shape:
            return "renamed" if mostly and whole.bit_count() >= _SHAPE_RUN else ""
        needed = max(self._shared * (whole & ~boilerplate).bit_count(), min(_RUNS_MIN, whole.bit_count()))
        if exact or not (mostly or own >= needed):
            return "exact" if exact else ""
        for _ in range(_PASSAGE_RUNS - 1):
            best &= best >> 1
        return "passage" if best else "reworded"


def _size(candidate: tuple[int, bool]) -> tuple[int, bool]:
    return candidate[0].bit_count(), candidate[1]


def _views(text: str) -> Iterator[tuple[int, list[int]]]:
    """Yield length and hashed runs of a text: of its words and, if it looks like code, of its shape."""
    if text.isascii():
        words: Sequence[Any] = text.encode().translate(_PLAIN).split()
    else:
        words = [word.encode() for word in re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).lower())]
    yield len(words), _runs(words, SHINGLE_WORDS)
    if "def " in text or "return" in text:
        shape = _TOKEN.sub(_sign, text)
        yield len(shape), [hash(shape[at : at + _SHAPE_RUN]) for at in range(len(shape) - _SHAPE_RUN + 1)]


def _runs(words: Sequence[Any], length: int) -> list[int]:
    return [*map(hash, zip(*(islice(words, at, None) for at in range(min(length, len(words)))), strict=False))]


def _sign(token: re.Match[str]) -> str:
    word = token[0]
    return _SIGN_OF.get(word, "") or ("x" if word[0].isalpha() or word[0] == "_" else "0" if word[0].isdigit() else "")


def texts_with_items(file: Path, items: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of those texts in a file of rows and blank lines that hold an item, with the name of the item."""
    with file.open("rb") as lines:
        rows = map(read_json, filter(bytes.strip, lines))
        return ItemIndex(items).texts_with_items((row["id"], row["text"]) for row in rows)


def text_of(value: object) -> str:
    """Return all texts of an item's record, one per line, without id, cluster and domain."""
    match value:
        case str():
            return value
        case Mapping():
            return "\n".join(text_of(part) for key, part in value.items() if key not in {"id", "cluster", "domain"})
        case list():
            return "\n".join(map(text_of, value))
        case _:
            return ""
