"""HTTP to slurmrestd: its answers as JSON, and whose token it is asked with. A token is in no error and no log."""

from __future__ import annotations

import base64
import getpass
import json
import socket
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jobs.payload.deadline import Deadline
from platforms.base import Misconfigured, Unreachable
from platforms.slurm.settings import DOC, NAME
from platforms.slurm.sightings import NotSubmitted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from platforms.slurm.settings import Settings

_VERSION = "v0.0.38"  # of the API: Slurm 22.05 brought it; later ones speak it for some releases
_HEARD_BYTES = 64 << 20  # of one answer: some twenty thousand jobs
_REFUSED = (400, 500)  # with a reason in its answer


class RestApi:
    """Calls of one pool. Raises Unreachable, NotSubmitted when not even a connection was made, and Misconfigured."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def get(self, path: str) -> dict[str, Any]:
        """Return what is told at a path. An answer with errors is none."""
        told = self._call("GET", path)
        if complaint := complaint_of(told):
            raise Unreachable(NAME, "ask slurmrestd", complaint, "Nothing is ended meanwhile")
        return told

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a document, and return the answer, which may be a complaint."""
        return self._call("POST", path, json.dumps(body).encode())

    def delete(self, path: str) -> dict[str, Any]:
        """Have something removed, and return the answer, which may be a complaint."""
        return self._call("DELETE", path)

    def user(self, now: float) -> str:
        """Return as whom slurmrestd is asked; ``now`` is real UTC seconds. Raises Misconfigured for a spent token."""
        token = self._token()
        return _owner(token, now) if token else getpass.getuser()

    def left(self, now: float) -> int | None:
        """Return the seconds for which the token is good yet, None without one or when it does not tell."""
        until = _claims(self._token()).get("exp")
        return round(until - now) if isinstance(until, int | float) else None

    def _call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if token := self._token():
            headers |= {"X-SLURM-USER-NAME": _owner(token, None), "X-SLURM-USER-TOKEN": token}
        seconds = self._settings.command_seconds
        connection = _connection(self._settings.slurmrestd, seconds)
        try:
            with Deadline(seconds) as deadline:
                try:
                    deadline.follow(connection).connect()
                except (OSError, HTTPException, ValueError) as error:
                    why = f"{self._settings.slurmrestd} cannot be reached: {error}"
                    raise NotSubmitted(NAME, "ask slurmrestd", why, "The pool rests until it answers") from error
                base = "" if _is_socket(self._settings.slurmrestd) else urlsplit(self._settings.slurmrestd).path
                connection.request(method, f"{base}/slurm/{_VERSION}{path}", body, headers)
                answer = connection.getresponse()
                text = answer.read(_HEARD_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise Unreachable(NAME, "ask slurmrestd", f"no answer: {error!r}", "It is asked again") from error
        finally:
            connection.close()
        return self._judged(path, answer.status, text)

    def _judged(self, path: str, status: int, text: bytes) -> dict[str, Any]:
        if status in {401, 403}:
            remedy = "Give a token (scontrol token) in token_file, or ask at a socket of the same user"
            raise Misconfigured(NAME, "ask slurmrestd", f"it answers {status}: it does not know who asks", remedy)
        try:
            told = json.loads(text) if len(text) <= _HEARD_BYTES else None
        except (ValueError, RecursionError):
            told = None
        if status == 404 and not isinstance(told, dict):
            why = f"it does not speak {_VERSION}"
            raise Misconfigured(NAME, "ask slurmrestd", why, f"Start it with -s openapi/{_VERSION}; see {DOC}")
        if not isinstance(told, dict) or (status != 200 and not (status in _REFUSED and complaint_of(told))):
            why = f"its answer of {status} to {path} cannot be understood"
            raise Unreachable(NAME, "ask slurmrestd", why, "It is asked again")
        return told

    def _token(self) -> str:
        if self._settings.token_file is None:
            return ""
        try:
            token = self._settings.token_file.read_text("ascii").strip().removeprefix("SLURM_JWT=")
        except (OSError, ValueError) as error:
            why = f"{self._settings.token_file}: {getattr(error, 'strerror', None) or 'this is no token'}"
            raise Misconfigured(NAME, "read the token", why, "Correct the option token_file") from None
        if not token or not token.isprintable() or " " in token:
            why = f"{self._settings.token_file} holds no token"
            raise Misconfigured(NAME, "read the token", why, "Write into it what `scontrol token` prints")
        return token


class _Socket(HTTPConnection):
    """HTTP at a Unix socket."""

    def __init__(self, path: str, seconds: int) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path
        self._create_connection = self._open

    def connect(self) -> None:
        """Connect to the socket."""
        self._create_connection()

    def _open(self) -> socket.socket:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        return self.sock


def complaint_of(told: Mapping[str, Any]) -> str:
    """Return the errors of an answer in one line of printable characters; "" for none."""
    errors = told.get("errors")
    found = []
    for one in errors if isinstance(errors, list) else ["its errors cannot be understood"]:
        words = one if isinstance(one, str) else " ".join(str(one.get(name) or "") for name in ("error", "description"))
        found.append("".join(each for each in " ".join(words.split()) if each.isprintable()))
    return "; ".join(found)[:500]


def _is_socket(place: str) -> bool:
    return place.startswith("unix:")


def _connection(place: str, seconds: int) -> HTTPConnection:
    if _is_socket(place):
        return _Socket(place.removeprefix("unix:"), seconds)
    parts = urlsplit(place)
    if parts.scheme == "https":
        return HTTPSConnection(parts.netloc, timeout=seconds, context=ssl.create_default_context())
    return HTTPConnection(parts.netloc, timeout=seconds)


def _claims(token: str) -> dict[str, Any]:
    """Return what a token says of itself; who believes it is Slurm's to decide."""
    try:
        middle = token.split(".")[1]
        told = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    except (IndexError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _owner(token: str, now: float | None) -> str:
    """Return whose token it is. Raises Misconfigured when that is over, as far as it tells."""
    told = _claims(token)
    until = told.get("exp")
    if now is not None and isinstance(until, int | float) and until <= now:
        raise Misconfigured(NAME, "ask slurmrestd", "the token is over", "Write a new one into token_file")
    owner = told.get("sun") or told.get("username")
    return owner if isinstance(owner, str) and owner.isprintable() and owner else getpass.getuser()
