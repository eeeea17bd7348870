"""The line that says whether training goes well."""

import pytest

from scheduler.cli.parts.training_words import arrow, bar, short_span
from scheduler.views.verdict import Verdict, sentence

NOW = 1_795_219_200  # a Saturday, 00:00 UTC
NEXT = ("ufm", "kaggle", NOW + 90_000)
NONE = (None, None, None)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Verdict(0, 0, 0, 0, 0, *NONE), "The queue is empty"),
        (Verdict(1, 0, 0, 1, 0, *NONE), "1 running, well · 0 of 1 done"),
        (
            Verdict(3, 0, 4, 7, 1, *NEXT),
            "3 running, all well · 4 of 7 done · next: ufm on kaggle, Sun 01:00 · needs you: 1",
        ),
        (Verdict(3, 2, 4, 7, 0, *NEXT), "3 running, 2 silent · 4 of 7 done · next: ufm on kaggle, Sun 01:00"),
        (Verdict(0, 0, 4, 7, 0, *NEXT), "Nothing runs · 4 of 7 done · next: ufm on kaggle, Sun 01:00"),
        (Verdict(0, 0, 7, 7, 0, *NONE), "All done: 7 jobs"),
        (Verdict(0, 0, 7, 7, 1, *NONE), "All 7 jobs trained · needs you: 1"),
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
    assert [short_span(seconds) for seconds in (-5, 59, 60, 7_199, 2 * 86_400)] == ["0s", "59s", "1m", "1h", "2d"]
