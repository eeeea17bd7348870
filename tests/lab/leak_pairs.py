"""Four hundred labelled pairs of a test item and a text, which holds the item or only looks like it.

The items, their rewordings and the boilerplate were written by hand; the pairs are made of them by fixed rules. A free
retelling that keeps no run of five words is no pair here: no comparison of words finds it.
"""

from __future__ import annotations

import builtins
import keyword
import random
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jobs.corpus.leaks import ItemIndex


class Pair(NamedTuple):
    """``kind`` says how the pair was made, ``leaked`` what is right."""

    kind: str
    item: str
    text: str
    leaked: bool


_ITEMS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# An item, and the same as another person would write it down from it.
PROSE = [
    (one["item"].replace("\n", " ").strip(), one["reworded"].replace("\n", " ").strip()) for one in _ITEMS["prose"]
]
# A function, and one of the same field that does something else.
CODE = [(one["item"], one["another"]) for one in _ITEMS["code"]]
LICENCE = (
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated "
    "documentation files, to deal in the Software without restriction, including without limitation the rights to use, "
    "copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software."
)
PROMPT = (
    "You are a careful assistant. Read the task below, think about it step by step, and give your answer between the "
    "marks. Do not explain anything that was not asked for."
)
MAIN = "\n\nif __name__ == '__main__':\n    import doctest\n    doctest.testmod(verbose=True)\n"
OTHER_WORDS = {
    "every": "each",
    "how many": "what number of",
    "describe": "outline",
    "explain": "tell",
    "write": "compose",
    "name": "state",
    "largest": "biggest",
    "because": "since",
    "only": "just",
    "small": "little",
    "found": "discovered",
    "total": "sum",
    "arrived": "came",
    "short": "brief",
    "first": "initial",
    "old": "ancient",
    "often": "frequently",
    "again": "once more",
    "without": "with no",
    "before": "ahead of",
    "reports": "shows",
    "needs": "requires",
    "order": "sequence",
}
NAMES = (
    "alpha",
    "beta",
    "gamma",
    "delta",
    "omega",
    "sigma",
    "kappa",
    "theta",
    "lam",
    "rho",
    "tau",
    "phi",
    "chi",
    "psi",
)
_KEPT = {*keyword.kwlist, *vars(builtins), "self", "append", "items", "get", "values", "open"}


def contexts() -> list[str]:
    """Return texts of a corpus that hold the boilerplate, as corpora do, and none of the items."""
    return [
        f"{text}\n\nText {n} is about the number {n * n + 7}.{MAIN}" for n in range(25) for text in (LICENCE, PROMPT)
    ]


def items() -> list[str]:
    """Return the items of the test set; some have boilerplate of their own."""
    prose = [text for text, _ in PROSE]
    return [
        *prose,
        *(code for code, _ in CODE),
        *(f"{PROMPT}\n\n{text}" for text in prose[:10]),
        *(f'"""{LICENCE}"""\n\n{code}{MAIN}' for code, _ in CODE[:10]),
    ]


def pairs() -> list[Pair]:
    """Return the four hundred pairs."""
    return [*_leaked(), *_clean()]


def quality() -> tuple[float, float, Counter[tuple[str, bool]]]:
    """Return precision, recall, and the wrong answers by kind of pair."""
    texts = items()
    index = ItemIndex({str(place): text for place, text in enumerate(texts)})
    context = [("context", text) for text in contexts()]
    right, found, leaked = 0, 0, 0
    wrong: Counter[tuple[str, bool]] = Counter()
    for pair in pairs():
        answer = str(texts.index(pair.item)) in index.seen_in([*context, ("pair", pair.text)])
        right += answer and pair.leaked
        found += answer
        leaked += pair.leaked
        wrong[pair.kind, pair.leaked] += answer != pair.leaked
    return right / found, right / leaked, wrong


def _leaked() -> Iterator[Pair]:
    dice = random.Random(3)
    for item, reworded in PROSE:
        yield Pair("paraphrase", item, reworded, leaked=True)
        yield Pair("paraphrase", item, _synonyms(item), leaked=True)
        quoted = "\n".join(f"> {line}" for line in textwrap.wrap(item, dice.choice((40, 60))))
        yield Pair("reformatting", item, quoted, leaked=True)
        yield Pair("reformatting", item, item.upper().replace(".", " ."), leaked=True)
        yield Pair("reformatting", item, f"**Q:** {item.replace(chr(39), chr(8217))} **A:** …", leaked=True)
        around = f"{PROSE[(PROSE.index((item, reworded)) + 7) % 20][0]} {item} It was asked in spring."
        yield Pair("inside a longer text", item, around, leaked=True)
    for code, _ in CODE:
        yield Pair("renamed identifiers", code, _renamed(code, list(NAMES)), leaked=True)
        yield Pair(
            "renamed identifiers",
            code,
            _renamed(code, [f"value_{n}" for n in range(20)]).replace("    ", "\t"),
            leaked=True,
        )
        yield Pair("reformatting", code, code.replace("    ", "  ").replace("\n", "\n\n"), leaked=True)
        yield Pair("inside a longer text", code, f"import sys\n\n{CODE[0][1]}\n\n{code}{MAIN}", leaked=True)


def _clean() -> Iterator[Pair]:
    dice = random.Random(4)
    prose, other = [text for text, _ in PROSE], [text for _, text in CODE]
    for place, item in enumerate(prose):
        neighbour = prose[(place + 3) % len(prose)]
        quote = " ".join(item.split()[4 : 4 + dice.randrange(5, 8)])
        yield Pair("another item", item, neighbour, leaked=False)
        yield Pair("a short quote", item, f"{neighbour} Some say: {quote}. Others do not.", leaked=False)
        yield Pair("the same words", item, " ".join(dice.sample(item.split(), len(item.split()))), leaked=False)
        yield Pair(
            "boilerplate", f"{PROMPT}\n\n{prose[place % 10]}", f"{PROMPT}\n\n{prose[10 + place % 10]}", leaked=False
        )
    for place, (code, sibling) in enumerate(CODE):
        yield Pair("another function", code, sibling, leaked=False)
        yield Pair("another function", code, _renamed(other[(place + 5) % 20], list(NAMES)) + MAIN, leaked=False)
        yield Pair("another function", code, CODE[(place + 9) % 20][0], leaked=False)
        licensed = CODE[place % 10][0]
        for text in (sibling, other[(place + 3) % 20], CODE[10 + (place + 1) % 10][0]):
            whole = f'"""{LICENCE}"""\n\n{text}{MAIN}'
            yield Pair("boilerplate", f'"""{LICENCE}"""\n\n{licensed}{MAIN}', whole, leaked=False)


def _synonyms(text: str) -> str:
    """Return a text with another word for each word of the list."""
    for word, another in OTHER_WORDS.items():
        text = re.sub(rf"\b{word}\b", another, text, flags=re.IGNORECASE)
    return text


def _renamed(code: str, names: list[str]) -> str:
    """Return a function with a new name for each of its own names."""
    own = [name for name in dict.fromkeys(re.findall(r"(?<![.'\w])[a-z_]\w*", code)) if name not in _KEPT]
    new = {name: names[place] if place < len(names) else f"{names[0]}{place}" for place, name in enumerate(own)}
    return re.sub(r"(?<!['\w])[a-z_]\w*", lambda match: new.get(match[0], match[0]), code)
