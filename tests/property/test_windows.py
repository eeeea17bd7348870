"""Windows follow the wall clock of their zone and tile time, whatever the zone does to its clocks."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.nouns.window import DAY, HOUR, WEEK, Calendar, DailyHours, Period, Window, merge

# Hour changes at night in both hemispheres, a change of half an hour, changes at midnight in either direction, and a
# zone that once left a whole day out.
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Havana",
    "Asia/Beirut",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Asia/Kathmandu",
]
zones = st.sampled_from(ZONES)
instants = st.integers(1_230_768_000, 1_893_456_000)  # 2009 to 2030
offsets = st.sampled_from([0, 1800, 2 * HOUR + 1800, 6 * HOUR, 23 * HOUR + 1800])


@st.composite
def calendars(draw: st.DrawFn) -> Calendar:
    period: Period = draw(st.sampled_from(["day", "week", "month"]))
    return Calendar(period, draw(zones), draw(st.integers(0, 6)), draw(offsets))


def local(instant: int, zone: str) -> datetime:
    return datetime.fromtimestamp(instant, ZoneInfo(zone))


def at(zone: str, *moment: int) -> int:
    return int(datetime(*moment, tzinfo=ZoneInfo(zone)).timestamp())  # type: ignore[misc,arg-type]


@given(calendars(), instants)
def test_a_window_contains_the_instant_it_was_asked_for(calendar: Calendar, instant: int) -> None:
    assert instant in calendar.window_at(instant)


@given(calendars(), instants, st.integers(0, 40 * DAY))
def test_windows_tile_time_without_gap_or_overlap(calendar: Calendar, start: int, seconds: int) -> None:
    found = list(calendar.windows(start, start + seconds))
    assert all(one.end == other.start for one, other in itertools.pairwise(found))
    if seconds:
        assert found[0].start <= start < found[0].end
        assert found[-1].start < start + seconds <= found[-1].end
    else:
        assert found == []


@given(calendars(), instants)
def test_a_window_is_the_same_from_wherever_it_is_seen(calendar: Calendar, instant: int) -> None:
    window = calendar.window_at(instant)
    for inside in (window.start, (window.start + window.end) // 2, window.end - 1):
        assert calendar.window_at(inside) == window
    assert calendar.window_at(window.start - 1).end == window.start


@given(zones, instants)
def test_a_day_begins_when_the_date_changes(zone: str, instant: int) -> None:
    """The definition, read second by second around the edge: the date before is smaller, at the edge it is new."""
    window = Calendar("day", zone).window_at(instant)
    begins = local(window.start, zone)
    assert local(window.start - 1, zone).date() < begins.date()
    # Where midnight is left out the day begins later on the clock; where it comes twice, at its first showing.
    noon = datetime.combine(begins.date(), datetime.min.time(), ZoneInfo(zone)) + timedelta(hours=12)
    assert window.start <= int(noon.timestamp()) < window.end


@given(zones, instants, st.integers(0, 6))
def test_a_week_has_seven_dates_and_begins_on_its_weekday(zone: str, instant: int, weekday: int) -> None:
    window = Calendar("week", zone, weekday).window_at(instant)
    first, last = local(window.start, zone).date(), local(window.end - 1, zone).date()
    if zone != "Pacific/Apia":
        assert first.weekday() == weekday
        assert (last - first).days == 6
    assert abs(window.seconds - WEEK) <= (DAY if zone == "Pacific/Apia" else HOUR)


@given(zones, instants)
def test_a_month_has_one_name(zone: str, instant: int) -> None:
    window = Calendar("month", zone).window_at(instant)
    first, last = local(window.start, zone), local(window.end - 1, zone)
    assert (first.year, first.month, first.day) == (last.year, last.month, 1)
    assert local(window.end, zone).day == 1


@given(zones, instants, offsets)
def test_a_day_is_as_long_as_its_clock_says(zone: str, instant: int, offset: int) -> None:
    """Seconds of a day are 86,400 less what the zone's clock was put forward during it."""
    window = Calendar("day", zone, offset_seconds=offset).window_at(instant)
    shift = (local(window.end, zone).utcoffset() or timedelta()) - (
        local(window.start, zone).utcoffset() or timedelta()
    )
    wall = local(window.end, zone).replace(tzinfo=UTC) - local(window.start, zone).replace(tzinfo=UTC)
    assert window.seconds == wall.total_seconds() - shift.total_seconds()


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", (2026, 3, 29), 23),
        ("Europe/Berlin", (2026, 10, 25), 25),
        ("Europe/Berlin", (2026, 10, 26), 24),
        ("America/New_York", (2026, 3, 8), 23),
        ("America/New_York", (2026, 11, 1), 25),
        ("Australia/Lord_Howe", (2026, 4, 5), 24.5),
        ("Australia/Lord_Howe", (2026, 10, 4), 23.5),
        ("America/Havana", (2026, 3, 8), 23),  # midnight itself is left out
        ("America/Havana", (2026, 11, 1), 25),  # midnight comes twice
        ("Asia/Beirut", (2026, 3, 29), 23),  # midnight itself is left out
        ("Asia/Beirut", (2026, 10, 24), 25),  # the last hour comes twice
        ("Africa/Casablanca", (2026, 2, 15), 25),  # Ramadan begins: clocks go back in spring
        ("UTC", (2026, 3, 29), 24),
    ],
)
def test_days_on_which_clocks_change(zone: str, day: tuple[int, int, int], hours: float) -> None:
    window = Calendar("day", zone).window_at(at(zone, *day, 12))
    assert window.seconds == hours * HOUR
    assert local(window.end - 1, zone).date() == local(window.start, zone).date()


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", (2026, 3, 25), 167),
        ("Europe/Berlin", (2026, 10, 21), 169),
        ("Australia/Lord_Howe", (2026, 4, 1), 168.5),
        ("Asia/Beirut", (2026, 10, 20), 169),
        ("UTC", (2026, 10, 21), 168),
    ],
)
def test_weeks_in_which_clocks_change(zone: str, day: tuple[int, int, int], hours: float) -> None:
    assert Calendar("week", zone).window_at(at(zone, *day, 12)).seconds == hours * HOUR


@pytest.mark.parametrize(
    ("offset", "shown"),
    [(2 * HOUR, (3, 0)), (2 * HOUR + 1800, (3, 30)), (3 * HOUR, (3, 0)), (HOUR, (1, 0))],
)
def test_a_reset_time_that_is_skipped_counts_on_from_the_jump(offset: int, shown: tuple[int, int]) -> None:
    """Berlin, 29 March 2026: 02:00 becomes 03:00."""
    noon = at("Europe/Berlin", 2026, 3, 29, 12)
    begins = local(Calendar("day", "Europe/Berlin", offset_seconds=offset).window_at(noon).start, "Europe/Berlin")
    assert (begins.day, begins.hour, begins.minute) == (29, *shown)


def test_a_reset_time_that_comes_twice_counts_at_its_first_showing() -> None:
    """Berlin, 25 October 2026: 03:00 becomes 02:00."""
    noon = at("Europe/Berlin", 2026, 10, 25, 12)
    begins = Calendar("day", "Europe/Berlin", offset_seconds=2 * HOUR + 1800).window_at(noon).start
    assert local(begins, "Europe/Berlin").fold == 0
    assert local(begins + HOUR, "Europe/Berlin").fold == 1


def test_months_in_which_clocks_change() -> None:
    lengths = [
        Calendar("month", "Europe/Berlin").window_at(at("Europe/Berlin", 2026, month, 9)).seconds / HOUR
        for month in range(1, 13)
    ]
    assert lengths == [744, 672, 743, 720, 744, 720, 744, 744, 720, 745, 720, 744]


def test_a_day_that_a_zone_left_out_is_no_window() -> None:
    """Samoa went from 29 to 31 December 2011: the 29th ends where the 31st begins."""
    found = list(
        Calendar("day", "Pacific/Apia").windows(at("Pacific/Apia", 2011, 12, 29), at("Pacific/Apia", 2012, 1, 1))
    )
    assert [local(window.start, "Pacific/Apia").day for window in found] == [29, 31]
    assert [window.seconds for window in found] == [DAY, DAY]


def test_kaggles_week_begins_on_saturday_in_utc() -> None:
    window = Calendar("week", "UTC", weekday=5).window_at(at("UTC", 2026, 11, 21, 3))
    assert window == Window(at("UTC", 2026, 11, 21), at("UTC", 2026, 11, 28))


@pytest.mark.parametrize(("start", "end"), [(5, 5), (5, 4)])
def test_an_empty_window_cannot_be_made(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="must end after it starts"):
        Window(start, end)


@given(zones, instants, st.integers(0, 47), st.integers(0, 48), st.frozensets(st.integers(0, 6), min_size=1))
def test_opening_hours_are_open_when_the_wall_clock_says_so(
    zone: str, instant: int, opens: int, closes: int, weekdays: frozenset[int]
) -> None:
    """Checked against the wall clock, minute by minute, on days without a change of clocks near them."""
    hours = DailyHours(zone, opens * 1800, closes * 1800, weekdays)
    around = {local(instant + step * DAY, zone).utcoffset() for step in range(-2, 4)}
    if len(around) > 1 or opens == closes:
        return
    start = instant - instant % 60
    windows = list(hours.windows(start, start + DAY))
    assert windows == sorted(windows)
    for minute in range(start, start + DAY, 600):
        moment = local(minute, zone)
        second = moment.hour * HOUR + moment.minute * 60 + moment.second
        today, yesterday = moment.weekday() in weekdays, (moment.weekday() - 1) % 7 in weekdays
        if hours.start < hours.end:
            expected = today and hours.start <= second < hours.end
        else:
            expected = (today and second >= hours.start) or (yesterday and second < hours.end)
        assert any(minute in window for window in windows) == expected


@pytest.mark.parametrize(("day", "length"), [((2026, 3, 28), 11), ((2026, 10, 24), 13), ((2026, 6, 1), 12)])
def test_a_night_on_which_clocks_change_is_shorter_or_longer(day: tuple[int, int, int], length: int) -> None:
    night = DailyHours("Europe/Berlin", 20 * HOUR, 8 * HOUR)
    evening = at("Europe/Berlin", *day, 20)
    assert list(night.windows(evening, evening + 60)) == [Window(evening, evening + length * HOUR)]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20))))
def test_merged_windows_cover_the_same_seconds_once(spans: list[tuple[int, int]]) -> None:
    windows = [Window(start, start + seconds) for start, seconds in spans]
    merged = merge(windows)
    assert all(one.end < other.start for one, other in itertools.pairwise(merged))
    covered = {second for window in windows for second in range(window.start, window.end)}
    assert sum(window.seconds for window in merged) == len(covered)
    assert all(any(second in window for window in merged) for second in covered)


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 100), st.integers(0, 100))
def test_overlap_counts_common_seconds(start: int, seconds: int, other: int, end: int) -> None:
    common = set(range(start, start + seconds)) & set(range(other, end))
    assert Window(start, start + seconds).overlap(other, end) == len(common)


@given(zones, instants, st.integers(0, DAY - 1), st.integers(0, DAY - 1), st.frozensets(st.integers(0, 6)), st.data())
def test_daily_hours_are_what_the_clock_on_the_wall_says(
    zone: str, start: int, opens: int, closes: int, weekdays: frozenset[int], data: st.DataObject
) -> None:
    """Away from nights in which clocks change, an instant is open exactly when its local time of day says so."""
    end = start + data.draw(st.integers(1, 9 * DAY))
    found = list(DailyHours(zone, opens, closes, weekdays).windows(start, end))
    assert all(window.start < end and window.end > start for window in found)
    instant = data.draw(st.integers(start, end - 1))
    around = {local(instant + hours * HOUR, zone).utcoffset() for hours in (-50, -26, 0, 26)}
    if len(around) > 1:
        return
    here = local(instant, zone)
    second = here.hour * HOUR + here.minute * 60 + here.second
    if closes > opens:
        open_now = opens <= second < closes and here.weekday() in weekdays
    else:
        began_today = second >= opens and here.weekday() in weekdays
        open_now = began_today or (second < closes and (here - timedelta(days=1)).weekday() in weekdays)
    assert any(instant in window for window in found) == open_now
