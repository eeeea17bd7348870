"""Errors that a person can act on, and problems in files that a person wrote. The payload has its own errors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class UserError(Exception):
    """Base of errors that a person can act on: ``what``, ``where``, ``why``, ``remedy``, each without a full stop."""

    def __init__(self, what: str, why: str = "", remedy: str = "", where: str = "") -> None:
        message = ": ".join(part for part in (what, where, why) if part)
        if remedy:
            # After a colon comes a command to copy, and no full stop must follow it.
            message += f". {remedy}" + ("" if ": " in remedy or remedy.endswith(("?", ".")) else ".")
        super().__init__(message)
        self.what = what
        self.where = where
        self.why = why
        self.remedy = remedy


class Refusal(UserError):
    """The request is not possible in the present state."""


class NotFound(UserError):
    """There is nothing with this name."""


class InvalidInput(UserError, ValueError):
    """A file, folder or value that a person gave is invalid."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A wrong value: its ``file`` (or environment variable), ``key`` ("": the file itself), and ``line`` if known."""

    file: str
    key: str
    value: str
    why: str
    remedy: str
    line: int | None = None

    @property
    def place(self) -> str:
        """The file, with the line if it is known."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        what = f"{self.key} = {self.value}" if self.value else self.key
        return ": ".join(part for part in (self.place, what, self.why) if part) + (
            f"; {self.remedy}" if self.remedy else ""
        )


class ProblemsFound(InvalidInput):
    """All problems of a document, one per line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return the remedy for an unknown word: the closest valid word, or all valid words."""
    from difflib import get_close_matches  # imported here, since only messages need it and commands must start fast

    words = sorted(candidates)
    close = get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(words)}" if words else "remove it"


def as_toml(value: object, length_max: int = 80) -> str:
    """Return a value as TOML, cut to ``length_max`` characters for a message; "" for a table."""
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
