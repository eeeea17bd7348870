"""Actors: authentication of people who change something on the page, and protection of its forms against forgery.

A person signs in with a second token and gets a cookie for half a day. Each form carries a one-time CSRF token bound to
this cookie and this action, valid for an hour. Everything is signed with a key of the process, so a restart of the page
invalidates all cookies and forms.
"""

import hashlib
import hmac
import os
import secrets
import stat
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from urllib.parse import quote

from starlette.requests import Request

from jobs.payload.bounded_file import read_bounded
from jobs.problem import InvalidInput
from scheduler.clock import real_now, stopwatch

LENGTH_MIN = 32
READERS, ACTIONS = "web", "web-actions"
"""Names of the service manager's credentials."""
_MAKE_ONE = "Make one: (umask 077; openssl rand -hex 32 > FILE)"
COOKIE = "uff_actor"
SIGN_IN = "/sign-in/actions"
PREFIX = "/actions/"
SESSION_SECONDS = 12 * 3_600
_FORM_SECONDS = 3_600
TRIES_SECONDS, _TRIES, _TRIES_OF_ALL, _ADDRESSES_MAX = 60, 10, 100, 1_000


class TooManyTries(Exception):
    """Too many wrong tokens within the last minute; this one was not checked."""


class Tries:
    """Counts wrong tokens of the last minute, by address and in total.

    The total limit stops guesses from many addresses. Addresses that were right before are exempt from it, so that
    guessing does not lock out others.
    """

    def __init__(self) -> None:
        self._wrong: deque[tuple[float, str]] = deque()
        self._right: dict[str, None] = {}

    def check(self, guess: str, expected: str, address: str) -> bool:
        """Return whether ``guess`` is right. Raises TooManyTries; an empty guess is not counted."""
        if not guess:
            return False
        now = stopwatch()
        while self._wrong and self._wrong[0][0] <= now - TRIES_SECONDS:
            self._wrong.popleft()
        own = sum(each == address for _, each in self._wrong)
        if own >= _TRIES or (len(self._wrong) >= _TRIES_OF_ALL and address not in self._right):
            raise TooManyTries
        if not hmac.compare_digest(guess.encode("utf-8", "replace"), expected.encode()):
            self._wrong.append((now, address))
            return False
        self._right.pop(address, None)  # moves to the end of the order
        self._right[address] = None
        if len(self._right) > _ADDRESSES_MAX:
            del self._right[next(iter(self._right))]
        return True


@dataclass(frozen=True, slots=True)
class Bearer:
    """A bearer token. It is never shown; comparisons take constant time."""

    token: str = field(repr=False)
    _tries: Tries = field(default_factory=Tries, repr=False, compare=False)

    def allows(self, token: str, address: str = "") -> bool:
        """Return whether the token of a reader at ``address`` is right. Raises TooManyTries."""
        return self._tries.check(token, self.token, address)

    @property
    def session(self) -> str:
        """The cookie that stands for the token in a browser; it is valid for this page only."""
        return hmac.new(self.token.encode(), b"status page session", hashlib.sha256).hexdigest()

    def continues(self, cookie: str, address: str = "") -> bool:
        """Return whether a cookie is valid for this token; a wrong one counts as a wrong token. Raises TooManyTries."""
        return self._tries.check(cookie, self.session, address)


def read_bearer(
    file: Path | None, environ: Mapping[str, str], *, exposed: bool, credential: str = READERS
) -> Bearer | None:
    """Return the token from ``file`` or the systemd ``credential``; None if there is neither.

    Raises InvalidInput if the file cannot be used or others may read it, or if an ``exposed`` page would have no token.
    """
    if file is not None:
        return _from(file, private=True)
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    if folder and (Path(folder) / credential).is_file():
        return _from(Path(folder) / credential, private=False)  # systemd sets its mode
    if exposed:
        raise InvalidInput(
            "no token: at this address other machines reach the page",
            "Name a file that holds one with web.bearer_file, or hand it over with LoadCredential=web:FILE. "
            f"{_MAKE_ONE}",
        )
    return None


def _from(file: Path, *, private: bool) -> Bearer:
    try:
        mode = file.stat().st_mode
        token = read_bounded(file).decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}", _MAKE_ONE) from None
    if private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidInput(f"others may read {file}", f"Run: chmod 600 {file}")
    if len(token) < LENGTH_MIN or not token.isascii() or any(c.isspace() or not c.isprintable() for c in token):
        raise InvalidInput(f"{file} holds no token of at least {LENGTH_MIN} characters", _MAKE_ONE)
    return Bearer(token)


class ActionRefused(Exception):
    """An action that was refused; its text is the fault of the request."""


@dataclass(slots=True)
class Actors:
    """People who know the action token. May be shared between threads."""

    bearer: Bearer
    _key: bytes = field(default=b"", repr=False)
    _used_words: dict[str, int] = field(default_factory=dict, repr=False)  # used tokens of forms, with their expiry
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        self._key = hmac.new(self.bearer.token.encode(), os.urandom(32), hashlib.sha256).digest()

    def session(self, now: int) -> str:
        """Return the value of the session cookie."""
        begun = f"{now + SESSION_SECONDS}.{secrets.token_hex(16)}"
        return f"{begun}.{self._signed('session', begun)}"

    def of(self, request: Request) -> str | None:
        """Return the session of a request; None if it may not act."""
        cookie = request.cookies.get(COOKIE, "")
        begun, _, signed = cookie.rpartition(".")
        if not _same(signed, self._signed("session", begun)):
            return None
        return cookie if int(begun.partition(".")[0]) > real_now() else None

    def word(self, session: str, action: str) -> str:
        """Return a one-time form token for one ``action`` (a path) of one session."""
        begun = f"{int(real_now()) + _FORM_SECONDS}.{secrets.token_hex(8)}"
        return f"{begun}.{self._signed('form', session, action, begun)}"

    def take(self, request: Request, action: str, word: str) -> None:
        """Use a form token up. Raises ActionRefused if it is for another session or form, expired or used."""
        session = self.of(request)
        if session is None:
            raise ActionRefused("you are not signed in for actions, or no longer")
        if not _is_from_here(request):
            raise ActionRefused("the form was sent from another site")
        begun, _, signed = word.rpartition(".")
        if not _same(signed, self._signed("form", session, action, begun)):
            raise ActionRefused("the form is not one of this page's for this action")
        now = real_now()
        until = int(begun.partition(".")[0])
        if until <= now:
            raise ActionRefused("the form is older than an hour")
        with self._lock:
            if begun in self._used_words:
                raise ActionRefused("this form was sent before; what it asked for was done then, or refused")
            self._used_words = {each: good for each, good in self._used_words.items() if good > now}
            self._used_words[begun] = until

    def _signed(self, *words: str) -> str:
        text = "\0".join(words).encode("utf-8", "surrogateescape")
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Forms:
    """The values of the forms of one page, for its template; ``sign_in`` is an address, empty when signed in."""

    actors: Actors
    session: str | None
    sign_in: str

    def word(self, action: str) -> str:
        """Return a new form token for an action."""
        return "" if self.session is None else self.actors.word(self.session, action)


def forms(actors: Actors | None, request: Request) -> Forms | None:
    """Return the forms of the requested page; None if nothing can be changed."""
    if actors is None:
        return None
    session = actors.of(request)
    sign_in = "" if session else f"{SIGN_IN}?next={quote(request.url.path, safe='')}"
    return Forms(actors, session, sign_in)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode("utf-8", "surrogateescape"))


def _is_from_here(request: Request) -> bool:
    """Return whether the browser reports that the form came from this site; all current browsers do."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return "sec-fetch-site" in request.headers
    return origin.partition("://")[2] == request.headers.get("host", "")
