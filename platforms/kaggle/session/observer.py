"""Observer: what Kaggle shows of each launch, held against our records, and what is final written down.

Also kernels of ours that run without a record, recognised by their own source.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from platforms.base import InQueue, Observed, Refused, SessionState, StopChannel, Unreachable
from platforms.kaggle.api.client import KaggleClient
from platforms.kaggle.kernel.packing import is_source_of, order_of
from platforms.kaggle.session.records import LaunchRecords, Record
from platforms.kaggle.session.tail import Tail

# How long a session must be gone before it counts as deleted; real seconds too, where a scheduled hour may be one.
_MISSED_SECONDS, _MISSED_WALL_SECONDS = 300, 2.0
_LOG_SECONDS = 3_600  # how long the log of a session that is over is asked for
DELETED = "deleted"  # by us or by a person: the detail of such a session
_OVER = {"COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED"}
_LOOK_BACK_SECONDS = 13 * 3_600  # no session lasts longer
_LIVE = {"QUEUED": SessionState.QUEUED, "RUNNING": SessionState.RUNNING, "CANCEL_REQUESTED": SessionState.RUNNING}


class Observer:
    """Looks at the sessions of one account, on a clock that runs ``scale`` times faster than real time."""

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
            raise Unreachable("kaggle", "look for a launch", f"{slug} is there, and its source is not shown")
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

    def look(self, record: Record, now: int) -> Observed | None:
        """Return a launch as it stands, writing down what is final; None: Kaggle does not show it (yet)."""
        match record.state:
            case "void":
                return Observed(record.key, SessionState.ABSENT, "", detail=record.detail)
            case "ended":
                return self.observed(record, SessionState.ENDED)
            case _:
                pass
        status = self._client.status(record.slug)
        if status is None:
            return self._look_for_missing(record, now)
        if record.state == "intent" or record.missed_at is not None:
            record = self._records.write(record.having(state="pushed", missed_at=None))
        word, failure = status
        if word in _OVER:
            preempted = word == "CANCEL_ACKNOWLEDGED" and record.cancelled_at is None
            return self._close(record.having(taken=preempted), f"{word.lower()} {failure}".strip(), now)
        if word in {"RUNNING", "CANCEL_REQUESTED"}:
            if record.started is None:
                record = self._records.write(record.having(started=self._earliest_start(record, now)))
            elif record.timeout_seconds is not None and now > record.started + record.timeout_seconds:
                record = self._records.write(record.having(overran_at=now))
            self._tail.follow(record)
            return self.observed(record, SessionState.RUNNING)
        if record.started is None:
            record = self._records.write(record.having(queued_at=now))
        return self.observed(record, SessionState.QUEUED)

    def observed(self, record: Record, state: SessionState) -> Observed:
        """Return a record as the port tells it."""
        remote_id, stop_channel = f"{record.slug}/v1", self.stop_channel(record)
        match state:
            case SessionState.RUNNING:
                return Observed(
                    record.key, state, remote_id, record.started, detail="running", stop_channel=stop_channel
                )
            case SessionState.ENDED:
                ended, is_known = record.ended, record.told
                return Observed(
                    record.key, state, remote_id, record.started, ended, record.detail, stop_channel, is_known,
                    taken=record.taken,
                )  # fmt: skip
            case _:
                waits = InQueue("Kaggle has no machine for it yet")  # it says no reason
                return Observed(record.key, state, remote_id, detail="queued", stop_channel=stop_channel, waits=waits)

    def stop_channel(self, record: Record) -> StopChannel:
        """Return how a session can be asked to save: what cannot see the artifact store must have said that it can."""
        if not record.relays:
            return StopChannel.STORE
        return StopChannel.PLATFORM if self._records.words(record.key).hears else StopChannel.NONE

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
        if record.deleted_at is None and record.missed_at is None:
            self._records.write(record.having(missed_at=now))
            return None
        if record.missed_at is not None and now - record.missed_at < self._missed_seconds:
            return None
        preempted = record.deleted_at is None and record.cancelled_at is None
        return self._close(record.having(taken=preempted), DELETED, now)

    def _earliest_start(self, record: Record, now: int) -> int:
        """Return the earliest that a running session can have begun, which is what it is charged from until it ends.

        Whether Kaggle's ``lastRunTime`` of what runs is the push or the start is not documented: no session begins
        before either, nor while it was still seen to wait.
        """
        started = self._client.last_run(record.slug)
        return max(record.intended_at, min(now, max(int(started or 0), record.queued_at or 0)))

    def _close(self, record: Record, detail: str, now: int) -> Observed:
        """Write down the end of a session, whose own word on when it began comes first.

        Kaggle's ``lastRunTime`` is not asked for: of what is over it may be the end. Without the session's own word,
        time counts until this look, but for no longer than Kaggle was asked to let it run, unless it was seen to run
        on: the last look may be hours ago.
        """
        if record.over_at is None:
            record = self._records.write(record.having(over_at=now))
        over_at = record.over_at or now
        try:
            log = self._tail.keep(record)
        except Unreachable:
            if now - over_at < self._log_patience:
                raise
            log = None
        earliest = max(record.intended_at, record.queued_at or 0)
        started = earliest if record.started is None else record.started
        began = self._records.words(record.key).began
        if log is not None and log.began is not None:
            began = log.began
        if began is not None and began <= now:
            started = min(over_at, max(earliest, int(began)))
        latest, is_reported = over_at, log is not None and log.ended_after is not None
        if log is not None and log.ended_after is not None:
            latest = min(latest, math.ceil((began or started) + log.ended_after) + 1)
        elif record.timeout_seconds is not None:
            latest = min(latest, max(started + record.timeout_seconds, record.overran_at or 0))
        closed = record.having(
            state="ended", started=started, ended=max(started, latest), detail=detail, told=is_reported
        )
        return self.observed(self._records.write(closed), SessionState.ENDED)


def find_orphans(client: KaggleClient, slug_prefix: str, keys: Collection[str], now: int) -> Sequence[Observed]:
    """Return live sessions of kernels that we pushed for keys that ``keys`` does not name. Raises Unreachable.

    Only what may still run is looked at, and only the first line of a kernel's source proves that it is ours.
    """
    result = []
    for slug, began in client.kernels():
        if began and began < now - _LOOK_BACK_SECONDS:
            break  # the list goes from the newest run on
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
