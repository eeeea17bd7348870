"""A stand-in of SkyPilot's API server, as much of it as the adapter speaks to; its machines are folders of this one.

What it answers was compared with a real server of 0.14.1 (tests/lab/skypilot.py). As there: a call begins a request and
names it in a header; status is what was last known; a launch of a name that exists queues its task once more; a set-up
that fails leaves a cluster that is billed; the log of no cluster is an empty answer; a cluster's log goes with it.

Where it differs: it says fewer fields, and each at once; ``launched_at`` stays, while the real one moves it on during a
launch; a cluster takes itself down when a test says so; a down that fails, a cloud that is away and a restart of the
server are not there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from scheduler.clock import real_now
from tests.lab.faults import Faults
from tests.lab.sky_http import Http

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PRICE = 2.5  # of one device and hour
_PATIENCE_SECONDS = 60


class _Failure(Exception):
    """What a request fails with: SkyPilot's name of the error, and its words."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class _Job:
    id: int
    name: str
    script: str
    variables: dict[str, str]
    output: Path
    status: str = "PENDING"
    process: subprocess.Popen[bytes] | None = None


@dataclass
class _Cluster:
    name: str
    owner: str
    launched_at: int
    autostop: int
    devices: int
    home: Path
    status: str = "INIT"
    there: bool = True  # at the cloud, whatever is remembered
    set_up: bool = True
    jobs: list[_Job] = field(default_factory=list)
    turn: threading.Lock = field(default_factory=threading.Lock)  # the devices are one job's at a time


@dataclass
class Request:
    """Something that was asked for, and what became of it."""

    id: str
    name: str
    cluster: str
    owner: str
    created_at: float
    status: str = "PENDING"
    value: str = "null"
    error: str = "null"
    finished_at: float | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class SkyServer:
    """Serves while it is entered. ``faults`` happen to calls by their path, to values by the request's name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults = Faults()
        self.address = ""
        self.no_capacity: set[str] = set()  # names of jobs for which there is no machine
        self.bad_setup: set[str] = set()  # names of jobs whose machine cannot be set up
        self.catalogue: (
            list[tuple[str, str, float, float]] | None
        ) = []  # [] : the card at one price; None: no catalogue
        self.complains = False  # of every launch, as of one that lacks something
        self.provisioning = threading.Event()  # cleared: launches wait
        self.provisioning.set()
        self.clusters: dict[str, _Cluster] = {}
        self.requests: dict[str, Request] = {}
        self.spans: list[dict[str, Any]] = []
        self.started: list[str] = []  # names of the jobs that ran, in their order
        self.tasks: list[dict[str, Any]] = []
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._calls: dict[str, Callable[[Request, dict[str, Any]], Any]] = {
            "/launch": self._launch, "/status": self._status, "/queue": self._queue, "/down": self._down,
            "/logs": self._logs, "/cost_report": self._costs, "/list_accelerators": self._prices,
            "/api/cancel": self._cancel, "/enabled_clouds": lambda _request, _body: ["slurm"],
        }  # fmt: skip

    def __enter__(self) -> Self:
        """Begin to serve, on loopback."""
        self._http = Http(self)
        self.address = f"http://127.0.0.1:{self._http.server_port}"
        self._serving = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all jobs, then serve no more."""
        self.provisioning.set()
        for request in list(self.requests.values()):
            request.cancelled.set()
        for cluster in list(self.clusters.values()):
            self._end(cluster, "The test is over.")
        for thread in self._threads:
            thread.join(_PATIENCE_SECONDS)
        self._http.shutdown()
        self._serving.join()
        self._http.server_close()

    def left(self) -> list[int]:
        """Return the process groups of jobs that are still there."""
        found = []
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 0)
                found.append(process.pid)
        return found

    def preempt(self, name: str) -> None:
        """Take a machine away; the records go on saying that it is up."""
        with self._lock:
            self.clusters[name].there = False
        self._kill(self.clusters[name])

    def autodown(self, name: str) -> None:
        """Take down a cluster that idles, as its own watch does after some minutes."""
        cluster = self.clusters[name]
        if cluster.autostop < 0 or any(job.status in {"PENDING", "RUNNING"} for job in cluster.jobs):
            raise AssertionError(f"{name} is not idle, or has no autodown")
        self._end(cluster, "All nodes terminated, cleaning up the cluster.")

    def forget(self) -> None:
        """Clean up the finished requests, as the server does after a day."""
        with self._lock:
            self.requests = {key: one for key, one in self.requests.items() if one.finished_at is None}

    def begin(self, path: str, body: dict[str, Any]) -> Request:
        """Begin a request, and carry it out in a thread of its own."""
        name = "sky." + path.removeprefix("/api/").strip("/").replace("api_", "")
        owner = str(body.get("env_vars", {}).get("SKYPILOT_USER_ID", "00000000"))
        request = Request(os.urandom(8).hex(), name, str(body.get("cluster_name") or ""), owner, real_now())
        with self._lock:
            self.requests[request.id] = request
            if path == "/launch":
                self.tasks.append(json.loads(body["task"]))
        thread = threading.Thread(target=self._carry_out, args=(path, request, body), daemon=True)
        self._threads.append(thread)
        thread.start()
        return request

    def _carry_out(self, path: str, request: Request, body: dict[str, Any]) -> None:
        request.status, status = "RUNNING", "SUCCEEDED"
        try:
            request.value = json.dumps(self._calls[path](request, body))
        except _Failure as failure:
            status = "CANCELLED" if failure.kind == "cancelled" else "FAILED"
            if status == "FAILED":
                request.error = json.dumps({"object": "gASVBQ==", "type": failure.kind, "message": str(failure)})
        request.finished_at = real_now()
        request.status = status
        request.done.set()

    def _launch(self, request: Request, body: dict[str, Any]) -> Any:
        task, name = json.loads(body["task"]), str(body["cluster_name"])
        if task["name"] in self.no_capacity:
            raise _Failure("ResourcesUnavailableError", "Failed to acquire resources in all zones")
        stop = task["resources"]["autostop"]
        with self._lock:
            cluster = self.clusters.get(name)
            if cluster is None:
                devices = int(str(task["resources"].get("accelerators", ":1")).rpartition(":")[2])
                home = self.folder / "clusters" / name
                cluster = _Cluster(name, request.owner, int(real_now()), -1, devices, home)
                self.clusters[name] = cluster
        while not self.provisioning.wait(0.01):
            if request.cancelled.is_set():
                raise _Failure("cancelled", "")  # and the cluster stays as it is
        if task["name"] in self.bad_setup:
            cluster.set_up = False
            raise _Failure("RuntimeError", "Failed to run setup commands on an instance. (exit code 1)")
        with self._lock:
            if self.clusters.get(name) is not cluster:
                raise _Failure("ClusterDoesNotExist", f"Cluster '{name}' does not exist.")
            cluster.status, cluster.autostop = "UP", stop["idle_minutes"] if cluster.autostop < 0 else cluster.autostop
            number = len(cluster.jobs) + 1
            cluster.home.mkdir(parents=True, exist_ok=True)
            output = cluster.home / f"job-{number}.log"
            job = _Job(number, task["name"], task["run"], task.get("secrets", {}), output)
            cluster.jobs.append(job)
        thread = threading.Thread(target=self._run, args=(cluster, job), daemon=True)
        self._threads.append(thread)
        thread.start()
        return {"job_id": number, "handle": "gAROLg=="}

    def _run(self, cluster: _Cluster, job: _Job) -> None:
        with cluster.turn:
            with self._lock:
                if job.status != "PENDING" or not cluster.there:
                    return
                script = job.output.with_suffix(".sh")  # it may be longer than an argument may be
                script.write_text(job.script)
                environment = {"PATH": os.environ["PATH"], "HOME": str(cluster.home), **job.variables}
                with job.output.open("wb") as output:
                    job.process = subprocess.Popen(
                        ["bash", script], cwd=cluster.home, env=environment, stdin=subprocess.DEVNULL,
                        stdout=output, stderr=output, start_new_session=True,
                    )  # fmt: skip
                self._processes.append(job.process)
                job.status = "RUNNING"
                self.started.append(job.name)
            code = job.process.wait()
            job.status = "SUCCEEDED" if code == 0 else "FAILED"

    def _status(self, _request: Request, body: dict[str, Any]) -> Any:
        names, found = body.get("cluster_names"), []
        for cluster in list(self.clusters.values()):
            if names is not None and cluster.name not in names:
                continue
            if body.get("refresh") == "FORCE":
                if not cluster.there:
                    self._end(cluster, "Cluster was preempted.")
                    continue
                cluster.status = "UP"  # also one whose set-up failed
            found.append(
                {
                    "name": cluster.name, "launched_at": cluster.launched_at, "status": cluster.status,
                    "autostop": cluster.autostop, "to_down": cluster.autostop >= 0, "cluster_hash": cluster.name,
                    "user_hash": cluster.owner, "nodes": 1, "cloud": "Slurm", "region": "lab", "handle": "gAROLg==",
                }
            )  # fmt: skip
        return found

    def _queue(self, _request: Request, body: dict[str, Any]) -> Any:
        cluster = self._reached(body)
        return [{"job_id": job.id, "job_name": job.name, "status": job.status} for job in reversed(cluster.jobs)]

    def _down(self, _request: Request, body: dict[str, Any]) -> None:
        cluster = self._known(body)
        self._end(cluster, f"Cluster was terminated by user uff (request ID: {_request.id}).")

    def _logs(self, _request: Request, body: dict[str, Any]) -> Any:
        cluster = self._reached(body)
        if not cluster.jobs or not cluster.jobs[-1].output.exists():
            return ""
        lines = cluster.jobs[-1].output.read_bytes().splitlines(True)
        waits = (
            b"\x1b[2m\xe2\x94\x9c\xe2\x94\x80\xe2\x94\x80 \x1b[0m\x1b[2mWaiting for task resources on 1 node.\x1b[0m\n"
        )
        mark = f"\x1b[36m({cluster.jobs[-1].name}, pid=15948)\x1b[0m ".encode()
        return (waits + b"".join(mark + line for line in lines)).decode("utf-8", "replace")

    def _cancel(self, _request: Request, body: dict[str, Any]) -> Any:
        for key in body["request_ids"]:
            self.requests[key].cancelled.set()
        return body["request_ids"]

    def _costs(self, _request: Request, _body: dict[str, Any]) -> Any:
        rows = list(self.spans)
        rows += [_cost(cluster, None, "") for cluster in self.clusters.values()]
        return rows

    def _prices(self, _request: Request, body: dict[str, Any]) -> Any:
        if self.catalogue is None:
            raise _Failure("CloudError", "Failed to fetch the catalogue")
        count, region = body["quantity_filter"], body["region_filter"]
        if self.catalogue:
            rows = [row for row in self.catalogue if region in {None, row[1]}]
            return {"H100": [["aws", None, "H100", count, 8, 0.0, 15.62, *row[2:], row[1]] for row in rows]}
        return {"H100": [["slurm", None, "H100", count, 8, 0.0, 15.62, _PRICE * count, _PRICE * count, "gpu*"]]}

    def _known(self, body: dict[str, Any]) -> _Cluster:
        name = body["cluster_name"]
        if name not in self.clusters:
            raise _Failure("ClusterDoesNotExist", f"\x1b[33mCluster '{name}' does not exist.\x1b[0m")
        return self.clusters[name]

    def _reached(self, body: dict[str, Any]) -> _Cluster:
        cluster = self._known(body)
        if not cluster.there:
            self._end(cluster, "Cluster was preempted.")
            raise _Failure("ClusterDoesNotExist", f"\x1b[33mCluster '{cluster.name}' does not exist.\x1b[0m")
        if cluster.status != "UP" or not cluster.set_up:
            raise _Failure("ClusterNotUpError", f"Cluster '{cluster.name}' has been stopped or not properly set up.")
        return cluster

    def _end(self, cluster: _Cluster, event: str) -> None:
        with self._lock:
            if self.clusters.pop(cluster.name, None) is not None:
                self.spans.append(_cost(cluster, int(real_now()), event))
            cluster.there = False
        self._kill(cluster)

    def _kill(self, cluster: _Cluster) -> None:
        with self._lock:
            for job in cluster.jobs:
                if job.status == "PENDING":
                    job.status = "CANCELLED"
                if job.process is not None and job.process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(job.process.pid, signal.SIGKILL)


def _cost(cluster: _Cluster, last: int | None, event: str) -> dict[str, Any]:
    seconds = (last or int(real_now())) - cluster.launched_at
    return {
        "name": cluster.name, "launched_at": cluster.launched_at, "duration": seconds, "cluster_hash": cluster.name,
        "usage_intervals": [[cluster.launched_at, last]], "status": None if last else cluster.status,
        "last_event": event, "total_cost": cluster.devices * _PRICE * seconds / 3600, "resources": "gASVCA==",
    }  # fmt: skip
