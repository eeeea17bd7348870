""".schedignore: the files of a folder that no session needs, in the patterns of .gitignore. Pure.

Patterns come from folders of other people: a match takes at most as many steps as the product of both lengths, and all
matches of one package share a deadline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from jobs.code.errors import CodeError
from jobs.payload.clock import stopwatch

NAME = ".schedignore"
SECONDS_MAX = 60.0
_STAR, _FOLDERS = "*", "**/"
_TOKENS = re.compile(
    r"\\(?P<escaped>.)|(?P<stars>\*+)|(?P<any>\?)|\[(?P<negated>[!^]?)(?P<set>\]?[^\]]*)\]|.", re.DOTALL
)
_ONE_CHARACTER = re.compile(".", re.DOTALL)
_Name: TypeAlias = "list[re.Pattern[str] | str]"  # a pattern for each character, or _STAR
_Wanted = TypeVar("_Wanted")
_Pattern = TypeVar("_Pattern")


class _Rule(NamedTuple):
    segments: list[_Name | str]  # a pattern for each name of a path, or _FOLDERS
    keeps: bool
    folders_only: bool


class Ignore:
    """The rules of one file. The last rule that matches decides; what lies in a left-out folder is left out."""

    def __init__(self, text: str, folder: str) -> None:
        self._rules = [rule for line in text.splitlines() if (rule := _rule(line)) is not None]
        self._folder = folder
        self._until = stopwatch() + SECONDS_MAX
        self._folders: dict[str, bool] = {"": False}

    def leaves_out(self, path: str) -> bool:
        """Return whether the file ``path`` is left out of the package. Raises CodeError after ``SECONDS_MAX``."""
        self._check_time()
        parent = path.rpartition("/")[0]
        return self._leaves_out_folder(parent) or self._decide(path, is_folder=False)

    def _leaves_out_folder(self, path: str) -> bool:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            if folder not in self._folders:
                self._folders[folder] = self._decide(folder, is_folder=True)
            if self._folders[folder]:
                return True
        return False

    def _decide(self, path: str, *, is_folder: bool) -> bool:
        parts = path.split("/")
        for rule in reversed(self._rules):
            self._check_time()
            if (is_folder or not rule.folders_only) and _matches(rule.segments, parts, _FOLDERS, _matches_name):
                return not rule.keeps
        return False

    def _check_time(self) -> None:
        if stopwatch() > self._until:
            why = f"listing its files takes more than {SECONDS_MAX:.0f} s"
            raise CodeError(self._folder, why, f"Write fewer and shorter patterns in {NAME}, or give a smaller folder")


def _rule(line: str) -> _Rule | None:
    line = re.sub(r"(?<!\\) +$", "", line)
    if not line or line.startswith("#"):
        return None
    keeps, line = line.startswith("!"), line.removeprefix("!")
    folders_only, line = line.endswith("/"), line.removesuffix("/")
    if not line:
        return None
    words = line.removeprefix("/").split("/")
    segments: list[_Name | str] = [] if "/" in line else [_FOLDERS]
    for word in words:
        if len(words) > 1 and len(word) > 1 and not word.strip("*"):
            segments.append(_FOLDERS)
        else:
            segments.append(_tokens(word))
    if segments[-1] == _FOLDERS:
        segments.append([_STAR])  # "a/**" is everything below the folder, not the folder
    return _Rule(segments, keeps, folders_only)


def _tokens(word: str) -> _Name:
    tokens: _Name = []
    for match in _TOKENS.finditer(word):
        if match["stars"]:
            tokens.append(_STAR)
        elif match["any"]:
            tokens.append(_ONE_CHARACTER)
        elif match["set"]:
            tokens.append(re.compile(f"[{'^' if match['negated'] else ''}{_set(match['set'])}]", re.DOTALL))
        else:
            tokens.append(re.compile(re.escape(match["escaped"] or match[0]), re.DOTALL))
    return tokens


def _set(inner: str) -> str:
    """Return what stands in brackets as a regular expression has it; a range that runs backwards is of its two ends."""
    spans = re.findall(r"(.)-(.)|(.)", inner, re.DOTALL)
    words = [(re.escape(low), re.escape(high), "-" if low <= high else "") for low, high, _ in spans if low]
    return "".join(low + dash + high for low, high, dash in words) + "".join(re.escape(one) for *_, one in spans)


def _matches_name(tokens: _Name | str, name: str) -> bool:
    return _matches(tokens, name, _STAR, lambda token, letter: not isinstance(token, str) and bool(token.match(letter)))


def _matches(
    pattern: Sequence[_Wanted], items: Sequence[_Pattern], star: str, fits: Callable[[_Wanted, _Pattern], bool]
) -> bool:
    """Return whether ``items`` fit ``pattern``, in which ``star`` stands for any number of items.

    Only the last star that was reached is ever extended: an earlier one could not reach further.
    """
    at = item = 0
    after_star, resumed_at = -1, 0
    while item < len(items):
        if at < len(pattern) and pattern[at] == star:
            at += 1
            after_star, resumed_at = at, item
        elif at < len(pattern) and fits(pattern[at], items[item]):
            at += 1
            item += 1
        elif after_star >= 0:
            resumed_at += 1
            at, item = after_star, resumed_at
        else:
            return False
    return all(wanted == star for wanted in pattern[at:])
