"""Read TOML files with clear errors, and find the line of a key."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.payload.bounded_file import read_bounded
from jobs.problem import Problem, ProblemsFound


def read_toml(path: Path) -> dict[str, Any]:
    """Return the document in ``path``. Raises ProblemsFound if it is missing, unreadable or invalid."""
    try:
        return tomllib.loads(read_bounded(path).decode("utf-8-sig"))
    except FileNotFoundError:
        raise ProblemsFound([Problem(str(path), "", "", "there is no such file", "check the path")]) from None
    except OSError as error:
        why = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise ProblemsFound([Problem(str(path), "", "", why, "check what it is and who may read it")]) from None
    except (ValueError, RecursionError) as error:
        # ValueError: invalid TOML or UTF-8, or a number with more digits than Python parses.
        raise ProblemsFound([Problem(str(path), "", "", f"is not TOML: {error}", "correct it and try again")]) from None


_HEADER = re.compile(r"\[(?P<list>\[)?(?P<name>[^\[\]]+)\]")
_KEY = re.compile(r"(?P<name>[\w\"'. -]+?)\s*=")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)")
_LONG_TEXT = re.compile(r"\"\"\"|'''")

Keys = tuple[str | int, ...]


def placed(problem: Problem) -> Problem:
    """Return a problem with the line of its key, or of the table around the key, if the line can be found."""
    return replace(problem, line=line_of(problem.file, problem.key)) if problem.line is None else problem


def line_of(file: str, key: str) -> int | None:
    """Return the line of a dotted key (with list entries by name or index), else of its table; None if not found."""
    path = Path(file)
    if not path.is_file():  # a pipe can be read only once
        return None
    try:
        text = read_bounded(path).decode("utf-8-sig")
        where = _where(tomllib.loads(text), key)
    except (OSError, ValueError, RecursionError):
        return None
    lines = _lines(text)
    return next((lines[where[:length]] for length in range(len(where), 0, -1) if where[:length] in lines), None)


def _where(document: Any, key: str) -> Keys:
    """Return the keys and indexes that a dotted key means, as far as they exist in the document."""
    path: list[str | int] = []
    while key:
        matches = [(at, word, inner) for at, word, inner in _entries(document) if f"{key}.".startswith(f"{word}.")]
        if not matches:
            break
        at, word, document = max(matches, key=lambda match: len(match[1]))
        path.append(at)
        key = key[len(word) + 1 :]
    return tuple(path)


def _entries(document: Any) -> list[tuple[str | int, str, Any]]:
    """Return (key or index, its word in a dotted key, value) of each entry; list entries also by their name."""
    if isinstance(document, dict):
        return [(key, str(key), inner) for key, inner in document.items()]
    if not isinstance(document, list):
        return []
    items = list(enumerate(document))
    by_name = [(at, str(item["name"]), item) for at, item in items if isinstance(item, dict) and "name" in item]
    return [*by_name, *((at, str(at), item) for at, item in items)]


def _lines(text: str) -> dict[Keys, int]:
    """Return the number of the first line of each table and key, by path."""
    result: dict[Keys, int] = {}
    counts: dict[Keys, int] = {}
    table: Keys = ()
    in_text = False
    for number, line in enumerate(text.splitlines(), start=1):
        was_in_text, in_text = in_text, in_text != bool(len(_LONG_TEXT.findall(line)) % 2)
        written = line.strip()
        if was_in_text:
            continue
        if header := _HEADER.match(written):
            *outer, last = _parts(header["name"])
            table = (*_inside((), outer, counts), last)
            if header["list"]:
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            result.setdefault(table, number)
        elif key := _KEY.match(written):
            result.setdefault((*table, *_parts(key["name"])), number)
    return result


def _inside(path: Keys, parts: list[str], counts: dict[Keys, int]) -> Keys:
    """Return the path of a table, with the index of the newest entry after each list."""
    for part in parts:
        path = (*path, part)
        path = (*path, counts[path]) if path in counts else path
    return path


def _parts(name: str) -> list[str]:
    return ["".join(groups) for groups in _PART.findall(name)]
