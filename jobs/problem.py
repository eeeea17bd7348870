"""Errors that a person can act on, and the problems of what a person wrote. The payload, shipped alone, has its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class UserError(Exception):
    """Base of all errors that a person can act on: ``what`` failed, ``where``, ``why``, and the ``remedy``.

    Empty parts are left out of the message. No part ends with a full stop.
    """

    def __init__(self, what: str, why: str = "", remedy: str = "", where: str = "") -> None:
        message = ": ".join(part for part in (what, where, why) if part)
        if remedy:
            # A command to copy, which follows a colon, is not followed by a full stop.
            message += f". {remedy}" + ("" if ": " in remedy or remedy.endswith(("?", ".")) else ".")
        super().__init__(message)
        self.what = what
        self.where = where
        self.why = why
        self.remedy = remedy


class Refusal(UserError):
    """What was asked is not possible in the present state."""


class NotFound(UserError):
    """There is nothing of this name."""


class InvalidInput(UserError, ValueError):
    """A file, a folder or a value that a person gave cannot be used."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong value. ``file`` may name an environment variable; ``key`` is empty when the file itself is wrong.

    ``line`` is that of the file, None where it has none.
    """

    file: str
    key: str
    value: str
    why: str
    remedy: str
    line: int | None = None

    @property
    def place(self) -> str:
        """The file, with the line where one is known."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        what = f"{self.key} = {self.value}" if self.value else self.key
        return ": ".join(part for part in (self.place, what, self.why) if part) + (
            f"; {self.remedy}" if self.remedy else ""
        )


class ProblemsFound(InvalidInput):
    """Every problem of a document at once, one line each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return the remedy for an unknown word: the closest known one, or all of them."""
    from difflib import get_close_matches  # needed by messages only, and start-up time counts

    words = sorted(candidates)
    close = get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(words)}" if words else "remove it"


def as_toml(value: object, length_max: int = 80) -> str:
    """Return a value as it looks in a TOML file, shortened for a message; nothing for a table."""
    match value:
        case None | dict() | [dict(), *_]:
            text = ""
        case bool():
            text = str(value).lower()
        case str():
            text = '"' + "".join(c if c.isprintable() else "?" for c in value) + '"'
        case _:
            try:
                text = str(value)
            except ValueError:  # Python prints no number of more than 4,300 digits
                text = "a number of thousands of digits"
    return text if len(text) <= length_max else text[: length_max - 3] + "..."
