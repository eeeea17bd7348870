"""Leaks: find the items of a test set that occur in a corpus, also reformatted, reworded or with other names.

There are few items and many texts. So the items are indexed by their runs of consecutive words, and only texts that
share a run are examined. That gives the exact share of an item in a text; MinHash estimates only whole-text similarity.
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

SHARED = 0.35  # share of an item's runs, boilerplate excluded, that a text with the item has
OF_EXCERPTS = 0.8  # the same, boilerplate included; for excerpts of one project, which share passages
_RUNS_MIN = 4  # fewer shared runs prove nothing, except all runs of a shorter item
_PASSAGE_RUNS = 13 - SHINGLE_WORDS + 1  # runs of 13 consecutive words, which count as a copied passage
_POPULAR_TEXTS = 20  # a run in more texts is boilerplate
_POPULAR_ITEMS = 0.01  # a run in a larger share of the items is boilerplate too
_ITEMS = (2, 20)  # but a run in at most 2 items is not boilerplate, and a run in at most 20 is always indexed
_SHAPE_RUN = 24  # tokens of code in one run
_RUNS_MAX = 2_000_000  # indexed runs (half a gigabyte), shared equally by the items; the first runs of each
_CANDIDATES_MAX = 64  # largest different parts of an item that are kept for comparison
_PLAIN = bytes(ord(chr(code).lower()) if chr(code).isalnum() and code < 128 else 32 for code in range(256))
_TOKEN = re.compile(r"(\"\"\"|''')[\s\S]*?\1|#[^\n]*|//[^\n]*|\"[^\"\n]*\"|'[^'\n]*'|[^\W\d]\w*|\d[\w.]*|\s+")
_KEPT = (*keyword.kwlist, "function", "let", "const", "new", "this", "null", "do", "end", "fn")
_SIGN_OF = {word: chr(0x100 + place) for place, word in enumerate(_KEPT)}


class _ItemView(NamedTuple):
    """An item seen as words (length in words) or as the shape of code (length in tokens)."""

    item: str
    is_shape: bool
    length: int


class ItemIndex:
    """An index of the items of a test set, for searching corpora."""

    def __init__(self, items: Mapping[str, str], shared: float = SHARED) -> None:
        """Index the items; an item is found in a text with at least the share ``shared`` of its runs."""
        self._shared = shared
        self._views: list[_ItemView] = []
        self._places: dict[int, list[tuple[int, int]]] = {}  # by hash of a run: (view number, position in the view)
        for item, text in items.items():
            for is_shape, (length, runs) in enumerate(_views(text)):
                for place, run in enumerate(islice(dict.fromkeys(runs), _RUNS_MAX // len(items))):
                    self._places.setdefault(run, []).append((len(self._views), place))
                self._views.append(_ItemView(item, bool(is_shape), length))
        few, many = (max(count, _POPULAR_ITEMS * len(items)) for count in _ITEMS)
        for run in [run for run, places in self._places.items() if len(places) > many]:
            del self._places[run]  # searching for it would cost one step per item and text
        self._whole = self._parts(self._places)
        self._common = self._parts(run for run, places in self._places.items() if len(places) > few)

    def seen_in(self, rows: Iterable[tuple[str, str]]) -> dict[str, dict[str, str]]:
        """Return the items found in ``rows`` (source, text), with ``kind`` and ``source`` of the best match."""
        texts_of: Counter[int] = Counter()
        parts_of: defaultdict[int, dict[tuple[int, bool], str]] = defaultdict(dict)  # by view: (part, exact) -> source
        for source, number, candidate in self._matches(rows, texts_of):
            parts_of[number].setdefault(candidate, source)
            if len(parts_of[number]) > _CANDIDATES_MAX:
                del parts_of[number][min(parts_of[number], key=_size)]
        boilerplate_of = self._boilerplate(texts_of, _POPULAR_TEXTS)
        leaks: dict[str, dict[str, str]] = {}
        for number, candidates in parts_of.items():
            boilerplate = boilerplate_of[number]
            best, own = max(candidates, key=_size), max((part & ~boilerplate).bit_count() for part, _ in candidates)
            if kind := self._kind(number, *best, own, boilerplate):
                leaks.setdefault(self._views[number].item, {"kind": kind, "source": candidates[best]})
        return leaks

    def texts_with_items(self, rows: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return the names of the ``rows`` (name, text) that hold an item, with the name of the item.

        If these rows are removed, :meth:`seen_in` finds no item in the others. Without them fewer runs are boilerplate,
        so the limit for boilerplate is also tried at its double.
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
        """Yield (row name, view number, (the item's runs in the text as bits, is it exact)); count texts by run."""
        for name, text in rows:
            for length, runs in _views(text):
                if self._places.keys().isdisjoint(runs):
                    continue
                shared = {run for run in runs if run in self._places}
                texts_of.update(shared)
                for number, part in self._parts(shared).items():
                    yield name, number, (part, part == self._whole[number] and length == self._views[number].length)

    def _boilerplate(self, texts_of: Mapping[int, int], limit: int) -> defaultdict[int, int]:
        """Return the runs that are in more than ``limit`` texts or in too many items, as bits by view number."""
        popular = self._parts(run for run, texts in texts_of.items() if texts > limit)
        for number, part in self._common.items():
            popular[number] |= part
        return popular

    def _parts(self, runs: Iterable[int]) -> defaultdict[int, int]:
        """Return each view's runs that are among ``runs``, as bits by view number."""
        parts: defaultdict[int, int] = defaultdict(int)
        for run in runs:
            for number, place in self._places[run]:
                parts[number] |= 1 << place
        return parts

    def _kind(self, number: int, best: int, exact: bool, own: int, boilerplate: int) -> str:  # noqa: FBT001 - of a pair
        """Return the kind of a leak; "" if there is none. ``best``: runs in the text; ``own``: count of rare ones."""
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
    """Yield the length and the hashed runs of a text's words and, if it looks like code, of its shape."""
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
    """Return the IDs of texts that hold an item, with the item's name, from a file of rows and blank lines."""
    with file.open("rb") as lines:
        rows = map(read_json, filter(bytes.strip, lines))
        return ItemIndex(items).texts_with_items((row["id"], row["text"]) for row in rows)


def text_of(value: object) -> str:
    """Return all texts of an item's record, one per line, without the keys ``id``, ``cluster`` and ``domain``."""
    match value:
        case str():
            return value
        case Mapping():
            return "\n".join(text_of(part) for key, part in value.items() if key not in {"id", "cluster", "domain"})
        case list():
            return "\n".join(map(text_of, value))
        case _:
            return ""
