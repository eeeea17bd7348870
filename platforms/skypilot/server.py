"""Server: what is asked of a SkyPilot API server, over its HTTP API. Nothing of SkyPilot is imported.

Most calls begin a request, whose id comes back in a header, and fetch its value later. The value is text that is JSON;
pickled parts of it are left alone. What cannot be understood is Unreachable: nobody knows then.
"""

from __future__ import annotations

import base64
import json
import math
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from jobs.payload.bounded_file import read_bounded
from jobs.payload.deadline import Deadline
from platforms.base import Misconfigured, Refused, Unreachable
from platforms.skypilot.settings import DOC, NAME, Settings

_ID_HEADER = "X-Skypilot-Request-ID"
_HEARD_BYTES = 64 << 20
_LOG_BYTES = 32 << 20
_FIELDS = ("request_id", "name", "status", "created_at", "finished_at", "cluster_name")
_OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
_JOB_OVER = frozenset({"SUCCEEDED", "FAILED", "FAILED_DRIVER", "FAILED_SETUP", "CANCELLED"})
_CLUSTER = frozenset({"INIT", "UP", "STOPPED", "PENDING", "AUTOSTOPPING"})
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TASK_LINE = re.compile(rb"(?:\x1b\[[0-9;]*m)*\([^()\n]{1,200}, pid=\d+(?:, ip=[^()\n]{1,60})?\)(?:\x1b\[[0-9;]*m)* ?")


# What an hour of a pool's sessions costs by SkyPilot's list of offers.
class Offer(NamedTuple):
    """One offer: dollars an hour, and the cloud and region that make it."""

    dollars: float
    place: str


def offers(server: ApiServer, settings: Settings, devices: int) -> list[Offer]:
    """Return what a session with so many devices may be had for, the cheapest first. Raises Unreachable."""
    infra = str(settings.asked.get("infra", "")).split("/")
    cloud, region = infra[0].strip("*"), (infra[1] if len(infra) > 1 else "").strip("*")
    spot = bool(settings.asked.get("use_spot"))
    found = server.prices(settings.accelerator, devices, cloud, region)
    return sorted(
        Offer(dollars, place) for price, dear, place in found if math.isfinite(dollars := dear if spot else price)
    )


def dearest(server: ApiServer, settings: Settings, devices: int) -> Offer | None:
    """Return the dearest offer within max_hourly_cost, without that the cheapest one; None when nothing has a price.

    What is booked must not be less than what may be launched. Raises Unreachable when the server cannot be asked.
    """
    try:
        known = [offer for offer in offers(server, settings, devices) if offer.dollars > 0]
    except Failed:  # it has no catalogue of that cloud
        return None
    most = settings.asked.get("max_hourly_cost")
    if most is None:
        return known[0] if known else None
    return max((offer for offer in known if offer.dollars <= most), default=None)


class NotSent(Unreachable):
    """The server could not be reached, and for sure it was asked nothing."""


class Failed(Unreachable):
    """The server answered, and what it was asked for has failed there."""


class Gone(Failed):
    """The server answered that it knows no such cluster."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the server's records say of a cluster; ``launched_at`` in real UTC seconds."""

    name: str
    status: str
    launched_at: int
    where: str


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that somebody made of the server, such as sky.launch; instants are real UTC seconds."""

    id: str
    name: str
    status: str
    created_at: float
    cluster: str

    @property
    def is_active(self) -> bool:
        """Whether it is still to do, or being done."""
        return self.status not in _OVER


@dataclass(frozen=True, slots=True)
class Job:
    """A job in the queue of a cluster."""

    id: int
    name: str
    status: str

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status in _JOB_OVER


@dataclass(frozen=True, slots=True)
class Cost:
    """What the server estimates that a cluster has cost, in dollars, and when it was up, in real UTC seconds."""

    first: int
    last: int | None  # None: it is still up, for all that the server knows
    dollars: float
    event: str

    @property
    def per_hour(self) -> int | None:
        """The microdollars of an hour, None while it is up and where it has no price."""
        seconds = 0 if self.last is None else self.last - self.first
        return round(self.dollars * 3_600 * 1_000_000 / seconds) or None if seconds > 0 else None


class ApiServer:
    """One server, as one pool speaks to it. All raise Unreachable and Misconfigured."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def health(self) -> tuple[Mapping[str, Any], str]:
        """Return what the server says of itself, and its time as HTTP writes it."""
        with self._answer("GET", "/api/health") as answer:
            return _object("ask for its health", _json("ask for its health", answer)), answer.headers.get("Date", "")

    def clusters(self) -> dict[str, Cluster]:
        """Return this pool's clusters by name, as the server remembers them: a cache."""
        found = self._status(None, "NONE")
        return {one.name: one for one in found if one.name.startswith(self._settings.prefix)}

    def refreshed(self, name: str) -> Cluster | None:
        """Have the server look at a cluster where it runs; None when there is none."""
        return next((one for one in self._status([name], "FORCE") if one.name == name), None)

    def requests(self, cluster: str = "") -> list[Asked]:
        """Return the requests about a cluster, newest first; without one, those about this pool's that are active."""
        query = [("fields", field) for field in _FIELDS]
        if cluster:
            query += [("all_status", "true"), ("cluster_name", cluster)]
        with self._answer("GET", f"/api/status?{urlencode(query)}") as answer:
            told = _json("look for requests", answer)
        if not isinstance(told, list):
            raise _odd("look for requests")
        found = [_asked(one) for one in told]
        mine = [one for one in found if one.cluster.startswith(self._settings.prefix)]
        return sorted((one for one in mine if cluster in {"", one.cluster}), key=lambda one: -one.created_at)

    def launch(self, cluster: str, task: Mapping[str, Any]) -> str:
        """Have a cluster made and a task run on it; return the request's id. Raises Refused, NotSent.

        Never repeated: the same name again would queue the task a second time.
        """
        return self._begin("/launch", task=json.dumps(task), cluster_name=cluster, retry_until_up=False)

    def down(self, cluster: str) -> None:
        """Have a cluster taken down; that it is gone is seen later."""
        self._begin("/down", cluster_name=cluster)

    def cancel(self, request: str) -> None:
        """Have a request given up."""
        self._begin("/api/cancel", request_ids=[request])

    def jobs(self, cluster: str) -> list[Job]:
        """Return the jobs of a cluster, asked of the cluster itself. Raises Gone."""
        told = self._ask("/queue", "sky.queue", cluster_name=cluster, skip_finished=False, all_users=True)
        return [Job(int(_whole(one, "job_id")), _text(one, "job_name"), _text(one, "status")) for one in _rows(told)]

    def log(self, cluster: str) -> bytes:
        """Return what the newest job of a cluster has printed, without what SkyPilot says in between. Raises Gone."""
        body = self._body(cluster_name=cluster, job_id=None, follow=False, tail=0)
        with self._answer("POST", "/logs", body) as answer:
            request = answer.headers.get(_ID_HEADER, "")
            told = _read("read the log", answer, _LOG_BYTES)
        # The answer is empty and good as well when there is no such cluster: what became of the request tells.
        self._fetch("read the log", request, "sky.logs")
        lines = re.findall(rb"[^\n]*\n|[^\n]+", told)
        return b"".join(_TASK_LINE.sub(b"", line, count=1) for line in lines if _TASK_LINE.match(line))

    def costs(self, name: str, days: int) -> Cost | None:
        """Return what a cluster of that name has cost, None when the server does not know; its own estimate."""
        rows = [
            one for one in _rows(self._ask("/cost_report", "sky.cost_report", days=days)) if one.get("name") == name
        ]
        spans = [span for one in rows for span in one.get("usage_intervals") or ()]
        if not all(isinstance(span, list) and len(span) == 2 and isinstance(span[0], int) for span in spans):
            raise _odd("read the costs")
        if not spans:
            return None
        up = any(one.get("status") is not None for one in rows) or any(not isinstance(last, int) for _, last in spans)
        dollars = sum(one["total_cost"] for one in rows if isinstance(one.get("total_cost"), int | float))
        event = _COLOUR.sub("", str(rows[0].get("last_event") or ""))
        return Cost(min(first for first, _ in spans), None if up else max(last for _, last in spans), dollars, event)

    def prices(self, accelerator: str, devices: int, cloud: str, region: str = "") -> list[tuple[float, float, str]]:
        """Return price and spot price of an hour (dollars) and the place, of each offer of the catalogue."""
        told = self._ask(
            "/list_accelerators", "sky.list_accelerators", gpus_only=True, name_filter=f"^{re.escape(accelerator)}$",
            region_filter=region or None, quantity_filter=devices, clouds=[cloud] if cloud else None, all_regions=False,
            require_price=True, case_sensitive=False,
        )  # fmt: skip
        rows = [row for found in _object("read the catalogue", told).values() for row in found]
        good = [row for row in rows if isinstance(row, list) and len(row) == 10 and row[3] == devices]
        return [(_price(row[7]), _price(row[8]), f"{row[0]} {row[9]}") for row in good]

    def clouds(self) -> list[str]:
        """Return the clouds that the server may use."""
        with self._answer("GET", "/enabled_clouds") as answer:
            request = answer.headers.get(_ID_HEADER, "")
        told = self._fetch("ask for the clouds", request, "sky.enabled_clouds")
        if not isinstance(told, list):
            raise _odd("ask for the clouds")
        return sorted(map(str, told))

    def why(self, request: Asked) -> str:
        """Return why a request failed, in one line."""
        try:
            self._fetch("ask why", request.id, request.name)
        except Failed as failed:
            return failed.why
        return "it says no reason"

    def _status(self, names: list[str] | None, refresh: str) -> list[Cluster]:
        told = self._ask(
            "/status", "sky.status", cluster_names=names, refresh=refresh, all_users=True, include_handle=False,
            include_credentials=False, summary_response=True,
        )  # fmt: skip
        found = []
        for one in _rows(told):
            status, where = _text(one, "status"), f"{one.get('cloud') or ''} {one.get('region') or ''}".strip()
            if status not in _CLUSTER:
                raise _odd("look at the clusters", f"{status[:40]!r} is no state of a cluster")
            found.append(Cluster(_text(one, "name"), status, int(_whole(one, "launched_at")), where))
        return found

    def _ask(self, path: str, name: str, **words: Any) -> Any:
        return self._fetch(path.strip("/").replace("_", " "), self._begin(path, **words), name)

    def _begin(self, path: str, **words: Any) -> str:
        with self._answer("POST", path, self._body(**words)) as answer:
            _read(path, answer, _HEARD_BYTES)
            request = answer.headers.get(_ID_HEADER, "")
        if not request:
            raise _odd(path, "its answer names no request")
        return request

    def _body(self, **words: Any) -> dict[str, Any]:
        # Without authentication the server believes who asks; the id becomes part of the clusters' names at the cloud.
        return {"env_vars": {"SKYPILOT_USER_ID": self._settings.owner, "SKYPILOT_USER": "uff-scheduler"}, **words}

    def _fetch(self, action: str, request: str, name: str) -> Any:
        """Wait for a request's value and return it. Raises Gone, Unreachable when it failed."""
        with self._answer("GET", f"/api/get?{urlencode({'request_id': request})}", failed=True) as answer:
            told = _object(action, _json(action, answer))
        told = _object(action, told["detail"]) if answer.status != 200 and "detail" in told else told
        if told.get("request_id") != request or told.get("name") != name:
            raise _odd(action, "it is about another request")
        if answer.status == 200 and told.get("status") == "SUCCEEDED":
            return _loads(action, told.get("return_value"))
        error = _loads(action, told.get("error"))
        if not isinstance(error, dict) or not isinstance(error.get("type"), str):
            raise _odd(action, f"it is {str(told.get('status'))[:40]}, and no reason is given")
        why = " ".join(_COLOUR.sub("", str(error.get("message") or "")).split())[:500]
        kind = Gone if error["type"] == "ClusterDoesNotExist" else Failed
        raise kind(NAME, action, f"{error['type']}: {why}", "It is asked again")

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, failed: bool = False
    ) -> Iterator[HTTPResponse]:
        """Ask, and hand out the answer to be read. ``failed``: an answer of 500 is one as well."""
        parts, seconds = urlsplit(self._settings.address), self._settings.call_seconds
        if parts.scheme == "https":
            secure = ssl.create_default_context()
            connection: HTTPConnection = HTTPSConnection(parts.netloc, timeout=seconds, context=secure)
        else:
            connection = HTTPConnection(parts.netloc, timeout=seconds)
        try:
            with Deadline(seconds) as deadline:
                try:
                    deadline.follow(connection).connect()
                except (OSError, HTTPException, ValueError) as error:
                    why = f"{self._settings.address} cannot be reached: {error}"
                    remedy = "Start it (sky api start), or correct the option address"
                    raise NotSent(NAME, "connect", why, remedy) from error
                data = None if body is None else json.dumps(body).encode()
                connection.request(method, parts.path + path, data, self._headers())
                answer = connection.getresponse()
                self._judge(path, answer, failed=failed)
                yield answer
        except (OSError, HTTPException) as error:
            raise Unreachable(NAME, path, f"no answer: {error!r}", "Nothing is ended meanwhile") from error
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        found = {"Content-Type": "application/json", "Accept": "*/*"}
        if self._settings.token_file:
            try:
                token = read_bounded(Path(self._settings.token_file).expanduser()).decode("utf-8-sig").strip()
            except (OSError, ValueError) as error:
                raise Misconfigured(NAME, "connect", str(error), "Correct the option token_file") from error
            plain = not token.startswith("sky_")  # a service account's; else it is user:password
            found["Authorization"] = (
                f"Basic {base64.b64encode(token.encode()).decode()}" if plain else f"Bearer {token}"
            )
        return found

    def _judge(self, path: str, answer: HTTPResponse, *, failed: bool) -> None:
        if answer.status == 200 or (failed and answer.status == 500):
            return
        why = f"it answers {answer.status} to {path.partition('?')[0]}"
        if answer.status in {401, 403}:
            raise Misconfigured(NAME, "ask", why, "Give a token of the server in the file of the option token_file")
        if answer.status in {400, 404, 405, 422} and path == "/launch":
            raise Refused(NAME, "launch", f"{why}: {_complaint(answer)}", f"Correct the options of the pool, see {DOC}")
        raise Unreachable(NAME, "ask", why, "It is asked again")


def _read(action: str, answer: HTTPResponse, limit: int) -> bytes:
    try:
        body = answer.read(limit + 1)
    except (OSError, HTTPException) as error:
        raise Unreachable(NAME, action, f"its answer broke off: {error!r}", "It is asked again") from error
    return body[:limit]


def _complaint(answer: HTTPResponse) -> str:
    """Return what the server finds wrong, without what it was sent: that has secrets in it."""
    try:
        told = json.loads(_read("launch", answer, _HEARD_BYTES)).get("detail")
    except (ValueError, AttributeError, RecursionError):
        return "it says no reason"
    parts = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    found = "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in parts) or str(told)
    return found[:300]


def _json(action: str, answer: HTTPResponse) -> Any:
    return _loads(action, _read(action, answer, _HEARD_BYTES))


def _loads(action: str, text: object) -> Any:
    if not isinstance(text, str | bytes):
        raise _odd(action)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _odd(action) from error


def _object(action: str, told: Any) -> Mapping[str, Any]:
    if not isinstance(told, dict):
        raise _odd(action)
    return told


def _rows(told: Any) -> list[Mapping[str, Any]]:
    if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
        raise _odd("read its answer")
    return told


def _asked(told: Any) -> Asked:
    one = _object("look for requests", told)
    return Asked(
        _text(one, "request_id"), _text(one, "name"), _text(one, "status"), float(_whole(one, "created_at")),
        str(one.get("cluster_name") or ""),
    )  # fmt: skip


def _text(one: Mapping[str, Any], name: str) -> str:
    if not isinstance(one.get(name), str) or not one[name]:
        raise _odd("read its answer", f"it has no {name}")
    return str(one[name])


def _whole(one: Mapping[str, Any], name: str) -> float:
    found = one.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < 1 << 40:
        raise _odd("read its answer", f"it has no {name}")
    return found


def _price(told: Any) -> float:
    return float(told) if isinstance(told, int | float) and told >= 0 else float("inf")


def _odd(action: str, why: str = "its answer cannot be understood") -> Unreachable:
    return Unreachable(
        NAME, action, why, "Nothing is ended meanwhile; look at the server with schedctl doctor skypilot"
    )
