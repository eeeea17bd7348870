"""docs/how-to.md and docs/troubleshooting.md: people find their question by the words that they would search for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from scheduler.core import reasons
from tests.lab.emitted import needs

if TYPE_CHECKING:
    from pathlib import Path

# The words that people type, and the heading that must come first.
QUESTIONS = {
    "own script on kaggle": "Run your own script on Kaggle",
    "what will it cost": "See what a job will cost, and what was spent",
    "how is a job resumed": "Resume a job",
    "does my script resume exactly": "Check that a script resumes exactly",
    "why does my job wait": "Find out why a job waits",
    "second account": "Use a second Kaggle account",
    "back up and restore": "Back up and restore",
    "upgrade and go back": "Upgrade, and go back to the old version",
    "see gpu memory": "See GPU memory, utilisation and power",
    "stop everything now": "Stop everything now",
    "metrics to grafana": "Show metrics in Grafana",
    "report recipients": "Set the recipients of the report",
    "delete a model or old checkpoints": "Delete old checkpoints, or a model",
    "move the daemon to another machine": "Move the daemon to another machine",
    "use w&b": "Use Weights & Biases (W&B)",
    "fine-tune on my jsonl": "Fine-tune a model on your own JSONL",
    "what happens when clocks change": "What happens when clocks change (daylight saving time)",
    "uninstall": "Uninstall",
}
_WORD = re.compile(r"[a-z0-9&-]+")
_STEM = 5  # letters by which two forms of a word are taken for the same: resume, resumed


def sections(page: Path) -> dict[str, str]:
    parts = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def stems(text: str) -> set[str]:
    return {word[:_STEM] for word in _WORD.findall(text.lower())}


@pytest.mark.parametrize("search", QUESTIONS)
def test_a_question_finds_its_heading_by_its_search_words(repository: Path, search: str) -> None:
    headings = sections(repository / "docs/how-to.md")
    hits = {heading: len(stems(heading) & stems(search)) for heading in headings}
    assert min(hits, key=lambda heading: (-hits[heading], len(heading))) == QUESTIONS[search]


@pytest.mark.parametrize("heading", QUESTIONS.values())
def test_an_answer_is_short_and_shows_what_to_type(repository: Path, heading: str) -> None:
    answer = sections(repository / "docs/how-to.md")[heading]
    assert 3 <= len([line for line in answer.splitlines() if line.strip()]) <= 32
    assert "`" in answer


def test_every_action_required_has_a_heading_in_troubleshooting(repository: Path) -> None:
    """By its own words, or with these behind others, as in: Messages are not delivered (`message not delivered`)."""
    text = (repository / "docs/troubleshooting.md").read_text(encoding="utf-8")
    headings = {
        words.lower().strip("`)")
        for heading in re.findall(r"^### (.*)$", text, re.MULTILINE)
        for words in (heading, heading.rpartition(" (`")[2])
    }
    kinds = {what for what, _ in needs(repository)}
    assert len(kinds) > 25
    assert kinds - headings == set()


def test_every_reason_to_wait_has_a_remedy_in_troubleshooting(repository: Path) -> None:
    text = (repository / "docs/troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (`.*`) \| (.+) \|$", text.partition("## Reasons to wait")[2].partition("\n## ")[0], re.MULTILINE
    )
    named = {code for codes, _ in rows for code in re.findall(r"`(\w+)`", codes)}
    assert named == {kind.code for kind in reasons._BY_CODE.values()}
