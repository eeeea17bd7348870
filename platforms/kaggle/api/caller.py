"""Calls to Kaggle as one account: who we are, and reads that are repeated. Nothing else ever is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from platforms.base import Misconfigured, Unreachable
from platforms.kaggle.api.answers import Answer, NoAnswer
from platforms.kaggle.api.wire import Denied, Throttled, Wire

_Found = TypeVar("_Found")
_WAIT_SECONDS_MAX = 30.0  # a longer wait is the next look's


class Caller:
    """One account. A read is made at most ``tries`` times, ``pause_seconds`` apart and longer."""

    def __init__(self, wire: Wire, username: str, token: str, tries: int, pause_seconds: float) -> None:
        self.wire = wire
        self._username = username
        self._token = token
        self._tries = tries
        self.pause_seconds = pause_seconds
        self.patience = threading.Event()

    def owner(self) -> str:
        """Return the account's name, asking once for whom a token stands. Raises Misconfigured, Unreachable."""
        if not self._username:
            try:
                username = self.read("security.OAuthService", "IntrospectToken", {"token": self._token}, _active_user)
            except Denied as error:
                raise Misconfigured(
                    "kaggle", "log in", f"the access token is refused: {error}", "Make a new one"
                ) from None
            if not username:
                raise Misconfigured("kaggle", "log in", "the access token is not active", "Make a new one")
            self._username = username
        return self._username

    def own(self, ref: object) -> str | None:
        """Return the slug of a kernel or dataset of ours that is named by its address; None: somebody else's."""
        *_, owner, slug = ["", "", *str(ref or "").split("/")]
        return slug if owner.lower() == self.owner().lower() else None

    def read(self, service: str, name: str, fields: Mapping[str, Any], read: Callable[[Answer], _Found]) -> _Found:
        """Make a call that changes nothing, repeated while nobody answers. Raises as Wire.call."""
        for round_number in range(self._tries - 1):
            try:
                return self.wire.call(service, name, fields, read)
            except Unreachable as error:
                asked = error.wait_seconds if isinstance(error, Throttled) else 0.0
                self.patience.wait(max(self.pause_seconds * 2**round_number, min(asked, _WAIT_SECONDS_MAX)))
        return self.wire.call(service, name, fields, read)

    def found(
        self, service: str, name: str, fields: Mapping[str, Any], read: Callable[[Answer], _Found]
    ) -> _Found | None:
        """Make a call that changes nothing about one thing; None: it is missing, or not ours. Raises Unreachable."""
        try:
            return self.read(service, name, fields, read)
        except Denied as error:
            require_missing(error)
            return None

    def pages(
        self, service: str, name: str, field: str, fields: Mapping[str, Any], most: int
    ) -> Iterator[tuple[list[Answer], str]]:
        """Yield the pages of a list, ``most`` of them at most: its entries, and the token of the next page, if any.

        A page is asked for by number, or by token where the service names one.
        Raises Unreachable. How many entries a page holds is the server's business, and so is how the list ends.
        """
        token = ""
        for number in range(1, most + 1):
            wanted = {**fields, **({"page_token": token} if token else {"page": number})}
            try:
                entries, token = self.read(service, name, wanted, partial(_listed, field, goes_on=number > 1))
            except Denied as error:
                raise Unreachable("kaggle", name, str(error)) from None
            yield entries, token


def _listed(name: str, answer: Answer, *, goes_on: bool) -> tuple[list[Answer], str]:
    """Return one page of a list and what names the next.

    A page that goes on behind others may be empty to the last field; the first must at least say that it is a list.
    """
    found = answer.parts(name)
    if found is None and not (goes_on and answer.is_empty()):
        raise NoAnswer(f"{name} is missing")
    return found or [], answer.text("nextPageToken")


def _active_user(answer: Answer) -> str:
    """Return for whom a token stands; empty when it is told to be no good any more."""
    active = answer.flag("active")
    if active is None:
        raise NoAnswer("active is missing")
    return answer.needed_text("username") if active else ""


def require_missing(error: Denied) -> None:
    """Raise Unreachable unless this is what Kaggle says of missing things."""
    if not error.missing:
        raise Unreachable("kaggle", "read", str(error)) from None
