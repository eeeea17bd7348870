"""Show: how templates write instants, durations, amounts and counts."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from markupsafe import Markup, escape

from jobs.payload.trainers.tuning.tally import facts_told
from jobs.size import size
from scheduler.report.burn_down import amount
from scheduler.report.chart import short
from scheduler.report.loss_curve import loss_curve_svg

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.views.training import Training

NOTHING = "\N{EN DASH}"
_DAY = 86_400
_LEVEL = 0.002  # a loss that changed by less is shown as level


def filters(zone: str) -> dict[str, Callable[..., Any]]:
    """Return the filters of all templates; instants are shown in ``zone``."""
    return {
        "instant": lambda at: instant(at, zone),
        "clock": lambda at: instant(at, zone, "%H:%M"),
        "day": lambda at: instant(at, zone, "%a %-d %b"),
        "date": lambda at: instant(at, zone, "%a %-d %b %Y"),
        "full": lambda at: instant(at, zone, "%a %-d %b %Y %H:%M"),
        "duration": duration,
        "ago": ago,
        "amount": amount,
        "count": lambda number: NOTHING if number is None else f"{number:,}",
        "short": short,
        "size": size,
        "share": share,
        "loss": lambda value: NOTHING if value is None else f"{value:.4g}",
        "arrow": arrow,
        "learned": facts_told,
        "spark": spark,
        "plain": plain,
        "without_states": lambda data: {name: value for name, value in data.items() if name not in {"from", "to"}},
    }


def instant(at: int | None, zone: str, form: str = "%a %-d %b %H:%M") -> Markup:
    """Return an instant for people, with what programs read beside it; a dash for None."""
    if at is None:
        return escape(NOTHING)
    exact, words = _instant(at, zone, form)
    return Markup('<time datetime="{}">{}</time>').format(exact, words)


def local_day(at: int, zone: str) -> str:
    """Return the day of an instant as addresses carry it, ``2026-11-21``."""
    return datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(zone)).date().isoformat()


@lru_cache(maxsize=4_096)
def _instant(at: int, zone: str, form: str) -> tuple[str, str]:
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return "", "far away"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ"), moment.astimezone(ZoneInfo(zone)).strftime(form)


def duration(seconds: int | None) -> str:
    """Return seconds in the two units that matter: ``2d 4h``, ``3h 05m``, ``12m``, ``40s``."""
    if seconds is None:
        return NOTHING
    sign, left = ("-", -seconds) if seconds < 0 else ("", seconds)
    if left >= 2 * _DAY:
        return f"{sign}{left // _DAY}d {left % _DAY // 3_600}h"
    if left >= 3_600:
        return f"{sign}{left // 3_600}h {left % 3_600 // 60:02d}m"
    return f"{sign}{left // 60}m" if left >= 60 else f"{sign}{left}s"


def ago(seconds: int) -> str:
    """Return how long ago, or how long until."""
    if abs(seconds) < 5:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def share(part: float, whole: float) -> str:
    """Return a percentage that says 100 only when it is all."""
    if not whole:
        return NOTHING
    percent = 100 * part / whole
    return f"{min(percent, 99.9) if part < whole else percent:.1f}%"


def arrow(trend: float | None) -> Markup:
    """Return where a loss goes, in a sign and in words that are read out."""
    if trend is None:
        return Markup()
    sign, word = ("→", "level") if abs(trend) < _LEVEL else ("↓", "falling") if trend < 0 else ("↑", "rising")
    return Markup('<span class="trend" title="{0}">{1}<span class="hidden"> {0}</span></span>').format(word, sign)


def spark(going: Training) -> Markup:
    """Return a job's losses as a line as small as a word."""
    return Markup(  # noqa: S704 - of our own making, its words escaped
        loss_curve_svg(going.job, going.losses, going.target_step, height=28, axes=False, whole=False)
    )


def plain(value: Any) -> Markup | str:
    """Return a value of unknown shape in words: what an event holds besides its states."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case dict():
            return Markup(", ").join(
                escape(f"{key} {plain(inner)}") for key, inner in value.items() if inner not in ("", None)
            )
        case list():
            return ", ".join(str(plain(inner)) for inner in value)
        case _:
            return str(value)
