"""The adapter: the platform port on top of Kaggle's calls and our own records; its rules are in docs/kaggle.md."""

from __future__ import annotations

import math
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from platforms.artifacts.base import StoreError
from platforms.base import (
    Capabilities,
    Misconfigured,
    Observed,
    PlatformError,
    QuotaReading,
    Refused,
    SessionState,
    Unreachable,
)
from platforms.kaggle.account import open_account
from platforms.kaggle.client import Push
from platforms.kaggle.inputs import Inputs
from platforms.kaggle.outputs import Caps, Collector
from platforms.kaggle.packing import pack
from platforms.kaggle.records import Record, Records
from platforms.kaggle.settings import read_settings
from platforms.kaggle.source import is_source_of, order_of
from platforms.kaggle.tail import Tail
from platforms.kaggle.wire import Denied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from platforms.artifacts.base import BlobStore
    from platforms.base import LaunchRequest
    from platforms.registry import PlatformContext

_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
_SLUG_LENGTHS = range(5, 51)
_UPLOAD_CALLS = 20  # an upload may take as long as this many calls
_CANCEL_PATIENCE_SECONDS = 120  # then the kernel is deleted
_MISSED_SECONDS = 300  # how long a session must be gone before it counts as deleted
_OVER = {"COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED"}


def load(settings: Mapping[str, str], context: PlatformContext) -> KagglePlatform:
    """Return the Kaggle platform of one pool. Raises Misconfigured, and ImportError when a library is missing."""
    return KagglePlatform(settings, context, os.environ)


class KagglePlatform:
    """Runs payloads as private kernels of one account; docs/kaggle.md lists the settings."""

    def __init__(self, settings: Mapping[str, str], context: PlatformContext, environ: Mapping[str, str]) -> None:
        self._settings = chosen = read_settings(settings)
        self._context = context
        self._client = open_account(chosen, environ).client
        root = context.state_folder.absolute()
        try:
            self._records = Records(root / "launches")
            self._inputs = Inputs(
                self._client,
                root / "datasets",
                chosen.dataset_prefix,
                chosen.ready_seconds,
                chosen.call_seconds * _UPLOAD_CALLS,
            )
        except OSError as error:
            raise Misconfigured("kaggle", "load", str(error), "It needs a state folder it may write to") from error
        self._tail = Tail(self._client, self._records, chosen.idle_seconds)
        self.capabilities = Capabilities(
            reports_quota=True,
            cancels=True,
            asks_to_leave=False,
            tails_logs=True,
            survives_daemon=True,
            keeps_output_on_kill=False,
            visibility_seconds=math.ceil(
                (chosen.push_seconds + chosen.settle_seconds) * max(1.0, float(context.clock.get("scale", 1.0)))
            ),
        )

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Push a kernel whose slug is the key; see Platform.launch. Prepares its datasets first, which takes time."""
        slug = self._slug(request.key)
        if slug is None:
            why = f"{request.key!r} cannot be a kernel's name"
            raise Refused("kaggle", "launch", why, "Use a-z, 0-9 and single hyphens, 5 to 50 in all", permanent=True)
        with self._answering("launch"), self._records.held(request.key):
            record = self._records.read(request.key)
            if record is None:
                with _nothing_started():
                    record = self._adopt(request.key, slug, now)
            if record is not None:
                found = self._look(record, now)
                if found is None:
                    raise Unreachable("kaggle", "launch", f"{slug} was pushed before, and Kaggle does not show it yet")
                return found
            if request.deadline <= now:
                raise Refused("kaggle", "launch", f"the deadline {request.deadline} is not after {now}")
            with _nothing_started():
                packed = pack(request, self._context, self._inputs, self._settings.checkpoints, now)
                owner = self._client.owner()
            push = Push(
                slug=slug,
                title=slug.replace("-", " "),
                source=packed.source,
                datasets=tuple(f"{owner}/{dataset}" for dataset in packed.datasets),
                machine_shape=self._settings.machine_shape,
                timeout_seconds=min(request.deadline - now, self._context.session_cap_seconds),
                internet=self._settings.internet,
            )
            intent = Record(
                key=request.key,
                slug=slug,
                state="intent",
                intended_at=now,
                void_from=now + self.capabilities.visibility_seconds,
                jobs=tuple(str(lane["job"]) for lane in request.launch.get("lanes", ())),
                relays=packed.relays,
                datasets=packed.datasets,
            )
            return self._push(self._records.write(intent), push, now)

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return what is known of each key; see Platform.find."""
        found: dict[str, Observed] = {}
        with self._answering("find"):
            if not keys:
                self._client.gpu_week()  # whoever asks for nothing wants to know whether anybody answers
            for key in keys:
                slug = self._slug(key)
                if slug is None:
                    continue
                record = self._records.read(key) or self._adopt(key, slug, now)
                observed = self._look(record, now) if record is not None else None
                if observed is not None:
                    found[key] = observed
                elif record is None:
                    self._client.gpu_week()  # proves that we are let in: "denied" is no proof of absence without it
        return found

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """With ``force``: cancel by the id that the session told, and later, or without one, delete the kernel.

        Without it nothing can be done from outside; a payload that reaches the artifact store sees the stop flag there.
        """
        slug = self._slug(key)
        if slug is None:
            return
        with self._answering("stop"):
            record = self._records.read(key)
            self._client.gpu_week()
            if record is None or record.state in {"ended", "void"} or not force:
                return
            if record.session_id is None:
                record = self._note_session(record)
            if record.session_id is not None and record.cancelled_at is None and self._client.cancel(record.session_id):
                self._records.write(record.having(cancelled_at=now))
                return
            if record.cancelled_at is not None and now - record.cancelled_at < _CANCEL_PATIENCE_SECONDS:
                return
            self._tail.keep(record)
            self._client.delete(slug)
            self._records.write(record.having(cancelled_at=record.cancelled_at or now))

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield the payload's output; see Platform.logs. A running session's is streamed anew with each call."""
        if self._slug(key) is None:
            return
        with self._answering("logs"):
            record = self._records.read(key)
            if record is not None and record.state in {"intent", "pushed", "ended"}:
                yield from self._tail.read(record, offset, limit_bytes)

    def read_quota(self, now: int) -> Sequence[QuotaReading]:
        """Return Kaggle's books on GPU time of this week."""
        del now
        with self._answering("read_quota"):
            week = self._client.gpu_week()
        return [
            QuotaReading("week", week.start, week.end, week.allowed_seconds, week.used_seconds, week.reserved_seconds)
        ]

    def collect(self, key: str, into: BlobStore, now: int) -> None:
        """Import what an ended session left in its working folder; see Platform.collect."""
        del now
        with self._answering("collect"):
            record = self._records.read(key) if self._slug(key) is not None else None
            if record is None or record.state != "ended" or record.collected or not record.relays:
                return
            try:
                Collector(self._client, key, record.jobs, Caps()).collect(record.slug, into)
            except Refused:
                self._records.write(record.having(collected=True))
                raise
            except StoreError as error:
                raise Unreachable("kaggle", "collect", str(error)) from error
            self._records.write(record.having(collected=True))

    def sweep(self, keep: Sequence[str], now: int) -> Sequence[str]:
        """Delete kernels and records of sessions that are over, except ``keep``, then datasets nobody needs."""
        removed = []
        with self._answering("sweep"):
            self._client.gpu_week()
            kept = set(keep)
            in_use: set[str] = set()
            for key in self._records.all_keys():
                record = self._records.read(key)
                if record is None:
                    continue
                self._look(record, now)
                record = self._records.read(key) or record
                if record.state in {"ended", "void"} and key not in kept:
                    self._client.delete(record.slug)
                    self._records.drop(key)
                    removed.append(key)
                elif record.state == "void":
                    self._client.delete(record.slug)  # should a push arrive after all
                elif record.state in {"intent", "pushed"}:
                    in_use |= set(record.datasets)
            self._inputs.sweep(in_use, now, self._settings.keep_inputs_seconds)
        return removed

    def _push(self, intent: Record, push: Push, now: int) -> Observed:
        """Push the kernel of an intent that is on disk. The caller holds the key."""
        try:
            pushed = self._client.push(push, self._settings.push_seconds)
        except Denied as error:
            self._records.drop(intent.key)
            raise Refused(
                "kaggle",
                "launch",
                f"the push was refused: {error}",
                "See docs/kaggle.md",
                permanent=error.status == 400,
            ) from None
        except Misconfigured:
            self._records.drop(intent.key)
            raise
        if pushed.error:
            self._records.drop(intent.key)
            raise self._refusal(pushed.error)
        if pushed.slug != push.slug or pushed.version != 1 or pushed.invalid:
            why = (
                f"inputs not attached: {', '.join(pushed.invalid)}"
                if pushed.invalid
                else (f"it landed as {pushed.slug} version {pushed.version} instead of {push.slug} version 1")
            )
            # It runs and costs, and not what was asked for: end it, and let the time until then be paid.
            if not pushed.invalid and pushed.slug != push.slug:
                self._client.delete(pushed.slug)
            elif pushed.version == 1:
                self._client.delete(push.slug)
            ended = intent.having(
                state="ended", started=now, ended=now, detail=f"stopped at once: {why}", collected=True
            )
            return _observed(self._records.write(ended), SessionState.ENDED)
        return _observed(self._records.write(intent.having(state="pushed")), SessionState.QUEUED)

    def _refusal(self, error: str) -> Refused:
        """Return what an error text in a good answer means; the texts are those seen in the wild."""
        error = error.strip().rstrip(".")
        if "session count" in error:
            return Refused("kaggle", "launch", error, "Wait until a session ends")
        if "quota" in error:
            try:
                refresh = self._client.gpu_week().end
            except PlatformError:
                return Refused("kaggle", "launch", error, "Wait for the weekly refresh")
            return Refused("kaggle", "launch", error, "Wait for the weekly refresh", wait_until=refresh)
        return Refused("kaggle", "launch", error, "See docs/kaggle.md", permanent=True)

    def _adopt(self, key: str, slug: str, now: int) -> Record | None:
        """Return a new record of a kernel that was pushed for this key by a daemon whose records are lost."""
        if self._client.status(slug) is None:
            return None
        source = self._client.source(slug)
        if source is None or not is_source_of(key, source):
            why = f"there is a kernel {slug} that we did not push"
            raise Refused("kaggle", "launch", why, "Rename it, or set slug_prefix", permanent=True)
        began = self._client.last_run(slug)
        order = order_of(source)
        record = Record(
            key=key,
            slug=slug,
            state="pushed",
            intended_at=min(now, int(began)) if began else now,
            void_from=now,
            jobs=tuple(str(lane["job"]) for lane in order["launch"].get("lanes", ())),
            relays=bool(order["relays"]),
        )
        return self._records.write(record)

    def _look(self, record: Record, now: int) -> Observed | None:
        """Return a launch as it stands, writing down what is final; None: Kaggle does not show it (yet)."""
        match record.state:
            case "void":
                return Observed(record.key, SessionState.ABSENT, "", detail=record.detail)
            case "ended":
                return _observed(record, SessionState.ENDED)
            case _:
                pass
        status = self._client.status(record.slug)
        if status is None:
            return self._look_for_missing(record, now)
        if record.state == "intent" or record.missed_at is not None:
            record = self._records.write(record.having(state="pushed", missed_at=None))
        word, failure = status
        if word in _OVER:
            return self._close(record, f"{word.lower()} {failure}".strip(), now)
        if word in {"RUNNING", "CANCEL_REQUESTED"}:
            if record.started is None:
                began = self._client.last_run(record.slug)
                started = max(record.intended_at, min(now, int(began))) if began else record.intended_at
                record = self._records.write(record.having(started=started))
            return _observed(record, SessionState.RUNNING)
        return _observed(record, SessionState.QUEUED)

    def _look_for_missing(self, record: Record, now: int) -> Observed | None:
        """A kernel that is missing on two counts was never pushed, or is deleted. Denials may pass, lists may lag.

        One that ran, and that we did not delete, must be missed again after a while.
        """
        self._client.gpu_week()
        if self._client.last_run(record.slug) is not None:
            return None
        if record.state == "intent":
            if now < record.void_from:
                return None
            detail = "Kaggle does not have it, and no push of ours can still arrive"
            record = self._records.write(record.having(state="void", detail=detail))
            return Observed(record.key, SessionState.ABSENT, "", detail=detail)
        if record.cancelled_at is None and record.missed_at is None:
            self._records.write(record.having(missed_at=now))
            return None
        if record.missed_at is not None and now - record.missed_at < _MISSED_SECONDS:
            return None
        return self._close(record, "deleted", now)

    def _close(self, record: Record, detail: str, now: int) -> Observed:
        """Write down the end of a session. Without its own word, time counts until this look."""
        log = self._tail.keep(record)
        started = record.intended_at if record.started is None else record.started
        ended = max(started, now)
        if log is not None and log.ended_after is not None and record.started is not None:
            ended = min(ended, record.started + math.ceil(log.ended_after) + 1)
        closed = record.having(state="ended", started=started, ended=ended, detail=detail)
        return _observed(self._records.write(closed), SessionState.ENDED)

    def _note_session(self, record: Record) -> Record:
        session_id = self._tail.session_id(record)
        return record if session_id is None else self._records.write(record.having(session_id=session_id))

    def _slug(self, key: str) -> str | None:
        """Return the kernel's name of a key: one that comes back unchanged when Kaggle derives it from the title."""
        slug = f"{self._settings.slug_prefix}{key}"
        return slug if key and _SLUG.fullmatch(slug) and len(slug) in _SLUG_LENGTHS else None

    @contextmanager
    def _answering(self, action: str) -> Iterator[None]:
        try:
            yield
        except Denied as error:
            raise Unreachable("kaggle", action, str(error)) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            where = self._context.state_folder
            raise Unreachable("kaggle", action, f"{type(error).__name__}: {error}", f"Check {where}") from error


def _observed(record: Record, state: SessionState) -> Observed:
    remote_id = f"{record.slug}/v1"
    match state:
        case SessionState.RUNNING:
            return Observed(record.key, state, remote_id, record.started, detail="running")
        case SessionState.ENDED:
            return Observed(record.key, state, remote_id, record.started, record.ended, record.detail)
        case _:
            return Observed(record.key, state, remote_id, detail="queued")


@contextmanager
def _nothing_started() -> Iterator[None]:
    """Turn "no answer" before a push into a refusal: whatever happened, no session did."""
    try:
        yield
    except Unreachable as error:
        raise Refused("kaggle", "launch", f"before anything was started: {error.why}", error.remedy) from error
    except (Denied, StoreError, OSError) as error:
        raise Refused("kaggle", "launch", f"before anything was started: {error}") from error
