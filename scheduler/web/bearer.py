"""Bearer: the token that readers of the page show, where it is read from, and how it is compared."""

from __future__ import annotations

import hashlib
import hmac
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobs.payload.bounded_file import read_bounded

LENGTH_MIN = 32
READERS, ACTIONS = "web", "web-actions"
"""Names of the service manager's credentials."""
_MAKE_ONE = "Make one: (umask 077; openssl rand -hex 32 > FILE)"


class BearerError(Exception):
    """The token cannot be used, or there has to be one; ``why``, and the ``remedy``."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}. {remedy}")
        self.why = why
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Bearer:
    """A token. It is never shown, and no answer tells how much of a guess was right."""

    token: str = field(repr=False)

    def allows(self, shown: str) -> bool:
        """Return whether a reader showed the token."""
        return hmac.compare_digest(shown.encode("utf-8", "replace"), self.token.encode())

    @property
    def session(self) -> str:
        """What a browser keeps in place of the token: proof that it once had it, of no use anywhere else."""
        return hmac.new(self.token.encode(), b"status page session", hashlib.sha256).hexdigest()

    def continues(self, cookie: str) -> bool:
        """Return whether a cookie is this token's."""
        return hmac.compare_digest(cookie.encode("utf-8", "replace"), self.session.encode())


def read_bearer(
    file: Path | None, environ: Mapping[str, str], *, exposed: bool, credential: str = READERS
) -> Bearer | None:
    """Return the token of ``file``, or of the service manager's ``credential``; None when there is neither.

    Raises BearerError when the file cannot be used, or others may read it, or an ``exposed`` page would have no token.
    """
    if file is not None:
        return _from(file, private=True)
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    if folder and (Path(folder) / credential).is_file():
        return _from(Path(folder) / credential, private=False)  # its mode is the service manager's business
    if exposed:
        raise BearerError(
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
        raise BearerError(f"{file} cannot be read: {error}", _MAKE_ONE) from None
    if private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BearerError(f"others may read {file}", f"Run: chmod 600 {file}")
    if len(token) < LENGTH_MIN or not token.isascii() or any(c.isspace() or not c.isprintable() for c in token):
        raise BearerError(f"{file} holds no token of at least {LENGTH_MIN} letters and digits", _MAKE_ONE)
    return Bearer(token)
