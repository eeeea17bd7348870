"""Options of a pool: declared once by each platform, read by one function."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from platforms.base import BadOption, Misconfigured
from platforms.options import YES, Written, read_options


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of every kind."""

    region: str
    kinds: tuple[str, ...] = ("small",)
    seconds: Annotated[int, Written("minutes", 60, least=1)] = 120
    pause_seconds: Annotated[float, Written("pause_milliseconds", 0.001)] = 1.5
    way: Literal["relay", "direct"] = "relay"
    spot: Annotated[bool, YES] = False
    word: Annotated[str, Written(form=re.compile("[a-z]+"))] = ""


def test_what_nobody_wrote_is_as_it_was_declared() -> None:
    assert read_options("place", Settings, {"region": "here"}) == Settings("here")


def test_what_was_written_counts_in_its_own_unit() -> None:
    written = {"region": "here", "kinds": "a, b,", "minutes": "0", "pause_milliseconds": "50", "spot": "yes"}
    assert read_options("place", Settings, written) == Settings("here", ("a", "b"), 60, 0.05, spot=True)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({}, r"missing: region. See docs/place.md"),
        ({"region": ""}, r"missing: region"),
        ({"regoin": "here"}, r"unknown setting regoin. Known settings: expected_device, .*minutes, .*region, spot"),
        ({"region": "here", "seconds": "5"}, r"unknown setting seconds"),
        ({"region": "here", "minutes": "-1"}, r"minutes = '-1' is not a whole number of at least 0"),
        ({"region": "here", "way": "both"}, r"way = 'both' is none of relay, direct"),
        ({"region": "here", "spot": "on"}, r"spot = 'on'. Write yes or no"),
        ({"region": "here", "word": "A b"}, r"word = 'A b' is not usable. See docs/place.md"),
        ({"region": "here", "internet": "maybe"}, r"internet = 'maybe' is none of on, off"),
    ],
)
def test_what_cannot_be_is_named_with_what_to_write(written: dict[str, str], says: str) -> None:
    with pytest.raises(Misconfigured, match=says) as refused:
        read_options("place", Settings, written)
    assert isinstance(refused.value, BadOption) == (" = " in str(refused.value))


def test_a_name_may_be_the_fault_of_whoever_wrote_it() -> None:
    with pytest.raises(BadOption, match="missing: region"):
        read_options("place", Settings, {}, BadOption)
