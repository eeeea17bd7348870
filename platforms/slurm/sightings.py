"""Sightings: what Slurm tells of a job of ours, and what a session's folder tells, however it was asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from jobs.payload.bounds import INSTANT_MAX, digits
from platforms.base import Misconfigured, PlatformError, Refused, Unreachable
from platforms.slurm.settings import DOC, NAME

_COMMENT = re.compile(r'\{"uff":"(?P<key>[A-Za-z0-9._-]+)","of":"(?P<owner>[0-9a-f]+)","until":(?P<until>\d{1,12})\}')
_CLAIM = re.compile(r"(?P<kind>job|void) (?:(?P<job>\d+) )?(?P<at>\d{1,12})")
_ENDED = re.compile(r"(?P<started>\d{1,12}) (?P<ended>\d{1,12}) (?P<code>\d{1,3})")
FIELDS = 9  # of a job: id, state, reason, start, submitted, end, nodes, name, comment
# What is said when nobody knows whether the controller took the job.
UNSURE = re.compile(
    r"contact|timed out|timeout|zero bytes|connection|communication|not responding|try again", re.IGNORECASE
)
_FOR_A_PERSON = re.compile(
    r"partition|account|qos|constraint|feature|node name|gres|permission|configuration", re.IGNORECASE
)
_FOR_LATER = re.compile(r"(?i)policy|limit|MaxSubmit|temporarily|Resource")
GONE = re.compile(r"(?i)invalid job id|already complet|complet(ing|ed)")


@dataclass(frozen=True, slots=True)
class Line:
    """What Slurm says of one job of ours; instants are real UTC seconds by our clock, None where there is none."""

    job: int
    state: str
    reason: str
    start: int | None
    submitted: int
    end: int | None
    nodes: str
    key: str
    owner: str
    until: int
    place: int | None = None  # among the jobs that wait for its partition; None: not told, or it does not wait


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a session's folder tells. ``claim`` is "job", "void" or ""; ``ended`` its script's last word.

    ``until`` is its deadline where that was moved on, in real UTC seconds.
    """

    claim: str = ""
    job: int = 0
    claimed_at: int = 0
    ended: tuple[int, int, int] | None = None  # started, ended, exit code
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """One look at everything."""

    by_key: dict[str, list[Line]]
    evidence: dict[str, Evidence]

    @property
    def lines(self) -> Iterator[Line]:
        """All lines."""
        return chain.from_iterable(self.by_key.values())


class NotSubmitted(Unreachable):
    """Slurm did not answer, and for sure nothing was submitted."""


def comment(key: str, owner: str, until: int) -> str:
    """Return by what a job is known as ours."""
    return json.dumps({"uff": key, "of": owner, "until": until}, separators=(",", ":"))


def by_key(
    rows: Sequence[Sequence[str]], owner: str, skew: int, places: Mapping[int, int] | None = None
) -> dict[str, list[Line]]:
    """Return the jobs of an owner among these rows of FIELDS, by the controller's clock, which is ``skew`` s ahead.

    ``places`` are their places in the queue by job.

    Raises Unreachable for half a row of ours.
    """
    found: dict[str, list[Line]] = {}
    for row in rows:
        known = _COMMENT.search(row[-1]) if row else None
        if known is None or known["owner"] != owner:
            continue
        numbers = [digits(each, INSTANT_MAX) for each in row]
        if len(row) != FIELDS or (job := numbers[0]) is None or (submitted := numbers[4]) is None:
            raise Unreachable(NAME, "look at the queue", f"this line cannot be read: {'|'.join(row)!r}"[:300])
        _, state, reason, _, _, _, nodes = row[:7]
        instants = [None if at is None else at - skew for at in (numbers[3], numbers[5])]
        line = Line(
            job, state, reason, instants[0], submitted - skew, instants[1], nodes, known["key"],
            known["owner"], int(known["until"]), (places or {}).get(job),
        )  # fmt: skip
        found.setdefault(line.key, []).append(line)
    return found


def evidence(text: str) -> tuple[str, Evidence]:
    """Return the key and what its folder tells, of one line that a look at the folders prints."""
    key, _, rest = text.partition("|")
    claimed, _, rest = rest.partition("|")
    ended, _, moved = rest.partition("|")
    claim, end, until = _CLAIM.fullmatch(claimed), _ENDED.fullmatch(ended), digits(moved, INSTANT_MAX)
    if claim is None:
        # A claim that cannot be read is one all the same: somebody holds it.
        return key, Evidence("job" if claimed else "", until=until)
    last = (int(end["started"]), int(end["ended"]), int(end["code"])) if end else None
    return key, Evidence(claim["kind"], int(claim["job"] or 0), int(claim["at"]), last, until)


def refusal(said: str) -> PlatformError:
    """Return what it means that Slurm did not take a job, by what it said."""
    if _FOR_LATER.search(said):
        return Refused(NAME, "submit", said, "It is tried again later")
    if _FOR_A_PERSON.search(said):
        return Misconfigured(NAME, "submit", said, f"Correct the options of the pool, see {DOC}")
    return Refused(NAME, "submit", said)
