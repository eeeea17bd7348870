"""Moods: how this seed's world treats the daemon. Each seed draws its own (swarm testing)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobs.nouns.window import HOUR
from tests.lab.simulation.faults import NO_RATES, Rates

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class Mood:
    """Rates are probabilities per occasion; ``per_week`` figures are expected numbers. Zero everywhere: a good world.

    ``honest`` worlds keep the platform's promise that a launched key shows up within ``visibility_seconds``.
    """

    rates: Rates = NO_RATES
    honest: bool = True
    long_queue: float = 0.0
    hidden: float = 0.0
    dies: float = 0.0
    warned: float = 0.5
    fails: float = 0.0
    deaf: float = 0.0
    forgets_result: float = 0.0
    store_unreadable: float = 0.0
    wrong_device: float = 0.0
    damaged: float = 0.0
    torn: float = 0.0
    refused: float = 0.0
    throttled: float = 0.0
    refused_for_good: float = 0.0
    answer_lost: float = 0.0
    stale_list: float = 0.0
    outages_per_week: float = 0.0
    artifact_outages_per_week: float = 0.0
    surprises_per_week: float = 0.0
    clock_jumps_per_week: float = 0.0
    wishes_per_week: float = 0.0
    restarts_per_week: float = 0.0
    wrong_spells_per_week: float = 0.0  # a place gives another accelerator to everybody for a while
    false_quota_per_week: float = 0.0  # a place calls a quota used up that is not
    hangs_per_week: float = 0.0  # a place leaves every call without an answer for a while
    outage_over_end: float = 0.0  # of sessions: their place is down when they end, and the look after that fails, too
    endless_queue: float = 0.0  # of sessions that wait longer than they may run; their length counts from the start
    overbooks: float = 0.0  # chance that the planner is faulty
    sick: float = 0.0  # chance of a job to fall sick: each session of it is for nothing until somebody looks
    bad_parents: float = 0.0  # of the checkpoints that other jobs start from: damaged
    late_starts: float = 0.0  # where platforms lie: a session starts after all that was held for it, and stays
    long_down: float = 0.0  # of restarts: ten days instead of at most two hours


GOOD = Mood()

STALLS, LIARS = 0.2, 0.2

# Name of the field, chance that a seed has the trouble at all, and how bad it may get.
_TROUBLES: tuple[tuple[str, float, float], ...] = (
    ("long_queue", 0.3, 0.2),
    ("hidden", 0.5, 1.0),
    ("dies", 0.5, 0.5),
    ("fails", 0.4, 0.3),
    ("deaf", 0.3, 0.2),
    ("forgets_result", 0.3, 0.2),
    ("store_unreadable", 0.3, 0.1),
    ("wrong_device", 0.2, 0.2),
    ("damaged", 0.4, 0.2),
    ("torn", 0.3, 0.2),
    ("refused", 0.4, 0.3),
    ("throttled", 0.3, 0.3),
    ("refused_for_good", 0.1, 0.03),
    ("answer_lost", 0.4, 0.4),
    ("stale_list", 0.4, 0.7),
    ("outages_per_week", 0.4, 4.0),
    ("artifact_outages_per_week", 0.4, 4.0),
    ("surprises_per_week", 0.3, 1.0),
    ("clock_jumps_per_week", 0.15, 2.0),
    ("wishes_per_week", 0.5, 12.0),
    ("restarts_per_week", 0.4, 5.0),
    ("long_down", 0.2, 0.2),
)

# Troubles that were thought of later are drawn from dice of their own: old seeds keep the worlds that they had.
_LATER_TROUBLES: tuple[tuple[str, float, float], ...] = (
    ("wrong_spells_per_week", 0.2, 2.0),
    ("false_quota_per_week", 0.25, 8.0),
    ("hangs_per_week", 0.25, 80.0),
    ("outage_over_end", 0.3, 0.3),
    ("bad_parents", 0.3, 0.5),
    ("late_starts", 0.5, 0.3),
    ("endless_queue", 0.3, 0.8),
)


def later_troubles(rng: Random) -> dict[str, Any]:
    """Return more troubles of a seed, as fields of its mood."""
    return {name: rng.random() * worst for name, chance, worst in _LATER_TROUBLES if rng.random() < chance}


def draw_mood(rng: Random) -> Mood:
    """Return a seed's own mixture of troubles."""
    troubles = {name: rng.random() * worst for name, chance, worst in _TROUBLES if rng.random() < chance}
    scale = 10 ** rng.uniform(-3.5, -1.5)
    rates = Rates(
        crash=scale if rng.random() < 0.6 else 0.0,
        error=scale * rng.choice((0.0, 1.0, 3.0)),
        delay=scale * rng.choice((0.0, 1.0)),
        duplicate=scale * rng.choice((0.0, 1.0, 3.0)),
        stall=scale / 3 if rng.random() < STALLS else 0.0,
    )
    fields: dict[str, Any] = {**troubles, "rates": rates, "honest": rng.random() >= LIARS, "warned": rng.random()}
    fields["overbooks"] = 0.4
    if not fields["honest"]:
        # Nothing could be done about a session that is not shown, gives no sign of life and follows no stop.
        fields["deaf"] = 0.0
        fields["hidden"] = fields["answer_lost"] = 0.4
    return Mood(**fields)


@dataclass(frozen=True, slots=True)
class Habits:
    """How the daemon of this seed is run. ``idle_seconds`` is the longest time without a cycle."""

    tick_seconds: int = 600
    idle_seconds: int = 12 * HOUR
    housekeeping: bool = True


def draw_habits(rng: Random) -> Habits:
    """Return a seed's own cadence."""
    return Habits(
        tick_seconds=int(60 * 60 ** rng.random()),
        idle_seconds=rng.choice((2, 6, 12)) * HOUR,
        housekeeping=rng.random() < 0.7,
    )
