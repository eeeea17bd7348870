"""Client of Slurm: calls the functions of commands.sh, which query and control Slurm and access the shared folder.

Each call runs with a timeout, on this machine or by ssh. A broken connection or a controller that does not answer
raises Unreachable: the outcome is unknown.
"""

import base64
import binascii
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from jobs.payload.bounds import INSTANT_MAX, digits
from jobs.payload.clock import Clock
from platforms.base import Misconfigured, QuotaReading, Unreachable
from platforms.slurm.judge import DONE, FIELDS, UNSURE, NotSubmitted, Poll, by_key, evidence, refusal
from platforms.slurm.settings import DOC, NAME, SlurmSettings, read_settings
from platforms.targets.base import TargetError, TargetUnreachable
from platforms.targets.reach import Ran, shell_script

# Accounting: the GPU minutes that an account has left, from the lines of sshare about it and its parents. Pure.
_GPU = re.compile(r"(?:^|,)gres/gpu=(?P<limit>\d{1,15}|N)(?:\((?P<used>\d{1,15})\))?(?:,|$)")
_COUNT = re.compile(r"(?P<limit>\d{1,9}|N)\((?P<used>\d{1,9})\)")
_FIELDS = 5
QUOTA = "account"
_SECONDS = 365 * 86_400  # only an administrator renews such a limit: treat it as yearly
_SESSIONS = 1_000  # more than any user has at a time


# Limits of a quality of service (QOS), from the controller's association manager. GPU minutes left are a budget like an
# account's; GPUs and jobs at the same time are caps.
@dataclass(frozen=True, slots=True)
class Cap:
    """A limit of GPUs or jobs at the same time. ``what`` is "GPUs" or "jobs"; ``whose`` names the user in messages."""

    whose: str
    limit: int
    used: int
    what: str

    def refuses(self, devices: int) -> str:
        """Return why a session with so many devices would not start now; "" if it would."""
        wanted = devices if self.what == "GPUs" else 1
        if self.used + wanted <= self.limit:
            return ""
        verb = "hold" if self.what == "GPUs" else "run"
        return f"{self.whose} may {verb} {self.limit} {self.what} at once: {self.used} now, and {wanted} more asked"


@dataclass(frozen=True, slots=True)
class Qos:
    """The limits of one QOS; ``minutes`` is None without a limit of GPU minutes."""

    name: str
    minutes: "Association | None"
    caps: tuple[Cap, ...]


def read_qos(name: str, record: str, per_user: str, uid: str) -> Qos:
    """Parse the limits of a QOS for the user with the ID ``uid``.

    ``record`` is its line of ``scontrol --oneliner show assoc_mgr``, empty if only operators may see it; ``per_user``
    is its MaxTRESPU|MaxJobsPU from sacctmgr, because the record lists only users who have GPUs or jobs now.
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
    """Return (limit, used) of GPUs under a name; limit None means unlimited. None if the text has no such field."""
    match = _GPU.search(_word(text, name))
    return None if match is None else (None if match["limit"] == "N" else int(match["limit"]), int(match["used"] or 0))


def _limit(text: str) -> int | None:
    match = _GPU.search(text.strip())
    return int(match["limit"]) if match and match["limit"] != "N" else None


class NoBooks(Exception):
    """The cluster keeps no accounts, or their table cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Association:
    """GPU minutes of an account, a user or a QOS: the limit, the used ones, and those that running jobs may use."""

    limit: int
    used: int
    running: int

    @property
    def left(self) -> int:
        """GPU minutes left for new jobs; negative if the limit is exceeded."""
        return self.limit - self.used - self.running


def tightest(table: str, account: str, user: str) -> Association | None:
    """Return the user's or a parent's association with the fewest minutes left; None if they have no limit.

    ``table`` is sshare's output, indented by depth. Without ``account`` the user must have exactly one association.
    Raises NoBooks for malformed lines and unless exactly one association matches.
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
        Association(limit, _limit(each[3]) or 0, _limit(each[4]) or 0)
        for each in rows[0]
        if (limit := _limit(each[2])) is not None
    ]
    return min(limited, key=lambda each: each.left, default=None)


def reading(association: Association, devices: int, now: int, scale: float) -> QuotaReading:
    """Return the quota in seconds of sessions with so many devices; ``scale`` is the scheduled clock's speed.

    It is rounded to whole minutes on the safe side: Slurm starts no job whose time limit could exceed the remainder.
    One minute is added to the used ones, as Slurm does not count the current minute.
    """
    minute = round(60 * scale)
    minutes = (association.limit // devices, -(-(association.used + 1) // devices), -(-association.running // devices))
    limit, used, reserved = (min(count * minute, _SESSIONS * _SECONDS) for count in minutes)
    return QuotaReading(QUOTA, now, now + _SECONDS, limit, used, reserved, shared=True)


# The scripts are the functions of commands.sh, which explains their exit codes.
_LINE = re.compile(r"\|([^|]+)\|([^|]+)\|([^|]+)")
_NO_FILE, _NO_FOLDER, _CLAIMED, _NO_ANSWER = 66, 71, 73, 75
_SPAN = re.compile(r"^(\d+)\|(\d+)$", re.MULTILINE)
_PLACES = re.compile(r"(\d+):(\d+),")
_JOB_ID = re.compile(r"^(?P<job>\d+)(;.*)?$", re.MULTILINE)
_SBATCH_ERROR = re.compile(r"sbatch: error: (?:Batch job submission failed: )?(.*)")
_TOLERATED_SECONDS = 30  # difference of the controller's clock that is ignored


def accounting_of(options: Mapping[str, str]) -> dict[str, list[tuple[int, int]]] | None:
    """Return (start, end) in real UTC seconds of each job of the pool in Slurm's accounting, by launch key.

    None if the cluster keeps no accounting. Raises PlatformError.
    """
    output = SlurmCommands(read_settings(options, Path(), sys.executable)).ask("read the accounting", "accounting")
    if output.strip() == "none":
        return None
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in output.splitlines():
        if (match := _LINE.fullmatch(line)) and None not in (both := [_instant(each) for each in match.groups()[1:]]):
            first, last = (int(each or 0) for each in both)
            spans[match[1]].append((first, last))
    return dict(spans)


def _instant(text: str) -> int | None:
    """Parse a time of Slurm: Unix seconds, or ISO in this machine's time zone; None for anything else."""
    if (counted := digits(text, INSTANT_MAX)) is not None:
        return counted
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return None


class Books(NamedTuple):
    """The limits of the account and of its QOS; ``account`` is the one with the least minutes left, None for none."""

    account: Association | None
    qos: Qos

    @property
    def tightest(self) -> Association | None:
        """The limit with the fewest GPU minutes left, of account and QOS; None if there is none."""
        limits = [each for each in (self.account, self.qos.minutes) if each is not None]
        return min(limits, key=lambda each: each.left, default=None)


class SlurmCommands:
    """The commands of a pool to Slurm and its shared folder. All methods raise Unreachable and Misconfigured."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._placed: set[str] = set()
        self._clock = Clock()
        self._skew = 0  # seconds by which the controller's clock is ahead of ours

    def poll(self, keys: Sequence[str]) -> Poll:
        """Return our jobs in the queue, and the evidence in the folders of ``keys``."""
        began = self._clock.now()
        ran = self._run("look at the queue", "poll", keys)
        queue, _, rest = ran.out.partition("\n== ") if not ran.out.startswith("== ") else ("", "", ran.out[3:])
        head, _, rest = rest.partition("\n")
        code, _, body = head.partition(" ")
        folders, end, _ = rest.rpartition("== end\n")
        if code != "0" or not end or ran.code != 0:
            raise _silent("look at the queue", ran)
        body, _, places = body.partition(" ")
        self._skew = skew(body, began, self._clock.now(), self._skew)
        rows = [text.split("|", FIELDS - 1) for text in queue.split("\n")]
        place_of = {int(job): int(place) for job, place in _PLACES.findall(places)}
        by_folder = dict(map(evidence, filter(None, folders.split("\n"))))
        if set(by_folder) != set(keys):
            raise Unreachable(NAME, "look at the queue", "its answer lacks sessions", "It is asked again")
        return Poll(by_key(rows, self._settings.owner, self._skew, place_of), by_folder)

    def accounted(self, key: str) -> list[tuple[int, int]]:
        """Return (start, end), in real UTC seconds of our clock, of each run of this key; [] without accounting."""
        ran = self._run("read the accounting", "accounted", [key])
        return [(int(first) - self._skew, int(last) - self._skew) for first, last in _SPAN.findall(ran.out)]

    def books(self) -> Books:
        """Return the limits of account and QOS. Raises NoBooks if the cluster keeps no accounts."""
        ran = self._run("read the accounts", "books", [self._settings.account, self._settings.qos])
        self._well("read the accounts", ran)
        who, _, rest = ran.out.partition("\n")
        table, _, rest = rest.partition("\n== ")
        user, _, account = who.partition("|")
        if not table.strip():
            raise NoBooks("there is no accounting")
        granted, _, record = rest.partition("\n")
        uid, _, granted = granted.partition("|")
        qos, _, per_user = granted.partition("|")
        try:
            return Books(tightest(table, account, user), read_qos(qos, record.strip(), per_user, uid))
        except NoBooks as error:
            raise Unreachable(NAME, "read the accounts", str(error), "Set the option account") from None

    def submit(self, key: str, words: Sequence[str], launch: str, script: str) -> int:
        """Submit a job and return its ID; 0 if the key already has a job or a claim. ``words`` are options of sbatch.

        Raises Refused or NotSubmitted if nothing was submitted, Unreachable if that is unknown.
        """
        arguments = [key, self._settings.owner, *words]
        ran = self._run("submit", "submit", arguments, launch=launch.encode(), job=script.encode())
        if ran.code == _CLAIMED:
            return 0
        if ran.code == _NO_ANSWER:
            raise NotSubmitted(NAME, "submit", ran.why, "The pool rests until Slurm answers")
        output, _, code = ran.out.rpartition("== ")
        match = _JOB_ID.search(output)
        if code.strip() == "0" and match:
            return int(match["job"])
        errors = _SBATCH_ERROR.findall(ran.err)
        if ran.code == 0 and code.strip() == "1" and errors and not UNSURE.search(errors[-1]):
            raise refusal(errors[-1])
        if ran.code == 1:
            raise NotSubmitted(NAME, "submit", ran.last_words, f"Check the disk of {self._settings.folder}")
        raise Unreachable(NAME, "submit", f"sbatch gave no answer: {ran.why}", "The job is looked for by its name")

    def cancel(self, jobs: Sequence[int], *how: str) -> None:
        """Cancel jobs, or signal them by the options ``how`` of scancel. Jobs that have ended are no error."""
        ran = self._run("cancel", "cancel", [*how, *map(str, jobs)])
        if ran.code != 0 and not DONE.search(ran.err):
            raise _silent("cancel", ran)

    def make_folder(self) -> None:
        """Create the pool's folder unless it exists."""
        self._well("make the folder", self._run("make the folder", "make_folder", []))

    def place(self, digest: str, archive: Path) -> None:
        """Unpack the payload archive in the pool's folder, unless it is there."""
        if digest not in self._placed:
            ran = self._run("place the payload", "place", [digest], payload=archive.read_bytes())
            self._well("place the payload", ran)
            self._placed.add(digest)

    def void(self, key: str) -> bool:
        """Void a session: create its claim, so that none of its jobs can start. Return False if there is a claim."""
        ran = self._run("give up a session", "void", [key])
        if ran.code == _CLAIMED:
            return False
        self._well("give up a session", ran)
        return True

    def extend(self, key: str, until: int) -> None:
        """Set the deadline of a session that has not started, in real UTC seconds."""
        self._well("extend a session", self._run("extend a session", "extend", [key, str(until)]))

    def logs(self, key: str, offset: int, limit_bytes: int) -> bytes:
        """Return the output of a session from byte ``offset`` on; b"" if there is no such file."""
        ran = self._run("read the output", "logs", [key, str(offset + 1), str(limit_bytes)])
        if ran.code == _NO_FILE:
            return b""
        self._well("read the output", ran)
        try:
            return base64.b64decode(ran.out, validate=True)
        except binascii.Error as error:
            raise Unreachable(NAME, "read the output", "it broke off", "Ask again") from error

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the folders of sessions."""
        self._well("clean up", self._run("clean up", "remove", keys))

    def ask(self, action: str, script: str) -> str:
        """Run a script and return its output; for checks."""
        ran = self._run(action, script, [])
        if "configuration source" in ran.err or "configuration source" in ran.out:
            why, remedy = "there is no slurm.conf here", "Set slurm_conf, or host to go through a login node"
            raise Misconfigured(NAME, action, why, remedy)
        if ran.code != 0:
            raise Unreachable(NAME, action, ran.why, "Try this command there by hand")
        return ran.out

    def _run(self, action: str, script: str, words: Sequence[str], **data: bytes) -> Ran:
        """Run ``script``, a function of commands.sh or other commands; it gets ``data`` as variables in base64."""
        settings = self._settings
        arguments = [settings.folder, settings.slurm_conf, *words]
        packed = {name: base64.encodebytes(value).decode() for name, value in data.items()}
        call = f'{script} "$@"' if script.isidentifier() else script
        program = f"{shell_script('platforms.slurm', 'commands.sh', **packed)}\n{call}\n".encode()
        try:
            ran = settings.reach.bash(program, arguments, settings.command_seconds)
        except TargetUnreachable as error:
            raise Unreachable(NAME, action, error.why, "Nothing is ended meanwhile") from error
        except TargetError as error:
            raise Misconfigured(NAME, action, str(error), f"See {DOC}") from error
        if ran.code == _NO_FOLDER:
            raise Unreachable(NAME, action, f"there is no folder {settings.folder}", "Mount its file system again")
        if ran.code == 127 or "command not found" in ran.err:
            raise Misconfigured(NAME, action, ran.last_words, "Install Slurm's client programs there")
        return ran

    def _well(self, action: str, ran: Ran) -> None:
        if ran.code != 0:
            raise _silent(action, ran)


def skew(text: str, began: float, ended: float, before: int) -> int:
    """Return the seconds by which the controller's clock is ahead of ours; 0 for at most 30 s.

    ``text`` is the controller's time, read between ``began`` and ``ended`` of our clock, all real UTC seconds.
    ``before`` is the previous result. It stays while it fits, so that start and end of a session are shifted equally.
    """
    instant = digits(text, INSTANT_MAX)
    if instant is None or began - _TOLERATED_SECONDS <= instant - before <= ended + _TOLERATED_SECONDS:
        return before
    offset = round(instant - (began + ended) / 2)
    return offset if abs(offset) > _TOLERATED_SECONDS else 0


def _silent(action: str, ran: Ran) -> Unreachable:
    """Return the error for a command without a usable answer: the state is unknown."""
    return Unreachable(NAME, action, ran.why, "Nothing is ended meanwhile")
