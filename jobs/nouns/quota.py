"""Declared quotas: limits of metered time or money. scheduler/core/quota.py computes what they allow.

Four kinds: a calendar period in a time zone (Kaggle's week, a daily budget), the same in money, a rolling span, and a
span that opens with its first use (Studio Lab).
"""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from jobs.nouns import values
from jobs.nouns.window import DAY, WEEK, Calendar, Period

QuotaKind = Literal["week", "day", "month", "rolling", "first-use", "money-day", "money-week", "money-month"]
Dated = Annotated[str, values.Before(lambda value: value.isoformat() if isinstance(value, date) else value)]

_PERIODS: dict[str, Period] = {"money-day": "day", "money-week": "week", "money-month": "month"}
_LENGTHS = {"day": DAY, "week": WEEK, "month": 31 * DAY}


@dataclass(frozen=True, slots=True)
class CalendarQuota:
    """At most ``limit_seconds`` in each window of a calendar; ``by_device``: a second counts per device."""

    name: str
    limit_seconds: int
    calendar: Calendar
    source: str = "declared"
    as_of: str = ""
    by_device: bool = False


@dataclass(frozen=True, slots=True)
class RollingQuota:
    """At most ``limit_seconds`` in every interval (t - span, t]; ``by_device`` as in CalendarQuota."""

    name: str
    limit_seconds: int
    span_seconds: int = DAY
    source: str = "declared"
    as_of: str = ""
    by_device: bool = False


@dataclass(frozen=True, slots=True)
class FirstUseQuota:
    """At most ``limit_seconds`` in a span that opens with the first use after the previous span."""

    name: str
    limit_seconds: int
    span_seconds: int = DAY
    source: str = "declared"
    as_of: str = ""


@dataclass(frozen=True, slots=True)
class MoneyQuota:
    """At most ``limit_microdollars`` in each window of a calendar, at the pool's price."""

    name: str
    limit_microdollars: int
    calendar: Calendar
    source: str = "declared"
    as_of: str = ""


Quota = CalendarQuota | RollingQuota | FirstUseQuota | MoneyQuota


def charges_by_device(quota: Quota) -> bool:
    """Return whether a second of a session counts once per device of the session."""
    return isinstance(quota, CalendarQuota | RollingQuota) and quota.by_device


@dataclass(frozen=True, slots=True)
class WrittenQuota:
    """A quota of any kind, with the keys of the file; ``charge``: an hour counts per session or per device."""

    __pydantic_config__: ClassVar[dict[str, Any]] = values.TABLE

    name: Annotated[str, values.Bounds(min_length=1, max_length=60)]
    kind: QuotaKind
    limit: Annotated[values.Amount, values.Before(values.amount)]
    zone: values.ZoneName = "UTC"
    resets: Annotated[values.Reset | None, values.Before(values.text_of(values.reset))] = None
    span_seconds: values.PositiveSeconds | None = None
    charge: Literal["session", "device"] = "session"
    source: str = "declared"
    as_of: Dated = ""


def read_quota(written: WrittenQuota) -> Quota:
    """Return the quota that a file describes, as the class of its kind. Raises BadTable for keys that conflict."""
    kind, span, resets, limit = written.kind, written.span_seconds, written.resets, written.limit
    by_device, spans, money = written.charge == "device", kind in {"rolling", "first-use"}, kind.startswith("money-")
    in_time = f'write it like "30h", or use kind money-{kind}'
    values.refuse(
        (resets and spans, "resets", f"a {kind} quota has no reset time", "remove it, or use kind week, day or month"),
        (
            resets and resets.weekday and not spans and not kind.endswith("week"),
            "resets",
            "only a week resets on a weekday",
            'write the time alone, like "06:00"',
        ),
        (span and not spans, "span", f"a {kind} quota takes its length from the calendar", "remove it"),
        (
            by_device and (kind == "first-use" or money),
            "charge",
            f"a {kind} quota cannot count devices",
            "use kind week, day, month or rolling",
        ),
        (money and limit.unit == "seconds", "limit", f"a {kind} quota is limited in money", 'write it like "$12.50"'),
        (not money and limit.unit != "seconds", "limit", f"a {kind} quota is limited in time", in_time),
    )
    name, provenance, when = written.name, (written.source, written.as_of), resets or values.Reset()
    match kind:
        case "rolling":
            return RollingQuota(name, limit.value, span or DAY, *provenance, by_device=by_device)
        case "first-use":
            return FirstUseQuota(name, limit.value, span or DAY, *provenance)
        case "day" | "week" | "month":
            calendar = Calendar(kind, written.zone, when.weekday, when.offset_seconds)
            return CalendarQuota(name, limit.value, calendar, *provenance, by_device=by_device)
        case "money-day" | "money-week" | "money-month":
            calendar = Calendar(_PERIODS[kind], written.zone, when.weekday, when.offset_seconds)
            return MoneyQuota(name, limit.value, calendar, *provenance)


def longest_window(quota: Quota) -> int:
    """Return the length of a quota's longest window in seconds, without clock changes."""
    return quota.span_seconds if isinstance(quota, RollingQuota | FirstUseQuota) else _LENGTHS[quota.calendar.period]
