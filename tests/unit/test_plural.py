"""Plural: a number and its noun agree, everywhere."""

import re
from pathlib import Path

from jobs.size import counted


def test_a_number_and_its_noun_agree() -> None:
    told = [counted(0, "session"), counted(1, "session"), counted(2_000, "session"), counted(2, "launch", "launches")]
    assert told == ["0 sessions", "1 session", "2,000 sessions", "2 launches"]


def test_no_text_counts_sessions_jobs_or_rows_without_asking_how_many(repository: Path) -> None:
    """What is always several is named here, with where that is made sure of."""
    several = {
        "scheduler/core/blame.py",  # two at least
        "scheduler/core/reasons.py",  # one is told apart
        "scheduler/cli/commands/checkpoints.py",  # of how many
        "scheduler/cli/commands/queue_list.py",  # a sweep has several
        "scheduler/cli/commands/submit_jobs.py",  # the most there may be
        "scheduler/cli/commands/rehearse.py",  # of how many
        "scheduler/report/week.py",  # one is told apart
        "platforms/local/adapter.py",  # of how many
        "platforms/remote.py",  # of how many
    }
    wrong = re.compile(r"\{[^{}\n]*\} (sessions|jobs|runs|checkpoints|rows|problems|lanes|recipients|launches|days)\b")
    found = [
        f"{path.relative_to(repository)}: {hit[0]}"
        for folder in ("scheduler", "platforms")
        for path in sorted((repository / folder).rglob("*.py"))
        if path.relative_to(repository).as_posix() not in several and "emulators" not in path.parts
        for hit in wrong.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
