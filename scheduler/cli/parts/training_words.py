"""Words and small pictures for how training goes: bars, arrows, spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.size import gpu_use
from scheduler.cli.shell.output import figure, share
from scheduler.views.verdict import when

if TYPE_CHECKING:
    from scheduler.views.training import TrainingProgress

_STEADY = 0.002  # a loss that changed by less is drawn as level
_HOUR, _DAY = 3_600, 86_400


def bar(saved: int, live: int, whole: int, width: int = 10) -> str:
    """Return a bar of ``width`` characters: what is saved, what is live beyond it, and what is left."""
    if whole <= 0:
        return ""
    full = min(width, width * saved // whole)
    beyond = min(width, -(-width * live // whole)) if live > saved else full
    return "█" * full + "▒" * (beyond - full) + "░" * (width - max(full, beyond))


def arrow(trend: float | None) -> str:
    """Return where a loss goes; nothing when too little of it is known."""
    if trend is None:
        return ""
    return "→" if abs(trend) < _STEADY else "↓" if trend < 0 else "↑"


def ago(seconds: int) -> str:
    """Return how long ago something was reported, in its largest unit: ``12s ago``, ``5m ago``, ``3h ago``."""
    seconds = max(0, seconds)
    if seconds < 60:
        return f"{seconds}s ago"
    if seconds < _HOUR:
        return f"{seconds // 60}m ago"
    return f"{seconds // _HOUR}h ago" if seconds < 2 * _DAY else f"{seconds // _DAY}d ago"


def forecast_words(going: TrainingProgress, now: int, zone: str) -> str:
    """Return when a job will be done, and at the latest: ``Fri 12:40 (latest 15:40)``; nothing if it is unknown."""
    forecast = going.forecast
    if forecast is None:
        return ""
    expected, latest = (when(at, now, zone) for at in (forecast.expected, forecast.latest))
    day = expected.rpartition(" ")[0]
    return f"{expected} (latest {latest.removeprefix(f'{day} ')})"


def last_loss(going: TrainingProgress) -> float | None:
    """Return the newest held-out loss, or else the newest loss."""
    return going.loss if going.held_out_loss is None else going.held_out_loss


def facts(going: TrainingProgress, now: int, zone: str) -> list[tuple[str, str]]:
    """Return how a job's training stands, as names and values."""
    drawn = bar(going.saved_step, going.step, going.target_step, 20)
    live = f", {going.step:,} live" if going.step > going.saved_step else ""
    done = share(going.step, going.target_step)
    level = {"": "", "→": ", level", "↓": ", falling", "↑": ", rising"}[arrow(going.trend)]
    speed = f"{going.steps_per_hour:,.0f} steps an hour" if going.steps_per_hour else ""
    health = f"{going.health}, reported {ago(now - going.told_at)}" if going.health and going.told_at else going.health
    end = ""
    if going.forecast is not None:
        first, last = (when(at, now, zone) for at in (going.forecast.earliest, going.forecast.latest))
        end = f"{when(going.forecast.expected, now, zone)}, between {first} and {last}, by the {going.forecast.basis}"
    return [
        ("progress", f"{drawn} {done}, {going.saved_step:,} saved{live}, of {going.target_step:,} steps"),
        ("health", health),
        ("loss", f"{figure(going.loss)}{level}" if going.loss is not None else ""),
        ("held-out", figure(going.held_out_loss)),
        ("speed", f"{speed}, estimated" if speed and going.guessed else speed),
        ("GPU", gpu_use(going.gpu_memory_bytes, going.gpu_busy)),
        ("ETA", end),
    ]
