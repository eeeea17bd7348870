"""The adapter of SkyPilot. One cluster for each launch key, made for it and taken down after it.

What this side must remember lies in the pool's state folder, a folder for each key: that a session was ordered, written
before the server is asked; since when it runs; how it ended, as it was first told; what it printed, for a cluster takes
its log with it. All else is looked up by the cluster's name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from platforms.base import (
    Capabilities,
    HourPrice,
    InQueue,
    LaunchRequest,
    Misconfigured,
    Observed,
    PlatformError,
    Refused,
    SessionState,
    Unreachable,
)
from platforms.bundle import build_bundle
from platforms.registry import PlatformContext
from platforms.remote import END, ORDER, OUTPUT, STARTED, Ended, Ordered, RemoteSessions, Started
from platforms.skypilot.server import ApiServer, Asked, Cluster, Cost, Gone, Job, NotSent, dearest
from platforms.skypilot.settings import NAME, read_settings
from platforms.skypilot.task import Order, is_key, task

_SLACK_SECONDS = (
    120  # real: after the deadline the script has ended the agent, and a cluster that is left is taken down
)
_LOCK_SECONDS = 60.0  # a look at the server is taken under the lock
_AT_ONCE = 8
_SHARED = ("slurm", "ssh", "k8s", "kubernetes")  # whose machines may see a folder of this one


@dataclass(frozen=True, slots=True)
class _View:
    """One look: the clusters of this pool, and what those whose turn it was say of their jobs."""

    clusters: Mapping[str, Cluster]
    jobs: Mapping[str, list[Job] | PlatformError]


class SkyPilotPlatform(RemoteSessions):
    """Runs payloads on clusters that SkyPilot makes; for the settings see docs/skypilot.md."""

    def __init__(self, settings: Mapping[str, str], context: PlatformContext) -> None:
        super().__init__(NAME, context)
        self._settings = read_settings(settings, context.state_folder.absolute())
        self._server = ApiServer(self._settings)
        # Who declares a price books that; else the catalogue's is told, and no machine is launched that costs more.
        self._tells_price = not context.is_priced
        self._price: float | None = None  # dollars, as it was told last
        self._looked: dict[str, int] = {}  # by key, when its cluster was last asked for its jobs

    @property
    def capabilities(self) -> Capabilities:
        """See Platform.capabilities."""
        return Capabilities(tails_logs=True, finds_orphans=True, tells_price=self._tells_price)

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Have a cluster made, unless there is one of this key or was one; see Platform.launch."""
        key = request.key
        if not is_key(key):
            raise Refused(
                NAME, "launch", f"{key!r} cannot be a cluster's name", "Use A-Z a-z 0-9 . _ -", permanent=True
            )
        payload = self._payload(request)
        start_by = int(self._real(now)) + self._settings.start_seconds
        order = Order(key, int(self._real(request.deadline)), start_by, self._settings.python)
        with self._folders.answering("launch"):
            packed = build_bundle(payload, self._context.state_folder.absolute() / "payload")
            asked = task(order, {**request.launch, "work_dir": "work"}, packed, self._resources(request))
            with self._folders.lock(_LOCK_SECONDS):
                if (found := self._found(request, now)) is not None:
                    return found
                self._records.order(key, Ordered(now, request.deadline, start_by))
            try:
                made = self._server.launch(self._name(key), asked)
            except (Refused, Misconfigured, NotSent):
                with self._folders.lock(_LOCK_SECONDS):
                    self._folders.remove([key])
                    self._records.forget([key])
                raise
        return Observed(key, SessionState.QUEUED, made, detail="asked for")

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return what is known of each key; see Platform.find."""
        with self._folders.answering("find"):
            asked = [key for key in dict.fromkeys(keys) if is_key(key)]
            view = self._look(now, asked)
            for key in asked:
                self._adopt(key, view, now)
            return self._folders.observed(asked, lambda key: self._observe(key, view, now))

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Take a session's cluster down; without ``force`` only give up a launch that is under way.

        A session that runs learns from the artifact store that it should save and leave.
        """
        del now
        if not is_key(key):
            return
        with self._folders.answering("stop"):
            there = self._folders.files(key)
            if END in there or (STARTED in there and not force):
                return
            requests = self._server.requests(self._name(key))
            launches = [one for one in requests if one.name == "sky.launch" and one.is_active]
            for one in launches:
                self._server.cancel(one.id)
            if (force or launches) and (cluster := self._server.clusters().get(self._name(key))):
                self._leave(key, cluster)
            self._looked.pop(key, None)

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield what a session printed; see Platform.logs."""
        if not is_key(key) or limit_bytes <= 0:
            return
        with self._folders.answering("logs"):
            there = self._folders.files(key)
            if STARTED in there and END not in there:
                with suppress(Gone):
                    self._records.keep_output(key, self._server.log(self._name(key)))
            yield from self._folders.read(key, OUTPUT, offset, limit_bytes)

    def read_quota(self, now: int) -> Sequence[HourPrice]:
        """Return what an hour costs at most by the catalogue; what an account may spend is declared in the quotas."""
        del now
        if not self._tells_price or not self._settings.accelerator:
            return ()
        with self._folders.answering("read_quota"):
            offer = dearest(self._server, self._settings, self._context.devices_per_session)
        if offer is None:
            return ()
        self._price = offer.dollars
        return (HourPrice(round(offer.dollars * 1_000_000), f"SkyPilot's catalogue: {offer.place}"),)

    def orphans(self, known: Collection[str], now: int) -> Sequence[Observed]:
        """Return clusters, and launches under way, that carry this pool's prefix and that ``known`` does not name."""
        with self._folders.answering("orphans"):
            view, prefix = self._look(now, ()), self._settings.prefix
            under_way = {one.cluster for one in self._server.requests() if one.name == "sky.launch"}
            found = []
            for name in sorted({*view.clusters, *under_way}):
                key, cluster = name.removeprefix(prefix), view.clusters.get(name)
                if key in known or END in self._folders.files(key):
                    continue
                state = SessionState.RUNNING if cluster and cluster.status == "UP" else SessionState.QUEUED
                since = min(self._scheduled(cluster.launched_at), now) if cluster else None
                found.append(Observed(key, state, name, since, detail=cluster.status if cluster else "asked for"))
            return found

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Remove the folders of the sessions in ``over`` that ended or never started, and whose clusters are gone."""
        with self._folders.answering("sweep"):
            kept = sorted(self._folders.keys() & set(over))
            view = self._look(now, ())
            gone = [key for key in kept if self._name(key) not in view.clusters]
            with self._folders.lock(_LOCK_SECONDS):
                removed = self._folders.over(gone, lambda key: self._observe(key, view, now))
                self._folders.remove(removed)
            self._records.forget(removed)
            for key in removed:
                self._looked.pop(key, None)
            self._folders.clear()
        return removed

    def _found(self, request: LaunchRequest, now: int) -> Observed | None:
        """Return the session of this key when there is one, here or at the server. The caller holds the lock.

        Raises Refused when there is none, and no room for it.
        """
        key = request.key
        kept = sorted(self._folders.keys() | {key})
        view = self._look(now, ())
        if ORDER not in self._folders.files(key):
            launched = [one for one in self._server.requests(self._name(key)) if one.name == "sky.launch"]
            if launched or self._name(key) in view.clusters:  # asked for by a daemon whose state folder is lost
                self._records.order(
                    key, Ordered(now, request.deadline, int(self._real(now)) + self._settings.start_seconds)
                )
        seen = self._folders.observed(kept, lambda each: self._observe(each, view, now))
        return self._standing(request, seen, now)

    def _resources(self, request: LaunchRequest) -> dict[str, object]:
        resources = self._settings.resources(request.devices)
        if self._price is not None:
            resources["max_hourly_cost"] = self._price
        near = str(resources.get("infra", "")).startswith(_SHARED)
        if request.launch.get("store", {}).get("kind") == "directory" and not near:
            remedy = "Set artifacts.kind = 's3'; see docs/inside/store.md"
            raise Misconfigured(NAME, "launch", "a cloud's machine cannot reach a folder of this one", remedy)
        return resources

    def _adopt(self, key: str, view: _View, now: int) -> None:
        """Remember a cluster of ours that this side has no order of."""
        cluster = view.clusters.get(self._name(key))
        if cluster is not None and not self._folders.files(key):
            since = min(self._scheduled(cluster.launched_at), now)
            until = since + self._context.session_cap_seconds
            with self._folders.lock(_LOCK_SECONDS):
                if not self._folders.files(key):
                    self._records.order(key, Ordered(since, until, cluster.launched_at + self._settings.start_seconds))

    def _look(self, now: int, keys: Collection[str]) -> _View:
        """Look at the clusters, and ask those of ``keys`` whose turn it is for their jobs, all at once.

        A cluster whose session is over came up after all, or nobody heard that it should go: it is taken down.
        """
        clusters = self._server.clusters()
        for cluster in clusters.values():
            key = cluster.name.removeprefix(self._settings.prefix)
            if END in self._folders.files(key):
                with suppress(PlatformError):
                    self._leave(key, cluster)
        due = [key for key in keys if self._name(key) in clusters and self._is_due(key, now)]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            jobs = dict(zip(due, threads.map(self._jobs, due), strict=True))
        self._looked.update(dict.fromkeys(due, now))
        return _View(clusters, jobs)

    def _is_due(self, key: str, now: int) -> bool:
        there = self._folders.files(key)
        pause = round(self._settings.poll_seconds * self._clock.scale)
        return STARTED in there and END not in there and now >= self._looked.get(key, now - pause) + pause

    def _jobs(self, key: str) -> list[Job] | PlatformError:
        try:
            return self._server.jobs(self._name(key))
        except PlatformError as error:
            return error

    def _observe(self, key: str, view: _View, now: int) -> Observed | None:
        """Return a session as it stands; its end is written down when it is first told."""
        there = self._folders.files(key)
        if ORDER not in there:
            return None
        order, cluster = self._records.ordered(key), view.clusters.get(self._name(key))
        try:
            if END in there:
                return self._records.ended(key)
            if STARTED not in there:
                return self._coming(key, order, cluster, now)
            started = self._records.started(key)
            if cluster is None:
                return self._gone(key, order, started, now)
            return self._running(key, order, started, cluster, view, now)
        except Unreachable as error:
            return Observed(key, SessionState.UNCLEAR, "", detail=str(error))

    def _coming(self, key: str, order: Ordered, cluster: Cluster | None, now: int) -> Observed:
        """Return what to say of a session that was not yet seen to run."""
        name, late = self._name(key), self._real(now) > order.start_by
        requests = self._server.requests(name)
        launches = [one for one in requests if one.name == "sky.launch"]
        active = [one for one in launches if one.is_active]
        if active:
            for one in active if late else ():
                self._server.cancel(one.id)
            detail = "given up: it did not come up in time" if late else f"launch {active[0].status.lower()}"
            stage = f"; its cluster is {cluster.status}" if cluster is not None else ""
            waits = None if late else InQueue(detail + stage)
            return Observed(key, SessionState.QUEUED, active[0].id, detail=detail, waits=waits)
        if cluster is None and not launches and not late:
            detail = "asked for, not seen at the server yet"
            return Observed(key, SessionState.QUEUED, "", detail=detail, waits=InQueue(detail))
        # The list is older than the requests: it may have come up in between.
        if (cluster := self._server.refreshed(name)) is None:
            return self._gone(key, order, None, now, launches)
        well = not launches or any(one.status == "SUCCEEDED" for one in launches)
        if not well or (late and cluster.status != "UP"):
            # It stays up, is billed, and nothing would ever take it down.
            if not _is_going(requests):
                self._server.down(name)
            return Observed(key, SessionState.QUEUED, "", detail="its set-up failed, and it is taken down")
        if cluster.status != "UP":
            detail = f"{cluster.status} on {cluster.where}"
            return Observed(key, SessionState.QUEUED, "", detail=detail, waits=InQueue(detail))
        cost = self._cost(key, order, now)
        since = min(cost.first, cluster.launched_at) if cost else cluster.launched_at
        began = self._records.start(key, max(order.at, min(self._scheduled(since), now)))
        return self._up(key, began, cluster)

    def _running(self, key: str, order: Ordered, started: Started, cluster: Cluster, view: _View, now: int) -> Observed:
        """Return what to say of a session whose cluster is in the server's records, which may be old."""
        jobs = view.jobs.get(key, [])
        if isinstance(jobs, Gone):
            return self._gone(key, order, started, now)
        if isinstance(jobs, PlatformError):
            # It holds its machine while it is there, whatever its job does: heartbeats tell of that.
            seen = self._server.refreshed(cluster.name)
            return self._gone(key, order, started, now) if seen is None else self._up(key, started, cluster)
        mine = [job for job in jobs if job.name == key]
        late = self._real(now) > self._real(order.deadline) + _SLACK_SECONDS
        if (mine and all(job.is_over for job in mine)) or cluster.status == "STOPPED" or late:
            self._leave(key, cluster)
        return self._up(key, started, cluster)

    def _gone(
        self, key: str, order: Ordered, started: Started | None, now: int, launches: Sequence[Asked] = ()
    ) -> Observed:
        """Return how a session ended whose cluster the records do not name. Raises Unreachable.

        The server is asked once more, and its estimate of the cost tells when it was up.
        """
        if started is not None and self._server.refreshed(self._name(key)) is not None:
            return Observed(key, SessionState.UNCLEAR, "", detail="its cluster is not there, and there again")
        cost = self._cost(key, order, now)
        if cost is not None and cost.last is None and now <= order.deadline:
            detail = "its cluster is not in the server's list, and is in its costs as one that is up"
            return Observed(key, SessionState.UNCLEAR, "", detail=detail)
        ran = started is not None or any(one.status == "SUCCEEDED" for one in launches)
        if cost is None and not ran:
            failed = [one for one in launches if one.status == "FAILED"]
            why = self._server.why(failed[0]) if failed else "no launch of it is left, and none can start any more"
            return self._records.end(key, Ended(None, now, why, told=True))
        downs = [one for one in self._server.requests(self._name(key)) if one.name == "sky.down"]
        stopped = any(one.status == "SUCCEEDED" for one in downs)
        first = started.at if started else min(self._scheduled(cost.first), now) if cost else order.at
        last = self._scheduled(cost.last) if cost and cost.last is not None else now
        why = "taken down" if stopped else "gone: taken back by its cloud, or down by itself or by hand"
        price = cost.per_hour if cost is not None else None
        if cost is not None:
            why += "" if stopped else f"; {cost.event}"[:300]
            why += f"; ${cost.dollars:.2f} by SkyPilot's estimate"
        ended = Ended(first, max(first, min(last, now)), why, told=stopped, price=price, taken=not stopped)
        return self._records.end(key, ended)

    def _cost(self, key: str, order: Ordered, now: int) -> Cost | None:
        days = max(0, int(self._real(now) - self._real(order.at))) // 86_400 + 2
        return self._server.costs(self._name(key), min(days, 365))

    def _leave(self, key: str, cluster: Cluster) -> None:
        """Bring home what a session printed, and have its cluster taken down, unless that is under way."""
        requests = self._server.requests(cluster.name)
        if not _is_going(requests):
            with suppress(PlatformError, OSError):  # what it costs to leave it up counts more
                self._records.keep_output(key, self._server.log(cluster.name))
            self._server.down(cluster.name)

    def _up(self, key: str, started: Started, cluster: Cluster) -> Observed:
        return Observed(key, SessionState.RUNNING, cluster.name, started.at, detail=f"up on {cluster.where}")

    def _name(self, key: str) -> str:
        return f"{self._settings.prefix}{key}"


def _is_going(requests: Sequence[Asked]) -> bool:
    """Tell whether a cluster is being taken down."""
    return any(one.name == "sky.down" and one.is_active for one in requests)
