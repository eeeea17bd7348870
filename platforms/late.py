"""Late: a platform whose adapter is made when it is needed, and made anew when the files it was made from change.

So a pool that cannot be used, because its credentials, a library or a folder are missing, keeps nobody from using the
others, and whoever replaces a token need not tell anybody. Until the adapter can be made, each call raises what is
wrong; nothing is concluded from that, as from any call without an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from platforms.base import Capabilities, Misconfigured, Platform, PlatformError
from platforms.wrap import Wrapper

_Answer = TypeVar("_Answer")


class LatePlatform(Wrapper):
    """The platform that ``make`` makes; ``mark`` tells of what, and changes when it must be made anew.

    ``make`` raises PlatformError. Both must be quick and must not ask the platform.
    """

    def __init__(self, platform: str, make: Callable[[], Platform], mark: Callable[[], str]) -> None:
        self._platform = platform
        self._make = make
        self._mark = mark
        self._turn = threading.Lock()
        self._made: Platform | None = None
        self._made_of = ""

    @property
    def _inner(self) -> Platform:
        """The adapter on what is there now. Raises Misconfigured."""
        with self._turn:
            return self._newest(anew=False)[0]

    @property
    def capabilities(self) -> Capabilities:
        """What the platform can do; what it could, or as little as may be, while it cannot be used or is being made."""
        if self._made is None and self._turn.acquire(blocking=False):
            try:
                self._newest(anew=False)
            except PlatformError:
                return Capabilities()
            finally:
                self._turn.release()
        return Capabilities() if self._made is None else self._made.capabilities

    def open(self, *, anew: bool = False) -> str:
        """Make the adapter if it is not made, if its files changed, or ``anew``: what it remembered is forgotten.

        Returns the word for what it was made of. Raises PlatformError while it cannot be made.
        """
        with self._turn:
            return self._newest(anew=anew)[1]

    def _newest(self, *, anew: bool) -> tuple[Platform, str]:
        """Return the adapter and its mark. The caller has the turn."""
        mark = self._mark()
        if self._made is None or anew or mark != self._made_of:
            # What cannot be made of the new files is not used as it was of the old ones: somebody took them away.
            self._made_of = ""
            try:
                self._made = self._make()
            except PlatformError:
                raise
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                raise Misconfigured(self._platform, "load", why, "See: schedctl doctor") from error
            self._made_of = mark
        return self._made, mark

    def _call(self, action: str, call: Callable[[], _Answer]) -> _Answer:
        del action
        return call()
