"""Administration over HTTP, on this machine alone: who can load an adapter can make a server say anything.

A server on another machine is reached through a tunnel of ssh (docs/deployment.md).
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from jobs.payload.deadline import Deadline
from platforms.targets.base import TargetError, TargetUnreachable

_ANSWER_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and what came with it: JSON as it was parsed, or {} for anything else; ``text`` begins as it did."""

    status: int
    document: Mapping[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Loopback:
    """A server of this machine. ``target`` is the name for errors; ``bearer`` is asked for a token with each call."""

    target: str
    port: int
    bearer: Callable[[], str]
    seconds: int

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Ask and return the answer, whatever its status. Raises TargetUnreachable."""
        status, text = self._ask(method, path, body)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        return Answer(status, found if isinstance(found, dict) else {}, " ".join(text.split())[:300])

    def lines(self, path: str) -> list[str]:
        """Return what a page of text says; nothing of one that is not there. Raises TargetUnreachable."""
        status, text = self._ask("GET", path, None)
        return text.splitlines() if status == 200 else []

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if (token := self.bearer()) else {}
        )
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.seconds)
        try:
            with Deadline(self.seconds) as deadline:
                deadline.follow(connection).connect()
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                data = answer.read(_ANSWER_MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            remedy = f"Check that the server, or the tunnel to it, listens on port {self.port}"
            raise TargetUnreachable(self.target, f"ask {path}", why, remedy) from error
        finally:
            connection.close()
        return answer.status, data.decode("utf-8", "replace")


def port_of(target: str, option: str, address: str) -> int:
    """Return the port of ``http://127.0.0.1:8000``. Raises TargetError for any other kind of address."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
        here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        here, port, parts = False, None, urlsplit("")
    if not (here and port and parts.scheme == "http" and parts.path in {"", "/"}):
        why = f"{option} = {address!r} is no address of this machine such as http://127.0.0.1:8000"
        raise TargetError(target, "use its options", why, "Reach a server elsewhere by a tunnel: docs/deployment.md")
    return port
