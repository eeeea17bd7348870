"""Observe: query platforms and the artifact store about live runs, without decisions and without a transaction."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import cast

from sqlalchemy import Connection

from jobs.lane_report import LaneReport
from jobs.nouns.window import HOUR
from jobs.payload.bounds import Rejection, Unfit
from jobs.payload.store.manifest import BadManifest, Manifest, manifest_key, parse_manifest, split_key
from platforms.artifacts.base import Missing, StoreError, StoreUnreachable
from platforms.base import Observed, PlatformError, Refused, Unfinished
from scheduler.core import job as arrows
from scheduler.core.job import Active, Failed, Held, Queued
from scheduler.core.reconcile import Sighting, SightingState
from scheduler.core.run import Lane, Reserved, Run, Running, Submitting, Wait, stop
from scheduler.service.facts.apply import apply
from scheduler.service.facts.halvings import pause
from scheduler.service.facts.observation import REFUSED_AT_ONCE, LiveJobs, Observation
from scheduler.service.faults.isolation import isolated_run
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, events, jobs, runs

_REPORT_BYTES = 1 << 20
PATIENCE_SECONDS = 6 * HOUR
_RETRY_SECONDS, _RETRY_SECONDS_MAX = 60, HOUR // 2
AWAITED, LOST = "session.awaited", "session.lost"
_MANIFESTS_AT_ONCE = 1_000  # maximum for one job; no session writes so many between two cycles


def observe(ports: Ports, runs: Sequence[Run], stored: LiveJobs, outputs: "OutputCollection", now: int) -> Observation:
    """Return the observation of all live runs.

    The store is listed only for jobs that report a higher checkpoint than is recorded, and for jobs of runs that may
    end now.
    """
    result = Observation()
    _query_platforms(ports, runs, result, now)
    ended: list[Run] = []
    due: list[Run] = []
    for run in runs:
        with result.isolated(run.key):
            ended += [run] if _is_ended(run, result) else []
            due += [run] if run in ended and outputs.is_due(run, result, now) else []
    _collect_outputs(ports, due, result, now)
    result.collected = {run.key for run in ended if run.key not in result.unread and run.key not in result.awaited}
    stages: dict[str, str] = {}
    for run in runs:
        with result.isolated(run.key):
            stages[run.key] = _stage(run, result, now)
    to_ask = [run for run in runs if run.key in stages]
    _query_reports(
        ports, [run for run in to_ask if not isinstance(run.state, Reserved)], stored, result, stages, outputs
    )
    _query_manifests(ports, to_ask, stored, result, stages, outputs, now)
    with_result = {key for key, _ in result.results}
    outputs.update([run for run in runs if run in ended or run.key in with_result], stored, result, now)
    return result


def _query_platforms(ports: Ports, runs: Sequence[Run], observation: Observation, now: int) -> None:
    launched: dict[str, dict[str, int | None]] = {}
    for run in runs:
        launched.setdefault(run.pool, {})[run.key] = run.planned_start

    def query(pool: str) -> tuple[int, tuple[list[str], border.ValidatedAnswer] | PlatformError]:
        try:
            return now, (list(launched[pool]), border.find(ports, pool, launched[pool]))
        except PlatformError as error:
            return now, error

    live = {run.key for run in runs}
    answers = ports.calls.gather("find", {pool: partial(query, pool) for pool in sorted(launched)})
    for pool in sorted(launched):
        asked_at, answer = answers.get(pool, (now, _late(pool, "find")))
        if isinstance(answer, PlatformError):
            observation.troubles[pool] = answer
            continue
        keys, (sessions, refused) = answer
        observation.reachable.add(pool)
        observation.asked_at.update(dict.fromkeys(live.intersection(keys), asked_at))
        observation.refused.extend(one for one in refused if one.subject in live and one.what != border.UNCLEAR)
        observation.unclear.update(one.subject for one in refused if one.subject not in sessions)
        observation.undetermined.update(
            (one.subject, one.refusals[0].why) for one in refused if one.what == border.UNCLEAR and one.subject in live
        )
        for key, one in sessions.items():
            if key in live:
                with observation.isolated(key):
                    observation.sightings[key] = _sighting(one)
        observation.unclear |= observation.poisoned.keys()


def _collect_outputs(ports: Ports, ended: Sequence[Run], observation: Observation, now: int) -> None:
    """Collect the outputs that ended sessions left on their platforms; a run ends only after that."""

    def collect(run: Run) -> PlatformError | None:
        try:
            border.call(run.pool, "collect", lambda: ports.platforms[run.pool].collect(run.key, ports.artifacts, now))
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
            # A failure of the store and a collection in progress do not count towards PATIENCE_SECONDS.
            if isinstance(error, Unfinished) or isinstance(error.__cause__, StoreError):
                observation.unread.add(run.key)
            else:
                observation.awaited[run.key] = error.why
            if isinstance(error, border.AdapterCrashed):
                observation.poisoned[run.key] = str(error)


def _stage(run: Run, observation: Observation, now: int) -> str:
    """Return the state of a run before the store is queried, as a part of the query's name.

    An answer is used only for a query of the same name. So a query that was sent before the end of a session was known,
    or before its outputs were collected, is not mistaken for an answer about its final outputs.
    """
    sighting = observation.sightings.get(run.key)
    over = ", over" if now > run.held_until else ""
    return f"{sighting.state if sighting else 'unseen'}{over}{', home' if run.key in observation.collected else ''}"


def _query_reports(
    ports: Ports,
    due: Sequence[Run],
    stored: LiveJobs,
    observation: Observation,
    stages: Mapping[str, str],
    outputs: "OutputCollection",
) -> None:
    def read(run: Run) -> Observation:
        answer = Observation()
        with answer.isolated(run.key):
            _read_lanes(ports, run, stored, observation.sightings.get(run.key), answer)
        return answer

    names = {run.key: f"{run.key}, {stages[run.key]}" for run in due}
    about = {name: {key} for key, name in names.items()}
    answers = _answers(
        ports, "reports", {names[run.key]: partial(read, run) for run in due}, about, observation, outputs
    )
    for key, name in names.items():
        observation.add(answers.get(name) or Observation(unread={key}, late={key}))


def _query_manifests(
    ports: Ports,
    due: Sequence[Run],
    stored: LiveJobs,
    observation: Observation,
    stages: Mapping[str, str],
    outputs: "OutputCollection",
    now: int,
) -> None:
    keys = set(stored.keys)

    def read(job: str) -> Observation:
        answer = Observation()
        faults: dict[str, str] = {}
        with isolated_run(faults, job):
            read_manifests(ports, [job], keys, answer)
        if faults:
            answer.poisoned |= dict.fromkeys((run.key for run in of[job]), faults[job])
        return answer

    names, of = {}, {}
    for job in _jobs_to_list(due, observation, stored, now):
        of[job] = mine = [run for run in due if any(lane.job == job for lane in run.lanes)]
        over = [f"{key} {index}" for key, index in sorted(observation.results) if any(run.key == key for run in mine)]
        names[job] = ", ".join([job, *(f"{run.key} {stages[run.key]}" for run in mine), *over])
    about = {name: {run.key for run in of[job]} for job, name in names.items()}
    answers = _answers(
        ports, "manifests", {name: partial(read, job) for job, name in names.items()}, about, observation, outputs
    )
    for job, name in names.items():
        observation.add(answers.get(name) or Observation(late={run.key for run in of[job]}))


def _answers(
    ports: Ports,
    kind: str,
    work: Mapping[str, Callable[[], Observation]],
    about: Mapping[str, set[str]],
    observation: Observation,
    outputs: "OutputCollection",
) -> dict[str, Observation]:
    """Return the store's answers by query. Answers about runs with collected outputs are kept until all have arrived.

    ``about`` has the run IDs that each query is about.
    """
    kept = {
        name: outputs.answers[name] for name, keys in about.items() if name in outputs.answers and keys & outputs.read
    }
    answers = kept | ports.calls.gather(kind, {name: ask for name, ask in work.items() if name not in kept})
    outputs.fresh |= {
        name: answer for name, answer in answers.items() if about.get(name, set()) & observation.collected
    }
    return answers


def _late(pool: str, action: str) -> PlatformError:
    return Unfinished(pool, action, "no answer yet; a late answer is used")


def _sighting(session: Observed) -> Sighting:
    return Sighting(
        cast("SightingState", session.state.value),  # the border rejects unclear sessions
        session.remote_id,
        session.started,
        session.ended,
        session.detail,
        session.stop_channel.value,
        session.told,
        Wait(**asdict(session.waits)) if session.waits else None,
        session.price_microdollars_per_hour,
        session.deadline,
        session.taken,
        session.contradicts,
    )


def _read_lanes(ports: Ports, run: Run, stored: LiveJobs, sighting: Sighting | None, observation: Observation) -> None:
    ended = sighting is not None and sighting.state == "ended"
    # If the platform does not report the end of the session, the lanes' final reports are more exact.
    guessed = sighting is not None and ended and not (sighting.exact and sighting.ended is not None)
    for lane in run.lanes:
        if lane.outcome is not None and not guessed:
            continue
        target = stored.targets[lane.job]
        try:
            heartbeat = read_report(ports, run, lane, "heartbeat", target, observation)
            if heartbeat is not None:
                observation.heartbeats[run.key, lane.index] = heartbeat
            if heartbeat is None or heartbeat.phase == "ended" or ended:
                result = read_report(ports, run, lane, "result", target, observation)
                if result is not None:
                    observation.results[run.key, lane.index] = result
        except StoreUnreachable as error:
            ports.log.warning("report.unknown", run=run.key, why=str(error))
            observation.unread.add(run.key)


def _is_ended(run: Run, observation: Observation) -> bool:
    sighting = observation.sightings.get(run.key)
    return sighting is not None and sighting.state == "ended"


def read_report(
    ports: Ports, run: Run, lane: Lane, name: str, target_step: int, observation: Observation
) -> LaneReport | None:
    """Return the validated report of a lane; None if it is missing or invalid. Raises StoreUnreachable."""
    try:
        data = ports.artifacts.read(f"runs/{run.key}/lane-{lane.index}/{name}.json", _REPORT_BYTES)
    except Missing:
        return None
    except StoreUnreachable:
        raise
    except StoreError as error:
        report, refusals = None, [Rejection("document", str(error), "")]
    else:
        now = ports.clock.now()
        report, refusals = border.report(data, run, lane, target_step, now, last_word=name == "result")
    observation.alive.add(run.key)
    if refusals:
        observation.refused.append(border.RejectedInput(run.key, f"{name} of lane {lane.index}", tuple(refusals)))
    return border.redacted(report, ports.redact) if report else None


def _jobs_to_list(runs: Sequence[Run], observation: Observation, stored: LiveJobs, now: int) -> list[str]:
    """Return the jobs that report a higher checkpoint than is recorded, and those in runs that may end now.

    For runs that may end the reported step does not matter: a session that skipped a damaged checkpoint publishes
    lower steps, and reading an older manifest may have failed before.
    """
    wanted: set[str] = set()
    for run in runs:
        with observation.isolated(run.key):
            silent = run.key not in observation.sightings
            silent = silent and (isinstance(run.state, Submitting) or now > run.held_until)
            reported = any((run.key, lane.index) in observation.results for lane in run.lanes)
            may_end = run.key in stored.declared or silent or reported or _is_ended(run, observation)
            for lane in (lane for lane in run.lanes if lane.outcome is None):
                key = (run.key, lane.index)
                report = observation.results.get(key) or observation.heartbeats.get(key)
                step = report.checkpoint_step if report is not None else None
                if may_end or (step is not None and step > stored.steps.get(lane.job, -1)):
                    wanted.add(lane.job)
    return sorted(wanted)


def read_manifests(
    ports: Ports, jobs: Iterable[str], known_keys: Collection[str], observation: Observation, ahead: int = 0
) -> None:
    """Read the manifests of ``jobs`` that are not in ``known_keys``, and check that their components exist.

    ``ahead`` is the number of attempts of a job that may be missing in our database.
    """
    for job in jobs:
        try:
            keys = [key for key in ports.artifacts.keys(f"jobs/{job}/manifests/") if key not in known_keys]
        except StoreError as error:
            ports.log.warning("checkpoints.unreadable", job=job, why=str(error))
            continue
        observation.listed.add(job)
        if not keys:
            continue
        with ports.database.read() as tx:
            attempts = border.known_attempts(tx, job, ahead, ports.clock.now())
        for key in _valid_keys(job, keys, attempts, observation):
            _read_manifest(ports, job, key, attempts, observation)


def _valid_keys(job: str, keys: Iterable[str], attempts: border.KnownAttempts, observation: Observation) -> list[str]:
    """Return the valid keys of manifests, at most the _MANIFESTS_AT_ONCE keys with the highest steps."""
    valid = []
    for key in keys:
        if (named := split_key(key)) is None:
            continue
        try:
            attempts.writer(named[1], named[2])
        except Unfit as error:
            _refuse(observation, job, key, str(error))
        else:
            valid.append(key)
    for key in sorted(valid)[:-_MANIFESTS_AT_ONCE]:
        _refuse(observation, job, key, f"more than {_MANIFESTS_AT_ONCE} at once")
    return sorted(valid)[-_MANIFESTS_AT_ONCE:]


def _refuse(observation: Observation, subject: str, key: str, why: str) -> None:
    if len(observation.refused) < REFUSED_AT_ONCE:
        observation.refused.append(border.RejectedInput(subject, "manifest", (Rejection(key, why, ""),)))


def _read_manifest(ports: Ports, job: str, key: str, attempts: border.KnownAttempts, observation: Observation) -> None:
    try:
        manifest, refusals = attempts.validated(parse_manifest(key, ports.artifacts.read(key, _REPORT_BYTES)))
        wrong = missing_components(ports, manifest)
    except BadManifest as error:
        observation.bad.append((key, error.why))
        _refuse(observation, job, key, error.why)
    except Unfit as error:
        _refuse(observation, job, key, str(error))
    except StoreUnreachable as error:
        ports.log.warning("checkpoint.unknown", key=key, why=str(error))
        observation.listed.discard(job)
    except StoreError as error:
        ports.log.warning("checkpoint.unreadable", key=key, why=str(error))
        _refuse(observation, job, key, f"cannot be read: {error.why}")
    else:
        if refusals:
            observation.refused.append(border.RejectedInput(manifest.run, "manifest", tuple(refusals)))
        if wrong:
            observation.bad.append((key, wrong))
        else:
            observation.manifests.append(manifest)


def missing_components(ports: Ports, manifest: Manifest) -> str:
    """Return the first missing or wrongly sized component of a manifest, else "". Digests are not checked here."""
    for component in manifest.components:
        size = ports.artifacts.size(f"jobs/{manifest.job}/blobs/{component.sha256}")
        if size is None:
            return f"component {component.name} is missing"
        if size != component.bytes:
            return f"component {component.name} has {size} bytes instead of {component.bytes}"
    return ""


# Late checkpoints: discovered after the run was finished, after a restore, or after a session was given up too early.
#
# Their run has ended and cannot finish the job, so a job that reached its target is finished here.
def record_late(ports: Ports, names: Collection[str], now: int, ahead: int = 0) -> bool:
    """Record the unknown checkpoints of these jobs; return False if the store could not list all of them.

    ``ahead`` is the number of attempts of each job that may be missing in our database. Raises StoreFailure.
    """
    with ports.database.read() as tx:
        stored_keys = checkpoints.keys(tx, names)
    observation = Observation()
    read_manifests(ports, sorted(names), stored_keys, observation, ahead)
    border.RejectionLog(ports).report(observation.refused, names, now)
    if observation.manifests or observation.bad:
        with ports.write() as tx:
            apply(ports, tx, [], observation, [], now)
            for name in sorted({manifest.job for manifest in observation.manifests}):
                _finish_late(tx, name, now)
    return observation.listed == set(names)


def _finish_late(tx: Connection, name: str, now: int) -> None:
    """Finish a job that reached its target. If a session still trains it, stop that session."""
    job = jobs.find(tx, name)
    if job is None or job.done_step < job.spec.target_step:
        return
    if isinstance(job.state, Queued | Held | Failed):
        jobs.change_state(tx, name, job.state, arrows.finish(job.state, now, *pause(job.spec)), "finish", now)
    elif isinstance(job.state, Active):
        run = runs.get(tx, job.state.run)
        if isinstance(run.state, Running) and all(lane.job == name or lane.outcome for lane in run.lanes):
            why = f"{name} reached its target in an earlier session"
            runs.change_state(tx, run.key, run.state, stop(run.state, why, now), "stop", now)


# Output collection: whether all outputs of an ended session have arrived, when to fetch again, and when to give up.
#
# A download may be damaged, an answer incomplete, or a store late. So a run ends only when all reported checkpoints
# have arrived. Missing checkpoints are fetched again with growing pauses; after PATIENCE_SECONDS they are lost, and an
# event is written.
class OutputCollection:
    """The retries of fetching outputs. A restart loses them, but the event log has the time of the first attempt."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._next: dict[str, tuple[int, int, str]] = {}  # by run: (pause in seconds, end of the pause, last error)
        self.read: set[str] = set()  # runs with collected outputs for which answers of the store are missing
        self.answers: dict[str, Observation] = {}  # by query: the answers of earlier cycles
        self.fresh: dict[str, Observation] = {}  # by query: the answers of this cycle

    def is_due(self, run: Run, observation: Observation, now: int) -> bool:
        """Return whether to fetch the run's outputs now; if not, store the last error in ``observation.awaited``."""
        if run.key in self.read:
            return False
        _, at, why = self._next.get(run.key, (0, 0, ""))
        if now < at and why:
            observation.awaited[run.key] = why
        return now >= at

    def update(self, over: Sequence[Run], stored: LiveJobs, observation: Observation, now: int) -> None:
        """Add runs with missing checkpoints to ``observation.awaited``; after PATIENCE_SECONDS move them to ``lost``.

        ``over`` are ended runs and runs with a final report.
        """
        self.read = {run.key for run in over} & observation.collected & observation.late
        self.answers, self.fresh = self.fresh, {}
        for run in over:
            if run.key not in self.read:
                with observation.isolated(run.key):
                    self._update_run(run, stored, observation, now)
        for key in self._next.keys() - {run.key for run in over}:
            del self._next[key]

    def _update_run(self, run: Run, stored: LiveJobs, observation: Observation, now: int) -> None:
        fetched = run.key not in observation.awaited
        if fetched and (missing := "; ".join(_missing(run, stored, observation))):
            observation.awaited[run.key] = missing
        why = observation.awaited.get(run.key)
        if why is None:
            self._next.pop(run.key, None)
            return
        pause, at, _ = self._next.get(run.key, (_RETRY_SECONDS // 2, 0, ""))
        if now >= at and observation.is_reached(run):
            pause = min(2 * pause, _RETRY_SECONDS_MAX)
            self._next[run.key] = pause, now + pause, "" if fetched else why
        # Time without queries, for example while the daemon was off, must not count. So the pause must be long, too.
        if now - self._record_once(AWAITED, run, why, now) >= PATIENCE_SECONDS and pause >= _RETRY_SECONDS_MAX:
            observation.lost[run.key] = observation.awaited.pop(run.key)
            self._record_once(LOST, run, why, now)

    def _record_once(self, kind: str, run: Run, why: str, now: int) -> int:
        """Write an event for a run unless it has one of this kind; return the event's time in seconds UTC."""
        with self._ports.database.read() as tx:
            last = events.tail(tx, limit=1, kinds=[kind], subject=run.key)
        if last:
            return last[0].at
        with self._ports.write() as tx:
            events.append(tx, kind, run.key, now, why=why[:500])
        self._ports.log.warning(kind, run=run.key, jobs=[lane.job for lane in run.lanes], why=why)
        return now


def _missing(run: Run, stored: LiveJobs, observation: Observation) -> Iterator[str]:
    """Yield the missing checkpoints that open lanes have reported, as texts."""
    stored_keys = {manifest.key for manifest in observation.manifests} | set(stored.keys)
    for lane in run.lanes:
        report = observation.results.get((run.key, lane.index)) or observation.heartbeats.get((run.key, lane.index))
        if lane.outcome is not None or report is None or lane.job not in observation.listed:
            continue  # it has ended, has no report, or the store has not listed its job
        step = report.checkpoint_step
        began = lane.restore_step if report.restored_step is None else report.restored_step
        # The key contains the attempt: an earlier attempt may have saved a damaged checkpoint of the same step.
        if step is not None and step != began and manifest_key(lane.job, step, lane.attempt) not in stored_keys:
            yield f"step {step} of {lane.job} has not arrived, or is damaged"
