"""Books: how many GPU minutes an account has left, by what sshare tells of it and of those above it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs.payload.bounds import INSTANT_MAX, digits
from platforms.base import QuotaReading

_GPU = re.compile(r"(?:^|,)gres/gpu=(?P<limit>\d{1,15}|N)(?:\((?P<used>\d{1,15})\))?(?:,|$)")
_COUNT = re.compile(r"(?P<limit>\d{1,9}|N)\((?P<used>\d{1,9})\)")
_MINUTES = re.compile(r"(?:^|,)gres/gpu=(\d{1,15})(?:,|$)")
_FIELDS = 5
QUOTA = "account"
_SECONDS = 365 * 86_400  # such a limit renews when an administrator says so
_SESSIONS = 1_000  # more than any user has at a time


# What a quality of service grants, by what the controller's association manager tells of it. Minutes that it has left
# are a budget as an account's are; what its jobs may hold at once is a cap.
@dataclass(frozen=True, slots=True)
class Cap:
    """At most ``limit`` at once, of which ``used`` are; ``what`` is "GPUs" or "jobs", and ``whose`` says who."""

    whose: str
    limit: int
    used: int
    what: str

    def refuses(self, devices: int) -> str:
        """Return why a session with so many devices would not start now; "" when it would."""
        wanted = devices if self.what == "GPUs" else 1
        if self.used + wanted <= self.limit:
            return ""
        verb = "hold" if self.what == "GPUs" else "run"
        return f"{self.whose} may {verb} {self.limit} {self.what} at once: {self.used} now, and {wanted} more asked"


@dataclass(frozen=True, slots=True)
class Qos:
    """What one QOS grants; ``minutes`` is None without a limit of GPU minutes."""

    name: str
    minutes: Association | None
    caps: tuple[Cap, ...]


def read_qos(name: str, record: str, per_user: str, uid: str) -> Qos:
    """Return what a QOS grants a user.

    ``record`` is its line of ``scontrol --oneliner show assoc_mgr``, empty when that is shown to operators alone;
    ``per_user`` is its MaxTRESPU and MaxJobsPU of sacctmgr, for the record names users only once they hold something.
    """
    head, _, people = record.partition(" Account Limits=")
    mine = re.search(rf"\b{re.escape(uid)}=\{{(.*?)\}}", people.partition(" User Limits=")[2])
    minutes, running = _gpus(head, "GrpTRESMins"), _gpus(head, "GrpTRESRunMins")
    left = None
    if minutes is not None and minutes[0] is not None:
        left = Association(minutes[0], minutes[1], running[1] if running else 0)
    return Qos(name, left, tuple(_caps(name, head, mine[1] if mine else "", per_user)))


def _caps(name: str, head: str, mine: str, per_user: str) -> Iterator[Cap]:
    all_of, own = f"all together in the QOS {name}", f"you in the QOS {name}"
    tres, _, jobs = per_user.partition("|")
    used = _gpus(mine, "MaxTRESPU")
    for whose, cap in (
        (all_of, _gpus(head, "GrpTRES")),
        (own, (_limit(tres), used[1] if used else 0)),
        (f"one session in the QOS {name}", (_limit(_word(head, "MaxTRESPJ")), 0)),
    ):
        if cap is not None and cap[0] is not None:
            yield Cap(whose, cap[0], cap[1], "GPUs")
    held = _COUNT.fullmatch(_word(mine, "MaxJobsPU"))
    if (group := _COUNT.fullmatch(_word(head, "GrpJobs"))) and group["limit"] != "N":
        yield Cap(all_of, int(group["limit"]), int(group["used"]), "jobs")
    if (most := digits(jobs.strip(), INSTANT_MAX)) is not None:
        yield Cap(own, most, int(held["used"]) if held else 0, "jobs")


def _word(text: str, name: str) -> str:
    match = re.search(rf"(?:^| ){name}=(\S*)", text)
    return match[1] if match else ""


def _gpus(text: str, name: str) -> tuple[int | None, int] | None:
    """Return the limit of GPUs under a name, None for none, and what is used of it; None when it is not told."""
    match = _GPU.search(_word(text, name))
    return None if match is None else (None if match["limit"] == "N" else int(match["limit"]), int(match["used"] or 0))


def _limit(text: str) -> int | None:
    match = _GPU.search(text.strip())
    return int(match["limit"]) if match and match["limit"] != "N" else None


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
    rows: list[list[Sequence[str]]] = []
    for line in filter(str.strip, table.split("\n")):
        fields = line.split("|")
        if len(fields) != _FIELDS:
            raise NoBooks(f"this line of sshare cannot be read: {line!r}"[:300])
        depth = len(line) - len(line.lstrip())
        above = [*(each for each in above if each[0] < depth), (depth, fields)]
        if fields[1].strip() == user and account in ("", fields[0].strip()):
            rows.append([each for _, each in above])
    if len(rows) != 1:
        raise NoBooks(f"sshare names {len(rows)} associations of {user} with {account or 'an account'}")
    limited = [
        Association(limit, _minutes(each[3]) or 0, _minutes(each[4]) or 0)
        for each in rows[0]
        if (limit := _minutes(each[2])) is not None
    ]
    return min(limited, key=lambda each: each.left, default=None)


def reading(association: Association, devices: int, now: int, scale: float) -> QuotaReading:
    """Return what is left as seconds of sessions with so many devices.

    ``scale`` is that of the scheduled clock.
    In whole minutes, for Slurm starts no job whose time limit might need more than is left. What it says is used lacks
    the minute that is not over.
    """
    minute = round(60 * scale)
    minutes = (association.limit // devices, -(-(association.used + 1) // devices), -(-association.running // devices))
    limit, used, reserved = (min(count * minute, _SESSIONS * _SECONDS) for count in minutes)
    return QuotaReading(QUOTA, now, now + _SECONDS, limit, used, reserved, shared=True)


def _minutes(text: str) -> int | None:
    match = _MINUTES.search(text)
    return int(match[1]) if match else None
