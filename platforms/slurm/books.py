"""Books: how many GPU minutes an account has left, by what sshare tells of it and of those above it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from platforms.base import QuotaReading

_MINUTES = re.compile(r"(?:^|,)gres/gpu=(\d{1,15})(?:,|$)")
_FIELDS = 5
QUOTA = "account"
_SECONDS = 365 * 86_400  # such a limit renews when an administrator says so
_SESSIONS = 1_000  # more at a time nobody has


class NoBooks(Exception):
    """What was told is no table of accounts."""


@dataclass(frozen=True, slots=True)
class Association:
    """The GPU minutes of an account or of a user in it: the limit, what is used, and what running jobs may use yet."""

    limit: int
    used: int
    running: int

    @property
    def left(self) -> int:
        """What a further job may use; below zero when more is used."""
        return self.limit - self.used - self.running


def tightest(table: str, account: str, user: str) -> Association | None:
    """Return the association that leaves a user's jobs least, of theirs and all above it; None: none has a limit.

    Each association's line is indented by its depth. Without ``account`` the user's only one is taken. Raises NoBooks
    for lines that are none, and for a user who is not there.
    """
    above: list[tuple[int, Sequence[str]]] = []
    found: list[list[Sequence[str]]] = []
    for line in filter(str.strip, table.split("\n")):
        fields = line.split("|")
        if len(fields) != _FIELDS:
            raise NoBooks(f"this line of sshare cannot be read: {line!r}"[:300])
        depth = len(line) - len(line.lstrip())
        above = [*(each for each in above if each[0] < depth), (depth, fields)]
        if fields[1].strip() == user and account in ("", fields[0].strip()):
            found.append([each for _, each in above])
    if len(found) != 1:
        raise NoBooks(f"sshare names {len(found)} associations of {user} with {account or 'an account'}")
    limited = [
        Association(limit, _minutes(each[3]) or 0, _minutes(each[4]) or 0)
        for each in found[0]
        if (limit := _minutes(each[2])) is not None
    ]
    return min(limited, key=lambda each: each.left, default=None)


def reading(found: Association, devices: int, now: int, scale: float) -> QuotaReading:
    """Return what is left as seconds of sessions with so many devices.

    ``scale`` is that of the scheduled clock.
    In whole minutes, for Slurm starts no job whose time limit might need more than is left. What it says is used lacks
    the minute that is not over.
    """
    minute = round(60 * scale)
    minutes = (found.limit // devices, -(-(found.used + 1) // devices), -(-found.running // devices))
    limit, used, reserved = (min(count * minute, _SESSIONS * _SECONDS) for count in minutes)
    return QuotaReading(QUOTA, now, now + _SECONDS, limit, used, reserved, shared=True)


def _minutes(told: str) -> int | None:
    known = _MINUTES.search(told)
    return int(known[1]) if known else None
