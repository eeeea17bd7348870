"""The SkyPilot adapter. Each run ID has its own cluster, which is created for it and deleted after it.

The pool's state folder has a folder per run ID with: the order, written before the server is called; the start; the
end, as first reported; and the output, because the log is deleted with the cluster. Everything else is queried by the
cluster's name.
"""

import base64
import gzip
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from platforms import base
from platforms.bundle import Bundle, build_bundle
from platforms.record_file import unclear
from platforms.registry import PlatformContext
from platforms.remote import END, ORDER, OUTPUT, STARTED, Ended, Ordered, RemoteSessions, Started
from platforms.skypilot.server import ApiServer, NoCluster, NotSent, SkyCluster, SkyCost, SkyJob, SkyRequest
from platforms.skypilot.settings import NAME, read_settings
from platforms.targets.reach import shell_script

# Task: the SkyPilot task of a session, whose script is session.sh.
_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,78}[A-Za-z0-9])?", re.ASCII)
_LAUNCH = "UFF_LAUNCH"  # the secret with the launch document
_LAUNCH_BYTES = 96 << 10  # Linux limits an environment variable to 128 KiB


class SkyPilotOrder(NamedTuple):
    """The values of a session's script; instants are real UTC seconds."""

    key: str
    until: int
    start_by: int
    python: str


def is_key(key: str) -> bool:
    """Return whether a run ID can be part of a cluster's name."""
    return bool(_KEY.fullmatch(key))


def task(
    order: SkyPilotOrder, launch: Mapping[str, Any], payload: Bundle, resources: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a session's task in SkyPilot's format. Raises Refused if the launch document is too long, and OSError.

    The document is passed as a secret of the task, because SkyPilot's pages and lists do not show secrets.
    """
    packed = gzip.compress(json.dumps(launch).encode(), mtime=0)
    document = base64.b64encode(packed).decode()
    if len(document) > _LAUNCH_BYTES:
        why = f"the launch document has {len(document)} bytes when packed, of at most {_LAUNCH_BYTES}"
        raise base.Refused(NAME, "launch", why, "Give the job fewer inputs", permanent=True)
    archive = base64.encodebytes(payload.path.read_bytes()).decode()
    return {
        "name": order.key,
        "num_nodes": 1,
        "resources": dict(resources),
        "secrets": {_LAUNCH: document},
        "run": shell_script("platforms.skypilot", "session.sh", **order._asdict(), payload=archive),
    }


# The adapter.
_SLACK_SECONDS = 120  # the cluster is deleted so many real seconds after the deadline, when its script has ended
_LOCK_SECONDS = 60.0  # long, because the server is polled under the lock
_AT_ONCE = 8  # clusters that are queried at the same time
_SHARED = ("slurm", "ssh", "k8s", "kubernetes")  # infrastructures that may share a folder with this machine


@dataclass(frozen=True, slots=True)
class _View:
    """One poll: the clusters of this pool by name, and the jobs of the queried clusters by run ID."""

    clusters: Mapping[str, SkyCluster]
    jobs: Mapping[str, list[SkyJob] | base.PlatformError]


class SkyPilotPlatform(RemoteSessions):
    """Runs payloads on clusters of SkyPilot; docs/skypilot.md has the settings."""

    def __init__(self, settings: Mapping[str, str], context: PlatformContext) -> None:
        super().__init__(NAME, context)
        self._settings = read_settings(settings, context.state_folder.absolute())
        self._server = ApiServer(self._settings)
        # Without a declared price the adapter reports the catalogue's, and launches no machine that costs more.
        self._tells_price = not context.is_priced
        self._price: float | None = None  # dollars per hour, as last reported
        self._polled_at: dict[str, int] = {}  # by run ID, when the cluster's jobs were last queried

    @property
    def capabilities(self) -> base.Capabilities:
        """See Platform.capabilities."""
        return base.Capabilities(tails_logs=True, finds_orphans=True, tells_price=self._tells_price)

    def launch(self, request: base.LaunchRequest, now: int) -> base.Observed:
        """Create a cluster, unless the run ID has or had one; see Platform.launch."""
        key = request.key
        if not is_key(key):
            raise base.Refused(
                NAME, "launch", f"{key!r} cannot be a cluster's name", "Use A-Z a-z 0-9 . _ -", permanent=True
            )
        payload = self._payload(request)
        start_by = int(self._real(now)) + self._settings.start_seconds
        order = SkyPilotOrder(key, int(self._real(request.deadline)), start_by, self._settings.python)
        with self._folders.answering("launch"):
            packed = build_bundle(payload, self._context.state_folder.absolute() / "payload")
            body = task(order, {**request.launch, "work_dir": "work"}, packed, self._resources(request))
            with self._folders.lock(_LOCK_SECONDS):
                if (existing := self._existing_session(request, now)) is not None:
                    return existing
                self._records.order(key, Ordered(now, request.deadline, start_by))
            try:
                request_id = self._server.launch(self._name(key), body)
            except (base.Refused, base.Misconfigured, NotSent):
                with self._folders.lock(_LOCK_SECONDS):
                    self._folders.remove([key])
                    self._records.forget([key])
                raise
        return base.Observed(key, base.SessionState.QUEUED, request_id, detail="asked for")

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, base.Observed]:
        """Return the session of each run ID; see Platform.find."""
        with self._folders.answering("find"):
            valid = [key for key in dict.fromkeys(keys) if is_key(key)]
            view = self._poll(now, valid)
            for key in valid:
                self._adopt_cluster(key, view, now)
            return self._folders.observed(valid, lambda key: self._observe(key, view, now))

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Delete a session's cluster; without ``force`` only cancel a launch that is not finished.

        A running session finds the stop flag in the artifact store.
        """
        del now
        if not is_key(key):
            return
        with self._folders.answering("stop"):
            files = self._folders.files(key)
            if END in files or (STARTED in files and not force):
                return
            requests = self._server.requests(self._name(key))
            launches = [one for one in requests if one.name == "sky.launch" and one.is_active]
            for one in launches:
                self._server.cancel(one.id)
            if (force or launches) and (cluster := self._server.clusters().get(self._name(key))):
                self._stop_cluster(key, cluster)
            self._polled_at.pop(key, None)

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield the output of a session; see Platform.logs."""
        if not is_key(key) or limit_bytes <= 0:
            return
        with self._folders.answering("logs"):
            files = self._folders.files(key)
            if STARTED in files and END not in files:
                with suppress(NoCluster):
                    self._records.keep_output(key, self._server.log(self._name(key)))
            yield from self._folders.read(key, OUTPUT, offset, limit_bytes)

    def read_quota(self, now: int) -> Sequence[base.HourPrice]:
        """Return the highest price of an hour in the catalogue. Budgets are declared as quotas."""
        del now
        if not self._tells_price or not self._settings.accelerator:
            return ()
        with self._folders.answering("read_quota"):
            offer = self._server.dearest(self._context.devices_per_session)
        if offer is None:
            return ()
        self._price = offer.dollars
        return (base.HourPrice(round(offer.dollars * 1_000_000), f"SkyPilot's catalogue: {offer.place}"),)

    def orphans(self, our_keys: Collection[str], now: int) -> Sequence[base.Observed]:
        """Return the clusters and active launches with this pool's prefix that are not in ``our_keys``."""
        with self._folders.answering("orphans"):
            view, prefix = self._poll(now, ()), self._settings.prefix
            under_way = {one.cluster for one in self._server.requests() if one.name == "sky.launch"}
            orphans = []
            for name in sorted({*view.clusters, *under_way}):
                key, cluster = name.removeprefix(prefix), view.clusters.get(name)
                if key in our_keys or END in self._folders.files(key):
                    continue
                state = base.SessionState.RUNNING if cluster and cluster.status == "UP" else base.SessionState.QUEUED
                since = min(self._scheduled(cluster.launched_at), now) if cluster else None
                orphans.append(
                    base.Observed(key, state, name, since, detail=cluster.status if cluster else "asked for")
                )
            return orphans

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Remove the folders of sessions in ``over`` that ended or never started and have no cluster; return them."""
        with self._folders.answering("sweep"):
            stored = sorted(self._folders.keys() & set(over))
            view = self._poll(now, ())
            without_cluster = [key for key in stored if self._name(key) not in view.clusters]
            with self._folders.lock(_LOCK_SECONDS):
                removed = self._folders.over(without_cluster, lambda key: self._observe(key, view, now))
                self._folders.remove(removed)
            self._records.forget(removed)
            for key in removed:
                self._polled_at.pop(key, None)
            self._folders.clear()
        return removed

    def _existing_session(self, request: base.LaunchRequest, now: int) -> base.Observed | None:
        """Return the session of this run ID if it exists, here or at the server. The caller holds the lock.

        Raises Refused if it does not exist, and the pool is full or the deadline has passed.
        """
        key = request.key
        stored = sorted(self._folders.keys() | {key})
        view = self._poll(now, ())
        if ORDER not in self._folders.files(key):
            launched = [one for one in self._server.requests(self._name(key)) if one.name == "sky.launch"]
            if launched or self._name(key) in view.clusters:  # launched by a daemon whose state folder is lost
                self._records.order(
                    key, Ordered(now, request.deadline, int(self._real(now)) + self._settings.start_seconds)
                )
        sessions = self._folders.observed(stored, lambda each: self._observe(each, view, now))
        return self._standing(request, sessions, now)

    def _resources(self, request: base.LaunchRequest) -> dict[str, object]:
        resources = self._settings.resources(request.devices)
        if self._price is not None:
            resources["max_hourly_cost"] = self._price
        near = str(resources.get("infra", "")).startswith(_SHARED)
        if request.launch.get("store", {}).get("kind") == "directory" and not near:
            remedy = "Set artifacts.kind = 's3'; see docs/inside/store.md"
            raise base.Misconfigured(NAME, "launch", "a cloud's machine cannot reach a folder of this one", remedy)
        return resources

    def _adopt_cluster(self, key: str, view: _View, now: int) -> None:
        """Write the missing order of a cluster of this pool."""
        cluster = view.clusters.get(self._name(key))
        if cluster is not None and not self._folders.files(key):
            since = min(self._scheduled(cluster.launched_at), now)
            until = since + self._context.session_cap_seconds
            with self._folders.lock(_LOCK_SECONDS):
                if not self._folders.files(key):
                    self._records.order(key, Ordered(since, until, cluster.launched_at + self._settings.start_seconds))

    def _poll(self, now: int, keys: Collection[str]) -> _View:
        """Return the clusters, and the jobs of the ``keys`` that are due for a query (queried in parallel).

        A cluster whose session has ended is deleted: it started late, or its deletion request was lost.
        """
        clusters = self._server.clusters()
        for cluster in clusters.values():
            key = cluster.name.removeprefix(self._settings.prefix)
            if END in self._folders.files(key):
                with suppress(base.PlatformError):
                    self._stop_cluster(key, cluster)
        due = [key for key in keys if self._name(key) in clusters and self._is_due(key, now)]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            jobs = dict(zip(due, threads.map(self._jobs, due), strict=True))
        self._polled_at.update(dict.fromkeys(due, now))
        return _View(clusters, jobs)

    def _is_due(self, key: str, now: int) -> bool:
        files = self._folders.files(key)
        pause = round(self._settings.poll_seconds * self._clock.scale)
        return STARTED in files and END not in files and now >= self._polled_at.get(key, now - pause) + pause

    def _jobs(self, key: str) -> list[SkyJob] | base.PlatformError:
        try:
            return self._server.jobs(self._name(key))
        except base.PlatformError as error:
            return error

    def _observe(self, key: str, view: _View, now: int) -> base.Observed | None:
        """Return the state of a session; its end is stored when it is first reported."""
        files = self._folders.files(key)
        if ORDER not in files:
            return None
        order, cluster = self._records.ordered(key), view.clusters.get(self._name(key))
        try:
            if END in files:
                return self._records.ended(key)
            if STARTED not in files:
                return self._observe_starting(key, order, cluster, now)
            started = self._records.started(key)
            if cluster is None:
                return self._observe_end(key, order, started, now)
            return self._observe_up(key, order, started, cluster, view, now)
        except base.Unreachable as error:
            return unclear(key, error)

    def _observe_starting(self, key: str, order: Ordered, cluster: SkyCluster | None, now: int) -> base.Observed:
        """Return the state of a session that was not seen running yet; cancel its launch if it is late."""
        name, late = self._name(key), self._real(now) > order.start_by
        requests = self._server.requests(name)
        launches = [one for one in requests if one.name == "sky.launch"]
        active = [one for one in launches if one.is_active]
        if active:
            for one in active if late else ():
                self._server.cancel(one.id)
            detail = "given up: it did not come up in time" if late else f"launch {active[0].status.lower()}"
            stage = f"; its cluster is {cluster.status}" if cluster is not None else ""
            waits = None if late else base.InQueue(detail + stage)
            return base.Observed(key, base.SessionState.QUEUED, active[0].id, detail=detail, waits=waits)
        if cluster is None and not launches and not late:
            detail = "asked for, not seen at the server yet"
            return base.Observed(key, base.SessionState.QUEUED, "", detail=detail, waits=base.InQueue(detail))
        # The list of clusters is older than the list of requests; the cluster may have started in between.
        if (cluster := self._server.refresh(name)) is None:
            return self._observe_end(key, order, None, now, launches)
        well = not launches or any(one.status == "SUCCEEDED" for one in launches)
        if not well or (late and cluster.status != "UP"):
            # Otherwise the cluster would stay up and be billed indefinitely.
            if not _is_going_down(requests):
                self._server.down(name)
            return base.Observed(key, base.SessionState.QUEUED, "", detail="its set-up failed, and it is taken down")
        if cluster.status != "UP":
            detail = f"{cluster.status} on {cluster.where}"
            return base.Observed(key, base.SessionState.QUEUED, "", detail=detail, waits=base.InQueue(detail))
        cost = self._cost(key, order, now)
        since = min(cost.first, cluster.launched_at) if cost else cluster.launched_at
        began = self._records.start(key, max(order.at, min(self._scheduled(since), now)))
        return self._as_running(key, began, cluster)

    def _observe_up(
        self, key: str, order: Ordered, started: Started, cluster: SkyCluster, view: _View, now: int
    ) -> base.Observed:
        """Return the state of a session whose cluster is in the server's records, which may be old."""
        jobs = view.jobs.get(key, [])
        if isinstance(jobs, NoCluster):
            return self._observe_end(key, order, started, now)
        if isinstance(jobs, base.PlatformError):
            # The session lasts while its cluster exists; heartbeats show whether its job works.
            if self._server.refresh(cluster.name) is None:
                return self._observe_end(key, order, started, now)
            return self._as_running(key, started, cluster)
        mine = [job for job in jobs if job.name == key]
        late = self._real(now) > self._real(order.deadline) + _SLACK_SECONDS
        if (mine and all(job.is_over for job in mine)) or cluster.status == "STOPPED" or late:
            self._stop_cluster(key, cluster)
        return self._as_running(key, started, cluster)

    def _observe_end(
        self, key: str, order: Ordered, started: Started | None, now: int, launches: Sequence[SkyRequest] = ()
    ) -> base.Observed:
        """Return the end of a session whose cluster is not in the server's records. Raises Unreachable.

        The cluster is refreshed once more; the server's cost estimate shows how long it was up.
        """
        if started is not None and self._server.refresh(self._name(key)) is not None:
            return unclear(key, "its cluster is not there, and there again")
        cost = self._cost(key, order, now)
        if cost is not None and cost.last is None and now <= order.deadline:
            return unclear(key, "its cluster is not in the server's list, and is in its costs as one that is up")
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

    def _cost(self, key: str, order: Ordered, now: int) -> SkyCost | None:
        days = max(0, int(self._real(now) - self._real(order.at))) // 86_400 + 2
        return self._server.costs(self._name(key), min(days, 365))

    def _stop_cluster(self, key: str, cluster: SkyCluster) -> None:
        """Store the output of a session and delete its cluster, unless the deletion was requested before."""
        requests = self._server.requests(cluster.name)
        if not _is_going_down(requests):
            with suppress(base.PlatformError, OSError):  # a lost log costs less than a cluster that stays up
                self._records.keep_output(key, self._server.log(cluster.name))
            self._server.down(cluster.name)

    def _as_running(self, key: str, started: Started, cluster: SkyCluster) -> base.Observed:
        return base.Observed(key, base.SessionState.RUNNING, cluster.name, started.at, detail=f"up on {cluster.where}")

    def _name(self, key: str) -> str:
        return f"{self._settings.prefix}{key}"


def _is_going_down(requests: Sequence[SkyRequest]) -> bool:
    return any(one.name == "sky.down" and one.is_active for one in requests)
