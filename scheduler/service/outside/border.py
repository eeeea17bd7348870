"""Validation of everything that sessions and platforms report, before any other code reads it.

A valid value is typed, bounded, and possible for its run: nothing starts before the launch or ends after now, no
step is beyond the target, no manifest belongs to another session. An invalid value counts as missing. It is stored and
counted, and the first one of each run and kind of document is an event.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import Connection

from jobs.lane_report import LaneReport, read_report
from jobs.nouns.window import DAY
from jobs.payload.bounds import (
    NAME_MAX,
    TEXT_MAX,
    Reader,
    Rejection,
    Unfit,
    brief,
    clean,
    read_json,
    text,
    whole,
    without_secrets,
)
from jobs.payload.store.manifest import Manifest
from platforms.base import (
    HourPrice,
    InQueue,
    LaunchRequest,
    Observed,
    PlatformError,
    QuotaReading,
    SessionState,
    StopChannel,
    Unreachable,
)
from scheduler.core.run import CLOCKS_SECONDS, Lane, Run
from scheduler.service.outside.ports import Ports
from scheduler.store import events, jobs, runs
from scheduler.store.runs import Attempt

ValidatedAnswer = tuple[dict[str, Observed], list["RejectedInput"]]
REFUSED, REFUSED_IN_ALL = "report.refused", "report.refused_in_all"
UNCLEAR = "platform's own record"  # the platform reports that it does not know the state of this session
_PAST_SECONDS = 60 * DAY  # the greatest age of an instant that a platform reports
_WINDOW_SECONDS = 400 * DAY  # the longest window of a quota
_PRICE_MAX = 10**10  # microdollars per hour
_PLACE_MAX = 10**7  # queue position
_WORDS_MAX = 200  # characters of a price's source, and of the evidence against a fact
_SESSIONS = 1_000  # sessions that may use one quota at a time
_KINDS_MAX = 20  # kinds of rejected documents that get an event, per run
_VALUES_MAX = 5  # rejected values in one event
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class RejectedInput:
    """The rejected values of one document or answer. ``subject`` is a run ID, or the name of a pool or job."""

    subject: str
    what: str
    refusals: tuple[Rejection, ...]


# Reports of sessions.
def report(
    data: bytes, run: Run, lane: Lane, target_step: int, now: int, *, last_word: bool
) -> tuple[LaneReport | None, list[Rejection]]:
    """Return a lane's report without its invalid values (None: invalid document), and the rejected values."""
    try:
        lane_report, refusals = read_report(read_json(data), run.key, lane.index, lane.job, last_word=last_word)
    except ValueError as error:
        return None, [Rejection("document", clean(str(error), NAME_MAX), brief(data[:NAME_MAX]))]
    refused = list(refusals)
    began, latest = run.planned_start - CLOCKS_SECONDS, now + CLOCKS_SECONDS
    ranges = {
        **dict.fromkeys(("started_at", "ended_at", "at"), (began, latest)),
        **dict.fromkeys(("setup_seconds", "checkpoint_seconds", "trained_seconds"), (0, latest - run.planned_start)),
        **dict.fromkeys(("step", "checkpoint_step", "restored_step"), (0, target_step)),
    }
    unfit: dict[str, Any] = {}
    for name, (low, high) in ranges.items():
        value = getattr(lane_report, name)
        if value is not None and not low <= value <= high:
            unfit[name] = None
            refused.append(Rejection(name, f"not within {low} .. {high} for this run", brief(value)))
    return (replace(lane_report, **unfit) if unfit else lane_report), refused


def redacted(lane_report: LaneReport, redact: Callable[[str], str]) -> LaneReport:
    """Return a report with its secrets redacted: a session may print its secrets, and reports are stored."""
    accused = tuple(replace(one, why=redact(one.why)) for one in lane_report.bad_manifests)
    devices = tuple(map(redact, lane_report.devices))
    return replace(
        lane_report,
        message=redact(lane_report.message),
        why=redact(lane_report.why),
        bad_manifests=accused,
        devices=devices,
        training_data=lane_report.training_data and without_secrets(lane_report.training_data, redact),
    )


@dataclass(frozen=True, slots=True)
class KnownAttempts:
    """The attempts that may have written a job's manifests: the recorded ``attempts``, and others up to ``last``."""

    target_step: int
    attempts: Mapping[int, Attempt]
    last: int
    now: int

    def writer(self, step: int, attempt: int) -> Attempt | None:
        """Return the attempt that wrote a manifest; None if its record is lost. Raises Unfit for an unknown attempt."""
        if step > self.target_step:
            raise Unfit(f"step {step} is beyond the target, {self.target_step}")
        if not 1 <= attempt <= self.last:
            raise Unfit(f"no launch of ours was attempt {attempt}")
        return self.attempts.get(attempt)

    def validated(self, manifest: Manifest) -> tuple[Manifest, list[Rejection]]:
        """Return a manifest with valid instants, and the rejected values. Raises Unfit for another session's manifest.

        Invalid instants are replaced, since a wrong clock does not invalidate a checkpoint.
        """
        writer = self.writer(manifest.step, manifest.attempt)
        if writer is not None and (manifest.run, manifest.lane) != (writer.run, writer.lane):
            own = f"attempt {manifest.attempt} was lane {writer.lane} of {writer.run}"
            raise Unfit(f"it names lane {manifest.lane} of {manifest.run}; {own}")
        began = manifest.created_at if writer is None else writer.planned_start
        created = max(min(manifest.created_at, self.now), min(began, self.now))
        trained = min(manifest.trained_seconds, max(0, self.now - began)) if writer else manifest.trained_seconds
        refused = [
            Rejection(name, f"not possible for this run; {used} is used instead", brief(claimed))
            for name, claimed, used in (
                ("created_at", manifest.created_at, created),
                ("trained_seconds", manifest.trained_seconds, trained),
            )
            if abs(claimed - used) > CLOCKS_SECONDS
        ]
        return replace(manifest, created_at=created, trained_seconds=trained), refused


def known_attempts(tx: Connection, job: str, ahead: int, now: int) -> KnownAttempts:
    """Return the attempts that may have written a job's manifests; the newest ``ahead`` may lack a record."""
    record = jobs.get(tx, job)
    return KnownAttempts(record.furthest_step, runs.attempts(tx, job), record.attempts + ahead, now)


# Answers of platforms.
def find(ports: Ports, pool: str, launched: Mapping[str, int | None]) -> ValidatedAnswer:
    """Query a platform about sessions; return the valid answers by run ID, and the rejected values.

    ``launched`` has the earliest possible start of each run ID; None: long ago. A run ID with an invalid answer is
    missing in the answers and rejected; one that the platform does not know is only missing. Raises PlatformError.
    """
    platform = _platform(ports, pool, "find")
    answer = call(pool, "find", lambda: dict(platform.find(list(launched), ports.clock.now())))
    now = ports.clock.now()
    sessions: dict[str, Observed] = {}
    refused: list[RejectedInput] = []
    for key, since in launched.items():
        if key in answer:
            wrong: list[Rejection] = []
            if isinstance(answer[key], Observed) and answer[key].state is SessionState.UNCLEAR:
                why = Reader({"detail": answer[key].detail}).text("detail")
                refused.append(RejectedInput(key, UNCLEAR, (Rejection("answer", why, ""),)))
                continue
            try:
                sessions[key], wrong = observed(answer[key], key, now - _PAST_SECONDS if since is None else since, now)
            except Unfit as error:
                wrong.append(Rejection("answer", str(error), brief(answer[key])))
            except Exception as error:  # noqa: BLE001 - an error in one answer must not affect other sessions
                wrong.append(Rejection("answer", clean(f"{type(error).__name__}: {error}", NAME_MAX), ""))
            if wrong:
                refused.append(RejectedInput(key, "platform answer", tuple(wrong)))
    return sessions, refused


def observed(answer: Any, key: str, launched: int, now: int) -> tuple[Observed, list[Rejection]]:
    """Return a platform's answer about one session; an invalid instant counts as missing. Raises Unfit."""
    if not isinstance(answer, Observed) or answer.key != key:
        raise Unfit(f"no answer about {key}")
    state: Any = answer.state
    if not isinstance(state, SessionState) or state is SessionState.UNCLEAR:
        raise Unfit(f"{brief(answer.state)} is not a state of a session")
    stop_channel: Any = answer.stop_channel
    same = {name: getattr(answer, name) for name in ("started", "ended", "remote_id", "detail", "deadline")}
    reader = Reader({**same, "price": answer.price_microdollars_per_hour})
    contradicts = dict(answer.contradicts)
    claims = Reader(contradicts)
    runs = answer.state is SessionState.RUNNING
    latest = now + CLOCKS_SECONDS
    started = reader.read("started", whole, launched - CLOCKS_SECONDS, latest)
    began = launched - CLOCKS_SECONDS if started is None else started
    ended = reader.read("ended", whole, began, latest)
    if started is not None and ended is None:
        started = min(started, now)  # a session that has not ended cannot start later
    # The end may be later than now: our clock may be slow, and the platform's bill counts.
    return (
        Observed(
            key,
            answer.state,
            reader.text("remote_id", NAME_MAX),
            started,
            ended,
            reader.text("detail"),
            stop_channel if isinstance(stop_channel, StopChannel) else StopChannel.STORE,
            answer.told is True,
            _in_queue(answer, now),
            reader.read("price", whole, 1, _PRICE_MAX) if answer.state is SessionState.ENDED else None,
            reader.read("deadline", whole, began, now + _WINDOW_SECONDS) if runs else None,
            answer.taken is True,
            {name: evidence for name in contradicts if (evidence := claims.text(name, _WORDS_MAX))},
        ),
        reader.refused,
    )


def _in_queue(session: Observed, now: int) -> InQueue | None:
    """Return the wait of a queued session. A start in the past or too far in the future counts as missing."""
    if session.state is not SessionState.QUEUED or not isinstance(session.waits, InQueue):
        return None
    waits = session.waits
    reader = Reader(asdict(waits))
    return InQueue(
        reader.text("why"),
        reader.read("starts_at", whole, now, now + _WINDOW_SECONDS),
        reader.read("place", whole, 1, _PLACE_MAX),
        reader.read("length_seconds", whole, 1, _WINDOW_SECONDS),
        reader.read("deadline", whole, 0, now + _WINDOW_SECONDS),
    )


def launch(ports: Ports, run: Run, request: LaunchRequest) -> Observed:
    """Launch a session. Raises PlatformError, also for an invalid answer; then the session may have started."""
    platform = _platform(ports, run.pool, "launch")
    answer = call(run.pool, "launch", lambda: platform.launch(request, ports.clock.now()))
    try:
        return observed(answer, run.key, run.planned_start, ports.clock.now())[0]
    except Unfit as error:
        raise Unreachable(run.pool, "launch", f"its answer is invalid: {error}", "the run ID is queried") from None


def until(instant: Any, now: int) -> int | None:
    """Return the instant until which a platform refuses launches; None if it reports no valid one."""
    try:
        return whole(instant, now, now + _WINDOW_SECONDS)
    except Unfit:
        return None


def usage_records(ports: Ports, pool: str) -> tuple[list[QuotaReading], HourPrice | None]:
    """Return usage records, and the price of an hour if reported. Raises PlatformError, also for an invalid figure."""
    platform = _platform(ports, pool, "read_quota")
    replies = call(pool, "read_quota", lambda: list(platform.read_quota(ports.clock.now())))
    now, prices = ports.clock.now(), [one for one in replies if isinstance(one, HourPrice)]
    try:
        readings = [reading(one, now) for one in replies if not isinstance(one, HourPrice)]
        costs = [HourPrice(whole(one.microdollars, 1, _PRICE_MAX), text(one.source, _WORDS_MAX)) for one in prices]
        return readings, costs[-1] if costs else None
    except Unfit as error:
        raise Unreachable(pool, "read_quota", f"its records are invalid: {error}", "they are read again") from None


def reading(answer: Any, now: int) -> QuotaReading:
    """Return one usage record after its validation. Raises Unfit."""
    if not isinstance(answer, QuotaReading):
        raise Unfit(f"{brief(answer)} is not a usage record")
    try:
        start = whole(answer.start, now - _WINDOW_SECONDS, now + _WINDOW_SECONDS)
        end = whole(answer.end, start + 1, start + _WINDOW_SECONDS)
        most = _SESSIONS * (end - start)
        figures = (answer.limit_seconds, answer.used_seconds, answer.reserved_seconds)
        limit, used, reserved = (whole(each, 0, most) for each in figures)
        return QuotaReading(text(answer.quota, NAME_MAX), start, end, limit, used, reserved, answer.shared is True)
    except Unfit as error:
        raise Unfit(f"{error} in {brief(answer)}") from None


def orphans(ports: Ports, pool: str, our_keys: Collection[str]) -> list[Observed]:
    """Return the valid live sessions of ours whose keys are not in ``our_keys``. Raises PlatformError."""
    platform = _platform(ports, pool, "orphans")
    answer = call(pool, "orphans", lambda: list(platform.orphans(our_keys, ports.clock.now())))
    now, sessions = ports.clock.now(), []
    for session in answer:
        try:
            key = text(session.key, NAME_MAX) if isinstance(session, Observed) else ""
            sessions.append(observed(session, key, now - _PAST_SECONDS, now)[0])
        except Unfit as error:
            ports.log.warning("orphan.refused", pool=pool, why=str(error), said=brief(session))
    return sessions


def call(pool: str, action: str, method: Callable[[], _Answer]) -> _Answer:
    """Return the result of a platform's method. Raises PlatformError for any exception of the method.

    An adapter that crashes counts as a platform that does not answer; the error contains the exception.
    """
    try:
        return method()
    except PlatformError as error:
        # Texts of platforms are stored in columns and printed on terminals.
        error.args = (clean(str(error), TEXT_MAX),)
        raise
    except Exception as error:
        why = f"its adapter raised {type(error).__name__}: {clean(str(error), NAME_MAX)}"
        raise AdapterCrashed(pool, action, why, "report this error; the pool is queried again") from error


class AdapterCrashed(Unreachable):
    """An adapter raised an exception that is not a PlatformError, which is a fault to report."""


def _platform(ports: Ports, pool: str, action: str) -> Any:
    try:
        return ports.platforms[pool]
    except KeyError:
        why = "the pool is no longer configured"
        raise PlatformError(pool, action, why, "add it again until its runs have ended") from None


# Rejected values.
class RejectionLog:
    """Writes events of rejected values: one for each subject and kind, and the total when a run has ended."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._counts: Counter[tuple[str, str]] = Counter()

    def report(self, refused: Sequence[RejectedInput], live: Collection[str], now: int) -> None:
        """Write an event for each first rejection, and one with the totals of each run that is no longer ``live``."""
        news = {
            (one.subject, one.what): one for one in reversed(refused) if (one.subject, one.what) not in self._counts
        }
        counts = self._counts.copy()
        for one in refused:
            counts[one.subject, one.what] += len(one.refusals)
        kept = {*live, *(one.subject for one in refused)}
        over = sorted({subject for subject, _ in counts} - kept)
        if news or over:
            with self._ports.write() as tx:
                for one in news.values():
                    self._write(tx, one, now)
                for subject in over:
                    totals = {what: count for (named, what), count in counts.items() if named == subject}
                    events.append(tx, REFUSED_IN_ALL, subject, now, counts=totals)
        # Updated last, so that a rejection whose event could not be written is tried again.
        self._counts = Counter({key: count for key, count in counts.items() if key[0] not in over})

    def _write(self, tx: Connection, one: RejectedInput, now: int) -> None:
        last = events.tail(tx, limit=_KINDS_MAX, kinds=[REFUSED], subject=one.subject)
        if len(last) >= _KINDS_MAX or any(event.data.get("what") == one.what for event in last):
            return  # the previous daemon has written the event
        redact = self._ports.redact
        values = [
            {"field": each.field, "why": each.why, "said": redact(each.excerpt)} for each in one.refusals[:_VALUES_MAX]
        ]
        why = f"{one.what} was rejected: {one.refusals[0].field}: {redact(one.refusals[0].why)}"
        events.append(tx, REFUSED, one.subject, now, what=one.what, why=why, said=values)
        self._ports.log.warning(REFUSED, subject=one.subject, what=one.what, why=why)
