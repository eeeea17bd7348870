"""The line that says whether training goes well."""

import pytest

from scheduler.cli.parts.screen import ago, arrow, bar
from scheduler.views.verdict import Verdict, sentence

NOW = 1_795_219_200  # a Saturday, 00:00 UTC
NEXT = ("ufm", "kaggle", NOW + 90_000)
NONE = (None, None, None)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Verdict(0, 0, 0, 0, 0, *NONE), "The queue is empty"),
        (Verdict(1, 0, 0, 1, 0, *NONE), "On track · 1 running · 0 of 1 done"),
        (
            Verdict(3, 0, 4, 7, 1, *NEXT),
            "On track · 3 running · 4 of 7 done · next: ufm on kaggle, Sun 01:00 · 1 action required",
        ),
        (
            Verdict(3, 2, 4, 7, 0, *NEXT),
            "Not on track: 2 silent · 3 running · 4 of 7 done · next: ufm on kaggle, Sun 01:00",
        ),
        (Verdict(0, 0, 4, 7, 0, *NEXT), "On track · nothing runs now · 4 of 7 done · next: ufm on kaggle, Sun 01:00"),
        (Verdict(0, 0, 7, 7, 0, *NONE), "All done: 7 jobs"),
        (Verdict(0, 0, 7, 7, 1, *NONE), "All done: 7 jobs · 1 action required"),
        (Verdict(0, 0, 4, 7, 0, *NONE), "Not on track: nothing runs and nothing is planned · 4 of 7 done"),
        (
            Verdict(0, 0, 4, 7, 0, *NONE, paused=True),
            "Paused, nothing new starts · nothing runs now · 4 of 7 done",
        ),
        (
            Verdict(1, 0, 0, 1, 0, *NONE, late=1, spent_seconds=22_000, budget_seconds=108_000),
            "Not on track: 1 deadline at risk · 1 running · 0 of 1 done · 6.1 of 30.0 h spent or reserved",
        ),
        (
            Verdict(1, 0, 0, 1, 0, *NONE, spent_microdollars=3_200_000, budget_microdollars=20_000_000),
            "On track · 1 running · 0 of 1 done · $3.20 of $20.00 spent or reserved",
        ),
    ],
)
def test_the_line(found: Verdict, line: str) -> None:
    assert sentence(found, NOW, "UTC") == line


def test_bars_show_what_is_saved_and_what_is_live_beyond_it() -> None:
    assert bar(0, 0, 100) == "░" * 10
    assert bar(50, 71, 100) == "█████▒▒▒░░"
    assert bar(100, 100, 100) == "█" * 10
    assert bar(120, 130, 100) == "█" * 10
    assert bar(0, 1, 1_000) == "▒" + "░" * 9, "the first live step is seen"


def test_arrows_and_spans() -> None:
    assert [arrow(trend) for trend in (None, -0.1, 0.1, 0.001)] == ["", "↓", "↑", "→"]
    assert [ago(seconds) for seconds in (-5, 59, 60, 7_199, 2 * 86_400)] == [
        "0s ago",
        "59s ago",
        "1m ago",
        "1h ago",
        "2d ago",
    ]
