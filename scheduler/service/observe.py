"""Observe: ask platforms and the artifact store about live runs. No transaction is open, nothing is decided here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobs.checkpoint import BadManifest, Manifest, parse_manifest, split_key
from platforms.artifacts.base import Missing, StoreError, StoreUnreachable
from platforms.base import PlatformError, Refused, SessionState, StopChannel
from scheduler.core.reconcile import Sighting
from scheduler.core.run import Reserved, Run, Submitting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from platforms.base import Observed
    from scheduler.core.reconcile import Heeds, SightingState
    from scheduler.service.ports import Ports

_REPORT_BYTES = 1 << 20
# The core knows no platform, so it has words of its own. A word that is missing here fails at the first use.
_STATES: Mapping[SessionState, SightingState] = {
    SessionState.QUEUED: "queued",
    SessionState.RUNNING: "running",
    SessionState.ENDED: "ended",
    SessionState.ABSENT: "absent",
}
_HEEDS: Mapping[StopChannel, Heeds] = {
    StopChannel.STORE: "store",
    StopChannel.PLATFORM: "platform",
    StopChannel.NONE: "none",
}


@dataclass(slots=True)
class Observation:
    """What was seen, by launch key and lane index.

    ``reachable`` names the pools whose platform answered. ``manifests`` are newly published checkpoints; ``bad``
    pairs a manifest's key with what is wrong with it. ``unread`` names runs about which the artifact store gave no
    answer; ``listed`` names the jobs all of whose manifests it told. Of others more may be published than was seen.
    """

    sightings: dict[str, Sighting] = field(default_factory=dict)
    reachable: set[str] = field(default_factory=set)
    heartbeats: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    results: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)

    def heard(self, run: Run) -> bool:
        """Whether a lane of the run has left a sign of life."""
        return any((run.key, lane.index) in self.heartbeats | self.results for lane in run.lanes)

    def is_complete(self, run: Run) -> bool:
        """Whether everything that the run's open lanes left in the artifact store was seen."""
        return run.key not in self.unread and all(lane.job in self.listed for lane in run.lanes if lane.outcome is None)


def observe(
    ports: Ports, runs: Sequence[Run], known_steps: Mapping[str, int], known_keys: Iterable[str], now: int
) -> Observation:
    """Look at every live run once.

    ``known_steps`` is each job's newest recorded checkpoint step and ``known_keys`` the manifests already recorded:
    the store is listed only for jobs whose payload claims more, and for those that may be about to lose their seat.
    """
    seen = Observation()
    _ask_platforms(ports, runs, seen, now)
    _bring_home(ports, [run for run in runs if _is_ended(run, seen)], seen, now)
    for run in runs:
        if not isinstance(run.state, Reserved):
            _read_lanes(ports, run, seen)
    read_manifests(ports, _jobs_to_list(runs, seen, known_steps, now), set(known_keys), seen)
    return seen


def _ask_platforms(ports: Ports, runs: Sequence[Run], seen: Observation, now: int) -> None:
    keys_by_pool: dict[str, list[str]] = {}
    for run in runs:
        keys_by_pool.setdefault(run.pool, []).append(run.key)

    def ask(pool: str) -> Mapping[str, Observed] | PlatformError:
        try:
            return ports.platforms[pool].find(keys_by_pool[pool], now)
        except PlatformError as error:
            return error
        except KeyError:
            return PlatformError(pool, "find", "the pool is no longer configured", "put it back until its runs end")

    pools = sorted(keys_by_pool)
    for pool, answer in zip(pools, ports.in_parallel(ask, pools), strict=True):
        if isinstance(answer, PlatformError):
            ports.log.warning("platform.unknown", pool=pool, why=str(answer))
            continue
        seen.reachable.add(pool)
        seen.sightings.update({key: _sighting(found) for key, found in answer.items()})


def _bring_home(ports: Ports, ended: Sequence[Run], seen: Observation, now: int) -> None:
    """Have platforms bring home what sessions left with them; an end is not believed while that may yet succeed."""

    def collect(run: Run) -> PlatformError | None:
        try:
            ports.platforms[run.pool].collect(run.key, ports.artifacts, now)
        except PlatformError as error:
            return error
        return None

    for run, error in zip(ended, ports.in_parallel(collect, ended), strict=True):
        if isinstance(error, Refused):
            ports.log.error("collect.refused", run=run.key, why=str(error))
        elif error is not None:
            ports.log.warning("collect.failed", run=run.key, why=str(error))
            seen.unread.add(run.key)


def _sighting(found: Observed) -> Sighting:
    return Sighting(
        _STATES[found.state],
        found.remote_id,
        found.started,
        found.ended,
        found.detail,
        _HEEDS[found.heeds],
    )


def _read_lanes(ports: Ports, run: Run, seen: Observation) -> None:
    for lane in run.lanes:
        if lane.outcome is not None:
            continue
        folder = f"runs/{run.key}/lane-{lane.index}"
        try:
            heartbeat = _read_report(ports, f"{folder}/heartbeat.json")
            if heartbeat is not None:
                seen.heartbeats[run.key, lane.index] = heartbeat
            if heartbeat is None or heartbeat.get("phase") == "ended" or _is_ended(run, seen):
                result = _read_report(ports, f"{folder}/result.json")
                if result is not None:
                    seen.results[run.key, lane.index] = result
        except StoreUnreachable as error:
            ports.log.warning("report.unknown", run=run.key, why=str(error))
            seen.unread.add(run.key)


def _is_ended(run: Run, seen: Observation) -> bool:
    sighting = seen.sightings.get(run.key)
    return sighting is not None and sighting.state == "ended"


def _read_report(ports: Ports, key: str) -> dict[str, Any] | None:
    """Return a report, None when there is none that can be understood. Raises StoreUnreachable."""
    try:
        report = json.loads(ports.artifacts.read(key, _REPORT_BYTES))
    except Missing:
        return None
    except StoreUnreachable:
        raise
    except (StoreError, ValueError, RecursionError) as error:
        ports.log.warning("report.unreadable", key=key, why=str(error))
        return None
    return report if isinstance(report, dict) else None


def _jobs_to_list(runs: Sequence[Run], seen: Observation, known_steps: Mapping[str, int], now: int) -> list[str]:
    """Return the jobs that claim a higher step than is known, and all those in runs of which something may end now.

    Before an end no step counts: a session that passed over a damaged checkpoint publishes lower ones than that, and
    while one manifest could not be read, a later one may have been.
    """
    wanted: set[str] = set()
    for run in runs:
        may_end = _may_end(run, seen, now)
        for lane in (lane for lane in run.lanes if lane.outcome is None):
            report = seen.results.get((run.key, lane.index)) or seen.heartbeats.get((run.key, lane.index)) or {}
            step = report.get("checkpoint_step")
            if may_end or (isinstance(step, int) and step > known_steps.get(lane.job, -1)):
                wanted.add(lane.job)
    return sorted(wanted)


def _may_end(run: Run, seen: Observation, now: int) -> bool:
    """Whether the run, or a lane of it, may be closed on what was seen: by its end, its last word, or silence."""
    silent = run.key not in seen.sightings and (isinstance(run.state, Submitting) or now > run.held_until)
    return silent or _is_ended(run, seen) or any((run.key, lane.index) in seen.results for lane in run.lanes)


def read_manifests(ports: Ports, jobs: Iterable[str], known_keys: set[str], seen: Observation) -> None:
    """Read the manifests of ``jobs`` that are not in ``known_keys`` and check that their components are there."""
    for job in jobs:
        try:
            keys = [key for key in ports.artifacts.keys(f"jobs/{job}/manifests/") if key not in known_keys]
        except StoreError as error:
            ports.log.warning("checkpoints.unreadable", job=job, why=str(error))
            continue
        seen.listed.add(job)
        for key in keys:
            if split_key(key) is None:
                continue
            try:
                manifest = parse_manifest(key, ports.artifacts.read(key, _REPORT_BYTES))
                wrong = missing_components(ports, manifest)
            except BadManifest as error:
                seen.bad.append((key, error.why))
            except StoreUnreachable as error:
                ports.log.warning("checkpoint.unknown", key=key, why=str(error))
                seen.listed.discard(job)
            except StoreError as error:
                ports.log.warning("checkpoint.unreadable", key=key, why=str(error))
            else:
                if wrong:
                    seen.bad.append((key, wrong))
                else:
                    seen.manifests.append(manifest)


def missing_components(ports: Ports, manifest: Manifest) -> str:
    """Return what is wrong with a manifest's components by name and size, or nothing. Digests are checked on use."""
    for component in manifest.components:
        size = ports.artifacts.size(f"jobs/{manifest.job}/blobs/{component.sha256}")
        if size is None:
            return f"component {component.name} is missing"
        if size != component.bytes:
            return f"component {component.name} has {size} bytes instead of {component.bytes}"
    return ""
