"""Describe: every setting as people read it, and where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from config.database_address import hidden, shown_address
from config.secret import is_secret
from config.settings import Settings
from config.values import Amount, OpeningHours, Reset
from jobs.duration import show_duration

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def describe(settings: Settings) -> list[tuple[str, str, str]]:
    """Return (key, value, source) of every current setting; what may be secret is hidden."""
    return [(key, _value_text(key, text), settings.origin(place)) for key, place, text in _rows(settings, "", "")]


def _value_text(key: str, text: str) -> str:
    if is_secret(key) and text:
        return hidden(key, text)
    return shown_address(text) if "://" in text else text


def _rows(section: BaseModel, key: str, place: str) -> Iterator[tuple[str, str, str]]:
    """Yield (key for people, key of the origin, text).

    Entries of lists go by name for people and by index in origins; a value that was not set has no place.
    """
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        label = field.alias or name
        is_set = name in section.model_fields_set
        yield from _row(value, f"{key}{label}", f"{place}{label}" if is_set else "", name)


def _row(value: Any, key: str, place: str, name: str) -> Iterator[tuple[str, str, str]]:
    match value:
        case BaseModel():
            yield from _rows(value, f"{key}.", f"{place}.")
        case tuple() if value and isinstance(value[0], BaseModel):
            for index, entry in enumerate(value):
                yield from _rows(entry, f"{key}.{getattr(entry, 'name', index)}.", f"{place}.{index}.")
        case dict() if value:
            for inner, text in value.items():
                yield f"{key}.{inner}", f"{place}.{inner}", str(text)
        case _:
            yield key, place, _text(value, name)


def _text(value: Any, name: str) -> str:
    match value:
        case None | () | {}:
            return ""
        case bool():
            return str(value).lower()
        case Amount(value=amount, unit="seconds"):
            return show_duration(amount)
        case Amount(value=amount):
            return _money(amount)
        case Reset(weekday=weekday, offset_seconds=offset):
            return f"{_DAYS[weekday]} {_clock(offset)}"
        case OpeningHours():
            days = "" if len(value.weekdays) == 7 else ",".join(_DAYS[day][:3] for day in sorted(value.weekdays)) + " "
            return f"{days}{_clock(value.start)}-{_clock(value.end)} {value.zone}"
        case tuple() | frozenset():
            items = value if isinstance(value, tuple) else sorted(value)
            return ", ".join(_text(item, "") for item in items)
        case int() if name.endswith(("_seconds", "_seconds_min")):
            return show_duration(value)
        case int() if "microdollars" in name:
            return _money(value)
        case Path():
            return str(value)
    return str(value)


def _clock(seconds: int) -> str:
    return f"{seconds // 3_600:02d}:{seconds % 3_600 // 60:02d}"


def _money(microdollars: int) -> str:
    text = f"{microdollars / 1_000_000:.6f}".rstrip("0")
    whole, _, cents = text.partition(".")
    return f"${whole}.{cents.ljust(2, '0')}"
