"""The Slurm adapter: one batch job per launch key. session.sh, its script, explains why a key never runs twice.

The pool's state folder has a folder per key with the adapter's own records: the order, written before the job is
submitted; when the job was first seen running; and its end, as first reported. Slurm reports everything else.
"""

import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jobs.size import counted
from platforms.base import (
    Capabilities,
    InQueue,
    LaunchRequest,
    Misconfigured,
    Observed,
    QuotaReading,
    Refused,
    SessionState,
    StopChannel,
)
from platforms.bundle import build_bundle
from platforms.folders import is_folder_name, is_live
from platforms.record_file import unclear
from platforms.registry import PlatformContext
from platforms.remote import END, ORDER, STARTED, Ended, Ordered, RemoteSessions, Started
from platforms.slurm import judge
from platforms.slurm.commands import Cap, NoBooks, SlurmCommands, reading
from platforms.slurm.settings import NAME, SlurmSettings, read_settings
from platforms.targets.reach import shell_script

_UNSEEN_SECONDS = 30  # real: Slurm lists a job that it accepted within this time, unless the controller lost it
_REQUEUED_SECONDS = 60  # real: nodes report their jobs to a restarted controller, and end them, within this time
_ALIKE_SECONDS = 60  # real: the largest difference between the start in accounting and the observed start
_LOG_BYTES = 4 << 20  # limit of one answer; longer logs need several requests
_TERM_SECONDS = 120  # Slurm sends SIGTERM so long before the time limit


class _Evidence(NamedTuple):
    """The data that determines the state of a session."""

    order: Ordered
    started: Started | None
    line: judge.QueueLine | None
    evidence: judge.Evidence


class SlurmPlatform(RemoteSessions):
    """Runs payloads as batch jobs of a Slurm cluster; docs/slurm.md describes the settings."""

    def __init__(self, settings: Mapping[str, str], context: PlatformContext) -> None:
        super().__init__(NAME, context)
        self._settings = read_settings(settings, context.state_folder.absolute(), context.python)
        if context.devices_per_session % self._settings.nodes:
            why = f"{self._settings.nodes} nodes cannot share {counted(context.devices_per_session, 'device')} evenly"
            raise Misconfigured(NAME, "load", why, "devices_per_session is of all nodes together")
        if context.device_counts and not self._settings.gres:
            raise Misconfigured(NAME, "load", "device_counts without gres", 'Name what is counted: gres = "gpu:h100"')
        if context.device_counts and self._settings.nodes > 1:
            why = "device_counts with sessions of several nodes"
            raise Misconfigured(NAME, "load", why, "Give sessions of several nodes a pool of their own")
        self._commands = SlurmCommands(self._settings)
        self._last_seen: dict[str, int] = {}  # by key: when Slurm last listed its job
        self._requeued: dict[str, int] = {}  # by key: when its job was first seen requeued
        self._placing = threading.Lock()
        self._caps: tuple[Cap, ...] = ()  # the caps of the QOS, as last read
        self._has_books = True  # until a query shows that the cluster has no accounting

    @property
    def capabilities(self) -> Capabilities:
        """See Platform.capabilities."""
        return Capabilities(
            reports_quota=self._has_books,
            tails_logs=True,
            takes_orders=self._settings.nodes == 1,
            finds_orphans=True,
            device_counts=True,
            visibility_seconds=_UNSEEN_SECONDS,
        )

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Submit a job unless this key has one; see Platform.launch."""
        key = request.key
        if not is_folder_name(key):
            raise Refused(NAME, "launch", f"{key!r} cannot be a job's name", "Use A-Z a-z 0-9 . _ -", permanent=True)
        payload = self._payload(request)
        with self._folders.answering("launch"):
            digest = self._copy_payload(payload)
            with self._folders.lock():
                kept = sorted(self._folders.keys() | {key})
                poll = self._poll(kept)
                sessions = self._folders.observed(kept, lambda each: self._observe(each, poll, now))
                if (standing := self._standing(request, sessions, now)) is not None:
                    return standing
                admit(request, poll, self._settings, self._caps)
                self._records.order(key, Ordered(now, request.deadline, length=request.deadline - now))
                job = self._submit(request, digest, now)
        # A controller that crashes now may lose the accepted job. The next poll shows whether Slurm lists it.
        return Observed(key, SessionState.QUEUED, str(job or ""), detail="accepted by Slurm, not seen in its queue yet")

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return the sessions by key, with one command for all keys; see Platform.find."""
        with self._folders.answering("find"):
            usable_keys = [key for key in dict.fromkeys(keys) if is_folder_name(key)]
            poll = self._poll(usable_keys)
            return self._folders.observed(usable_keys, lambda key: self._observe(key, poll, now))

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Send SIGTERM so that the session saves and exits; cancel its job if it waits or with ``force``."""
        if not is_folder_name(key):
            return
        with self._folders.answering("stop"):
            poll = self._poll([key])
            session = self._folders.observed([key], lambda each: self._observe(each, poll, now)).get(key)
            if session is None or session.state in {SessionState.ENDED, SessionState.ABSENT}:
                return
            mine = [line for line in poll.by_key.get(key, ()) if not judge.is_over(line)]
            if waits := [line.job for line in mine if force or judge.is_waiting(line)]:
                self._commands.cancel(waits)
            if running := [line.job for line in mine if line.job not in waits]:
                self._commands.cancel(running, "--batch", "--signal=TERM")  # the signal goes to the script, which saves
            if not mine and session.state is SessionState.QUEUED and self._commands.void(key):
                self._never(key, "stopped before Slurm showed its job", now)

    def extend(self, key: str, deadline: int, now: int) -> None:
        """Set a new deadline for a job that waits; see Extends.extend."""
        del now
        if is_folder_name(key):
            with self._folders.answering("extend"):
                self._commands.extend(key, int(self._real(deadline)))

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield the output of a session; see Platform.logs."""
        while is_folder_name(key) and limit_bytes > 0:
            with self._folders.answering("logs"):
                piece = self._commands.logs(key, max(offset, 0), min(limit_bytes, _LOG_BYTES))
            if not piece:
                return
            yield piece
            offset, limit_bytes = offset + len(piece), limit_bytes - len(piece)

    def read_quota(self, now: int) -> Sequence[QuotaReading]:
        """Return the lower remainder of GPU minutes, of the account or the QOS; see Platform.read_quota."""
        try:
            with self._folders.answering("read_quota"):
                books = self._commands.books() if self._has_books else None
        except NoBooks:
            self._has_books, books = False, None
        if books is None:
            return ()
        self._caps = books.qos.caps
        # If sessions differ in their number of devices, the quota is counted in device hours.
        devices = 1 if self._context.device_counts else self._context.devices_per_session
        tightest = books.tightest
        return (reading(tightest, devices, now, self._clock.scale),) if tightest else ()

    def orphans(self, our_keys: Collection[str], now: int) -> Sequence[Observed]:
        """Return the live sessions with this pool's comment whose key is not in ``our_keys``."""
        with self._folders.answering("orphans"):
            poll = self._poll([])
            keys = sorted({line.key for line in poll.lines if not judge.is_over(line)} - set(our_keys))
            poll = self._poll(keys) if keys else poll
            sessions = self._folders.observed(keys, lambda key: self._observe(key, poll, now))
            return [one for one in sessions.values() if is_live(one)]

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Remove the folders, local and remote, of sessions in ``over`` that ended or never started; return keys."""
        with self._folders.answering("sweep"):
            kept = sorted(self._folders.keys() & set(over))
            poll = self._poll(kept)
            with self._folders.lock():
                removed = self._folders.over(kept, lambda key: self._observe(key, poll, now))
                # Remove the remote folders first: without a local folder they would never be swept again.
                if removed:
                    self._commands.remove(removed)
                self._folders.remove(removed)
            self._forget(removed)
            self._folders.clear()
        return removed

    def _copy_payload(self, payload: Path) -> str:
        """Copy the payload to the cluster; return its sha256 digest, which is the name of its folder there."""
        with self._placing:
            packed = build_bundle(payload, self._context.state_folder.absolute() / "payload")
            self._commands.place(packed.sha256, packed.path)
        return packed.sha256

    def _poll(self, keys: Sequence[str]) -> judge.Poll:
        """Query the queue and the folders of ``keys``; write the missing orders of our own jobs.

        The pool's folder is created only once: if it is missing later, its disk is not mounted.
        """
        folder = self._folders.root.parent / f"made-{self._settings.owner}"
        if not folder.exists():
            self._commands.make_folder()
            folder.touch()
        poll = self._commands.poll(keys)
        for line in poll.lines:
            # Slurm lists a job for some minutes after its end, also after its folder was swept.
            left = not judge.is_over(line) or (line.key in keys and poll.evidence[line.key].claim)
            if line.key in keys and left and not (self._folders.root / line.key).exists():
                at, until = self._scheduled(line.submitted), self._scheduled(line.until)
                self._records.order(line.key, Ordered(at, until, length=max(0, until - at)))
        return poll

    def _submit(self, request: LaunchRequest, digest: str, now: int) -> int:
        """Submit the job of a session and return its ID. Its order exists; remove it if nothing was submitted."""
        until = int(self._real(request.deadline))
        limit = max(1, round(self._clock.wall_seconds(request.deadline - now)))
        python, nodes = self._settings.python, self._settings.nodes
        text = "#!/bin/bash\n" + shell_script(
            "platforms.slurm", "session.sh", key=request.key, until=until, limit=limit, python=python, nodes=nodes,
            share=request.devices // nodes, agent=f"../.payload/{digest}/payload/agent.py",
        )  # fmt: skip
        words = [
            f"--comment={judge.comment(request.key, self._settings.owner, until)}",
            "--no-requeue",
            f"--signal=B:TERM@{min(_TERM_SECONDS, limit // 4)}",
            f"--time={-(-limit // 60)}",
            *self._settings.words(request.devices),
        ]
        launch = json.dumps({**request.launch, "work_dir": "work"})
        try:
            return self._commands.submit(request.key, words, launch, text)
        except (Refused, Misconfigured, judge.NotSubmitted):
            self._folders.remove([request.key])
            self._forget([request.key])
            raise

    def _forget(self, keys: Collection[str]) -> None:
        """Drop the cached records of sessions whose folders were removed."""
        self._records.forget(keys)
        for remembered in (self._last_seen, self._requeued):
            for key in keys:
                remembered.pop(key, None)

    def _observe(self, key: str, poll: judge.Poll, now: int) -> Observed | None:
        """Return the state of a session, None without an order; record its end when it is first reported."""
        there = self._folders.files(key)
        if ORDER not in there:
            return None
        order = self._records.ordered(key)
        if END in there:
            return self._records.ended(key)
        started = self._records.started(key) if STARTED in there else None
        evidence = poll.evidence.get(key, judge.Evidence())
        line = judge.line_of(poll.by_key.get(key, ()), evidence)
        if line is not None:
            self._last_seen[key] = now
        if evidence.claim == "void":
            return self._never(key, "given up before a job of it started", now)
        return self._judged(key, _Evidence(order, started, line, evidence), now)

    def _judged(self, key: str, evidence: _Evidence, now: int) -> Observed:
        """Return the state of a session by its verdict; record its start or end, and cancel a requeued job."""
        order, started, line = evidence.order, evidence.started, evidence.line
        verdict = judge.judge(line, evidence.evidence, started.at if started else None)
        job = str(line.job) if line else str(started.job) if started else ""
        match verdict:
            case judge.Pending(detail=detail, starts_at=expected, place=place):
                starts_at = None if expected is None else self._scheduled(expected)
                length, until = (order.length, self._until(evidence)) if order.length else (None, None)
                waits = InQueue(detail, starts_at, place, length, until)
                # No process runs that could get a stop request: stop() cancels the job.
                by = StopChannel.PLATFORM
                return Observed(key, SessionState.QUEUED, job, detail=detail, stop_channel=by, waits=waits)
            case judge.Holding(started=at, detail=detail):
                if line is not None and started is None:  # record the start, because Slurm may lose the job
                    if at > int(self._real(now)):  # Slurm bills from this start, so wait for it
                        return Observed(key, SessionState.QUEUED, job, detail="its job has just started")
                    self._records.start(key, at, line.job)
                began = min(self._scheduled(at), now)
                deadline = min(began + order.length, self._until(evidence)) if order.length else None
                return Observed(key, SessionState.RUNNING, job, began, detail=detail, deadline=deadline)
            case judge.Over(started=at, ended=last, detail=detail, cancel=again):
                if at is None:
                    return self._never(key, detail, now) if self._commands.void(key) else unclear(key, detail)
                last = self._accounted(key, at) if last is None else last
                if again:
                    noticed = self._requeued.setdefault(key, now)
                    if last is None and now <= noticed + _REQUEUED_SECONDS * self._clock.scale:
                        return unclear(key, f"job {again} waits once more, and may not have ended yet")
                    self._commands.cancel([again])
                return self._ended(key, at, replace(verdict, ended=verdict.latest if last is None else last), now)
            case judge.Vanished():
                last = self._accounted(key, started.at) if started else None
                if started and last is not None:
                    return self._ended(key, started.at, judge.Over(started.at, last, verdict.detail), now)
                return self._vanished(key, evidence, verdict, now)

    def _vanished(self, key: str, evidence: _Evidence, verdict: judge.Vanished, now: int) -> Observed:
        """Return the state of a session that Slurm does not know: unclear until no process of it can be running."""
        order, started = evidence.order, evidence.started
        if verdict.claimed:
            deadline = self._until(evidence)
            first = min(self._scheduled(started.at), deadline) if started else order.at
            if now <= deadline + round(judge.SLACK_SECONDS * self._clock.scale):
                return unclear(key, f"{verdict.detail}; it may run until its deadline")
            why = f"{verdict.detail}, and its deadline passed"
            return self._records.end(key, Ended(first, deadline, why, told=False))
        patience = max(_UNSEEN_SECONDS * self._clock.scale, 1)
        if now <= max(order.at, self._last_seen.get(key, 0)) + patience:
            return Observed(key, SessionState.QUEUED, "", detail="accepted by Slurm, not seen in its queue yet")
        if not self._commands.void(key):
            return unclear(key, "a job of it has just started")
        return self._never(key, f"{verdict.detail}, and its claim is taken, so that it never starts", now)

    def _accounted(self, key: str, at: int) -> int | None:
        """Return when the run that began at ``at`` ended, by accounting; both real UTC seconds, None if not found."""
        spans = [span for span in self._commands.accounted(key) if abs(span[0] - at) <= _ALIKE_SECONDS]
        return min(spans, key=lambda span: abs(span[0] - at))[1] if spans else None

    def _ended(self, key: str, at: int, verdict: judge.Over, now: int) -> Observed:
        first, last = min(self._scheduled(at), now), verdict.ended
        if last is not None and last > int(self._real(now)):
            return unclear(key, "its job ended after this look began")
        ended = now if last is None else max(first, self._scheduled(last))
        return self._records.end(key, Ended(first, ended, verdict.detail, last is not None, taken=verdict.lost))

    def _never(self, key: str, detail: str, now: int) -> Observed:
        return self._records.end(key, Ended(None, now, detail, told=True))

    def _until(self, evidence: _Evidence) -> int:
        """Return the deadline of a session: its launch's deadline, or a later one that was set while it waited."""
        return evidence.order.deadline if evidence.evidence.until is None else self._scheduled(evidence.evidence.until)


# Admission of one more session to a pool's cluster. Pure.
def admit(request: LaunchRequest, poll: judge.Poll, settings: SlurmSettings, caps: Sequence[Cap]) -> None:
    """Raise Refused if the limits of the pool or of the QOS do not allow one more session."""
    if request.devices % settings.nodes:
        why = f"{counted(request.devices, 'device')} cannot be shared by {settings.nodes} nodes evenly"
        raise Refused(NAME, "launch", why, "Choose devices_per_session that nodes divides", permanent=True)
    waiting = sum(judge.is_waiting(line) for line in poll.lines)
    if waiting >= settings.pending_max:
        why = f"{counted(waiting, 'job')} of this pool wait in Slurm's queue, and pending_max allows no more"
        raise Refused(NAME, "launch", why, "Wait until one starts")
    # Beyond these caps the job would wait in the queue although another pool could run it.
    devices = request.devices if settings.gres else 0
    if why := next(filter(None, (cap.refuses(devices) for cap in caps)), ""):
        raise Refused(NAME, "launch", why, "Let the pool ask for no more: devices_max, sessions_max")
