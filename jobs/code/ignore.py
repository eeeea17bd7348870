""".schedignore: what a folder holds that no session needs, in the patterns of .gitignore. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

NAME = ".schedignore"


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    keeps: bool
    folders_only: bool


class Ignore:
    """The rules of one file; the last that fits decides, and what lies in a left-out folder is left out."""

    def __init__(self, text: str) -> None:
        self._rules = [rule for line in text.splitlines() if (rule := _rule(line)) is not None]

    def leaves_out(self, path: str) -> bool:
        """Tell whether the file ``path`` stays at home."""
        if not self._rules:
            return False
        parts = path.split("/")
        return any(
            self._says("/".join(parts[:depth]), is_folder=depth < len(parts)) for depth in range(1, len(parts) + 1)
        )

    def _says(self, path: str, *, is_folder: bool) -> bool:
        for rule in reversed(self._rules):
            if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(path):
                return not rule.keeps
        return False


def _rule(line: str) -> _Rule | None:
    line = re.sub(r"(?<!\\) +$", "", line)
    if not line or line.startswith("#"):
        return None
    keeps, line = line.startswith("!"), line.removeprefix("!")
    folders_only, line = line.endswith("/"), line.removesuffix("/")
    if not line:
        return None
    anywhere = "" if "/" in line else "(?:.*/)?"
    return _Rule(re.compile(anywhere + _expression(line.removeprefix("/")), re.DOTALL), keeps, folders_only)


def _expression(glob: str) -> str:
    """Return the regular expression of a pattern: no wildcard but ``**`` between slashes passes a slash."""
    out, place = [], 0
    while place < len(glob):
        rest = glob[place:]
        if rest.startswith("**/") and (place == 0 or glob[place - 1] == "/"):
            out.append("(?:.*/)?")
            place += 3
        elif rest == "**" and place and glob[place - 1] == "/":
            out.append(".+")
            place += 2
        elif rest[0] == "*":
            out.append("[^/]*")
            place += 1
        elif rest[0] == "?":
            out.append("[^/]")
            place += 1
        elif rest[0] == "[" and (group := re.match(r"\[[!^]?\]?[^\]/]*\]", rest)):
            negated = rest[1] in "!^"
            inner = group[0][2 if negated else 1 : -1].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
            out.append(f"(?!/)[{'^' if negated else ''}{inner.replace('^', chr(92) + '^')}]")
            place += len(group[0])
        else:
            escaped = rest[0] == "\\" and len(rest) > 1
            out.append(re.escape(rest[1] if escaped else rest[0]))
            place += 2 if escaped else 1
    return "".join(out)
