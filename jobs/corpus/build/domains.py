"""Which managers a text concerns: how much of a manager's keywords it holds, each counted by its rarity."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

_ROUNDING = 1e-9  # two sums of the same weights are equal


class Keywords:
    """The keywords of all domains.

    One occurs where a word (or a part of a snake_case name) begins with it: `optimize` matches `optimized` and `gpu`
    matches `max_gpu`, but `api` does not match `capital`. Case is ignored.
    """

    def __init__(self, domains: Mapping[str, Sequence[str]]) -> None:
        self.domains = {name: _stripped(words) for name, words in sorted(domains.items())}
        self.words = sorted({word for words in self.domains.values() for word in words})
        self._patterns = [(word, re.compile(rf"(?<![^\W_]){re.escape(word)}")) for word in self.words]

    def held(self, text: str) -> int:
        """Return which words a text holds: bit n is set for word n."""
        lowered = text.lower()
        found = 0
        for number, (word, at_start) in enumerate(self._patterns):
            # The plain search is many times faster and settles most cases.
            if word in lowered and at_start.search(lowered):
                found |= 1 << number
        return found


class DomainTagger:
    """Tags texts once all of them are known, because how rare a keyword is only all of them tell.

    With n texts, of which m hold a keyword, this weighs log((n + 1) / (m + 0.5)), nothing if none does. A text belongs
    to a domain when the keywords it holds weigh at least `relevance` of all of the domain's, or log(`rarity`): as much
    as keywords that, were they independent, one text in `rarity` would hold together.
    """

    def __init__(self, keywords: Keywords, held: Iterable[int], relevance: float, rarity: float) -> None:
        self._texts = 0
        counts = [0] * len(keywords.words)
        for found in held:
            self._texts += 1
            for number in range(len(counts)):
                counts[number] += found >> number & 1
        self._counts = dict(zip(keywords.words, counts, strict=True))
        numbers = {word: number for number, word in enumerate(keywords.words)}
        weights = {word: math.log((self._texts + 1) / (count + 0.5)) for word, count in self._counts.items() if count}
        self._domains = {
            name: [(1 << numbers[word], weights[word]) for word in words if word in weights]
            for name, words in keywords.domains.items()
        }
        self._needed = {
            name: min(math.log(rarity), relevance * sum(weight for _, weight in known)) - _ROUNDING
            for name, known in self._domains.items()
        }
        self._keywords = keywords
        self._known: dict[int, tuple[str, ...]] = {}

    def tags(self, held: int) -> tuple[str, ...]:
        """Return the domains, sorted, of a text that holds these words."""
        if held not in self._known:
            weighed = {
                name: sum(weight for bit, weight in known if held & bit) for name, known in self._domains.items()
            }
            self._known[held] = tuple(
                name for name, weight in weighed.items() if weight and weight >= self._needed[name]
            )
        return self._known[held]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return by domain and keyword how many texts hold it."""
        return {name: {word: self._counts[word] for word in words} for name, words in self._keywords.domains.items()}


def _stripped(words: Sequence[str]) -> list[str]:
    return sorted({stripped for word in words if (stripped := word.strip().lower())})
