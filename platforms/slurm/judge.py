"""Derive the state of a session from Slurm's answer about its job and from its folder. Pure; real UTC seconds.

Slurm's answer has priority, as Slurm bills the job. Slurm drops a job some minutes after its end, or when a controller
loses its state; then the evidence in the folder is used. If neither shows the state, it is unknown.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from jobs.payload.bounds import INSTANT_MAX, digits
from jobs.toml_file import read_toml
from platforms.base import Misconfigured, PlatformError, Refused, Unreachable
from platforms.slurm.settings import DOC, NAME

_COMMENT = re.compile(r'\{"uff":"(?P<key>[A-Za-z0-9._-]+)","of":"(?P<owner>[0-9a-f]+)","until":(?P<until>\d{1,12})\}')
_CLAIM = re.compile(r"(?P<kind>job|void) (?:(?P<job>\d+) )?(?P<at>\d{1,12})")
_ENDED = re.compile(r"(?P<started>\d{1,12}) (?P<ended>\d{1,12}) (?P<code>\d{1,3})")
FIELDS = 9  # per job: id, state, reason, start, submitted, end, nodes, name, comment
# Messages of sbatch after which it is unknown whether the controller accepted the job.
UNSURE = re.compile(r"(?i)contact|timed out|timeout|zero bytes|connection|communication|not responding|try again")
_FOR_A_PERSON = re.compile(r"(?i)partition|account|qos|constraint|feature|node name|gres|permission|configuration")
_FOR_LATER = re.compile(r"(?i)policy|limit|MaxSubmit|temporarily|Resource")
DONE = re.compile(r"(?i)invalid job id|already complet|complet(ing|ed)")
_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_OVER = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "REVOKED", "TIMEOUT",
    }
)  # fmt: skip
_TEXTS = read_toml(Path(__file__).with_name("reasons.toml"))
_INTERRUPTED = frozenset({"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED"})
TOO_LATE = 75  # the exit code of a script that started after its deadline
SLACK_SECONDS = 180  # Slurm may end a job this long after its time limit


# The two inputs: a job's line in Slurm's queue, and the evidence in the session's folder.
@dataclass(frozen=True, slots=True)
class QueueLine:
    """One of our jobs in Slurm's queue; times are real UTC seconds by our clock, None if unknown."""

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
    place: int | None = None  # position among the waiting jobs of its partition; None if unknown or not waiting


@dataclass(frozen=True, slots=True)
class Evidence:
    """The records in a session's folder.

    ``claim`` is "job", "void" or "" for none; ``ended`` is the record that its script wrote at its end. ``until`` is
    the session's deadline in real UTC seconds if it was extended, else None.
    """

    claim: str = ""
    job: int = 0
    claimed_at: int = 0
    ended: tuple[int, int, int] | None = None  # started, ended, exit code
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """The result of one poll: our jobs in the queue by key, and the evidence of the folders by key."""

    by_key: dict[str, list[QueueLine]]
    evidence: dict[str, Evidence]

    @property
    def lines(self) -> Iterator[QueueLine]:
        """The jobs of all keys."""
        return chain.from_iterable(self.by_key.values())


class NotSubmitted(Unreachable):
    """Slurm did not answer, and it is certain that nothing was submitted."""


def comment(key: str, owner: str, until: int) -> str:
    """Return the job comment, JSON, that identifies a job as ours."""
    return json.dumps({"uff": key, "of": owner, "until": until}, separators=(",", ":"))


def by_key(
    rows: Sequence[Sequence[str]], owner: str, skew: int, places: Mapping[int, int] | None = None
) -> dict[str, list[QueueLine]]:
    """Parse the rows of squeue, FIELDS each, and return the jobs of ``owner`` by key.

    Their times are by the controller's clock, which is ``skew`` seconds ahead of ours. ``places`` maps job IDs to
    positions in the queue. Raises Unreachable if a row of ours is incomplete.
    """
    result: dict[str, list[QueueLine]] = {}
    for row in rows:
        match = _COMMENT.search(row[-1]) if row else None
        if match is None or match["owner"] != owner:
            continue
        numbers = [digits(each, INSTANT_MAX) for each in row]
        if len(row) != FIELDS or (job := numbers[0]) is None or (submitted := numbers[4]) is None:
            raise Unreachable(NAME, "look at the queue", f"this line cannot be read: {'|'.join(row)!r}"[:300])
        _, state, reason, _, _, _, nodes = row[:7]
        instants = [None if at is None else at - skew for at in (numbers[3], numbers[5])]
        line = QueueLine(
            job, state, reason, instants[0], submitted - skew, instants[1], nodes, match["key"],
            match["owner"], int(match["until"]), (places or {}).get(job),
        )  # fmt: skip
        result.setdefault(line.key, []).append(line)
    return result


def evidence(text: str) -> tuple[str, Evidence]:
    """Parse a line ``key|claim|ended|until`` of a poll; return the key and its evidence."""
    key, _, rest = text.partition("|")
    claimed, _, rest = rest.partition("|")
    ended, _, moved = rest.partition("|")
    claim, end, until = _CLAIM.fullmatch(claimed), _ENDED.fullmatch(ended), digits(moved, INSTANT_MAX)
    if claim is None:
        # A malformed claim counts as a claim: a job may hold it.
        return key, Evidence("job" if claimed else "", until=until)
    last = (int(end["started"]), int(end["ended"]), int(end["code"])) if end else None
    return key, Evidence(claim["kind"], int(claim["job"] or 0), int(claim["at"]), last, until)


def refusal(message: str) -> PlatformError:
    """Return the error for a job that Slurm rejected: Misconfigured if the options are wrong, else Refused."""
    if _FOR_LATER.search(message):
        return Refused(NAME, "submit", message, "It is tried again later")
    if _FOR_A_PERSON.search(message):
        return Misconfigured(NAME, "submit", message, f"Correct the options of the pool, see {DOC}")
    return Refused(NAME, "submit", message)


@dataclass(frozen=True, slots=True)
class Pending:
    """The job waits in the queue.

    ``starts_at`` is the start that Slurm expects, ``place`` its position among the jobs that wait for its partition;
    both are None if unknown.
    """

    detail: str
    starts_at: int | None
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """The job runs, or its node is allocated; ``started`` is in real UTC seconds."""

    started: int
    detail: str


@dataclass(frozen=True, slots=True)
class Over:
    """The session ended, or (``started`` is None) never started if voiding its claim succeeds.

    ``cancel`` is the ID of a requeued job that must not run again, 0 for none. If its script recorded no end, a
    restarted controller may still have to end the first run. ``lost``: Slurm interrupted the session.
    """

    started: int | None
    ended: int | None  # None: unknown
    detail: str
    cancel: int = 0
    lost: bool = False
    latest: int | None = None  # it cannot have ended later


@dataclass(frozen=True, slots=True)
class Vanished:
    """Slurm does not know the job, and its script recorded no end. ``claimed`` means that the job may be running."""

    claimed: bool
    detail: str


Verdict = Pending | Holding | Over | Vanished


def line_of(lines: Sequence[QueueLine], evidence: Evidence) -> QueueLine | None:
    """Return the job that has the session's claim, else one that has not ended, else the newest; None without jobs."""
    return max(lines, key=lambda line: (line.job == evidence.job, line.state not in _OVER, line.job), default=None)


def judge(line: QueueLine | None, evidence: Evidence, started: int | None) -> Verdict:
    """Return the state of a session; ``started`` is its recorded start, None if it was not seen running yet."""
    claimed = evidence.claim == "job"
    began = started if started is not None else _first(line, evidence) if claimed else None
    if line is None:
        if evidence.ended is not None:
            first, last, code = evidence.ended
            return Over(started if started is not None else first, last, f"its script ended with exit code {code}")
        return Vanished(claimed or started is not None, "Slurm does not know its job any more")
    if line.state in _WAITS:
        if began is not None:
            detail = f"requeued by an administrator or after a failed node ({line.reason}); it goes on as a new session"
            last_word = evidence.ended[1] if evidence.ended else None
            return Over(began, last_word, detail, line.job, lost=True)
        return Pending(waiting(line), line.start, line.place)
    if line.state in _OVER:
        if not claimed and started is None:
            return Over(None, None, f"{ending(line)}, before it could start")
        if began is not None and line.start is not None and line.start > max(began, evidence.claimed_at):
            # It was requeued, started again and exited at once: Slurm's times are those of the second run.
            last_word = evidence.ended[1] if evidence.ended else None
            return Over(began, last_word, "requeued; it goes on as a new session", lost=True, latest=line.start)
        if evidence.ended is not None and evidence.ended[2] == TOO_LATE:
            return Over(began, line.end, "its deadline passed before it could start", lost=True)
        return Over(line.start if began is None else began, line.end, ending(line), lost=line.state in _INTERRUPTED)
    if began is None:
        began = line.submitted if line.start is None else line.start
    return Holding(began, f"{line.state} on {line.nodes}".lower())


def _first(line: QueueLine | None, evidence: Evidence) -> int | None:
    """Return the start of a claimed job: Slurm's, which precedes its script's, unless it was requeued."""
    return min([at for at in (line.start if line else None, evidence.claimed_at) if at], default=None)


def waiting(line: QueueLine) -> str:
    """Return the state of a waiting job with Slurm's reason, explained if the reason is known."""
    reason = line.reason.strip("()").split(",")[0]
    words = f"{line.state.lower()}: {line.reason}"
    sentences = (text for begins, text in _TEXTS["sentences"].items() if line.reason.strip("()").startswith(begins))
    text = _TEXTS["reasons"].get(reason) or next(sentences, "")
    return f"{words} ({text})" if text else words


def is_waiting(line: QueueLine) -> bool:
    """Return whether a job waits in the queue."""
    return line.state in _WAITS


def is_over(line: QueueLine) -> bool:
    """Return whether a job has ended."""
    return line.state in _OVER


def ending(line: QueueLine) -> str:
    """Return how a job ended: Slurm's state and reason, and an explanation of the state."""
    reason = "" if line.reason in {"", "None", line.state} else f" ({line.reason})"
    words = _TEXTS["states"].get(line.state)
    return f"{line.state}{reason}" + (f": {words}" if words else "")
