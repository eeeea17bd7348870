"""Observation: what one look at platforms and the artifact store showed, and what our books say of the same runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection

from jobs.lane_report import LaneReport
from jobs.payload.store.manifest import Manifest, split_key
from platforms.base import PlatformError
from scheduler.core.reconcile import Sighting
from scheduler.core.run import Run
from scheduler.service.faults.isolation import isolated_run
from scheduler.service.outside import border
from scheduler.store import events

REFUSED_AT_ONCE = 1_000


@dataclass(slots=True)
class Observation:
    """What was seen, by launch key and lane index.

    ``reachable`` names the pools whose platform answered, ``troubles`` why others did not. ``asked`` tells by launch
    key when the question was put that was answered, perhaps some cycles ago. ``manifests`` are newly
    published checkpoints; ``bad`` pairs a manifest's key with what is wrong with it. ``unread`` names runs about which
    the artifact store gave no answer; ``listed`` names the jobs all of whose manifests it told. Of others more may be
    published than was seen. ``alive`` names runs that have written anything at all, ``unclear`` those about which a
    platform said what has no meaning, ``untold`` those of them of which it says that it cannot tell, and why,
    ``poisoned`` those that cannot be handled, with why. ``refused`` is what was not believed. ``awaited`` names ended
    runs that left more than has come home, ``lost`` those for which nobody waits any more, both with what is missing.
    ``home`` names ended runs of which nothing is to be fetched now, ``late`` those about which the store was asked and
    has not answered yet.
    """

    sightings: dict[str, Sighting] = field(default_factory=dict)
    reachable: set[str] = field(default_factory=set)
    asked: dict[str, int] = field(default_factory=dict)
    troubles: dict[str, PlatformError] = field(default_factory=dict)
    heartbeats: dict[tuple[str, int], LaneReport] = field(default_factory=dict)
    results: dict[tuple[str, int], LaneReport] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    alive: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)
    untold: dict[str, str] = field(default_factory=dict)
    poisoned: dict[str, str] = field(default_factory=dict)
    refused: list[border.NotBelieved] = field(default_factory=list)
    awaited: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    home: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)

    @contextmanager
    def isolated(self, key: str) -> Iterator[None]:
        """Record what the body raises as a fault of one run, of which nothing may end then. Raises as isolated_run."""
        faults: dict[str, str] = {}
        with isolated_run(faults, key):
            yield
        if faults:
            self.poisoned |= faults
            self.unread.add(key)

    def part(self, runs: Sequence[Run], *, regarded: bool) -> Observation:
        """Return what is to be written for some of the runs; without what their sessions say, unless it is regarded."""
        keys, names = {run.key for run in runs}, {lane.job for run in runs for lane in run.lanes}
        return Observation(
            heartbeats={lane: said for lane, said in self.heartbeats.items() if regarded and lane[0] in keys},
            results={lane: said for lane, said in self.results.items() if regarded and lane[0] in keys},
            manifests=[manifest for manifest in self.manifests if manifest.job in names],
            bad=[(key, why) for key, why in self.bad if (named := split_key(key)) and named[0] in names],
        )

    def take(self, found: Observation) -> None:
        """Add what the artifact store told."""
        self.heartbeats |= found.heartbeats
        self.results |= found.results
        self.manifests += found.manifests
        self.bad += found.bad
        self.unread |= found.unread
        self.listed |= found.listed
        self.alive |= found.alive
        self.poisoned |= found.poisoned
        self.late |= found.late
        self.refused += found.refused[: max(0, REFUSED_AT_ONCE - len(self.refused))]

    def is_reached(self, run: Run) -> bool:
        """Whether the run's platform told what it knows of it, be it nothing."""
        return run.key in self.asked and run.key not in self.unclear

    def heard(self, run: Run) -> bool:
        """Whether a lane of the run has left a sign of life."""
        return run.key in self.alive

    def begun(self, run: Run) -> frozenset[int]:
        """Return the lanes of the run whose command has begun, as far as they have told."""
        reports = {lane.index: self.heartbeats.get((run.key, lane.index)) for lane in run.lanes}
        return frozenset(index for index, report in reports.items() if report is not None and _has_begun(report))

    def is_complete(self, run: Run) -> bool:
        """Whether everything that the run's open lanes left in the artifact store was seen."""
        if run.key in self.unread or run.key in self.awaited:
            return False
        return all(lane.job in self.listed for lane in run.lanes if lane.outcome is None)


def _has_begun(report: LaneReport) -> bool:
    """Older agents do not tell when they started the command; that it has trained shows as well."""
    trained = report.step is not None and report.step > (report.restored_step or 0)
    return report.command_at is not None or report.setup_seconds is not None or trained


@dataclass(frozen=True, slots=True)
class Known:
    """What our books say of the jobs in live runs: targets, newest recorded checkpoint steps, recorded manifests.

    ``declared`` tells of which runs a person said that they are over: until when they are charged, and why.
    """

    targets: Mapping[str, int]
    steps: Mapping[str, int]
    keys: Collection[str]
    declared: Mapping[str, tuple[int, str]] = field(default_factory=dict)


# Declared ends: a person looked, and says that a session is over of which its platform tells nothing.
DECLARED = "run.declared_lost"


def declare(tx: Connection, key: str, ended: int, proof: str, now: int, by: str) -> None:
    """Record that a person says that a run is over, charged until ``ended`` (UTC seconds); event."""
    events.append(tx, DECLARED, key, now, by, ended=ended, why=proof)


def declared(tx: Connection, live: Iterable[Run]) -> dict[str, tuple[int, str]]:
    """Return until when live runs are charged that a person said are over, and why, by launch key."""
    found = {}
    for run in live:
        for event in events.tail(tx, limit=1, kinds=[DECLARED], subject=run.key):
            found[run.key] = int(event.data["ended"]), f"lost, says {event.by}: {event.data['why']}"
    return found
