"""Client of a SkyPilot API server's HTTP API. SkyPilot itself is not imported.

Most calls start a request, whose ID is in a response header, and fetch its value later. The value is a JSON text;
pickled parts are not read. An answer that cannot be parsed raises Unreachable, because the state is then unknown.
"""

import base64
import json
import math
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.payload.deadline import Deadline, HttpAnswer
from platforms.base import Misconfigured, Refused, Unreachable
from platforms.skypilot.settings import DOC, NAME, SkyPilotSettings

_ID_HEADER = "x-skypilot-request-id"
_ANSWER_BYTES = 64 << 20
_LOG_BYTES = 32 << 20
_START = "Start it (sky api start), or correct the option address"
_FIELDS = ("request_id", "name", "status", "created_at", "finished_at", "cluster_name")
_FINISHED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
_JOB_FINISHED = frozenset({"SUCCEEDED", "FAILED", "FAILED_DRIVER", "FAILED_SETUP", "CANCELLED"})
_CLUSTER_STATES = frozenset({"INIT", "UP", "STOPPED", "PENDING", "AUTOSTOPPING"})
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TASK_LINE = re.compile(rb"(?:\x1b\[[0-9;]*m)*\([^()\n]{1,200}, pid=\d+(?:, ip=[^()\n]{1,60})?\)(?:\x1b\[[0-9;]*m)* ?")


class PriceOffer(NamedTuple):
    """One offer: dollars per hour; the cloud and region."""

    dollars: float
    place: str


class NotSent(Unreachable):
    """The server could not be reached, so nothing was requested."""


class RequestFailed(Unreachable):
    """The server answered that the request failed."""


class NoCluster(RequestFailed):
    """The server answered that the cluster does not exist."""


@dataclass(frozen=True, slots=True)
class SkyCluster:
    """A cluster in the server's records; ``launched_at`` in real UTC seconds."""

    name: str
    status: str
    launched_at: int
    where: str


@dataclass(frozen=True, slots=True)
class SkyRequest:
    """One request to the server, such as sky.launch; instants are real UTC seconds."""

    id: str
    name: str
    status: str
    created_at: float
    cluster: str

    @property
    def is_active(self) -> bool:
        """Whether the request is queued or running."""
        return self.status not in _FINISHED


@dataclass(frozen=True, slots=True)
class SkyJob:
    """A job in the queue of a cluster."""

    id: int
    name: str
    status: str

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.status in _JOB_FINISHED


@dataclass(frozen=True, slots=True)
class SkyCost:
    """The server's estimate of a cluster's cost in dollars, and when it was up, in real UTC seconds."""

    first: int
    last: int | None  # None: still up in the server's records
    dollars: float
    event: str

    @property
    def per_hour(self) -> int | None:
        """Microdollars per hour; None while the cluster is up, or if it has no price."""
        seconds = 0 if self.last is None else self.last - self.first
        return round(self.dollars * 3_600 * 1_000_000 / seconds) or None if seconds > 0 else None


class ApiServer:
    """The client of one pool. All methods raise Unreachable and Misconfigured."""

    def __init__(self, settings: SkyPilotSettings) -> None:
        self._settings = settings

    def health(self) -> tuple[Mapping[str, Any], str]:
        """Return the server's health document, and its time as an HTTP date."""
        answer = self._send("GET", "/api/health")
        return _object("ask for its health", _loads("ask for its health", answer.body)), answer.headers.get("date", "")

    def clusters(self) -> dict[str, SkyCluster]:
        """Return this pool's clusters by name, from the server's records, which may be old."""
        return {one.name: one for one in self._status(None, "NONE") if one.name.startswith(self._settings.prefix)}

    def refresh(self, name: str) -> SkyCluster | None:
        """Return a cluster after the server has queried its cloud; None if it does not exist."""
        return next((one for one in self._status([name], "FORCE") if one.name == name), None)

    def requests(self, cluster: str = "") -> list[SkyRequest]:
        """Return the requests for ``cluster``, newest first; without a name, the active ones of this pool."""
        query = [("fields", field) for field in _FIELDS]
        if cluster:
            query += [("all_status", "true"), ("cluster_name", cluster)]
        rows = _rows(_loads("look for requests", self._send("GET", f"/api/status?{urlencode(query)}").body))
        requests = [
            SkyRequest(
                _text(one, "request_id"), _text(one, "name"), _text(one, "status"), float(_number(one, "created_at")),
                str(one.get("cluster_name") or ""),
            )
            for one in rows
        ]  # fmt: skip
        mine = [one for one in requests if one.cluster.startswith(self._settings.prefix)]
        return sorted((one for one in mine if cluster in {"", one.cluster}), key=lambda one: -one.created_at)

    def launch(self, cluster: str, task: Mapping[str, Any]) -> str:
        """Request a cluster with a task; return the request's ID. Raises Refused, NotSent.

        Never retried: a second launch of the same name would queue the task twice.
        """
        return self._start_request("/launch", task=json.dumps(task), cluster_name=cluster, retry_until_up=False)

    def down(self, cluster: str) -> None:
        """Request the deletion of a cluster, without waiting for it."""
        self._start_request("/down", cluster_name=cluster)

    def cancel(self, request: str) -> None:
        """Cancel a request."""
        self._start_request("/api/cancel", request_ids=[request])

    def jobs(self, cluster: str) -> list[SkyJob]:
        """Return the jobs of a cluster, read from the cluster itself. Raises NoCluster."""
        rows = _rows(self._call("/queue", "sky.queue", cluster_name=cluster, skip_finished=False, all_users=True))
        return [SkyJob(int(_number(one, "job_id")), _text(one, "job_name"), _text(one, "status")) for one in rows]

    def log(self, cluster: str) -> bytes:
        """Return the output of a cluster's newest job, without SkyPilot's own lines. Raises NoCluster."""
        body = self._body(cluster_name=cluster, job_id=None, follow=False, tail=0)
        answer = self._send("POST", "/logs", body, limit=_LOG_BYTES)
        # The answer is also empty with status 200 if the cluster does not exist; the request's result decides.
        self._fetch("read the log", answer.headers.get(_ID_HEADER, ""), "sky.logs")
        lines = re.findall(rb"[^\n]*\n|[^\n]+", answer.body)
        return b"".join(_TASK_LINE.sub(b"", line, count=1) for line in lines if _TASK_LINE.match(line))

    def costs(self, name: str, days: int) -> SkyCost | None:
        """Return the server's cost estimate of a cluster in the last ``days``; None if it has no estimate."""
        report = _rows(self._call("/cost_report", "sky.cost_report", days=days))
        rows = [one for one in report if one.get("name") == name]
        spans = [span for one in rows for span in one.get("usage_intervals") or ()]
        if not all(isinstance(span, list) and len(span) == 2 and isinstance(span[0], int) for span in spans):
            raise _unexpected("read the costs")
        if not spans:
            return None
        up = any(one.get("status") is not None for one in rows) or any(not isinstance(last, int) for _, last in spans)
        dollars = sum(one["total_cost"] for one in rows if isinstance(one.get("total_cost"), int | float))
        event = _COLOUR.sub("", str(rows[0].get("last_event") or ""))
        return SkyCost(min(first for first, _ in spans), None if up else max(last for _, last in spans), dollars, event)

    def offers(self, devices: int) -> list[PriceOffer]:
        """Return the catalogue's offers for a session with ``devices``, cheapest first."""
        settings = self._settings
        cloud, region = (word.strip("*") for word in [*settings.infra.split("/"), ""][:2])
        answer = self._call(
            "/list_accelerators", "sky.list_accelerators", gpus_only=True,
            name_filter=f"^{re.escape(settings.accelerator)}$", region_filter=region or None, quantity_filter=devices,
            clouds=[cloud] if cloud else None, all_regions=False, require_price=True, case_sensitive=False,
        )  # fmt: skip
        rows = [row for offers in _object("read the catalogue", answer).values() for row in offers]
        good = [row for row in rows if isinstance(row, list) and len(row) == 10 and row[3] == devices]
        priced = [PriceOffer(_price(row[8 if settings.use_spot else 7]), f"{row[0]} {row[9]}") for row in good]
        return sorted(offer for offer in priced if math.isfinite(offer.dollars))

    def dearest(self, devices: int) -> PriceOffer | None:
        """Return the most expensive offer up to max_hourly_cost, or the cheapest if that is unset; None without offers.

        The ledger must not use a lower price than that of any machine that may be launched.
        """
        try:
            priced = [offer for offer in self.offers(devices) if offer.dollars > 0]
        except RequestFailed:  # the server has no catalogue for the cloud
            return None
        if not self._settings.max_hourly_cost:
            return priced[0] if priced else None
        return max((one for one in priced if one.dollars <= float(self._settings.max_hourly_cost)), default=None)

    def clouds(self) -> list[str]:
        """Return the clouds that are enabled at the server."""
        request = self._send("GET", "/enabled_clouds").headers.get(_ID_HEADER, "")
        names = self._fetch("ask for the clouds", request, "sky.enabled_clouds")
        if not isinstance(names, list):
            raise _unexpected("ask for the clouds")
        return sorted(map(str, names))

    def why(self, request: SkyRequest) -> str:
        """Return why a request failed, in one line."""
        try:
            self._fetch("ask why", request.id, request.name)
        except RequestFailed as failed:
            return failed.why
        return "it says no reason"

    def _status(self, names: list[str] | None, refresh: str) -> list[SkyCluster]:
        rows = self._call(
            "/status", "sky.status", cluster_names=names, refresh=refresh, all_users=True, include_handle=False,
            include_credentials=False, summary_response=True,
        )  # fmt: skip
        clusters = []
        for one in _rows(rows):
            status, where = _text(one, "status"), f"{one.get('cloud') or ''} {one.get('region') or ''}".strip()
            if status not in _CLUSTER_STATES:
                raise _unexpected("look at the clusters", f"{status[:40]!r} is no state of a cluster")
            clusters.append(SkyCluster(_text(one, "name"), status, int(_number(one, "launched_at")), where))
        return clusters

    def _call(self, path: str, name: str, **words: Any) -> Any:
        return self._fetch(path.strip("/").replace("_", " "), self._start_request(path, **words), name)

    def _start_request(self, path: str, **words: Any) -> str:
        request = self._send("POST", path, self._body(**words)).headers.get(_ID_HEADER, "")
        if not request:
            raise _unexpected(path, "its answer names no request")
        return request

    def _body(self, **words: Any) -> dict[str, Any]:
        # Without authentication the server trusts this user ID. It becomes part of the clusters' names at the cloud.
        return {"env_vars": {"SKYPILOT_USER_ID": self._settings.owner, "SKYPILOT_USER": "uff-scheduler"}, **words}

    def _fetch(self, action: str, request: str, name: str) -> Any:
        """Wait for a request and return its value. Raises NoCluster, or RequestFailed if it failed."""
        answer = self._send("GET", f"/api/get?{urlencode({'request_id': request})}", failed=True)
        value = _object(action, _loads(action, answer.body))
        value = _object(action, value["detail"]) if answer.status != 200 and "detail" in value else value
        if value.get("request_id") != request or value.get("name") != name:
            raise _unexpected(action, "it is about another request")
        if answer.status == 200 and value.get("status") == "SUCCEEDED":
            return _loads(action, value.get("return_value"))
        error = _loads(action, value.get("error"))
        if not isinstance(error, dict) or not isinstance(error.get("type"), str):
            raise _unexpected(action, f"it is {str(value.get('status'))[:40]}, and no reason is given")
        why = " ".join(_COLOUR.sub("", str(error.get("message") or "")).split())[:500]
        kind = NoCluster if error["type"] == "ClusterDoesNotExist" else RequestFailed
        raise kind(NAME, action, f"{error['type']}: {why}", "It is asked again")

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, failed: bool = False,
        limit: int = _ANSWER_BYTES,
    ) -> HttpAnswer:  # fmt: skip
        """Send a request and return the answer, cut off at ``limit`` bytes; ``failed`` allows status 500."""
        parts, seconds = urlsplit(self._settings.address), self._settings.call_seconds
        if parts.scheme == "https":
            secure = ssl.create_default_context()
            connection: HTTPConnection = HTTPSConnection(parts.netloc, timeout=seconds, context=secure)
        else:
            connection = HTTPConnection(parts.netloc, timeout=seconds)
        why, remedy = "no answer", "Nothing is ended meanwhile"
        try:
            with Deadline(seconds) as deadline:
                try:
                    deadline.follow(connection).connect()
                except (OSError, HTTPException, ValueError) as error:
                    reason = f"{self._settings.address} cannot be reached: {error}"
                    raise NotSent(NAME, "connect", reason, _START) from error
                data = None if body is None else json.dumps(body).encode()
                connection.request(method, parts.path + path, data, self._headers())
                answer = connection.getresponse()
                why, remedy = "its answer broke off", "It is asked again"
                content = answer.read(limit)
        except (OSError, HTTPException) as error:
            raise Unreachable(NAME, path, f"{why}: {error!r}", remedy) from error
        finally:
            connection.close()
        self._check_status(path, answer.status, content, failed=failed)
        return HttpAnswer(answer.status, {name.lower(): text for name, text in answer.headers.items()}, content)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "*/*"}
        if self._settings.token_file:
            try:
                token = read_bounded(Path(self._settings.token_file).expanduser()).decode("utf-8-sig").strip()
            except (OSError, ValueError) as error:
                raise Misconfigured(NAME, "connect", str(error), "Correct the option token_file") from error
            plain = not token.startswith("sky_")  # user:password; a service account's token begins with sky_
            headers["Authorization"] = (
                f"Basic {base64.b64encode(token.encode()).decode()}" if plain else f"Bearer {token}"
            )
        return headers

    def _check_status(self, path: str, status: int, content: bytes, *, failed: bool) -> None:
        if status == 200 or (failed and status == 500):
            return
        why = f"it answers {status} to {path.partition('?')[0]}"
        if status in {401, 403}:
            raise Misconfigured(NAME, "ask", why, "Give a token of the server in the file of the option token_file")
        if status in {400, 404, 405, 422} and path == "/launch":
            raise Refused(
                NAME, "launch", f"{why}: {_complaint(content)}", f"Correct the options of the pool, see {DOC}"
            )
        raise Unreachable(NAME, "ask", why, "It is asked again")


def _complaint(content: bytes) -> str:
    """Return the server's error text without the request that it repeats, because that has secrets."""
    try:
        detail = read_json(content).get("detail")
    except (ValueError, AttributeError):
        return "it says no reason"
    parts = [one for one in detail if isinstance(one, dict)] if isinstance(detail, list) else []
    text = "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in parts) or str(detail)
    return text[:300]


def _loads(action: str, text: object) -> Any:
    if not isinstance(text, str | bytes):
        raise _unexpected(action)
    try:
        return read_json(text)
    except ValueError as error:
        raise _unexpected(action) from error


def _object(action: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _unexpected(action)
    return value


def _rows(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise _unexpected("read its answer")
    return value


def _text(one: Mapping[str, Any], name: str) -> str:
    if not isinstance(one.get(name), str) or not one[name]:
        raise _unexpected("read its answer", f"it has no {name}")
    return str(one[name])


def _number(one: Mapping[str, Any], name: str) -> float:
    number = one.get(name)
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number < 1 << 40:
        raise _unexpected("read its answer", f"it has no {name}")
    return number


def _price(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and value >= 0 else float("inf")


def _unexpected(action: str, why: str = "its answer cannot be understood") -> Unreachable:
    return Unreachable(
        NAME, action, why, "Nothing is ended meanwhile; look at the server with schedctl doctor skypilot"
    )
