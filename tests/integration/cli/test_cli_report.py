"""`schedctl report weekly`: what it writes where, and what it puts into the outbox."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.store import outbox
from scheduler.store.engine import Database

Schedctl = Any  # see conftest.py
NOW = 1_790_000_000  # Monday 2026-09-21; the week that is over is 2026-W38


def test_the_file_is_written_in_the_form_of_its_ending_or_the_one_asked_for(
    world: Database, home: Path, schedctl: Schedctl
) -> None:
    begins = {
        ("week.html",): "<!doctype html>",
        ("week.md",): "# Training report 2026-W38",
        ("week.json",): "{",
        ("week.txt",): "Training report 2026-W38\n====",
        ("other.txt", "--format", "markdown"): "# Training report",
    }
    for (name, *more), beginning in begins.items():
        done = schedctl("report", "weekly", "--out", str(home / name), *more)
        assert (done.code, done.out) == (0, ""), done.err
        assert (home / name).read_text(encoding="utf-8").startswith(beginning), name
    assert json.loads((home / "week.json").read_text(encoding="utf-8"))["label"] == "2026-W38"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--week", "2026-W99"], 2, "there is no such week. Write it like 2026-W47"),
        (["--out", "nowhere/week.html"], 2, "there is no folder nowhere. Make it: mkdir -p nowhere"),
        (["--send"], 6, "neither a mail server nor Slack is configured"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(
    world: Database, schedctl: Schedctl, words: list[str], code: int, told: str
) -> None:
    done = schedctl("report", "weekly", *words)
    assert (done.code, done.out) == (code, "")
    assert told in done.err


def test_a_report_is_put_into_the_outbox_once_for_each_channel(world: Database, home: Path, schedctl: Schedctl) -> None:
    settings = home / "config.toml"
    mail = '[report.smtp]\nhost = "mail.example.org"\nsender = "s@example.org"\nrecipients = ["r@example.org"]\n'
    top, mark, pools = settings.read_text().partition("[[pools]]")
    settings.write_text(f"{top}{mail}\n{mark}{pools}")
    first, again = (json.loads(schedctl("--json", "report", "weekly", "--send").out) for _ in range(2))
    assert first == {"week": "2026-W38", "queued": ["email"], "known": []}
    assert again == {"week": "2026-W38", "queued": [], "known": ["email"]}
    other = schedctl("report", "weekly", "--send", "--week", "2026-W37")
    assert other.err.splitlines()[0] == "email: the daemon sends it"
    assert "No daemon runs here" in other.err
    with world.read() as tx:
        message, _ = outbox.pending(tx, NOW)
    assert (message.period, message.body["subject"]) == (
        "2026-W38",
        "Training W38: 1 done, 3 on track, 1 on hold, 1 action",
    )
    assert "Actions required" in message.body["text"]
    assert "urm" in message.body["text"]
