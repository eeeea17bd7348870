"""Commands: what is asked of Slurm and of the pool's shared folder, each as one script of bash within a time limit.

The scripts are the same on this machine and by ssh. What a broken connection or a silent controller leaves is
Unreachable: nobody knows then.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from jobs.payload.clock import Clock
from platforms.base import Misconfigured, PlatformError, Refused, Unreachable
from platforms.slurm.books import NoBooks, tightest
from platforms.slurm.settings import DOC, NAME
from platforms.slurm.skew import skew
from platforms.targets.base import TargetError, TargetUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from platforms.slurm.books import Association
    from platforms.slurm.settings import Settings
    from platforms.targets.command import Ran

_NO_FOLDER, _NO_ANSWER, _CLAIMED, _NO_FILE = 71, 75, 73, 66
_PRELUDE = """\
export LC_ALL=C SLURM_TIME_FORMAT=%s
umask 077
root=$1 slurm_conf=$2
shift 2
case $root in "~/"*) root=$HOME/${root#"~/"} ;; esac
[ -z "$slurm_conf" ] || export SLURM_CONF=$slurm_conf
"""
_ENTER = f'cd -- "$root" && [ -d .payload ] || exit {_NO_FOLDER}\nroot=$PWD\n'
# The controller's time comes from its configuration: squeue -v tells it as well, but to nobody who asks for one user.
_POLL = """
squeue --noheader --states=all --user="$(id -un)" --format='%i|%T|%r|%S|%V|%e|%N|%j|%k' </dev/null
code=$? now=
[ "$code" != 0 ] || now=$(scontrol show config </dev/null 2>/dev/null | head -n 1)
echo "== $code ${now##* }"
for key; do
    claim= ended=
    [ -f "$key/claim/who" ] && [ ! -L "$key/claim/who" ] && IFS= read -r -n 200 claim <"$key/claim/who"
    [ -f "$key/ended" ] && [ ! -L "$key/ended" ] && IFS= read -r -n 200 ended <"$key/ended"
    echo "$key|$claim|$ended"
done
echo "== end"
"""
_PLACE = """
mkdir -p -- "$root" && cd -- "$root" || exit 71
[ ! -e ".payload/$1/payload/agent.py" ] || exit 0
new=.payload/.new-$1-$$
mkdir -p "$new" && base64 -d <<'END' | tar -xzf - -C "$new" || exit 1
%s
END
mv -T "$new" ".payload/$1" 2>/dev/null || { rm -rf "$new"; [ -e ".payload/$1/payload/agent.py" ]; }
"""
_SUBMIT = """
key=$1 owner=$2
shift 2
known=$(squeue --noheader --states=all --user="$(id -un)" --name="$key" --format='%%k' </dev/null) || exit 75
case $known in *"\\"of\\":\\"$owner\\""*) exit 73 ;; esac
[ ! -e "$key/claim" ] || exit 73
mkdir -p "$key/work" && echo "$key" >"$key/order" || exit 1
base64 -d >"$key/launch.json" <<'END' || exit 1
%s
END
base64 -d >"$key/job.sh" <<'END' || exit 1
%s
END
# The session gets what programs need to run, and nothing else of whoever submits it.
env -i HOME="$HOME" PATH="$PATH" USER="$(id -un)" LANG=C.UTF-8 ${SLURM_CONF:+SLURM_CONF="$SLURM_CONF"} \\
    sbatch --parsable --job-name="$key" --chdir="$root/$key" --output="$root/$key/output.log" --open-mode=append \\
    "$@" "$key/job.sh" </dev/null
echo "== $?"
"""
# What stands in place whole, or not at all: a claim that exists is never empty, so nothing can be moved onto it.
_VOID = """
key=$1
[ -d "$key" ] || mkdir "$key" || exit 1
new=$key/.void-$$
[ ! -e "$key/claim/who" ] || exit 73
mkdir "$new" && echo "void $(date +%s)" >"$new/who" || exit 1
mv -T "$new" "$key/claim" 2>/dev/null || { rm -rf "$new"; exit 73; }
"""
_LOGS = """
file=$1/output.log
[ -f "$file" ] && [ ! -L "$file" ] || exit 66
tail -c "+$2" "$file" | head -c "$3" | base64 -w 0
"""
_REMOVE = """
for key; do
    rm -rf -- "./$key" || exit 1
done
"""
# Where no accounts are kept the table is empty. Which is meant is asked only where there are some.
_BOOKS = """
command -v sshare >/dev/null || exit 0
table=$(sshare --noheader --parsable2 --format=Account,User,GrpTRESMins,GrpTRESRaw,TRESRunMins </dev/null) || exit 75
[ -n "$table" ] || exit 0
user=$(id -un) account=$1
[ -n "$account" ] || account=$(sacctmgr --noheader --parsable2 show user "$user" format=DefaultAccount </dev/null)
echo "$user|$account"
echo "$table"
"""
_COMMENT = re.compile(r'\{"uff":"(?P<key>[A-Za-z0-9._-]+)","of":"(?P<owner>[0-9a-f]+)","until":(?P<until>\d{1,12})\}')
_CLAIM = re.compile(r"(?P<kind>job|void) (?:(?P<job>\d+) )?(?P<at>\d{1,12})")
_ENDED = re.compile(r"(?P<started>\d{1,12}) (?P<ended>\d{1,12}) (?P<code>\d{1,3})")
_JOB_ID = re.compile(r"^(?P<job>\d+)(;.*)?$", re.MULTILINE)
_SAID = re.compile(r"sbatch: error: (?:Batch job submission failed: )?(.*)")
_LINE_FIELDS = 9
# What sbatch says when nobody knows whether the controller took the job.
_UNSURE = re.compile(
    r"contact|timed out|timeout|zero bytes|connection|communication|not responding|try again", re.IGNORECASE
)
_FOR_A_PERSON = re.compile(
    r"partition|account|qos|constraint|feature|node name|gres|permission|configuration", re.IGNORECASE
)
_FOR_LATER = re.compile(r"(?i)policy|limit|MaxSubmit|temporarily|Resource")
_GONE = re.compile(r"(?i)invalid job id|already complet|complet(ing|ed)")


@dataclass(frozen=True, slots=True)
class Line:
    """What squeue says of one job of ours; instants are real UTC seconds by our clock, None where there is none."""

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


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a session's folder tells. ``claim`` is "job", "void" or ""; ``ended`` its script's last word."""

    claim: str = ""
    job: int = 0
    claimed_at: int = 0
    ended: tuple[int, int, int] | None = None  # started, ended, exit code


@dataclass(frozen=True, slots=True)
class Poll:
    """One look at everything."""

    by_key: dict[str, list[Line]]
    evidence: dict[str, Evidence]

    @property
    def lines(self) -> Iterator[Line]:
        """All lines."""
        return chain.from_iterable(self.by_key.values())


def comment(key: str, owner: str, until: int) -> str:
    """Return by what a job is known as ours."""
    return json.dumps({"uff": key, "of": owner, "until": until}, separators=(",", ":"))


class Commands:
    """The commands of one pool. All raise Unreachable and Misconfigured."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._placed: set[str] = set()
        self._clock = Clock()
        self._skew = 0  # seconds that the controller's clock is ahead of ours

    def poll(self, keys: Sequence[str]) -> Poll:
        """Look at the queue, and at what the folders of ``keys`` tell."""
        began = self._clock.now()
        ran = self._run("look at the queue", _ENTER + _POLL, keys)
        queue, _, rest = ran.out.partition("\n== ") if not ran.out.startswith("== ") else ("", "", ran.out[3:])
        head, _, rest = rest.partition("\n")
        code, _, told = head.partition(" ")
        folders, end, _ = rest.rpartition("== end\n")
        if code != "0" or not end or ran.code != 0:
            raise self._silent("look at the queue", ran)
        self._skew = skew(told, began, self._clock.now(), self._skew)
        by_key: dict[str, list[Line]] = {}
        for text in queue.split("\n"):
            if line := self._line(text):
                by_key.setdefault(line.key, []).append(line)
        evidence = dict(map(_evidence, filter(None, folders.split("\n"))))
        if set(evidence) != set(keys):
            raise Unreachable(NAME, "look at the queue", "its answer lacks sessions", "It is asked again")
        return Poll(by_key, evidence)

    def books(self) -> Association | None:
        """Return what the account has left, None when it has no limit. Raises NoBooks where there are no accounts."""
        ran = self._run("read the account", _BOOKS, [self._settings.account])
        self._well("read the account", ran)
        who, _, table = ran.out.partition("\n")
        user, _, account = who.partition("|")
        if not table.strip():
            raise NoBooks("there is no accounting")
        try:
            return tightest(table, account, user)
        except NoBooks as error:
            raise Unreachable(NAME, "read the account", str(error), "Set the option account") from None

    def make_folder(self) -> None:
        """Make the pool's folder, unless it is there."""
        self._well("make the folder", self._run("make the folder", 'mkdir -p -- "$root/.payload"', []))

    def place(self, digest: str, archive: Path) -> None:
        """Bring the payload into the pool's folder, unless it is there."""
        if digest not in self._placed:
            packed = base64.encodebytes(archive.read_bytes()).decode()
            self._well("place the payload", self._run("place the payload", _PLACE % packed, [digest]))
            self._placed.add(digest)

    def submit(self, key: str, words: Sequence[str], launch: str, script: str) -> int:
        """Submit a job, and return its id; 0 when the key is known already. Raises Refused when nothing started."""
        packed = [base64.encodebytes(text.encode()).decode().strip() for text in (launch, script)]
        ran = self._run("submit", _ENTER + _SUBMIT % tuple(packed), [key, self._settings.owner, *words])
        if ran.code == _CLAIMED:
            return 0
        if ran.code == _NO_ANSWER:
            raise NotSubmitted(NAME, "submit", _why(ran), "The pool rests until Slurm answers")
        told, _, code = ran.out.rpartition("== ")
        found = _JOB_ID.search(told)
        if code.strip() == "0" and found:
            return int(found["job"])
        if ran.code == 0 and code.strip() == "1" and (said := _SAID.findall(ran.err)) and not _UNSURE.search(said[-1]):
            raise self._refusal(said[-1])
        if ran.code == 1:
            raise NotSubmitted(NAME, "submit", ran.last_words, f"Check the disk of {self._settings.folder}")
        raise Unreachable(NAME, "submit", f"sbatch gave no answer: {_why(ran)}", "The job is looked for by its name")

    def cancel(self, jobs: Sequence[int], *, ask: bool = False) -> None:
        """End jobs, or ``ask`` their scripts to let the session save and leave. What is over already stays so."""
        words = ["--batch", "--signal=TERM"] if ask else []
        ran = self._run("cancel", 'scancel "$@" </dev/null', [*words, *map(str, jobs)])
        if ran.code != 0 and not _GONE.search(ran.err):
            raise self._silent("cancel", ran)

    def void(self, key: str) -> bool:
        """Take the claim of a session, so that no job ever can; return False when it is taken."""
        ran = self._run("give up a session", _ENTER + _VOID, [key])
        if ran.code == _CLAIMED:
            return False
        self._well("give up a session", ran)
        return True

    def logs(self, key: str, offset: int, limit_bytes: int) -> bytes:
        """Return what a session printed from byte ``offset`` on; nothing when there is no such file."""
        ran = self._run("read the output", _ENTER + _LOGS, [key, str(offset + 1), str(limit_bytes)])
        if ran.code == _NO_FILE:
            return b""
        self._well("read the output", ran)
        try:
            return base64.b64decode(ran.out, validate=True)
        except binascii.Error as error:
            raise Unreachable(NAME, "read the output", "it broke off", "Ask again") from error

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the folders of sessions."""
        self._well("clean up", self._run("clean up", _ENTER + _REMOVE, keys))

    def ask(self, action: str, script: str) -> str:
        """Return what a script prints that asks Slurm something, for checks."""
        ran = self._run(action, script, [])
        if "configuration source" in ran.err or "configuration source" in ran.out:
            why, remedy = "there is no slurm.conf here", "Set slurm_conf, or host to go through a login node"
            raise Misconfigured(NAME, action, why, remedy)
        if ran.code != 0:
            raise Unreachable(NAME, action, _why(ran), "Try this command there by hand")
        return ran.out

    def _run(self, action: str, script: str, words: Sequence[str]) -> Ran:
        settings = self._settings
        given = [settings.folder, settings.slurm_conf, *words]
        try:
            ran = settings.reach.bash((_PRELUDE + script).encode(), given, settings.command_seconds)
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
            raise self._silent(action, ran)

    def _silent(self, action: str, ran: Ran) -> Unreachable:
        return Unreachable(NAME, action, _why(ran), "Nothing is ended meanwhile")

    def _refusal(self, said: str) -> PlatformError:
        if _FOR_LATER.search(said):
            return Refused(NAME, "submit", said, "It is tried again later")
        if _FOR_A_PERSON.search(said):
            return Misconfigured(NAME, "submit", said, f"Correct the options of the pool, see {DOC}")
        return Refused(NAME, "submit", said)

    def _line(self, text: str) -> Line | None:
        """Return what one line tells, None for a job that is not ours. Raises Unreachable for half a line of ours."""
        known = _COMMENT.search(text)
        if known is None or known["owner"] != self._settings.owner:
            return None
        told = text.split("|", _LINE_FIELDS - 1)
        if len(told) != _LINE_FIELDS or not (told[0].isdigit() and told[4].isdigit()):
            raise Unreachable(NAME, "look at the queue", f"this line cannot be read: {text!r}"[:300])
        job, state, reason, start, submitted, end, nodes = told[:7]
        instants = [int(each) - self._skew if each.isdigit() else None for each in (start, end)]
        return Line(
            int(job), state, reason, instants[0], int(submitted) - self._skew, instants[1], nodes, known["key"],
            known["owner"], int(known["until"]),
        )  # fmt: skip


class NotSubmitted(Unreachable):
    """Slurm did not answer, and for sure nothing was submitted."""


def _evidence(text: str) -> tuple[str, Evidence]:
    key, _, rest = text.partition("|")
    claimed, _, ended = rest.partition("|")
    claim, end = _CLAIM.fullmatch(claimed), _ENDED.fullmatch(ended)
    if claim is None:
        # A claim that cannot be read is one all the same: somebody holds it.
        return key, Evidence("job" if claimed else "")
    last = (int(end["started"]), int(end["ended"]), int(end["code"])) if end else None
    return key, Evidence(claim["kind"], int(claim["job"] or 0), int(claim["at"]), last)


def _why(ran: Ran) -> str:
    return ran.last_words or f"it ended with {ran.code}"
