"""Lightning: sessions are jobs of Lightning AI, a paid API, one job a launch key, whose name is unique there.

A pool says ``platform = "lightning"``; see README.md for its options and for what was not tried. The SDK is imported
when it is first used, and finds the account by ``LIGHTNING_API_KEY`` and ``LIGHTNING_USER_ID`` of the daemon.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from platforms.base import (
    Capabilities,
    Misconfigured,
    Observed,
    PlatformError,
    Refused,
    SessionState,
    Unreachable,
)
from platforms.bundle import build_bundle
from platforms.options import Written, read_options
from platforms.plugin import CONTRACT, Plugin
from platforms.remote import END, ORDER, STARTED, Ended, Ordered, RemoteSessions
from platforms.skypilot.adapter import SkyPilotOrder, is_key, task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from platforms.base import LaunchRequest
    from platforms.registry import PlatformContext

NAME = "lightning"
_CHUNK = 90_000  # of the script in one variable; Linux takes no longer one than 128 KiB
_SLACK_SECONDS = 300  # real: by then a script that was late has left, and one past its deadline has ended
_UNSEEN_SECONDS = 120  # real: in which a job that was taken is in the list
_OVER = {"Stopped", "Completed", "Failed"}


_Word = Annotated[str, Written(form=re.compile(r"[A-Za-z0-9_.:/@+*-]{1,250}", re.ASCII), remedy="See its README.md")]


@dataclass(frozen=True, slots=True)
class LightningSettings:
    """What a pool may set; README.md explains each."""

    teamspace: _Word
    machine: _Word
    image: _Word
    interruptible: _Word = ""
    python: _Word = "python3"
    start_seconds: Annotated[int, Written("start_minutes", 60)] = 1_800


def load(settings: Mapping[str, str], context: PlatformContext) -> LightningPlatform:
    """Return the platform of one pool. Raises Misconfigured."""
    return LightningPlatform(read_options(NAME, LightningSettings, settings), context)


class LightningPlatform(RemoteSessions):
    """Runs payloads as jobs of one teamspace."""

    capabilities = Capabilities(tails_logs=True, finds_orphans=True)

    def __init__(self, settings: LightningSettings, context: PlatformContext) -> None:
        super().__init__(NAME, context)
        self._settings = settings
        state = context.state_folder.absolute()
        # Names are a teamspace's, which other daemons may use as well.
        self._prefix = f"uff-{hashlib.sha256(str(state).encode()).hexdigest()[:8]}-"

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Submit a job, unless there is or was one of this key; see Platform.launch."""
        key = request.key
        if not is_key(key):
            raise Refused(NAME, "launch", f"{key!r} cannot be a job's name", "Use A-Z a-z 0-9 . _ -", permanent=True)
        payload = self._payload(request)
        start_by = int(self._real(now)) + self._settings.start_seconds
        order = SkyPilotOrder(key, int(self._real(request.deadline)), start_by, self._settings.python)
        with self._folders.answering("launch"):
            packed = build_bundle(payload, self._context.state_folder.absolute() / "payload")
            asked = task(order, {**request.launch, "work_dir": "work"}, packed, {})
            with self._folders.lock():
                kept = sorted(self._folders.keys() | {key})
                jobs = self._jobs()
                self._adopt(kept, jobs, now)
                seen = self._folders.observed(kept, lambda each: self._observe(each, jobs, now))
                if (known := self._standing(request, seen, now)) is not None:
                    return known
                self._records.order(key, Ordered(now, request.deadline, start_by))
            try:
                self._submit(key, asked)
            except (Refused, Misconfigured):
                with self._folders.lock():
                    self._folders.remove([key])
                    self._records.forget([key])
                raise
        return Observed(key, SessionState.QUEUED, self._prefix + key, detail="submitted")

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return what is known of each key, with one list for all; see Platform.find."""
        with self._folders.answering("find"):
            asked, jobs = [key for key in dict.fromkeys(keys) if is_key(key)], self._jobs()
            with self._folders.lock():
                self._adopt(asked, jobs, now)
            return self._folders.observed(asked, lambda key: self._observe(key, jobs, now))

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """End a job by ``force``, or one that waits; what runs learns from the artifact store that it should leave."""
        del now
        with self._folders.answering("stop"):
            job = self._jobs().get(key) if is_key(key) else None
            if job is not None and (force or _status(job) == "Pending"):
                _told("stop", job.stop)

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield what a session printed; see Platform.logs."""
        with self._folders.answering("logs"):
            job = self._jobs().get(key) if is_key(key) else None
            if job is not None and _status(job) != "Pending":
                said = str(_told("read the log", lambda: str(job.logs))).encode()
                if piece := said[max(0, offset) : max(0, offset) + max(0, limit_bytes)]:
                    yield piece

    def orphans(self, our_keys: Collection[str], now: int) -> Sequence[Observed]:
        """Return jobs that carry this pool's prefix and that ``our_keys`` does not name."""
        del now
        states = {"Pending": SessionState.QUEUED, "Running": SessionState.RUNNING, "Stopping": SessionState.RUNNING}
        with self._folders.answering("orphans"):
            found = {key: _status(job) for key, job in sorted(self._jobs().items()) if key not in our_keys}
            return [
                Observed(key, states[status], self._prefix + key) for key, status in found.items() if status in states
            ]

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Remove the jobs and folders of the sessions in ``over`` that are over."""
        with self._folders.answering("sweep"):
            kept, jobs = sorted(self._folders.keys() & set(over)), self._jobs()
            with self._folders.lock():
                removed = self._folders.over(kept, lambda key: self._observe(key, jobs, now))
                # First there: what remains there would be taken for one that nobody has an order of.
                for key in removed:
                    if key in jobs:
                        _told("remove a job", jobs[key].delete)
                self._folders.remove(removed)
            self._records.forget(removed)
            self._folders.clear()
        return removed

    def _jobs(self) -> dict[str, Any]:
        """Return this pool's jobs by key."""
        from lightning_sdk import Teamspace

        found = _told("list the jobs", lambda: list(Teamspace(self._settings.teamspace).list_jobs()))
        return {job.name.removeprefix(self._prefix): job for job in found if job.name.startswith(self._prefix)}

    def _submit(self, key: str, asked: Mapping[str, Any]) -> None:
        from lightning_sdk import Job
        from lightning_sdk.exceptions import NotSupportedError, OutOfCapacityError

        script = base64.b64encode(gzip.compress(asked["run"].encode(), mtime=0)).decode()
        chunks = [script[at : at + _CHUNK] for at in range(0, len(script), _CHUNK)]
        names = [f"UFF_SCRIPT_{number}" for number in range(len(chunks))]
        # Variables, for a command is one argument, and printf is none: it is built into the shell.
        command = "printf %s {} | base64 -d | gzip -d >uff.sh && unset {} && exec bash uff.sh".format(
            " ".join(f'"${name}"' for name in names), " ".join(names)
        )
        _told(
            "submit",
            lambda: Job.run(
                name=self._prefix + key,
                machine=self._settings.machine,
                command=command,
                image=self._settings.image,
                teamspace=self._settings.teamspace,
                env={**asked["secrets"], **dict(zip(names, chunks, strict=True))},
                interruptible=self._settings.interruptible == "yes",
                max_run_attempts=1,  # what goes on is for the daemon to say
            ),
            refusals=(OutOfCapacityError, NotSupportedError),
        )

    def _adopt(self, keys: Collection[str], jobs: Mapping[str, Any], now: int) -> None:
        """Remember a job of ours that this side has no order of. The caller holds the lock."""
        for key in keys:
            if key in jobs and not self._folders.files(key):
                until = now + self._context.session_cap_seconds
                self._records.order(key, Ordered(now, until, int(self._real(now)) + self._settings.start_seconds))

    def _observe(self, key: str, jobs: Mapping[str, Any], now: int) -> Observed | None:
        there = self._folders.files(key)
        if ORDER not in there:
            return None
        if END in there:
            return self._records.ended(key)
        order, job, real = self._records.ordered(key), jobs.get(key), self._real(now)
        if job is None:
            if STARTED in there and real <= self._real(order.deadline) + _SLACK_SECONDS:
                return Observed(key, SessionState.UNCLEAR, "", detail="its job is not in the list any more")
            if STARTED in there:
                began = self._records.started(key).at
                return self._records.end(
                    key, Ended(began, max(began, order.deadline), "its deadline passed", told=False)
                )
            if real <= order.start_by + _SLACK_SECONDS:
                return Observed(key, SessionState.QUEUED, "", detail="submitted, not in the list yet")
            return self._records.end(key, Ended(None, now, "no job of it came up, and none runs any more", told=True))
        status, first, last = _status(job), _instant(job, "started_at"), _instant(job, "stopped_at")
        if first is None or status == "Pending":
            if status in _OVER:
                return self._records.end(key, Ended(None, now, f"{status}, before it started", told=True))
            if real > order.start_by:  # its script would leave at once
                _told("give it up", job.stop)
            return Observed(key, SessionState.QUEUED, job.name, detail=status.lower())
        began = self._records.start(key, max(order.at, min(self._scheduled(first), now))).at
        if status not in _OVER:
            return Observed(key, SessionState.RUNNING, job.name, began, detail=status.lower())
        ended = max(began, now if last is None else min(self._scheduled(last), now))
        cost = _told("read the cost", lambda: float(job.total_cost))
        price = round(cost * 3_600_000_000 / (ended - began)) or None if ended > began else None
        return self._records.end(key, Ended(began, ended, f"{status}; ${cost:.2f}", told=last is not None, price=price))


def _told(action: str, ask: Callable[[], Any], refusals: tuple[type[Exception], ...] = ()) -> Any:
    """Return what the SDK answers. It raises whatever its parts do: only what it names is a refusal."""
    try:
        return ask()
    except refusals as error:
        raise Refused(NAME, action, str(error), "Wait, or choose another machine") from error
    except PermissionError as error:
        raise Misconfigured(NAME, action, str(error), "Check LIGHTNING_API_KEY and the teamspace") from error
    except PlatformError:
        raise
    except Exception as error:
        raise Unreachable(
            NAME, action, f"{type(error).__name__}: {error}"[:300], "Nothing is ended meanwhile"
        ) from error


def _status(job: Any) -> str:
    return str(_told("look at a job", lambda: job.status.value))


def _instant(job: Any, name: str) -> float | None:
    found = _told("look at a job", lambda: getattr(job, name))
    return None if found is None else float(found.timestamp())


PLUGIN = Plugin(CONTRACT, load)
