"""Documents and code are in plain English: words that readers stumble over, each with what to write instead."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

# A pattern, and what to write instead. Other rooms of the repository may be added to PAGES once they are free of these.
WORDS = {
    r"\banew\b": "again, from scratch, reload",
    r"\btold of\b": "reported, shown",
    r"\bis told\b": "is reported, is shown",
    r"\bburn(s|t|ing)?\b": "makes no progress, stalls",
    r"\bmend(s|ed|ing)?\b": "fix, repair, correct",
    r"\bwhom\b": "who, which; or name the thing",
    r"\bletters?\b": "message; of the alphabet: character",
    r"\b(what|which|who) is no\b": "a sentence with a subject: 'a path that is not a folder'",
    r"\bas it was\b": "unchanged; or say which state",
    r"\bstand-ins?\b": "emulator, mock",
    r"\btakes? part in\b": "joins",
    r"\bin force\b": "promoted; of a plan or settings: current",
}
_GENERATED = (
    r"<!-- (?:commands|exits|settings|ranges|reasons|preconditions|needs|samples): make reference -->.*?<!-- end -->"
)
_FENCE = re.compile(rf"{_GENERATED}|^```.*?^```|`[^`\n]+`|\]\([^)]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """Return a page without code, addresses, and parts that are generated from code, with its lines in place."""
    return _FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def pages(repository: Path) -> list[Path]:
    folders = (repository.glob("*.md"), (repository / "docs").rglob("*.md"), (repository / "examples").rglob("*.md"))
    return sorted(page for folder in folders for page in folder)


@pytest.mark.parametrize("pattern", WORDS)
def test_no_document_uses_a_word_that_readers_stumble_over(repository: Path, pattern: str) -> None:
    found = [
        f"{page.relative_to(repository)}:{number}: {line.strip()}: write {WORDS[pattern]}"
        for page in pages(repository)
        for number, line in enumerate(prose(page.read_text(encoding="utf-8")).splitlines(), start=1)
        if re.search(pattern, line, re.IGNORECASE)
    ]
    assert found == []


def test_code_and_addresses_of_a_page_are_no_prose() -> None:
    text = "Use `letters` and\n```\nschedctl anew\n```\n[a](whom.md) now.\n"
    assert not any(re.search(pattern, prose(text)) for pattern in WORDS)
    assert prose(text).count("\n") == text.count("\n")


# Of docstrings and comments as well; and names that say that something happened to a value, not what it is.
WORDS_OF_CODE = {
    **WORDS,
    r"\bwhoever\b": "the job that, the first that",
    r"\bnobody\b": "no job, None if it is unknown",
    r"\bTell whether\b": "Return whether",
    r"\bstands? still\b": "is idle",
    r"\bgood as it gets\b": "converges",
    r"\bwhat is told\b": "what is reported",
}
ANY_WORD = re.compile("|".join(WORDS_OF_CODE))
NAMES = frozenset(
    {"found", "told", "seen", "asked", "said", "given", "noted", "made", "known", "shown", "taken", "gone", "elsewhere"}
    | {"anew", "whom", "mend", "mended", "letters"}
)
# A folder that is not here is free of both. A figure may only get smaller; a folder that has none left goes.
NOT_YET: dict[str, int] = {}
# Fields that are stored, that answers carry, or that adapters of others set.
FIELDS = {
    "scheduler/verbs/changes.py": {"told"},
    "scheduler/core/plan.py": {"said"},
    "scheduler/views/long_work.py": {"told"},
    "scheduler/verbs/shapes.py": {"told"},
    "platforms/base.py": {"told", "taken", "found"},
    "platforms/kaggle/session/observer.py": {"told", "taken"},
    "platforms/remote.py": {"told", "taken"},
}


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each value, argument, function and class that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store(), id=name) | ast.Attribute(ctx=ast.Store(), attr=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def texts(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring and comment; strings that a program reads or prints are none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, re.sub(r"``?[^`]+``?", "", node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"``?[^`]+``?", "", token.string)


def stumbles(source: str, allowed: Collection[str] = ()) -> list[str]:
    """Return what a reader of a module stumbles over, with its line and what to write instead."""
    tree = ast.parse(source)
    return [
        *(
            f"{line}: {name}: name it after what it is"
            for line, name in names(tree)
            if (plain := name.strip("_").lower()) in NAMES and plain not in allowed
        ),
        *(
            f"{line}: {found[0]}: write {instead}"
            for line, text in texts(source, tree)
            if ANY_WORD.search(text)
            for pattern, instead in WORDS_OF_CODE.items()
            for found in re.finditer(pattern, text)
        ),
    ]


def folders(repository: Path) -> dict[str, list[str]]:
    """Return by folder of the product what readers of its modules stumble over."""
    result: dict[str, list[str]] = {}
    for package in ("scheduler", "platforms", "jobs", "config"):
        for path in sorted((repository / package).rglob("*.py")):
            name = path.relative_to(repository).as_posix()
            found = stumbles(path.read_text(encoding="utf-8"), FIELDS.get(name, ()))
            result.setdefault("/".join(name.split("/")[:-1][:2]), []).extend(f"{name}:{one}" for one in found)
    return result


def test_no_folder_of_code_has_more_words_that_readers_stumble_over(repository: Path) -> None:
    found = folders(repository)
    more = {folder: lines for folder, lines in found.items() if len(lines) > NOT_YET.get(folder, 0)}
    assert {folder: (len(lines), NOT_YET.get(folder, 0), lines[:40]) for folder, lines in more.items()} == {}
    assert [folder for folder in NOT_YET if not found.get(folder)] == []


def test_a_stumble_is_seen_in_names_docstrings_and_comments_alone() -> None:
    source = (
        'def pick(seen):\n    """Tell whether."""\n    self._told = f(told="told anew")  # whoever\n    return `anew`\n'
    )
    lines = [line.split(": write")[0] for line in stumbles(source.replace("`anew`", "0"))]
    assert lines == [
        "1: seen: name it after what it is",
        "3: _told: name it after what it is",
        "2: Tell whether",
        "3: whoever",
    ]
    assert stumbles("import x\nx.told(told=1)\n") == []
    assert stumbles("told = 1\n", {"told"}) == []
