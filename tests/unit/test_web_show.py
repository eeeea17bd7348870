"""How pages write instants, durations and shares."""

from __future__ import annotations

from datetime import date

import pytest

from jobs.nouns.window import DAY, HOUR
from jobs.size import size
from scheduler.verbs.questions import span_around, span_from
from scheduler.verbs.shapes import paged
from scheduler.web.pages import ago, duration, instant, plain, share


def test_an_instant_is_shown_in_the_zone_and_told_exactly() -> None:
    assert instant(1_795_262_400, "Europe/Berlin") == ('<time datetime="2026-11-21T12:00:00Z">Sat 21 Nov 13:00</time>')
    assert instant(None, "UTC") == "\N{EN DASH}"
    assert "far away" in instant(10**18, "UTC")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (3_599, "59m"),
        (3_900, "1h 05m"),
        (2 * DAY + 4 * HOUR, "2d 4h"),
        (-90, "-1m"),
    ],
)
def test_durations_tell_what_matters(seconds: int, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_share_is_a_hundred_only_when_it_is_all() -> None:
    assert [share(999_999, 1_000_000), share(7, 7), share(1, 3), share(1, 0)] == [
        "99.9%", "100.0%", "33.3%", "\N{EN DASH}",
    ]  # fmt: skip


def test_what_is_near_is_now() -> None:
    assert [ago(2), ago(120), ago(-7_200)] == ["now", "2m ago", "in 2h 00m"]
    assert [size(9), size(1_536), size(5 << 40)] == ["9 B", "1.5 KiB", "5.0 TiB"]


def test_values_of_unknown_shape_are_words_and_never_markup() -> None:
    shown = str(plain({"why": "<b>", "end_step": 12, "loss": 1.25, "ok": True, "none": None, "jobs": ["a", "b"]}))
    assert shown == "why &lt;b&gt;, end_step 12, loss 1.25, ok yes, jobs a, b"


def test_the_week_is_seven_local_days_whatever_the_clocks_do() -> None:
    assert span_from(date(2026, 10, 22), "Europe/Berlin").seconds == 7 * DAY + HOUR
    assert span_from(date(2026, 3, 26), "Europe/Berlin").seconds == 7 * DAY - HOUR
    span = span_around(1_795_262_400, "Europe/Berlin")
    assert span == span_from(date(2026, 11, 18), "Europe/Berlin")


def test_an_empty_list_has_one_page() -> None:
    assert [paged(1, 50, total)["pages"] for total in (0, 50, 51)] == [1, 1, 2]
