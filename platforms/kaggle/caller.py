"""Calls to Kaggle as one account: who we are, and reads that are repeated. Nothing else ever is."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from platforms.base import Misconfigured, Unreachable
from platforms.kaggle.wire import Denied, Throttled

if TYPE_CHECKING:
    from collections.abc import Callable

    from platforms.kaggle.wire import Wire

_Answer = TypeVar("_Answer")
_WAIT_SECONDS_MAX = 30.0  # a longer wait is the next look's


class Caller:
    """One account. A read is made at most ``tries`` times, ``pause_seconds`` apart and longer."""

    def __init__(self, wire: Wire, username: str, token: str, tries: int, pause_seconds: float) -> None:
        self._wire = wire
        self._username = username
        self._token = token
        self._tries = tries
        self._pause_seconds = pause_seconds
        self._patience = threading.Event()

    def owner(self) -> str:
        """Return the account's name, asking once for whom a token stands. Raises Misconfigured, Unreachable."""
        if not self._username:
            from kagglesdk.security.types.oauth_service import IntrospectTokenRequest, IntrospectTokenResponse

            request = IntrospectTokenRequest()
            request.token = self._token
            try:
                answer = self._read("security.OAuthService", "IntrospectToken", request, IntrospectTokenResponse)
            except Denied as error:
                raise Misconfigured(
                    "kaggle", "log in", f"the access token is refused: {error}", "Make a new one"
                ) from None
            if not answer.active or not answer.username:
                raise Misconfigured("kaggle", "log in", "the access token is not active", "Make a new one")
            self._username = str(answer.username)
        return self._username

    def _own(self, ref: object) -> str | None:
        """Return the slug of a kernel or dataset of ours that is named by its address; None: somebody else's."""
        *_, owner, slug = ["", "", *str(ref or "").split("/")]
        return slug if owner.lower() == self.owner().lower() else None

    def _read(self, service: str, name: str, request: Any, answer: type) -> Any:
        return self._repeat(lambda: self._wire.call(service, name, request, answer))

    def _repeat(self, read: Callable[[], _Answer]) -> _Answer:
        for round_number in range(self._tries - 1):
            try:
                return read()
            except Unreachable as error:
                asked = error.wait_seconds if isinstance(error, Throttled) else 0.0
                self._patience.wait(max(self._pause_seconds * 2**round_number, min(asked, _WAIT_SECONDS_MAX)))
        return read()


def require_missing(error: Denied) -> None:
    """Raise Unreachable unless this is what Kaggle says of missing things."""
    if not error.missing:
        raise Unreachable("kaggle", "read", str(error)) from None
