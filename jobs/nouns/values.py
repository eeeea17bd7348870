"""Values as people write them in settings: readers of opening hours, limits, reset times, prices and time zones."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from jobs.duration import DAYS, parse_duration
from jobs.nouns.window import DailyHours
from jobs.problem import did_you_mean

_CLOCK = re.compile(r"^([01]?\d|2[0-4]):([0-5]\d)$")
_MONEY = re.compile(r"^\$\s*(\d{1,9}(?:\.\d{1,6})?)$")


class BadValue(ValueError):
    """A value is invalid: ``why``, and the ``remedy``.

    ``key`` is the value's key if a whole table was checked. ``beside`` is another key of the table that conflicts with
    it; the error is reported there if a person set that key.
    """

    def __init__(self, why: str, remedy: str, beside: str = "", key: str = "") -> None:
        super().__init__(f"{why}; {remedy}")
        self.why = why
        self.remedy = remedy
        self.beside = beside
        self.key = key


class BadTable(ValueError):
    """Values of a table that contradict each other, each with its key."""

    def __init__(self, values: Sequence[BadValue]) -> None:
        super().__init__("; ".join(map(str, values)))
        self.values = values


# (whether the rule is broken, the key, why, the remedy[, a key in conflict with it]); see BadValue.
Rule = tuple[object, str, str, str] | tuple[object, str, str, str, str]


def refuse(*rules: Rule) -> None:
    """Raise BadTable if any rule is broken."""
    if faults := [BadValue(why, remedy, "".join(beside), key) for broken, key, why, remedy, *beside in rules if broken]:
        raise BadTable(faults)


@dataclass(frozen=True, slots=True)
class Amount:
    """A limit: seconds or micro-dollars."""

    value: int
    unit: Literal["seconds", "microdollars"]


@dataclass(frozen=True, slots=True)
class Reset:
    """When a calendar window begins: weekday (Monday is 0) and wall-clock seconds after midnight."""

    weekday: int = 0
    offset_seconds: int = 0


def text_of(parse: Callable[[str], object]) -> Callable[[object], object]:
    """Return a function that parses texts by ``parse``, and returns values that code has created unchanged."""

    def read(value: object) -> object:
        if isinstance(value, DailyHours | Reset):
            return value
        if not isinstance(value, str):
            raise BadValue("this must be text", "put it in quotation marks")
        return parse(value)

    return read


def one_line(text: str) -> str:
    """Return the text. Raises BadValue for a control character, which headers, paths and shells do not accept."""
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise BadValue("it has a control character, such as a line break", "write it in one line")
    return text


def zone(text: str) -> str:
    """Return the name of a time zone. Raises BadValue if it is unknown."""
    try:
        ZoneInfo(text)
    except (ValueError, OSError, KeyError):
        raise BadValue("there is no such time zone", did_you_mean_zone(text)) from None
    return text


def did_you_mean_zone(text: str) -> str:
    """Return the remedy for an unknown time zone: the name that is meant, if it can be guessed."""
    names = {name.lower(): name for name in available_timezones()}
    cities = {name.rpartition("/")[2].lower(): name for name in sorted(available_timezones())}
    wanted = text.lower()
    zone = names.get(wanted) or cities.get(wanted.rpartition("/")[2])
    if zone is None:
        guess = did_you_mean(wanted, names)
        zone = next((name for lower, name in names.items() if guess == f"did you mean {lower}?"), None)
    return f"did you mean {zone}?" if zone else "use an IANA name such as Europe/Berlin, or UTC"


def opening_hours(text: str) -> DailyHours:
    """Return the hours of ``20:00-08:00 Europe/Berlin`` or ``Mon-Fri 20:00-08:00 Europe/Berlin``. Raises BadValue."""
    remedy = 'write it like "20:00-08:00 Europe/Berlin" or "Mon-Fri 20:00-08:00 Europe/Berlin"'
    words = text.split()
    weekdays = frozenset(range(7))
    if len(words) == 3:
        weekdays = _weekdays(words.pop(0), remedy)
    if len(words) != 2 or words[0].count("-") != 1:
        raise BadValue("these are no opening hours", remedy)
    start, end = (_clock(part, remedy) for part in words[0].split("-"))
    if start == end:
        raise BadValue("opening hours must end at another time than they begin", "leave hours out for always open")
    return DailyHours(zone(words[1]), start, end, weekdays)


def amount(text: object) -> Amount:
    """Return the limit that ``30h`` or ``$12.50`` means. Raises BadValue or ValueError."""
    if isinstance(text, str) and text.strip().startswith("$"):
        match = _MONEY.match(text.strip())
        if match is None:
            raise BadValue("this is no amount of money", 'write it like "$12.50"')
        value, unit = int(Decimal(match[1]) * 1_000_000), "microdollars"
    else:
        value, unit = parse_duration(text), "seconds"
    if value <= 0:
        raise BadValue("a limit must be more than zero", "switch the pool off with enabled = false instead")
    return Amount(value, "microdollars" if unit == "microdollars" else "seconds")


def reset(text: str) -> Reset:
    """Return the reset time of ``Saturday 00:00`` (weeks) or ``06:00`` (days and months). Raises BadValue."""
    remedy = 'write it like "Saturday 00:00", or "06:00" for a day'
    words = text.split()
    weekday = _weekday(words.pop(0), remedy) if len(words) == 2 else 0
    if len(words) != 1:
        raise BadValue("this is no reset time", remedy)
    offset = _clock(words[0], remedy)
    if offset == 24 * 3_600:
        raise BadValue("a day resets before 24:00", "use 00:00 of the day after")
    return Reset(weekday, offset)


def price(text: object) -> int:
    """Return a price per hour such as ``$1.20`` in micro-dollars; 0 is free. Raises BadValue."""
    if text == 0 and not isinstance(text, bool):
        return 0
    if isinstance(text, str) and (match := _MONEY.match(text.strip())):
        return int(Decimal(match[1]) * 1_000_000)
    raise BadValue("this is no price", 'write it like "$1.20"')


def _clock(text: str, remedy: str) -> int:
    match = _CLOCK.match(text)
    seconds = int(match[1]) * 3_600 + int(match[2]) * 60 if match else 86_401
    if seconds > 86_400:
        raise BadValue(f"{text!r} is no time of day", remedy)
    return seconds


def _weekdays(text: str, remedy: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin = _weekday(first, remedy)
        count = (_weekday(last, remedy) - begin) % 7 if last else 0
        days.update((begin + step) % 7 for step in range(count + 1))
    return frozenset(days)


def _weekday(text: str, remedy: str) -> int:
    days = [index for index, day in enumerate(DAYS) if len(text) >= 3 and day.startswith(text.lower())]
    if not days:
        raise BadValue(f"{text!r} is no weekday", remedy)
    return days[0]


def key_of(name: str) -> str:
    """Return the key of a field: its name without unit, because the value has the unit."""
    return name.replace("_seconds", "").replace("_microdollars", "")


TABLE: dict[str, Any] = {"extra": "forbid", "alias_generator": key_of}
"""The configuration of pydantic for a dataclass that is a table of a file: unknown keys are refused."""


@dataclass(frozen=True, slots=True)
class Before:
    """An annotation: ``parse`` converts the written value before pydantic validates it."""

    parse: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Return the schema for pydantic."""
        function = {"type": "no-info", "function": self.parse}
        return {"type": "function-before", "function": function, "schema": handler(source)}


@dataclass(frozen=True, slots=True)
class After:
    """An annotation: ``check`` converts the validated value. ``form`` is the type in the file if it differs."""

    check: Callable[[Any], Any]
    form: type | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Return the schema for pydantic."""
        function = {"type": "no-info", "function": self.check}
        schema = handler(source) if self.form is None else handler.generate_schema(self.form)
        return {"type": "function-after", "function": function, "schema": schema}


class Bounds:
    """An annotation: limits of a number or text, under pydantic's names, such as ``ge`` and ``max_length``."""

    def __init__(self, **limits: Any) -> None:
        self.limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Return the schema for pydantic."""
        return {**handler(source), **self.limits}


def at_most(longest: str) -> After:
    """Return the annotation of a longest duration; a longer one is a mistake that timers and dates cannot represent."""
    seconds = parse_duration(longest)

    def check(value: int) -> int:
        if value > seconds:
            raise BadValue("this is too long", f"write at most {longest}")
        return value

    return After(check)


def _positive(seconds: int) -> int:
    if seconds <= 0:
        raise BadValue("this must be longer than zero", 'write it like "30s", "90m" or "12h"')
    return seconds


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise BadValue("this is a truth value, not a number", "write a number")
    return value


NUMBER = Before(_no_truth_value)
Seconds = Annotated[int, Before(parse_duration)]
PositiveSeconds = Annotated[Seconds, After(_positive)]
PositiveInt = Annotated[int, Bounds(ge=1, le=1_000_000), NUMBER]
PositiveFloat = Annotated[float, Bounds(ge=0.001, le=1_000_000, allow_inf_nan=False), NUMBER]
ZoneName = Annotated[str, After(zone)]
Line = Annotated[str, After(one_line)]
