"""Observe: query platforms and the artifact store about live runs. No transaction is open; nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from jobs.lane_report import LaneReport
from jobs.payload.bounds import Refusal, Unfit
from jobs.payload.store.manifest import BadManifest, Manifest, parse_manifest, split_key
from platforms.artifacts.base import Missing, StoreError, StoreUnreachable
from platforms.base import Observed, PlatformError, Refused, SessionState, StopChannel, Unfinished
from scheduler.core.reconcile import Sighting, SightingState, StopWay
from scheduler.core.run import Lane, Reserved, Run, Submitting, Wait
from scheduler.service.facts.homecoming import Homecoming
from scheduler.service.facts.observation import REFUSED_AT_ONCE, Known, Observation
from scheduler.service.faults.isolation import isolated_run
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports

_Answer = TypeVar("_Answer")
_REPORT_BYTES = 1 << 20
_MANIFESTS_AT_ONCE = 1_000  # of one job; no session writes so many between two cycles
# The core does not import platforms and has its own states. A state that is missing here fails at its first use.
_STATES: Mapping[SessionState, SightingState] = {
    SessionState.QUEUED: "queued",
    SessionState.RUNNING: "running",
    SessionState.ENDED: "ended",
    SessionState.ABSENT: "absent",
}
_STOP_WAYS: Mapping[StopChannel, StopWay] = {
    StopChannel.STORE: "store",
    StopChannel.PLATFORM: "platform",
    StopChannel.NONE: "none",
}


def observe(ports: Ports, runs: Sequence[Run], known: Known, home: Homecoming, now: int) -> Observation:
    """Return the observation of every live run.

    The store is listed only for jobs whose payload reports a higher checkpoint than is recorded, and for jobs whose
    lane may end now.
    """
    seen = Observation()
    _ask_platforms(ports, runs, seen, now)
    ended: list[Run] = []
    due: list[Run] = []
    for run in runs:
        with seen.isolated(run.key):
            ended += [run] if _is_ended(run, seen) else []
            due += [run] if run in ended and home.is_due(run, seen, now) else []
    _bring_home(ports, due, seen, now)
    seen.home = {run.key for run in ended if run.key not in seen.unread and run.key not in seen.awaited}
    stages: dict[str, str] = {}
    for run in runs:
        with seen.isolated(run.key):
            stages[run.key] = _stage(run, seen, now)
    asked = [run for run in runs if run.key in stages]
    _ask_for_reports(ports, [run for run in asked if not isinstance(run.state, Reserved)], known, seen, stages, home)
    _ask_for_manifests(ports, asked, known, seen, stages, home, now)
    said = {key for key, _ in seen.results}
    home.judge([run for run in runs if run in ended or run.key in said], known, seen, now)
    return seen


def _ask_platforms(ports: Ports, runs: Sequence[Run], seen: Observation, now: int) -> None:
    launched: dict[str, dict[str, int | None]] = {}
    for run in runs:
        launched.setdefault(run.pool, {})[run.key] = run.planned_start

    def ask(pool: str) -> tuple[list[str], border.Found] | PlatformError:
        try:
            return list(launched[pool]), border.find(ports, pool, launched[pool])
        except PlatformError as error:
            return error

    live = {run.key for run in runs}
    answers = ports.calls.gather("find", {pool: partial(_at, now, ask, pool) for pool in sorted(launched)})
    for pool in sorted(launched):
        asked_at, answer = answers.get(pool, (now, _late(pool, "find")))
        if isinstance(answer, PlatformError):
            seen.troubles[pool] = answer
            continue
        keys, (found, refused) = answer
        seen.reachable.add(pool)
        seen.asked.update(dict.fromkeys(live.intersection(keys), asked_at))
        seen.refused.extend(one for one in refused if one.subject in live and one.what != border.UNCLEAR)
        seen.unclear.update(one.subject for one in refused if one.subject not in found)
        seen.untold.update(
            (one.subject, one.refusals[0].why) for one in refused if one.what == border.UNCLEAR and one.subject in live
        )
        for key, one in found.items():
            if key in live:
                with seen.isolated(key):
                    seen.sightings[key] = _sighting(one)
        seen.unclear |= seen.poisoned.keys()


def _bring_home(ports: Ports, ended: Sequence[Run], seen: Observation, now: int) -> None:
    """Collect the outputs that sessions left with their platforms; an end does not count until that has finished."""

    def collect(run: Run) -> PlatformError | None:
        try:
            border.asked(run.pool, "collect", lambda: ports.platforms[run.pool].collect(run.key, ports.artifacts, now))
        except PlatformError as error:
            return error
        return None

    answers = ports.calls.gather("collect", {run.key: partial(collect, run) for run in ended})
    for run in ended:
        error = answers.get(run.key, _late(run.pool, "collect"))
        if isinstance(error, Refused):
            ports.log.error("collect.refused", run=run.key, why=str(error))
        elif error is not None:
            ports.log.warning("collect.failed", run=run.key, why=str(error))
            # A failure of the store, and a collection that makes progress, do not use up the patience.
            if isinstance(error, Unfinished) or isinstance(error.__cause__, StoreError):
                seen.unread.add(run.key)
            else:
                seen.awaited[run.key] = error.why
            if isinstance(error, border.Stumbled):
                seen.poisoned[run.key] = str(error)


def _stage(run: Run, seen: Observation, now: int) -> str:
    """Return the state of a run before the store is queried, as a part of the query's name.

    A late answer then belongs to a query of the same stage: outputs of a session are never taken from a query that was
    sent before its end was known, or before they were collected.
    """
    sighting = seen.sightings.get(run.key)
    over = ", over" if now > run.held_until else ""
    return f"{sighting.state if sighting else 'unseen'}{over}{', home' if run.key in seen.home else ''}"


def _ask_for_reports(
    ports: Ports, asked: Sequence[Run], known: Known, seen: Observation, stages: Mapping[str, str], home: Homecoming
) -> None:
    def read(run: Run) -> Observation:
        found = Observation()
        with found.isolated(run.key):
            _read_lanes(ports, run, known, seen.sightings.get(run.key), found)
        return found

    names = {run.key: f"{run.key}, {stages[run.key]}" for run in asked}
    about = {name: {key} for key, name in names.items()}
    answers = _answers(ports, "reports", {names[run.key]: partial(read, run) for run in asked}, about, seen, home)
    for key, name in names.items():
        seen.take(answers.get(name) or Observation(unread={key}, late={key}))


def _ask_for_manifests(
    ports: Ports,
    asked: Sequence[Run],
    known: Known,
    seen: Observation,
    stages: Mapping[str, str],
    home: Homecoming,
    now: int,
) -> None:
    keys = set(known.keys)

    def read(job: str) -> Observation:
        found = Observation()
        faults: dict[str, str] = {}
        with isolated_run(faults, job):
            read_manifests(ports, [job], keys, found)
        if faults:
            found.poisoned |= dict.fromkeys((run.key for run in of[job]), faults[job])
        return found

    names, of = {}, {}
    for job in _jobs_to_list(asked, seen, known, now):
        of[job] = mine = [run for run in asked if any(lane.job == job for lane in run.lanes)]
        over = [f"{key} {index}" for key, index in sorted(seen.results) if any(run.key == key for run in mine)]
        names[job] = ", ".join([job, *(f"{run.key} {stages[run.key]}" for run in mine), *over])
    about = {name: {run.key for run in of[job]} for job, name in names.items()}
    answers = _answers(ports, "manifests", {name: partial(read, job) for job, name in names.items()}, about, seen, home)
    for job, name in names.items():
        seen.take(answers.get(name) or Observation(late={run.key for run in of[job]}))


def _answers(
    ports: Ports,
    kind: str,
    work: Mapping[str, Callable[[], Observation]],
    about: Mapping[str, set[str]],
    seen: Observation,
    home: Homecoming,
) -> dict[str, Observation]:
    """Return the store's answers by query. Answers about runs that are home are kept until the last one has arrived.

    ``about`` are the runs of each query.
    """
    kept = {name: home.told[name] for name, keys in about.items() if name in home.told and keys & home.read}
    answers = kept | ports.calls.gather(kind, {name: ask for name, ask in work.items() if name not in kept})
    home.fresh |= {name: answer for name, answer in answers.items() if about.get(name, set()) & seen.home}
    return answers


def _at(now: int, ask: Callable[[str], _Answer], pool: str) -> tuple[int, _Answer]:
    return now, ask(pool)


def _late(pool: str, action: str) -> PlatformError:
    return Unfinished(pool, action, "no answer yet; it counts when it comes")


def _sighting(found: Observed) -> Sighting:
    return Sighting(
        _STATES[found.state],
        found.remote_id,
        found.started,
        found.ended,
        found.detail,
        _STOP_WAYS[found.stop_channel],
        found.told,
        Wait(**asdict(found.waits)) if found.waits else None,
        found.price_microdollars_per_hour,
        found.deadline,
        found.taken,
    )


def _read_lanes(ports: Ports, run: Run, known: Known, sighting: Sighting | None, seen: Observation) -> None:
    ended = sighting is not None and sighting.state == "ended"
    for lane in run.lanes:
        if lane.outcome is not None and not _end_is_guessed(sighting):
            continue
        target = known.targets[lane.job]
        try:
            heartbeat = read_report(ports, run, lane, "heartbeat", target, seen)
            if heartbeat is not None:
                seen.heartbeats[run.key, lane.index] = heartbeat
            if heartbeat is None or heartbeat.phase == "ended" or ended:
                result = read_report(ports, run, lane, "result", target, seen)
                if result is not None:
                    seen.results[run.key, lane.index] = result
        except StoreUnreachable as error:
            ports.log.warning("report.unknown", run=run.key, why=str(error))
            seen.unread.add(run.key)


def _is_ended(run: Run, seen: Observation) -> bool:
    sighting = seen.sightings.get(run.key)
    return sighting is not None and sighting.state == "ended"


def _end_is_guessed(sighting: Sighting | None) -> bool:
    """Whether the platform does not report when the session ended, so that the lanes' final reports are better."""
    return sighting is not None and sighting.state == "ended" and not (sighting.told and sighting.ended is not None)


def read_report(
    ports: Ports, run: Run, lane: Lane, name: str, target_step: int, seen: Observation
) -> LaneReport | None:
    """Return the validated report of a lane, None if there is none or it is invalid. Raises StoreUnreachable."""
    try:
        data = ports.artifacts.read(f"runs/{run.key}/lane-{lane.index}/{name}.json", _REPORT_BYTES)
    except Missing:
        return None
    except StoreUnreachable:
        raise
    except StoreError as error:
        report, refusals = None, [Refusal("document", str(error), "")]
    else:
        now = ports.clock.now()
        report, refusals = border.report(data, run, lane, target_step, now, last_word=name == "result")
    seen.alive.add(run.key)
    if refusals:
        seen.refused.append(border.NotBelieved(run.key, f"{name} of lane {lane.index}", tuple(refusals)))
    return border.quiet(report, ports.redact) if report else None


def _jobs_to_list(runs: Sequence[Run], seen: Observation, known: Known, now: int) -> list[str]:
    """Return the jobs that report a higher checkpoint than is recorded, and those in runs that may end now.

    For a run that may end the reported step does not decide: a session that skipped a damaged checkpoint publishes
    lower steps, and an older manifest may be the one that could not be read.
    """
    wanted: set[str] = set()
    for run in runs:
        with seen.isolated(run.key):
            may_end = run.key in known.declared or _may_end(run, seen, now)
            for lane in (lane for lane in run.lanes if lane.outcome is None):
                report = seen.results.get((run.key, lane.index)) or seen.heartbeats.get((run.key, lane.index))
                step = report.checkpoint_step if report is not None else None
                if may_end or (step is not None and step > known.steps.get(lane.job, -1)):
                    wanted.add(lane.job)
    return sorted(wanted)


def _may_end(run: Run, seen: Observation, now: int) -> bool:
    """Whether the run or one of its lanes may end in this cycle: by its end, a final report, or a missing sighting."""
    silent = run.key not in seen.sightings and (isinstance(run.state, Submitting) or now > run.held_until)
    return silent or _is_ended(run, seen) or any((run.key, lane.index) in seen.results for lane in run.lanes)


def read_manifests(
    ports: Ports, jobs: Iterable[str], known_keys: Collection[str], seen: Observation, ahead: int = 0
) -> None:
    """Read the manifests of ``jobs`` that are not in ``known_keys``, and check that their components exist.

    ``ahead`` is the number of attempts of a job that may be missing in our ledger.
    """
    for job in jobs:
        try:
            keys = [key for key in ports.artifacts.keys(f"jobs/{job}/manifests/") if key not in known_keys]
        except StoreError as error:
            ports.log.warning("checkpoints.unreadable", job=job, why=str(error))
            continue
        seen.listed.add(job)
        if not keys:
            continue
        with ports.database.read() as tx:
            made = border.makers(tx, job, ahead, ports.clock.now())
        for key in _possible(job, keys, made, seen):
            _read_manifest(ports, job, key, made, seen)


def _possible(job: str, keys: Iterable[str], made: border.Makers, seen: Observation) -> list[str]:
    """Return the valid keys of manifests, at most _MANIFESTS_AT_ONCE, those of the highest steps."""
    possible = []
    for key in keys:
        if (named := split_key(key)) is None:
            continue
        try:
            made.of(named[1], named[2])
        except Unfit as error:
            _refuse(seen, job, key, str(error))
        else:
            possible.append(key)
    for key in sorted(possible)[:-_MANIFESTS_AT_ONCE]:
        _refuse(seen, job, key, f"more than {_MANIFESTS_AT_ONCE} at once")
    return sorted(possible)[-_MANIFESTS_AT_ONCE:]


def _refuse(seen: Observation, subject: str, key: str, why: str) -> None:
    if len(seen.refused) < REFUSED_AT_ONCE:
        seen.refused.append(border.NotBelieved(subject, "manifest", (Refusal(key, why, ""),)))


def _read_manifest(ports: Ports, job: str, key: str, made: border.Makers, seen: Observation) -> None:
    try:
        manifest, refusals = made.believed(parse_manifest(key, ports.artifacts.read(key, _REPORT_BYTES)))
        wrong = missing_components(ports, manifest)
    except BadManifest as error:
        seen.bad.append((key, error.why))
        _refuse(seen, job, key, error.why)
    except Unfit as error:
        _refuse(seen, job, key, str(error))
    except StoreUnreachable as error:
        ports.log.warning("checkpoint.unknown", key=key, why=str(error))
        seen.listed.discard(job)
    except StoreError as error:
        ports.log.warning("checkpoint.unreadable", key=key, why=str(error))
        _refuse(seen, job, key, f"cannot be read: {error.why}")
    else:
        if refusals:
            seen.refused.append(border.NotBelieved(manifest.run, "manifest", tuple(refusals)))
        if wrong:
            seen.bad.append((key, wrong))
        else:
            seen.manifests.append(manifest)


def missing_components(ports: Ports, manifest: Manifest) -> str:
    """Return the first missing or wrongly sized component of a manifest, else "". Digests are checked on use."""
    for component in manifest.components:
        size = ports.artifacts.size(f"jobs/{manifest.job}/blobs/{component.sha256}")
        if size is None:
            return f"component {component.name} is missing"
        if size != component.bytes:
            return f"component {component.name} has {size} bytes instead of {component.bytes}"
    return ""
