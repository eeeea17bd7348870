"""Commands: Slurm asked by its own programs, with the folder's business in the same script."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from platforms.base import Unreachable
from platforms.slurm.books import NoBooks, tightest
from platforms.slurm.qos import read_qos
from platforms.slurm.settings import NAME
from platforms.slurm.sightings import FIELDS, GONE, UNSURE, NotSubmitted, Poll, by_key, refusal
from platforms.slurm.skew import skew
from platforms.slurm.way import CLAIMED, ENTER, LOOK, PREPARE, Books, Way, packed, silent, why_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NO_ANSWER = 75
# The controller's time comes from its configuration: squeue -v tells it as well, but to nobody who asks for one user.
_POLL = (
    """
own=$(squeue --noheader --states=all --user="$(id -un)" --format='%i|%T|%r|%S|%V|%e|%N|%j|%k' </dev/null)
code=$? now= places=
printf '%s\n' "$own"
[ "$code" != 0 ] || now=$(scontrol show config </dev/null 2>/dev/null | head -n 1)
case $own in *"|PENDING|"*)
    # Whose queue is hidden shows its own jobs alone: a place among them says nothing.
    places=$(squeue --noheader --states=PENDING --sort=-p,i --format='%P %i %u' </dev/null 2>/dev/null |
        awk -v me="$(id -un)" '{ n[$1]++ } $3 == me { printf "%s:%s,", $2, n[$1] }') ;;
esac
echo "== $code ${now##* } $places"
"""
    + LOOK
)
_SUBMIT = (
    """
key=$1 owner=$2
shift 2
known=$(squeue --noheader --states=all --user="$(id -un)" --name="$key" --format='%%k' </dev/null) || exit 75
case $known in *"\\"of\\":\\"$owner\\""*) exit 73 ;; esac
"""
    + PREPARE
    + """
# The session gets what programs need to run, and nothing else of whoever submits it.
env -i HOME="$HOME" PATH="$PATH" USER="$(id -un)" LANG=C.UTF-8 ${SLURM_CONF:+SLURM_CONF="$SLURM_CONF"} \\
    sbatch --parsable --job-name="$key" --chdir="$root/$key" --output="$root/$key/output.log" --open-mode=append \\
    "$@" "$key/job.sh" </dev/null
echo "== $?"
"""
)
# Where no accounts are kept the table is empty. Which is meant is asked only where there are some.
_BOOKS = """
command -v sshare >/dev/null || exit 0
table=$(sshare --noheader --parsable2 --format=Account,User,GrpTRESMins,GrpTRESRaw,TRESRunMins </dev/null) || exit 75
[ -n "$table" ] || exit 0
user=$(id -un) account=$1
[ -n "$account" ] || account=$(sacctmgr --noheader --parsable2 show user "$user" format=DefaultAccount </dev/null)
echo "$user|$account"
echo "$table"
qos=$2
[ -n "$qos" ] || qos=$(
    sacctmgr --noheader --parsable2 show assoc user="$user" account="$account" format=DefaultQOS </dev/null | head -n 1
)
qos=${qos:-normal}
echo "== $(id -u)|$qos|$(sacctmgr --noheader --parsable2 show qos "$qos" format=MaxTRESPU,MaxJobsPU </dev/null)"
scontrol --oneliner show assoc_mgr flags=qos qos="$qos" </dev/null | grep "^ *QOS=$qos("
true
"""
# A job that was requeued has a record for each time that it ran; one that goes on has no end.
_ACCOUNTED = """
sacct --noheader --parsable2 --allocations --duplicates --name="$1" --user="$(id -un)" --starttime=now-30days \\
    --format=Start,End </dev/null 2>/dev/null
true
"""
_SPAN = re.compile(r"^(\d+)\|(\d+)$", re.MULTILINE)
_PLACE = re.compile(r"(\d+):(\d+),")
_JOB_ID = re.compile(r"^(?P<job>\d+)(;.*)?$", re.MULTILINE)
_SAID = re.compile(r"sbatch: error: (?:Batch job submission failed: )?(.*)")


class Commands(Way):
    """See Way."""

    signals = True

    def poll(self, keys: Sequence[str]) -> Poll:
        """See Way.poll."""
        began = self._clock.now()
        ran = self._run("look at the queue", ENTER + _POLL, keys)
        queue, _, rest = ran.out.partition("\n== ") if not ran.out.startswith("== ") else ("", "", ran.out[3:])
        head, _, rest = rest.partition("\n")
        code, _, told = head.partition(" ")
        folders, end, _ = rest.rpartition("== end\n")
        if code != "0" or not end or ran.code != 0:
            raise silent("look at the queue", ran)
        told, _, places = told.partition(" ")
        self._skew = skew(told, began, self._clock.now(), self._skew)
        rows = [text.split("|", FIELDS - 1) for text in queue.split("\n")]
        known = {int(job): int(place) for job, place in _PLACE.findall(places)}
        return Poll(by_key(rows, self._settings.owner, self._skew, known), self._told(folders, keys))

    def accounted(self, key: str) -> list[tuple[int, int]]:
        """See Way.accounted."""
        ran = self._run("read the accounting", _ACCOUNTED, [key])
        return [(int(first) - self._skew, int(last) - self._skew) for first, last in _SPAN.findall(ran.out)]

    def books(self) -> Books:
        """See Way.books."""
        ran = self._run("read the accounts", _BOOKS, [self._settings.account, self._settings.qos])
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
        """See Way.submit."""
        ran = self._run("submit", ENTER + _SUBMIT % packed(launch, script), [key, self._settings.owner, *words])
        if ran.code == CLAIMED:
            return 0
        if ran.code == _NO_ANSWER:
            raise NotSubmitted(NAME, "submit", why_of(ran), "The pool rests until Slurm answers")
        told, _, code = ran.out.rpartition("== ")
        found = _JOB_ID.search(told)
        if code.strip() == "0" and found:
            return int(found["job"])
        if ran.code == 0 and code.strip() == "1" and (said := _SAID.findall(ran.err)) and not UNSURE.search(said[-1]):
            raise refusal(said[-1])
        if ran.code == 1:
            raise NotSubmitted(NAME, "submit", ran.last_words, f"Check the disk of {self._settings.folder}")
        raise Unreachable(NAME, "submit", f"sbatch gave no answer: {why_of(ran)}", "The job is looked for by its name")

    def cancel(self, jobs: Sequence[int]) -> None:
        """See Way.cancel."""
        self._scancel(map(str, jobs))

    def ask_to_leave(self, key: str, jobs: Sequence[int]) -> None:
        """See Way.ask_to_leave."""
        del key
        self._scancel(["--batch", "--signal=TERM", *map(str, jobs)])

    def _scancel(self, words: Iterable[str]) -> None:
        ran = self._run("cancel", 'scancel "$@" </dev/null', [*words])
        if ran.code != 0 and not GONE.search(ran.err):
            raise silent("cancel", ran)
