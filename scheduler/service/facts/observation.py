"""Observation: the answers of platforms and the artifact store in one cycle, and our records of the same runs."""

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
    """The answers, by run ID and lane index.

    Platforms: ``reachable`` are the pools that answered, ``troubles`` the errors of others. ``asked_at`` is when the
    answered query of a run was sent, perhaps some cycles ago. ``unclear`` are runs with an invalid answer,
    ``undetermined`` those whose state the platform reports as unknown, with the reason.
    Store: ``manifests`` are new checkpoints, ``bad`` are (key of a manifest, error). ``unread`` are runs without an
    answer, ``late`` those whose query is still running, ``alive`` those that have written anything. ``listed`` are jobs
    whose manifests are all known.
    Outputs: ``awaited`` are ended runs whose outputs are not collected yet, ``lost`` those whose outputs were given up,
    both with the missing outputs; ``collected`` are ended runs without outputs to collect.
    ``poisoned`` are runs that cannot be handled, with the error; ``refused`` are rejected values.
    """

    sightings: dict[str, Sighting] = field(default_factory=dict)
    reachable: set[str] = field(default_factory=set)
    asked_at: dict[str, int] = field(default_factory=dict)
    troubles: dict[str, PlatformError] = field(default_factory=dict)
    heartbeats: dict[tuple[str, int], LaneReport] = field(default_factory=dict)
    results: dict[tuple[str, int], LaneReport] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    alive: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)
    undetermined: dict[str, str] = field(default_factory=dict)
    poisoned: dict[str, str] = field(default_factory=dict)
    refused: list[border.RejectedInput] = field(default_factory=list)
    awaited: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    collected: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)

    @contextmanager
    def isolated(self, key: str) -> Iterator[None]:
        """Record an exception of the body as a fault of a run, which then cannot end. Raises like isolated_run."""
        faults: dict[str, str] = {}
        with isolated_run(faults, key):
            yield
        if faults:
            self.poisoned |= faults
            self.unread.add(key)

    def part(self, runs: Sequence[Run], *, regarded: bool) -> "Observation":
        """Return the answers about ``runs``; the reports of their sessions are included if ``regarded``."""
        keys, names = {run.key for run in runs}, {lane.job for run in runs for lane in run.lanes}
        return Observation(
            heartbeats={lane: report for lane, report in self.heartbeats.items() if regarded and lane[0] in keys},
            results={lane: report for lane, report in self.results.items() if regarded and lane[0] in keys},
            manifests=[manifest for manifest in self.manifests if manifest.job in names],
            bad=[(key, why) for key, why in self.bad if (named := split_key(key)) and named[0] in names],
        )

    def add(self, other: "Observation") -> None:
        """Add an answer of the artifact store."""
        self.heartbeats |= other.heartbeats
        self.results |= other.results
        self.manifests += other.manifests
        self.bad += other.bad
        self.unread |= other.unread
        self.listed |= other.listed
        self.alive |= other.alive
        self.poisoned |= other.poisoned
        self.late |= other.late
        self.refused += other.refused[: max(0, REFUSED_AT_ONCE - len(self.refused))]

    def is_reached(self, run: Run) -> bool:
        """Return whether the platform gave a valid answer about the run, such as "no such session"."""
        return run.key in self.asked_at and run.key not in self.unclear

    def wrote(self, run: Run) -> bool:
        """Return whether a lane of the run has written anything to the store."""
        return run.key in self.alive

    def begun(self, run: Run) -> frozenset[int]:
        """Return the indices of the lanes whose command has begun."""
        reports = {lane.index: self.heartbeats.get((run.key, lane.index)) for lane in run.lanes}
        return frozenset(index for index, report in reports.items() if report is not None and _has_begun(report))

    def is_complete(self, run: Run) -> bool:
        """Return whether the observation has everything that the run's open lanes wrote to the artifact store."""
        if run.key in self.unread or run.key in self.awaited:
            return False
        return all(lane.job in self.listed for lane in run.lanes if lane.outcome is None)


def _has_begun(report: LaneReport) -> bool:
    """Return whether the command has begun. Older runners do not report its start, but a trained step shows it."""
    trained = report.step is not None and report.step > (report.restored_step or 0)
    return report.command_at is not None or report.setup_seconds is not None or trained


@dataclass(frozen=True, slots=True)
class LiveJobs:
    """Our records of the jobs in live runs: target steps, newest checkpoint steps, keys of manifests.

    ``declared`` are the runs that a person declared as ended: (end of the charge, reason) by run ID.
    """

    targets: Mapping[str, int]
    steps: Mapping[str, int]
    keys: Collection[str]
    declared: Mapping[str, tuple[int, str]] = field(default_factory=dict)


# Declared ends: a person states that a session has ended if its platform does not answer. The run is charged until
# ``ended`` of the event, in UTC seconds.
DECLARED = "run.declared_lost"


def declared(tx: Connection, live: Iterable[Run]) -> dict[str, tuple[int, str]]:
    """Return (end of the charge, reason) of live runs that a person declared as ended, by run ID."""
    return {
        event.subject: (int(event.data["ended"]), f"declared lost by {event.by}: {event.data['why']}")
        for event in events.latest(tx, [run.key for run in live], DECLARED)
    }
