"""The ledger: append-only entries of metered time, and their sums.

Every entry is an interval of density one: exactly ``end - start`` metered seconds at that time, so that calendar and
rolling windows use the same arithmetic. History is corrected by appending an ``adjust`` entry.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from jobs.nouns.window import Window


class EntryKind(StrEnum):
    """The meaning of an entry's interval."""

    HOLD = "hold"  # reserved before a launch; a run's newest hold counts until a spend or release
    SPEND = "spend"  # billed to the run; replaces its hold
    RELEASE = "release"  # ends the hold without a charge
    ADJUST = "adjust"  # a correction with evidence; ``credit`` subtracts time, otherwise it adds time


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One append-only entry.

    ``run`` is the run ID; only an ``adjust`` may have none (time that the platform reports and no run explains).
    ``price_microdollars_per_hour`` is the price at that time, zero where hours are free. ``evidence`` is the source of
    the figure, for people. ``devices`` are those of the run's first lane, read from the run, not stored here; on a pool
    with device counts they are all devices of the session. ``agent`` is the agent that added the job of its first lane,
    where entries are listed for people.
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
    agent: str = ""

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"ledger entry of {self.pool} ends before it starts: [{self.start}, {self.end})")
        if self.run is None and self.kind is not EntryKind.ADJUST:
            raise ValueError(f"a {self.kind} entry of {self.pool} must name its run")
        if self.credit and self.kind is not EntryKind.ADJUST:
            raise ValueError(f"only an adjust entry can be a credit, not a {self.kind}")


@dataclass(frozen=True, slots=True)
class Charge:
    """Seconds that count against a pool's quotas: the sum of one or more entries.

    ``sign`` is -1 for a credit and 0 for a possible charge, which counts nothing but may open a span. ``held`` marks
    reserved time that may be released. ``exact`` is False if the platform did not report the times: the use is within
    the interval and may be shorter. ``devices`` count only in a quota by device. ``waited`` marks time billed before
    the session began.
    """

    start: int
    end: int
    sign: int = 1
    held: bool = False
    price_microdollars_per_hour: int = 0
    run: str | None = None
    exact: bool = True
    devices: int = 1
    waited: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval was certainly used."""
        return self.exact and not self.held

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
    """Return the charges by pool name, sorted by start.

    A run's newest hold counts until it has a spend or a release. The order of ``entries`` does not matter.
    """
    runs: dict[tuple[str, str | None], _RunEntries] = defaultdict(_RunEntries)
    for entry in entries:
        run_entries = runs[entry.pool, entry.run]
        match entry.kind:
            case EntryKind.HOLD:
                run_entries.holds.append(entry)
            case EntryKind.SPEND:
                run_entries.spends.append(entry)
            case EntryKind.RELEASE:
                run_entries.released = True
            case EntryKind.ADJUST:
                run_entries.adjusts.append(entry)
    charges: dict[str, list[Charge]] = defaultdict(list)
    for (pool, _), run_entries in runs.items():
        holds = sorted(run_entries.holds, key=lambda hold: (hold.at, hold.end, hold.start))
        counted = run_entries.spends or ([] if run_entries.released else holds[-1:])
        filled = {hold.end for hold in holds} | {hold.start for hold in holds[:1]}
        corrected = any(entry.credit for entry in run_entries.adjusts)
        began = min((entry.start for entry in run_entries.spends), default=0)
        charges[pool].extend(
            Charge(
                start=entry.start,
                end=entry.end,
                sign=-1 if entry.credit else 1,
                held=entry.kind is EntryKind.HOLD,
                price_microdollars_per_hour=entry.price_microdollars_per_hour,
                run=entry.run,
                # Only if the platform reported the times: missing ones are filled in from the hold or the writing.
                # Reported ones that equal these count as missing, which only makes admission stricter.
                exact=entry.run is not None and not corrected and not {entry.start, entry.end} & {*filled, entry.at},
                devices=entry.devices,
                waited=entry.run is not None and not entry.credit and entry.end <= began,
            )
            for entry in (*counted, *run_entries.adjusts)
            if entry.end > entry.start
        )
    return {pool: tuple(sorted(rows, key=_by_start)) for pool, rows in charges.items()}


def corrections(charges: Iterable[Charge], start: int, end: int) -> list[tuple[int, int, bool]]:
    """Return (start, end, is credit) of the adjustments that make a run's ``charges`` equal to [start, end).

    Time charged outside is credited where it was charged, so that every window is correct.
    """
    counts: dict[int, int] = defaultdict(int)
    for charge in charges:
        counts[charge.start] += charge.sign
        counts[charge.end] -= charge.sign
    counts[start] -= 1
    counts[end] += 1
    intervals: list[tuple[int, int, bool]] = []
    instants, surplus = sorted(counts), 0
    for instant, following in pairwise(instants):
        surplus += counts[instant]
        intervals.extend([(instant, following, surplus > 0)] * abs(surplus))
    return intervals


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
    """The signed seconds of charges before an instant, in O(log n); with ``by_device``, device seconds."""

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
    """Return all fields as a sort key, so that equal ledgers give equal tuples in any order of reading."""
    run = charge.run or ""
    price = charge.price_microdollars_per_hour
    return charge.start, charge.end, run, charge.sign, charge.held, price, charge.exact, charge.devices, charge.waited
