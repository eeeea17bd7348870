"""Which managers a text concerns: the share of a manager's keywords found in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


class DomainTagger:
    """Tags texts with the domains of which at least `relevance` (0..1] of the keywords occur.

    A keyword occurs where a word (or a part of a snake_case name) begins with it: `optimize` matches
    `optimized` and `gpu` matches `max_gpu`, but `api` does not match `capital`. Case is ignored.
    """

    def __init__(self, domains: Mapping[str, Sequence[str]], relevance: float) -> None:
        self._relevance = relevance
        self._domains = {
            name: [(word, re.compile(rf"(?<![^\W_]){re.escape(word)}")) for word in _keywords(keywords)]
            for name, keywords in sorted(domains.items())
        }

    def tags(self, text: str, manager: str | None = None) -> tuple[str, ...]:
        """The domains of `text`, sorted. A record that names its manager belongs to it in any case."""
        lowered = text.lower()
        named = manager.lower() if manager else None
        return tuple(
            name
            for name, keywords in self._domains.items()
            if name.lower() == named or _share(keywords, lowered) >= self._relevance
        )


def _keywords(keywords: Sequence[str]) -> list[str]:
    return sorted({stripped for word in keywords if (stripped := word.strip().lower())})


def _share(keywords: Sequence[tuple[str, re.Pattern[str]]], lowered: str) -> float:
    if not keywords:
        return 0.0
    # The plain search is many times faster and settles most cases.
    found = sum(1 for word, at_start in keywords if word in lowered and at_start.search(lowered))
    return found / len(keywords)
