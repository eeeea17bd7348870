"""Documents are in plain English: words that readers stumble over, each with what to write instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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
