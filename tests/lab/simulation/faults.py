"""Faults: one function through which every commit and every outside call of the daemon passes."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

_Answer = TypeVar("_Answer")
_KEPT_LINES = 50
_HASHED_AT_ONCE = 1_000  # lines


class Crash(BaseException):
    """The daemon's process is gone. No ``except Exception`` may stop it."""


class Violation(BaseException):
    """A promise is broken; ``rule`` names it. Passes every handler, like Crash."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail


class Fate(StrEnum):
    """What happens at one point."""

    NOTHING = "nothing"
    CRASH = "crash"
    ERROR = "error"  # before a call: it has no effect and fails; after it: it has its effect and fails
    DELAY = "delay"
    DUPLICATE = "duplicate"  # the call is delivered twice
    STALL = "stall"  # the process stops while another daemon takes over, then it goes on


@dataclass(frozen=True, slots=True)
class Rates:
    """How often each fate strikes, per point; all zero: never."""

    crash: float = 0.0
    error: float = 0.0
    delay: float = 0.0
    duplicate: float = 0.0
    stall: float = 0.0

    def ladder(self) -> tuple[tuple[float, Fate], ...]:
        """Return the cumulated rates, for one draw."""
        total, steps = 0.0, []
        for entry in fields(self):
            total += getattr(self, entry.name)
            steps.append((total, Fate(entry.name)))
        return tuple(steps)


NO_RATES = Rates()


@dataclass(slots=True)
class Faults:
    """Numbers the points of one simulation, decides their fates and hashes them into the trace.

    ``script`` forces fates by point number. ``delayed`` lets time pass; ``stalled`` lets another daemon take over.
    Neither is called inside a transaction.
    """

    rng: Random
    rates: Rates = NO_RATES
    script: Mapping[int, Fate] = field(default_factory=dict)
    now: Callable[[], int] = int
    delayed: Callable[[], None] = lambda: None
    stalled: Callable[[], None] = lambda: None
    points: int = 0
    struck: int = 0  # how often something went wrong
    stood_still: bool = False  # whether the process did at the last point it passed
    seen: Counter[str] = field(default_factory=Counter)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    _ladder: tuple[tuple[float, Fate], ...] = ()
    _unhashed: list[str] = field(default_factory=list)
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def __post_init__(self) -> None:
        self.set_rates(self.rates)

    def set_rates(self, rates: Rates) -> None:
        """Change how often faults strike; a script goes on."""
        self.rates = rates
        self._ladder = rates.ladder() if rates != NO_RATES else ()

    def call(
        self, where: str, effect: Callable[[], _Answer], failure: Callable[[str], Exception], *, outside: bool = True
    ) -> _Answer:
        """Do ``effect`` between two points. ``outside`` says that no transaction is open."""
        before = self.point(f"{where} <", outside=outside)
        if before is Fate.ERROR:
            raise failure(f"injected before {where}")
        answer = effect()
        if before is Fate.DUPLICATE:
            self.struck += 1
            answer = effect()
        if self.point(f"{where} >", outside=outside) is Fate.ERROR:
            raise failure(f"injected after {where}")
        return answer

    def point(self, where: str, *, outside: bool = True) -> Fate:
        """Pass one point; returns what the caller has to do, ERROR or DUPLICATE. Raises Crash."""
        self.points += 1
        fate = self.script.get(self.points) or self._draw()
        self.stood_still = False
        if fate is Fate.NOTHING or (not outside and fate in {Fate.DELAY, Fate.STALL}):
            self.note(f"{self.points} {self.now()} {where}")
            return Fate.NOTHING
        self.note(f"{self.points} {self.now()} {where} {fate}")
        self.struck += 1
        match fate:
            case Fate.CRASH:
                call, _, side = where.partition(" ")
                self.seen[f"crash {call} {side[-1:]}".strip()] += 1
                raise Crash(where)
            case Fate.DELAY:
                self.delayed()
            case Fate.STALL:
                self.stalled()
                self.stood_still = True  # now that the other daemon has passed points of its own
            case Fate.ERROR | Fate.DUPLICATE:
                pass
        self.seen[str(fate)] += 1
        return fate

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self.last.append(line)
        self._unhashed.append(line)
        if len(self._unhashed) == _HASHED_AT_ONCE:
            self._hash_lines()

    def _hash_lines(self) -> None:
        self._hash.update("".join(self._unhashed).encode())
        self._unhashed.clear()

    @property
    def trace(self) -> str:
        """Return the hash of everything that happened so far."""
        self._hash_lines()
        return self._hash.hexdigest()[:16]

    def _draw(self) -> Fate:
        if not self._ladder:
            return Fate.NOTHING
        drawn = self.rng.random()
        if drawn < self._ladder[-1][0]:  # rarely
            return next(fate for limit, fate in self._ladder if drawn < limit)
        return Fate.NOTHING
