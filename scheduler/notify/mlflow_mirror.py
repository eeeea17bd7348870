"""MLflow: what the sessions of every job tell, as a run of a tracking server, by its REST API.

The server remembers how far it was told: the tag ``uff.newest`` of a run is the instant of its newest point. So a
daemon that starts anew asks once and goes on from there, and nothing is told twice but what a crash left unnoted.
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import Request

from jobs.payload.deadline import exchange
from scheduler.core.job import Cancelled, Done, Failed
from scheduler.service.outside.calls import fail
from scheduler.store import jobs, series

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jobs.payload.deadline import Answer
    from scheduler.service.outside.ports import Ports
    from scheduler.store.jobs import JobRecord
    from scheduler.store.series import Point

EXPERIMENT = "uff-scheduler-training"
_JOB, _SINCE, _NEWEST = "uff.job", "uff.since", "uff.newest"
_BATCH = 250  # points; three figures each stay below the thousand that a server takes at once
_TIMEOUT_SECONDS = 20
_ANSWER_MAX_BYTES = 64 << 20
_STATUS = {Done: "FINISHED", Failed: "FAILED", Cancelled: "KILLED"}


class MlflowFault(Exception):
    """The server did not do its part; ``code`` is its own word for why, where it said one."""

    def __init__(self, why: str, code: str = "") -> None:
        super().__init__(why)
        self.code = code


@dataclass(slots=True)
class _Run:
    key: str
    newest: int = 0
    status: str = "RUNNING"


@dataclass(slots=True)
class MlflowMirror:
    """What is known of one server. It may be lost: the server is asked again."""

    address: str
    authorization: str = field(default="", repr=False)
    _experiment: str = ""
    _runs: dict[tuple[str, int], _Run] = field(default_factory=dict)

    def tell(self, ports: Ports) -> None:
        """Tell the server what it does not have. What it does not take is failed work, tried again a minute later."""
        try:
            if not self._experiment:
                self._look()
            with ports.database.read() as tx:
                told, records = series.newest(tx), jobs.everything(tx)
            newest: dict[str, int] = {}
            for (job, _), at in told.items():
                newest[job] = max(at, newest.get(job, 0))
            for record in records:
                if record.spec.name in newest:
                    self._tell_job(ports, record, newest[record.spec.name])
        except MlflowFault as error:
            self._experiment, self._runs = "", {}  # perhaps another server by now: look anew
            ports.log.error("mirror.failed", at=self.address, why=str(error), next="tried again in a minute")
            fail(str(error))

    def check(self) -> None:
        """Ask for our experiment. Raises MlflowFault when the server does not answer or lets nobody in."""
        self._named()

    def _tell_job(self, ports: Ports, record: JobRecord, newest: int) -> None:
        name, identity = record.spec.name, (record.spec.name, record.created_at)
        run = self._runs.get(identity)
        if run is None:
            tags = _pairs({_JOB: name, _SINCE: str(record.created_at), _NEWEST: "0", "uff.role": record.spec.role})
            asked = {"experiment_id": self._experiment, "run_name": name, "tags": tags}
            made = self._post("runs/create", {**asked, "start_time": record.created_at * 1_000})
            run = self._runs[identity] = _Run(str(made["run"]["info"]["run_id"]))
        if newest > run.newest:
            with ports.database.read() as tx:
                points = series.of_job(tx, name)
            for batch in _batches([point for point in points if point.at > run.newest]):
                metrics = [metric for point in batch for metric in _metrics(point)]
                tags = _pairs({_NEWEST: str(batch[-1].at)})
                self._post("runs/log-batch", {"run_id": run.key, "metrics": metrics, "tags": tags})
                run.newest = batch[-1].at
        status = _STATUS.get(type(record.state), "RUNNING")
        if status != run.status:
            self._post("runs/update", {"run_id": run.key, "status": status})
            run.status = status

    def _look(self) -> None:
        """Find our experiment and how far each run in it was told."""
        found = self._named() or str(self._post("experiments/create", {"name": EXPERIMENT})["experiment_id"])
        page = ""
        runs: dict[tuple[str, int], _Run] = {}
        while True:
            asked = {"experiment_ids": [found], "max_results": 1_000, "page_token": page}
            answer = self._post("runs/search", asked)
            for run in answer.get("runs", ()):
                tags = {tag["key"]: tag.get("value", "") for tag in run.get("data", {}).get("tags", ())}
                if _JOB in tags:
                    info = run["info"]
                    identity = tags[_JOB], int(tags.get(_SINCE, 0))
                    runs[identity] = _Run(str(info["run_id"]), int(tags.get(_NEWEST, 0)), str(info["status"]))
            page = str(answer.get("next_page_token", ""))
            if not page:
                break
        self._experiment, self._runs = found, runs

    def _named(self) -> str:
        try:
            answer = self._ask("experiments/get-by-name?" + urlencode({"experiment_name": EXPERIMENT}), None)
        except MlflowFault as fault:
            if fault.code == "RESOURCE_DOES_NOT_EXIST":
                return ""
            raise
        return str(answer["experiment"]["experiment_id"])

    def _post(self, call: str, document: Mapping[str, Any]) -> Any:
        return self._ask(call, json.dumps(document).encode())

    def _ask(self, call: str, data: bytes | None) -> Any:
        headers = {"Content-Type": "application/json", "User-Agent": "uff-scheduler"}
        if self.authorization:
            headers["Authorization"] = self.authorization
        address = f"{self.address.rstrip('/')}/api/2.0/mlflow/{call}"
        try:
            request = Request(address, data, headers)  # noqa: S310 - the settings take https only, or this machine
            answer = exchange(request, _TIMEOUT_SECONDS, _ANSWER_MAX_BYTES)
            found = json.loads(answer.body) if answer.status < 300 else None
        except (OSError, HTTPException, ValueError) as error:
            raise MlflowFault(f"{type(error).__name__}: {str(error)[:200]}") from None
        if answer.status >= 300:
            raise _told(answer)
        if not isinstance(found, dict):
            raise MlflowFault(f"{call.partition('?')[0]} was answered by something else than MLflow")
        return _Document(found)


class _Document(dict[str, Any]):
    """An answer; what is not in it is a fault of the server."""

    def __getitem__(self, key: str) -> Any:
        try:
            found = super().__getitem__(key)
        except KeyError:
            raise MlflowFault(f"an answer without {key}: is this a tracking server of MLflow?") from None
        return _Document(found) if isinstance(found, dict) else found


def authorization(token: str, user: str, password: str) -> str:
    """Return the header that lets us in, of what MLflow's own clients take; empty for none."""
    if token:
        return f"Bearer {token}"
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""


def _told(answer: Answer) -> MlflowFault:
    try:
        document = json.loads(answer.body)
        code, words = str(document["error_code"]), str(document["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        code, words = "", ""
    return MlflowFault(f"the server answered {answer.status} {code} {' '.join(words.split())[:200]}".rstrip(), code)


def _batches(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Yield the points by instant, a few hundred at a time; points of one instant stay together."""
    waiting: list[Point] = []
    for point in sorted(points, key=lambda point: (point.at, point.attempt, point.step)):
        if len(waiting) >= _BATCH and point.at > waiting[-1].at:
            yield waiting
            waiting = []
        waiting.append(point)
    if waiting:
        yield waiting


def _metrics(point: Point) -> Iterator[dict[str, Any]]:
    """Yield the figures of a point. JSON has no NaN, so a loss that is no number is left out."""
    for key, value in {**point.figures(), "attempt": float(point.attempt)}.items():
        if math.isfinite(value):
            yield {"key": key, "value": value, "timestamp": point.at * 1_000, "step": point.step}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]
