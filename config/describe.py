"""All settings as text, each with the file or variable that set it."""

from collections.abc import Iterator, Mapping
from typing import Any

from config.database_address import hidden, shown_address
from config.secret import is_secret
from config.section import keys_of, table_in
from config.settings import Settings
from jobs.duration import DAYS, show_duration
from jobs.nouns.quota import Quota
from jobs.nouns.values import Reset
from jobs.nouns.window import clock_of


def describe(settings: Settings) -> list[tuple[str, str, str]]:
    """Return (key, value, source) of every current setting; values that may be secret are hidden."""
    rows = _rows(settings, settings.written, "", "")
    return [(key, _value_text(key, text), settings.origin(place)) for key, place, text in rows]


def _value_text(key: str, text: str) -> str:
    if is_secret(key) and text:
        return hidden(key, text)
    return shown_address(text) if "://" in text else text


def _rows(table: Any, written: Mapping[str, Any], key: str, place: str) -> Iterator[tuple[str, str, str]]:
    """Yield (displayed key, key of the origin, text).

    A displayed key has the name of a list entry where the key of an origin has its index. A value that was not
    ``written`` has no origin.
    """
    for label, (name, _) in keys_of(type(table)).items():
        where = f"{place}{label}" if label in written else ""
        yield from _row(getattr(table, name), written.get(label), f"{key}{label}", where, name)


def _row(value: Any, written: Any, key: str, place: str, name: str) -> Iterator[tuple[str, str, str]]:
    match value:
        case _ if table_in(type(value)):
            yield from _rows(value, written or {}, f"{key}.", f"{place}.")
        case tuple() if value and isinstance(value[0], Quota):
            for table in written:
                yield from ((f"{key}.{table['name']}.{inner}", place, str(text)) for inner, text in table.items())
        case tuple() if value and table_in(type(value[0])):
            for index, (entry, table) in enumerate(zip(value, written, strict=True)):
                yield from _rows(entry, table, f"{key}.{getattr(entry, 'name', index)}.", f"{place}.{index}.")
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
        case Reset(weekday=weekday, offset_seconds=offset):
            return f"{DAYS[weekday].title()} {clock_of(offset)}"
        case tuple() | frozenset():
            items = value if isinstance(value, tuple) else sorted(value)
            return ", ".join(_text(item, "") for item in items)
        case int() if "_seconds" in name:
            return show_duration(value)
        case int() if "microdollars" in name:
            return _money(value)
    return str(value)


def _money(microdollars: int) -> str:
    text = f"{microdollars / 1_000_000:.6f}".rstrip("0")
    whole, _, cents = text.partition(".")
    return f"${whole}.{cents.ljust(2, '0')}"
