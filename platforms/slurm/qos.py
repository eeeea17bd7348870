"""QOS: what a quality of service grants, by what the controller's association manager tells of it. Pure.

Minutes that it has left are a budget as an account's are. What its jobs may hold at once is a cap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jobs.payload.bounds import INSTANT_MAX, digits
from platforms.slurm.books import Association

_GPU = re.compile(r"(?:^|,)gres/gpu=(?P<limit>\d{1,15}|N)(?:\((?P<used>\d{1,15})\))?(?:,|$)")
_COUNT = re.compile(r"(?P<limit>\d{1,9}|N)\((?P<used>\d{1,9})\)")


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
    for whose, found in (
        (all_of, _gpus(head, "GrpTRES")),
        (own, (_limit(tres), used[1] if used else 0)),
        (f"one session in the QOS {name}", (_limit(_word(head, "MaxTRESPJ")), 0)),
    ):
        if found is not None and found[0] is not None:
            yield Cap(whose, found[0], found[1], "GPUs")
    held = _COUNT.fullmatch(_word(mine, "MaxJobsPU"))
    if (group := _COUNT.fullmatch(_word(head, "GrpJobs"))) and group["limit"] != "N":
        yield Cap(all_of, int(group["limit"]), int(group["used"]), "jobs")
    if (most := digits(jobs.strip(), INSTANT_MAX)) is not None:
        yield Cap(own, most, int(held["used"]) if held else 0, "jobs")


def _word(text: str, name: str) -> str:
    found = re.search(rf"(?:^| ){name}=(\S*)", text)
    return found[1] if found else ""


def _gpus(text: str, name: str) -> tuple[int | None, int] | None:
    """Return the limit of GPUs under a name, None for none, and what is used of it; None when it is not told."""
    found = _GPU.search(_word(text, name))
    return None if found is None else (None if found["limit"] == "N" else int(found["limit"]), int(found["used"] or 0))


def _limit(told: str) -> int | None:
    found = _GPU.search(told.strip())
    return int(found["limit"]) if found and found["limit"] != "N" else None
