"""Observe each launch on Kaggle: keep its record, read its output, and record its end.

Also find our kernels that have no record, by the first line of their source.
"""

import codecs
import json
import math
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from jobs.duration import show_duration
from jobs.payload.bounds import read_json
from jobs.payload.clock import stopwatch
from jobs.payload.whole_file import write_whole
from platforms.base import InQueue, Observed, PlatformError, Refused, SessionState, StopChannel, Unreachable
from platforms.folders import lock_file, read_part, try_lock
from platforms.kaggle.api.client import KaggleClient
from platforms.kaggle.api.wire import Denied, Throttled
from platforms.kaggle.kernel.packing import is_source_of, order_of
from platforms.record_file import read_record

# Records of launches: one file for each key, replaced atomically.
#
# A record is written before the kernel is pushed, so that a launch whose response was lost is looked up by its slug and
# never pushed again: Kaggle would start a second session beside the first.
_LOCK_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Record:
    """One launch. Times are scheduled UTC seconds.

    ``state``: ``intent`` (perhaps pushed), ``pushed``, ``ended``, ``void`` (never started and never will be). An intent
    that is not on Kaggle becomes void at ``void_from``. ``missed_at`` is when the session was first missing.
    ``queued_at`` is when it was last seen in the queue, and ``started`` the earliest possible start after that.
    ``over_at`` is when it was first seen to have ended, ``asked_at`` when it was first asked to exit, ``cancelled_at``
    when Kaggle was first asked to cancel it, ``deleted_at`` when its kernel was deleted. ``timeout_seconds`` is its
    time limit on Kaggle, ``overran_at`` when it was last seen to exceed that. ``told`` is False if ``ended`` is the
    latest possible end. ``taken`` is True if Kaggle or another person ended the session. ``jobs`` and ``relays`` say
    what to import; ``collected`` means that nothing more is to be imported. ``slug`` is the kernel's name, ``datasets``
    are the slugs of its inputs. ``contradicts``: see Observed.
    """

    key: str
    slug: str
    state: Literal["intent", "pushed", "ended", "void"]
    intended_at: int
    void_from: int
    jobs: tuple[str, ...] = ()
    relays: bool = False
    datasets: tuple[str, ...] = ()
    queued_at: int | None = None
    started: int | None = None
    ended: int | None = None
    detail: str = ""
    asked_at: int | None = None
    cancelled_at: int | None = None
    deleted_at: int | None = None
    over_at: int | None = None
    missed_at: int | None = None
    collected: bool = False
    timeout_seconds: int | None = None
    overran_at: int | None = None
    told: bool = True
    taken: bool = False
    contradicts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A session's own report: its ID, whether it sees new datasets, when it began. None means not reported yet."""

    session_id: int | None = None
    hears: bool | None = None
    began: float | None = None


class LaunchRecords:
    """The records below ``root``, which any number of adapters and daemons may share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def all_keys(self) -> list[str]:
        """Return the keys of all records, sorted."""
        return sorted(path.name.removesuffix(".json") for path in self._root.glob("*.json"))

    def read(self, key: str) -> Record | None:
        """Read a record. Raises OSError, DamagedRecord; the root must exist."""
        self._root.stat()  # an unmounted disk must not look like an empty one
        return read_record(self._root, f"{key}.json", Record)

    def write(self, record: Record) -> Record:
        """Write a record atomically, and return it."""
        write_whole(self._root / f"{record.key}.json", json.dumps(asdict(record)), sync=True)
        return record

    def drop(self, key: str) -> None:
        """Remove a launch's record, log and report."""
        for kind in ("log", "live", "said", "tail", "lock", "json"):
            (self._root / f"{key}.{kind}").unlink(missing_ok=True)

    def path(self, key: str, kind: str) -> Path:
        """Return the path of a session's output: its final ``log``, or the ``live`` output of a running session."""
        return self._root / f"{key}.{kind}"

    def report(self, key: str) -> SessionReport:
        """Return what a session has reported so far. Raises OSError, DamagedRecord."""
        return read_record(self._root, f"{key}.said", SessionReport) or SessionReport()

    def write_report(self, key: str, report: SessionReport) -> None:
        """Record the report of a session, because its log, the only source, may be lost."""
        write_whole(self._root / f"{key}.said", json.dumps(asdict(report)), sync=True)

    @contextmanager
    def lock_tail(self, key: str) -> Iterator[bool]:
        """Lock a session's stream for reading, without waiting; yield False if another reader has it."""
        with (self._root / f"{key}.tail").open("ab") as handle:
            yield try_lock(handle)

    def is_locked(self, key: str) -> bool:
        """Return whether a key is locked at this moment."""
        try:
            with (self._root / f"{key}.lock").open("rb") as handle:
                return not try_lock(handle)
        except FileNotFoundError:
            return False

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Lock a key against other threads and daemons. Raises TimeoutError if it stays locked."""
        with (self._root / f"{key}.lock").open("ab") as handle:
            lock_file(handle, _LOCK_PATIENCE_SECONDS)
            yield


# A session's output: streamed into a file while it runs, replaced by the complete log when it has ended.
#
# A stream starts again with every connection, so a reader skips the output that the file contains already. No output is
# lost or written twice.
_MARK = "##uff-scheduler##"
_END = "END_OF_LOG"
_LINE_CHARACTERS_MAX = 1 << 20
_SECONDS_MAX = 1e11
_KEPT_BYTES = 8 << 20
_STREAM_BYTES = 64 << 20  # limit for the log as Kaggle sends it, which is larger than its content
_NOTICE = b"\n[output beyond %d bytes is dropped]\n"
# Real seconds. Kaggle's balancer closes idle streams after about two minutes, so a longer silence means a dead
# connection.
_SILENCE_SECONDS = 180.0
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX, _THROTTLED_SECONDS = 2.0, 60.0, 300.0


# Kaggle's logs: a JSON array of objects for an ended session, server-sent events for a running one.
@dataclass(slots=True)
class SessionLog:
    """The payload's own output, without our marked lines and the output that Kaggle appends.

    ``session_id`` and ``hears`` are what the kernel reported. ``began`` is its start by its own clock (scheduled UTC
    seconds), ``ended_after`` the seconds from then to its last line. None: not reported.
    """

    session_id: int | None = None
    hears: bool | None = None
    began: float | None = None
    ended_after: float | None = None
    _over: bool = False
    _partial: dict[str, str] = field(default_factory=dict)

    def feed(self, entries: Iterable[Any]) -> Iterator[bytes]:
        """Process log entries, oldest first; yield the payload's output."""
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("data"), str):
                continue
            stream, time = str(entry.get("stream_name")), entry.get("time")
            text = self._partial.pop(stream, "") + entry["data"]
            *lines, partial_line = text.split("\n")
            if len(partial_line) > _LINE_CHARACTERS_MAX:
                lines = [*lines, partial_line]
            elif partial_line:
                self._partial[stream] = partial_line
            for line in lines:
                yield from self._line(line, time)

    def last_lines(self) -> Iterator[bytes]:
        """Yield the last lines of the streams, which lack a newline."""
        for stream in sorted(self._partial):
            if not self._over and not self._partial[stream].startswith(_MARK):
                yield self._partial[stream].encode()

    def _line(self, line: str, time: Any) -> Iterator[bytes]:
        if self._over:
            return  # nbconvert printed this line
        if not line.startswith(_MARK):
            yield f"{line}\n".encode()
            return
        try:
            document = read_json(line.removeprefix(_MARK))
        except ValueError:
            return
        if not isinstance(document, dict):
            return
        if "begins" in document and self.session_id is None:
            match = re.search(r"(\d{1,18})$", str(document.get("container", "")), re.ASCII)
            self.session_id = int(match[1]) if match else None
            if (at := _seconds(document.get("at"))) is not None:
                self.began = at - (_seconds(time) or 0.0)
        elif "hears" in document and self.hears is None:
            self.hears = document["hears"] is True
        elif "ends" in document:
            self.ended_after, self._over = _seconds(time), True
        elif "trouble" in document:
            yield f"bootstrap: {document['trouble']}\n".encode()


def _seconds(value: Any) -> float | None:
    """Return a valid number of seconds; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _SECONDS_MAX:
        return None
    return float(value)


def entries_of(text: str | bytes) -> list[Any]:
    """Return the entries of a finished log, or the complete entries of a truncated log; none if it is not JSON."""
    try:
        entries = read_json(text or "[]")
    except ValueError:
        return list(_salvaged(text if isinstance(text, str) else text.decode(errors="replace")))
    return entries if isinstance(entries, list) else []


def _salvaged(text: str) -> Iterator[Any]:
    """Yield the readable entries of a broken array; Kaggle writes each entry on a line of its own."""
    for line in text.splitlines():
        with suppress(ValueError):
            yield read_json(line.strip().strip("[],"))


def entries_from(stream: Iterable[tuple[str, bytes]]) -> Iterator[list[Any]]:
    """Yield groups of entries from a log stream, which has events or an array, until the log or the stream ends."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = ""
    for kind, piece in stream:
        text += decoder.decode(piece)
        if "event-stream" not in kind:
            continue  # an array is parsed once it is complete
        *lines, text = text.split("\n")
        events = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        if _END in events:
            yield [entry for event in events[: events.index(_END)] for entry in entries_of(f"[{event}]")]
            return
        yield [entry for event in events for entry in entries_of(f"[{event}]")]
    yield entries_of(text)


@dataclass(slots=True)
class _TailReader:
    """The reader of one session: its thread, and when to retry after a failure (real seconds of the stopwatch)."""

    thread: threading.Thread
    pause_seconds: float = 0.0
    again_at: float = 0.0


class Tail:
    """Reads output. A running session's output counts as complete after a silence of ``idle_seconds`` (real)."""

    def __init__(self, client: KaggleClient, records: LaunchRecords, idle_seconds: float) -> None:
        self._client = client
        self._records = records
        self._idle_seconds = idle_seconds
        self._readings: dict[str, _TailReader] = {}
        self._lock = threading.Lock()

    def follow(self, record: Record) -> None:
        """Ensure that a thread reads the stream of a running session; returns at once. Idempotent.

        After a failure a later call retries, with increasing pauses.
        """
        with self._lock:
            reading = self._readings.get(record.key)
            if reading is not None and (reading.thread.is_alive() or stopwatch() < reading.again_at):
                return
            thread = threading.Thread(target=self._read, args=(record,), name=f"log {record.slug}", daemon=True)
            self._readings[record.key] = _TailReader(thread, reading.pause_seconds if reading else 0.0)
            thread.start()

    def read(self, record: Record, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield at most ``limit_bytes`` of the payload's output from byte ``offset`` on."""
        path = self._records.path(record.key, "log")
        if record.state != "ended":
            self.catch_up(record)
            self.follow(record)
        elif not path.exists():
            self.keep(record)  # Kaggle had not published the log yet when the end was observed
        if not path.exists():
            path = self._records.path(record.key, "live")  # the session runs, or its log was lost
        yield from read_part(path.parent, path.name, offset, limit_bytes)

    def keep(self, record: Record) -> SessionLog | None:
        """Save the output of an ended session; return what its log reported, None if the kernel is missing."""
        try:
            output = self._client.output(record.slug, "")
        except Denied:
            return SessionLog()  # too large for a response: use the streamed output
        if output is None:
            return None
        log = SessionLog()
        entries = entries_of(output.log)
        if not entries:
            return log  # empty, or not published yet
        fresh = self._records.path(record.key, "log").with_suffix(".log.new")
        with fresh.open("wb") as sink:
            if _pour(log, [entries], sink, 0):
                sink.writelines(log.last_lines())
        live = self._records.path(record.key, "live")
        is_truncated = live.exists() and live.stat().st_size > fresh.stat().st_size
        whole, other = (live, fresh) if is_truncated else (fresh, live)
        whole.replace(self._records.path(record.key, "log"))
        other.unlink(missing_ok=True)
        return log

    def catch_up(self, record: Record) -> None:
        """Read the available output of a running session, unless another reader does. Raises Unreachable.

        Does nothing while a reader pauses after a failure, because Kaggle answers frequent requests with 429.
        """
        with self._lock:
            reading = self._readings.get(record.key)
        if reading is not None and stopwatch() < reading.again_at:
            return
        with self._records.lock_tail(record.key) as is_ours:
            if is_ours:
                self._pull(record, self._idle_seconds)

    def _read(self, record: Record) -> None:
        """Run as the reader of one session, until its stream ends, falls silent, or fails."""
        with self._records.lock_tail(record.key) as is_ours:
            if not is_ours:
                return
            reading = self._readings[record.key]
            try:
                self._pull(record, _SILENCE_SECONDS)
                reading.pause_seconds = 0.0
            except (PlatformError, OSError, ValueError) as error:
                reading.pause_seconds = min(max(_PAUSE_SECONDS, 2 * reading.pause_seconds), _PAUSE_SECONDS_MAX)
                if isinstance(error, Throttled):
                    reading.pause_seconds = _THROTTLED_SECONDS
            reading.again_at = stopwatch() + max(_PAUSE_SECONDS, reading.pause_seconds)

    def _pull(self, record: Record, silence_seconds: float) -> None:
        log, reported = SessionLog(), self._records.report(record.key)

        def groups() -> Iterator[list[object]]:
            nonlocal reported
            for entries in entries_from(self._client.stream_log(record.slug, silence_seconds, _STREAM_BYTES)):
                yield entries
                report = SessionReport(
                    log.session_id or reported.session_id,
                    reported.hears if log.hears is None else log.hears,
                    reported.began if log.began is None else log.began,
                )
                if report != reported:
                    reported = report
                    self._records.write_report(record.key, reported)

        with self._records.path(record.key, "live").open("ab") as sink:
            _pour(log, groups(), sink, sink.tell())


def _pour(log: SessionLog, groups: Iterable[Iterable[object]], sink: BinaryIO, skip: int) -> bool:
    """Write output to ``sink``, except its first ``skip`` bytes; return False if the limit was reached."""
    written = 0
    for entries in groups:
        for piece in log.feed(entries):
            if written + len(piece) > _KEPT_BYTES:
                if sink.tell() <= written:
                    sink.write(_NOTICE % _KEPT_BYTES)
                return False
            written += len(piece)
            sink.write(piece[max(0, len(piece) - max(0, written - skip)) :])
        sink.flush()
    return True


# Observation of launches.
_MISSED_SECONDS, _MISSED_WALL_SECONDS = 300, 2.0  # how long a session must be missing, scheduled and real
_LOG_SECONDS = 3_600  # how long to ask for the log of an ended session
DELETED = "deleted"  # by us or by a person: the detail of such a session
_OVER = {"COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED"}
_LOOK_BACK_SECONDS = 13 * 3_600  # no session runs longer
_EARLY_SECONDS = 60  # if a time limit ends a session so much before ours, Kaggle's limit is lower
_TIME_LIMIT = re.compile(r"exceeded the max(imum)? allowed", re.IGNORECASE)  # Kaggle has no code for this cause
_WHOLE_BYTES = 7_000_000  # a log of this size is kept whole, as far as the probe log-limit shows
_LIVE = {"QUEUED": SessionState.QUEUED, "RUNNING": SessionState.RUNNING, "CANCEL_REQUESTED": SessionState.RUNNING}


class Observer:
    """Observes the sessions of one account, on a clock that runs ``scale`` times faster than real time."""

    def __init__(self, client: KaggleClient, records: LaunchRecords, tail: Tail, scale: float) -> None:
        self._client = client
        self._records = records
        self._tail = tail
        self._missed_seconds = max(_MISSED_SECONDS, math.ceil(_MISSED_WALL_SECONDS * scale))
        self._log_patience = max(_LOG_SECONDS, math.ceil(_MISSED_WALL_SECONDS * scale))

    def adopt(self, key: str, slug: str, now: int) -> Record | None:
        """Return a new record of a kernel that was pushed for this key by a daemon whose records are lost."""
        status = self._client.status(slug)
        if status is None:
            return None
        source = self._client.source(slug)
        if source is None:
            raise Unreachable("kaggle", "look for a launch", f"{slug} exists, but Kaggle does not show its source")
        if not is_source_of(key, source):
            why = f"there is a kernel {slug} that we did not push"
            raise Refused("kaggle", "launch", why, "Rename it, or set slug_prefix", permanent=True)
        is_over = status[0] in _OVER
        began = None if is_over else self._client.last_run(slug)
        order = order_of(source)
        record = Record(
            key=key,
            slug=slug,
            state="pushed",
            intended_at=min(now, int(began)) if began else 0 if is_over else now,
            void_from=now,
            jobs=tuple(str(lane["job"]) for lane in order["launch"].get("lanes", ())),
            relays=bool(order["relays"]),
        )
        return self._records.write(record)

    def poll(self, record: Record, now: int) -> Observed | None:
        """Return a launch's state, and record its start and end; return None if Kaggle does not list it (yet)."""
        if record.state == "void":
            return Observed(record.key, SessionState.ABSENT, "", detail=record.detail)
        if record.state == "ended":
            return self.observed(record, SessionState.ENDED)
        status = self._client.status(record.slug)
        if status is None:
            return self._poll_missing(record, now)
        if record.state == "intent" or record.missed_at is not None:
            record = self._records.write(replace(record, state="pushed", missed_at=None))
        word, failure = status
        if word in _OVER:
            preempted = word == "CANCEL_ACKNOWLEDGED" and record.cancelled_at is None
            return self._close(replace(record, taken=preempted), word.lower(), now, failure)
        if word in {"RUNNING", "CANCEL_REQUESTED"}:
            if record.started is None:
                record = self._records.write(replace(record, started=self._earliest_start(record, now)))
            elif record.timeout_seconds is not None and now > record.started + record.timeout_seconds:
                record = self._records.write(replace(record, overran_at=now))
            self._tail.follow(record)
            return self.observed(record, SessionState.RUNNING)
        if record.started is None:
            record = self._records.write(replace(record, queued_at=now))
        return self.observed(record, SessionState.QUEUED)

    def observed(self, record: Record, state: SessionState) -> Observed:
        """Return a record as an observed session."""
        name, channel = f"{record.slug}/v1", self.stop_channel(record)
        session = Observed(record.key, state, name, record.started, record.ended, "running", channel, record.told)
        if state is SessionState.RUNNING:
            return session
        if state is SessionState.ENDED:
            return replace(session, detail=record.detail, taken=record.taken, contradicts=record.contradicts)
        waits = InQueue("Kaggle has no machine for it yet")  # Kaggle reports no reason
        return replace(session, started=None, detail="queued", waits=waits)

    def stop_channel(self, record: Record) -> StopChannel:
        """Return how to ask a session to save. A session without access to the store must have reported that it can."""
        if not record.relays:
            return StopChannel.STORE
        return StopChannel.PLATFORM if self._records.report(record.key).hears else StopChannel.NONE

    def _poll_missing(self, record: Record, now: int) -> Observed | None:
        """Decide about a missing kernel: if two sources lack it, it was never pushed or has been deleted.

        One source does not suffice, because Kaggle may deny access for a moment, and its lists may lag. A kernel that
        ran, and that we did not delete, must still be missing after a while.
        """
        self._client.week()
        if self._client.last_run(record.slug) is not None:
            return None
        if record.state == "intent":
            if now < record.void_from:
                return None
            detail = "Kaggle does not have the kernel, and no push can still arrive"
            record = self._records.write(replace(record, state="void", detail=detail))
            return Observed(record.key, SessionState.ABSENT, "", detail=detail)
        if record.deleted_at is None and record.missed_at is None:
            self._records.write(replace(record, missed_at=now))
            return None
        if record.missed_at is not None and now - record.missed_at < self._missed_seconds:
            return None
        preempted = record.deleted_at is None and record.cancelled_at is None
        return self._close(replace(record, taken=preempted), DELETED, now)

    def _earliest_start(self, record: Record, now: int) -> int:
        """Return the earliest possible start of a running session; its time is charged from then until it ends.

        Kaggle does not document whether ``lastRunTime`` of a running session is its push or its start. A session begins
        after both, and after it was last seen in the queue.
        """
        started = self._client.last_run(record.slug)
        return max(record.intended_at, min(now, max(int(started or 0), record.queued_at or 0)))

    def _close(self, record: Record, word: str, now: int, failure: str = "") -> Observed:
        """Record the end of a session. The session's own report of its start has priority.

        Kaggle's ``lastRunTime`` is not used: for an ended session it may be the end. Without the session's own report,
        its time counts until this observation, which may be hours late. So it counts at most the time limit on Kaggle,
        or the last observation beyond that limit.
        """
        if record.over_at is None:
            record = self._records.write(replace(record, over_at=now))
        over_at = record.over_at or now
        try:
            log = self._tail.keep(record)
        except Unreachable:
            if now - over_at < self._log_patience:
                raise
            log = None
        earliest = max(record.intended_at, record.queued_at or 0)
        started = earliest if record.started is None else record.started
        began = self._records.report(record.key).began
        if log is not None and log.began is not None:
            began = log.began
        if began is not None and began <= now:
            started = min(over_at, max(earliest, int(began)))
        latest, told = over_at, log is not None and log.ended_after is not None
        if log is not None and log.ended_after is not None:
            latest = min(latest, math.ceil((began or started) + log.ended_after) + 1)
        elif record.timeout_seconds is not None:
            latest = min(latest, max(started + record.timeout_seconds, record.overran_at or 0))
        ended, detail, evidence = max(started, latest), f"{word} {failure}".strip(), dict(record.contradicts)
        if ended - started < (record.timeout_seconds or 0) - _EARLY_SECONDS and _TIME_LIMIT.search(failure):
            evidence["session_cap_seconds"] = f"Kaggle's time limit ended it after {show_duration(ended - started)}"
        if word == "complete" and log is not None and log.began is not None and not told:
            # A completed session printed its last line, so Kaggle has truncated the log.
            size = self._records.path(record.key, "log").stat().st_size
            evidence |= {"log-limit": f"its log ends after {size / 1e6:.1f} MB"} if size < _WHOLE_BYTES else {}
        closed = replace(record, state="ended", started=started, ended=ended, detail=detail, told=told)
        return self.observed(self._records.write(replace(closed, contradicts=evidence)), SessionState.ENDED)


def find_orphans(client: KaggleClient, slug_prefix: str, keys: Collection[str], now: int) -> Sequence[Observed]:
    """Return live sessions of kernels that we pushed for keys that are not in ``keys``. Raises Unreachable.

    Only kernels that may still run are examined. The first line of a kernel's source proves that it is ours.
    """
    result = []
    for slug, began in client.kernels():
        if began and began < now - _LOOK_BACK_SECONDS:
            break  # the list is sorted by the time of the last run, newest first
        key = slug.removeprefix(slug_prefix)
        if key in keys or not slug.startswith(slug_prefix):
            continue
        status = client.status(slug)
        if status is None or status[0] not in _LIVE:
            continue
        source = client.source(slug)
        if source is not None and is_source_of(key, source):
            result.append(Observed(key, _LIVE[status[0]], f"{slug}/v1", int(began) or None, detail=status[0].lower()))
    return result
