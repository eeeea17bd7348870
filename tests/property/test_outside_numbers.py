"""Numbers from outside: what any service, header or file writes where a number belongs passes as one or not at all."""

import ast
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobs.payload.bounds import INSTANT_MAX, digits
from jobs.payload.deadline import header_date
from jobs.payload.store.hub import _error_for
from platforms.slurm.commands import skew
from scheduler.notify.deliver import asked_seconds
from scheduler.views.weekly_report import week_named

ODD = st.one_of(
    st.text(max_size=40),
    st.text("0123456789²٣ \t+-_.e", max_size=30),
    st.integers(0, 10**40).map(str),
    st.sampled_from(["²", "9" * 5_000, "0" * 5_000, "99999999", "9223372036854775000", "1e9", "-1", "٣", ""]),
)
DATE = ("Wed,", "21", "Oct", "2015", "07:28:00", "GMT", "-0000", "0001", "9999", "24:60:61")
# Where text of a known length or of bytes is asked, or characters one by one.
ALLOWED = {
    "jobs/code/git.py",
    "jobs/corpus/leaks.py",  # what kind of sign begins a word
    "jobs/duration.py",
    "jobs/payload/bounds.py",
    "jobs/payload/scorers/sandbox/sandbox.py",
    "jobs/payload/supervise.py",
    "jobs/payload/trainers/tuning/devices/card.py",
    "platforms/local/adapter.py",
    "platforms/local/processes.py",
    "scheduler/service/requests/concerns.py",
    "scheduler/store/lease.py",
}


@given(ODD | st.integers() | st.none() | st.binary(max_size=9), st.integers(0, 10**20))
@example("²", 10)
@example("9" * 5_000, 10)
def test_a_number_passes_within_its_range_or_not_at_all(text: object, high: int) -> None:
    found = digits(text, high)
    plain = isinstance(text, str) and 0 < len(text) <= 20 and set(text) <= set("0123456789")
    assert (found is not None) == (plain and int(str(text)) <= high)
    assert found is None or found == int(str(text))


@given(ODD | st.lists(ODD, max_size=2) | st.integers() | st.none())
@example("²")
@example("9" * 5_000)
@example("9223372036854775000")
@example("99999999")
def test_no_service_makes_us_wait_longer_than_a_day(value: object) -> None:
    assert 0 <= asked_seconds({"Retry-After": value}) <= 86_400


@given(ODD)
def test_odd_numbers_of_others_raise_nothing(text: str) -> None:
    assert isinstance(_error_for("https://hub", 429, text, at_hub=True), Exception)
    assert isinstance(skew(text, 1.0, 2.0, 0), int)
    with suppress(ValueError):  # as it says
        week_named(f"{text}-W{text}", "UTC")


@given(st.none() | st.lists(st.sampled_from(DATE) | ODD, max_size=8).map(" ".join))
@example("Wed, 21 Oct 2015 07:28:00 +99999999999999999999")
@example("Mon, 01 Jan 0001 00:00:00 -0000")
def test_odd_dates_of_others_are_none(text: str | None) -> None:
    """A zone of twenty digits in a header was an OverflowError."""
    found = header_date(text)
    assert found is None or isinstance(found, float)


def test_a_date_is_read() -> None:
    assert header_date("Wed, 21 Oct 2015 07:28:00 GMT") == 1_445_412_480.0


def test_one_function_reads_numbers_from_outside(repository: Path) -> None:
    """``str.isdigit`` is true for what int() refuses: one such header silenced all messages."""
    found = {
        path.relative_to(repository).as_posix()
        for package in ("scheduler", "platforms", "config", "jobs")
        for path in (repository / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"isdigit", "isdecimal", "isnumeric"}
    }
    assert found == ALLOWED


@pytest.mark.parametrize("text", ["0", "7", "007", str(INSTANT_MAX)])
def test_plain_numbers_pass(text: str) -> None:
    assert digits(text, INSTANT_MAX) == int(text)
