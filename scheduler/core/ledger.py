"""The ledger: append-only facts about metered time, and what they add up to.

Every entry is an interval of density one: it stands for exactly ``end - start`` metered seconds at exactly that
time, so the same arithmetic serves calendar and rolling windows. Correcting history means appending an ``adjust``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from scheduler.core.window import Window


class EntryKind(StrEnum):
    """What an entry says about its interval."""

    HOLD = "hold"  # set aside before a launch; a run's newest counts until it is spent or released
    SPEND = "spend"  # what the run was charged; replaces its hold
    RELEASE = "release"  # the hold is given back without any charge
    ADJUST = "adjust"  # correction with evidence; ``credit`` gives time back, otherwise it takes more


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One append-only fact.

    ``run`` is the launch key; only an ``adjust`` may have none (time the platform reports and no run of ours
    explains). ``price_microdollars_per_hour`` is the price at the time, zero where hours are free.
    ``evidence`` says where the figure comes from, in words for people. ``devices`` are those of its run's first lane,
    which on a pool with device counts are all that the session held; they are the run's, and not written here.
    """

    kind: EntryKind
    pool: str
    run: str | None
    start: int
    end: int
    at: int
    credit: bool = False
    price_microdollars_per_hour: int = 0
    evidence: str = ""
    devices: int = 1

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"ledger entry of {self.pool} ends before it starts: [{self.start}, {self.end})")
        if self.run is None and self.kind is not EntryKind.ADJUST:
            raise ValueError(f"a {self.kind} entry of {self.pool} must name its run")
        if self.credit and self.kind is not EntryKind.ADJUST:
            raise ValueError(f"only an adjust entry can be a credit, not a {self.kind}")


@dataclass(frozen=True, slots=True)
class Charge:
    """Seconds that count against a pool's quotas: the fold of one or more entries.

    ``sign`` is -1 for a credit, 0 for a use that was given up, counts nothing and may have been all the same. ``held``
    marks time that is only set aside and may be given back. ``told`` is False when the platform did not say when it
    was: it lies somewhere inside, and may be shorter. ``devices`` count only in a quota that charges by device.
    ``waited`` marks what was billed of a run before its session began.
    """

    start: int
    end: int
    sign: int = 1
    held: bool = False
    price_microdollars_per_hour: int = 0
    run: str | None = None
    told: bool = True
    devices: int = 1
    waited: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether all of it was used just then."""
        return self.told and not self.held

    def within(self, start: int, end: int) -> int:
        """Return the signed seconds of this charge inside [start, end)."""
        return self.sign * max(0, min(self.end, end) - max(self.start, start))

    def cost_within(self, start: int, end: int) -> int:
        """Return the signed micro-dollars of this charge inside [start, end), rounded away from zero."""
        cost = abs(self.within(start, end)) * self.price_microdollars_per_hour
        return self.sign * -(-cost // 3_600)


@dataclass(slots=True)
class _RunEntries:
    holds: list[LedgerEntry] = field(default_factory=list)
    spends: list[LedgerEntry] = field(default_factory=list)
    adjusts: list[LedgerEntry] = field(default_factory=list)
    released: bool = False


def fold(entries: Iterable[LedgerEntry]) -> dict[str, tuple[Charge, ...]]:
    """Add entries up: pool name -> charges, sorted by start.

    A run's newest hold counts until a spend or a release of the same run appears, in whatever order entries are read.
    """
    runs: dict[tuple[str, str | None], _RunEntries] = defaultdict(_RunEntries)
    for entry in entries:
        seen = runs[entry.pool, entry.run]
        match entry.kind:
            case EntryKind.HOLD:
                seen.holds.append(entry)
            case EntryKind.SPEND:
                seen.spends.append(entry)
            case EntryKind.RELEASE:
                seen.released = True
            case EntryKind.ADJUST:
                seen.adjusts.append(entry)
    charges: dict[str, list[Charge]] = defaultdict(list)
    for (pool, _), seen in runs.items():
        holds = sorted(seen.holds, key=lambda hold: (hold.at, hold.end, hold.start))
        counted = seen.spends or ([] if seen.released else holds[-1:])
        filled = {hold.end for hold in holds} | {hold.start for hold in holds[:1]}
        corrected = any(entry.credit for entry in seen.adjusts)
        began = min((entry.start for entry in seen.spends), default=0)
        charges[pool].extend(
            Charge(
                start=entry.start,
                end=entry.end,
                sign=-1 if entry.credit else 1,
                held=entry.kind is EntryKind.HOLD,
                price_microdollars_per_hour=entry.price_microdollars_per_hour,
                run=entry.run,
                told=entry.run is not None and not corrected and _is_told(entry, filled),
                devices=entry.devices,
                waited=entry.run is not None and not entry.credit and entry.end <= began,
            )
            for entry in (*counted, *seen.adjusts)
            if entry.end > entry.start
        )
    return {pool: tuple(sorted(found, key=_by_start)) for pool, found in charges.items()}


def _is_told(entry: LedgerEntry, filled: set[int]) -> bool:
    """Return whether the platform said when it was.

    What it leaves out is filled in from the hold, or with the moment of writing. A platform that tells just those
    instants is taken for one that tells nothing, which only makes admission careful.
    """
    return not {entry.start, entry.end} & {*filled, entry.at}


def corrections(charges: Iterable[Charge], start: int, end: int) -> list[tuple[int, int, bool]]:
    """Return what makes a run's ``charges`` stand for exactly [start, end): intervals, and whether each is a credit.

    Time that was charged elsewhere is given back where it was charged, so that every window comes out right.
    """
    counts: dict[int, int] = defaultdict(int)
    for charge in charges:
        counts[charge.start] += charge.sign
        counts[charge.end] -= charge.sign
    counts[start] -= 1
    counts[end] += 1
    found: list[tuple[int, int, bool]] = []
    instants, surplus = sorted(counts), 0
    for instant, following in pairwise(instants):
        surplus += counts[instant]
        found.extend([(instant, following, surplus > 0)] * abs(surplus))
    return found


def seconds_within(charges: Iterable[Charge], window: Window) -> int:
    """Return the metered seconds inside ``window``, holds included."""
    return sum(charge.within(window.start, window.end) for charge in charges)


def device_seconds_within(charges: Iterable[Charge], window: Window) -> int:
    """Return the metered seconds inside ``window`` times the devices of their sessions, holds included."""
    return sum(charge.devices * charge.within(window.start, window.end) for charge in charges)


def cost_within(charges: Iterable[Charge], window: Window) -> int:
    """Return the micro-dollars inside ``window``, holds included."""
    return sum(charge.cost_within(window.start, window.end) for charge in charges)


class RunningTotal:
    """The signed seconds of some charges until an instant, in O(log n) after sorting the edges once.

    With ``by_device`` a second counts once for each device.
    """

    def __init__(self, charges: Iterable[Charge], *, by_device: bool = False) -> None:
        slopes: dict[int, int] = {}
        for charge in charges:
            pace = charge.sign * charge.devices if by_device else charge.sign
            slopes[charge.start] = slopes.get(charge.start, 0) + pace
            slopes[charge.end] = slopes.get(charge.end, 0) - pace
        self._times = sorted(slopes)
        self._slopes: list[int] = []
        self._totals: list[int] = []
        total = slope = previous = 0
        for time in self._times:
            total += slope * (time - previous)
            slope += slopes[time]
            self._totals.append(total)
            self._slopes.append(slope)
            previous = time

    def until(self, instant: int) -> int:
        """Return the seconds before ``instant``."""
        index = bisect_right(self._times, instant) - 1
        if index < 0:
            return 0
        return self._totals[index] + self._slopes[index] * (instant - self._times[index])


def _by_start(charge: Charge) -> tuple[int, int, str, int, bool, int, bool, int, bool]:
    """Every field counts, so that equal books give equal tuples in whatever order they are read."""
    run = charge.run or ""
    price = charge.price_microdollars_per_hour
    return charge.start, charge.end, run, charge.sign, charge.held, price, charge.told, charge.devices, charge.waited
