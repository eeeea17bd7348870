"""Answers: what makes the body of a good answer an answer. A body without its word tells nothing, whatever its status.

Kaggle's library reads a missing field as its default and a cut word as the first that ends like it, which turns half an
answer into a state. So fields are read here, from the JSON itself: there and of their type, or it is no answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Self

_NUMBER_MAX = 2**63 - 1
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)s", re.ASCII)
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(?:Z|\+00:00)?", re.ASCII)
_EARLIEST = datetime(2015, 1, 1, tzinfo=UTC).timestamp()


class NoAnswer(ValueError):
    """What came lacks what would make it an answer; the message names the field and quotes nothing."""


class Answer:
    """The JSON object of an answer, or a part of it, of which each field is read by the type that it must have.

    A field that is missing and one that is null are the same. Readers raise NoAnswer for a value of another type.
    """

    def __init__(self, document: Any) -> None:
        if not isinstance(document, dict):
            raise NoAnswer("it is no object")
        self._fields: dict[str, Any] = document

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read an answer's body. Raises NoAnswer."""
        try:
            value = json.loads(data, object_pairs_hook=_object, parse_constant=_refuse_constant)
        except NoAnswer:
            raise
        except (ValueError, RecursionError):
            raise NoAnswer("it is not JSON, or not all of it") from None
        return cls(value)

    def is_empty(self) -> bool:
        """Whether it has no field at all."""
        return not self._fields

    def text(self, name: str) -> str:
        """Return a text, empty when it is missing."""
        return self._of(name, str) or ""

    def needed_text(self, name: str) -> str:
        """Return a text that must be there."""
        return self.text(name) or self._lacks(name)

    def flag(self, name: str) -> bool | None:
        """Return a yes or no; None when it is missing."""
        value = self._of(name, bool)
        return None if value is None else bool(value)

    def number(self, name: str) -> int:
        """Return a whole number that is not negative, also one written as text; 0 when it is missing."""
        value = self._fields.get(name)
        if value is None:
            return 0
        if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value, re.ASCII):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _NUMBER_MAX:
            raise NoAnswer(f"{name} is no number")
        return value

    def word(self, name: str, kind: str, allowed: Collection[str]) -> str:
        """Return which of the ``known`` words is meant, in any of the spellings of an enumeration named ``kind``."""
        text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.needed_text(name)).upper().removeprefix(f"{kind}_")
        if text not in allowed:
            raise NoAnswer(f"{name} is none of the words that are known")
        return text

    def instant(self, name: str) -> float | None:
        """Return an instant as UTC seconds; None when it is missing."""
        text = self.text(name)
        if not text:
            return None
        match = _INSTANT.fullmatch(text)
        try:
            seconds = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() if match else -math.inf
        except ValueError:
            seconds = -math.inf
        if match is None or seconds < _EARLIEST:
            raise NoAnswer(f"{name} is no instant")
        return seconds + float(match[2] or 0)

    def duration(self, name: str) -> float | None:
        """Return seconds that are not negative; None when they are missing."""
        text = self.text(name)
        match = _DURATION.fullmatch(text)
        if text and match is None:
            raise NoAnswer(f"{name} is no duration")
        return float(match[1]) if match else None

    def part(self, name: str) -> Answer | None:
        """Return an object inside; None when it is missing."""
        value = self._of(name, dict)
        return None if value is None else Answer(value)

    def needed_part(self, name: str) -> Answer:
        """Return an object inside that must be there."""
        return self.part(name) or self._lacks(name)

    def parts(self, name: str) -> list[Answer] | None:
        """Return a list of objects; None when it is missing."""
        values = self._of(name, list)
        return None if values is None else [Answer(item) for item in values]

    def texts(self, name: str) -> list[str]:
        """Return a list of texts, empty when it is missing."""
        values = self._of(name, list) or []
        if not all(isinstance(item, str) for item in values):
            raise NoAnswer(f"{name} holds something that is no text")
        return values

    def raw(self, name: str) -> Any:
        """Return a field as it came."""
        return self._fields.get(name)

    def has(self, *names: str) -> bool:
        """Whether one of these fields is there."""
        return any(self._fields.get(name) is not None for name in names)

    def _of(self, name: str, kind: type) -> Any:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, kind):
            raise NoAnswer(f"{name} is of another type")
        return value

    def _lacks(self, name: str) -> Any:
        raise NoAnswer(f"{name} is missing")


def nothing_wrong(answer: Answer) -> bool:
    """Read an answer that has nothing to tell but what went wrong; an empty object says that nothing did."""
    return not answer.text("errorMessage")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise NoAnswer("a field is there twice")
    return result


def _refuse_constant(name: str) -> Any:
    raise NoAnswer(f"{name} is no number")
