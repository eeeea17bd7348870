"""Way: how a pool speaks with Slurm, by its commands or by slurmrestd, and with its shared folder, by scripts alone.

Each script of bash runs within a time limit, on this machine or by ssh. What a broken connection or a silent controller
leaves is Unreachable: nobody knows then.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from jobs.payload.clock import Clock
from platforms.base import Misconfigured, Unreachable
from platforms.slurm.settings import DOC, NAME
from platforms.slurm.sightings import Evidence, evidence
from platforms.targets.base import TargetError, TargetUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from platforms.slurm.books import Association
    from platforms.slurm.qos import Qos
    from platforms.slurm.settings import Settings
    from platforms.slurm.sightings import Poll
    from platforms.targets.command import Ran

_NO_FOLDER, CLAIMED, _NO_FILE = 71, 73, 66
_PRELUDE = """\
export LC_ALL=C SLURM_TIME_FORMAT=%s
umask 077
root=$1 slurm_conf=$2
shift 2
case $root in "~/"*) root=$HOME/${root#"~/"} ;; esac
[ -z "$slurm_conf" ] || export SLURM_CONF=$slurm_conf
"""
ENTER = f'cd -- "$root" && [ -d .payload ] || exit {_NO_FOLDER}\nroot=$PWD\n'
LOOK = """
for key; do
    claim= ended= until=
    [ -f "$key/claim/who" ] && [ ! -L "$key/claim/who" ] && IFS= read -r -n 200 claim <"$key/claim/who"
    [ -f "$key/ended" ] && [ ! -L "$key/ended" ] && IFS= read -r -n 200 ended <"$key/ended"
    [ -f "$key/until" ] && [ ! -L "$key/until" ] && IFS= read -r -n 200 until <"$key/until"
    echo "$key|$claim|$ended|$until"
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
PREPARE = """
[ ! -e "$key/claim" ] || exit 73
mkdir -p "$key/work" && echo "$key" >"$key/order" || exit 1
base64 -d >"$key/launch.json" <<'END' || exit 1
%s
END
base64 -d >"$key/job.sh" <<'END' || exit 1
%s
END
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
_EXTEND = """
[ -d "$1" ] && [ ! -e "$1/claim" ] || exit 0
echo "$2" >"$1/.until" && mv -T "$1/.until" "$1/until"
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


class Books(NamedTuple):
    """What the accounts grant: ``account`` is the tightest limit of GPU minutes there, None for none."""

    account: Association | None
    qos: Qos

    @property
    def tightest(self) -> Association | None:
        """The limit that leaves least, of the account's and the QOS's."""
        found = [each for each in (self.account, self.qos.minutes) if each is not None]
        return min(found, key=lambda each: each.left, default=None)


class Way(ABC):
    """What a pool asks of Slurm and of its shared folder. All methods raise Unreachable and Misconfigured."""

    #: whether Slurm itself can hand the word to leave to a session's script alone
    signals: bool

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._placed: set[str] = set()
        self._clock = Clock()
        self._skew = 0  # seconds that the controller's clock is ahead of ours

    @abstractmethod
    def poll(self, keys: Sequence[str]) -> Poll:
        """Look at the queue, and at what the folders of ``keys`` tell."""

    @abstractmethod
    def books(self) -> Books:
        """Return what the accounts grant. Raises NoBooks where none can be read."""

    @abstractmethod
    def submit(self, key: str, words: Sequence[str], launch: str, script: str) -> int:
        """Submit a job, and return its id; 0 when the key is known already. Raises Refused when nothing started.

        ``words`` are options of sbatch.
        """

    @abstractmethod
    def cancel(self, jobs: Sequence[int]) -> None:
        """End jobs. What is over already stays so."""

    def accounted(self, key: str) -> list[tuple[int, int]]:
        """Return the first and last second of each time that a job of this name ran; nothing without accounting."""
        del key
        return []

    @abstractmethod
    def ask_to_leave(self, key: str, jobs: Sequence[int]) -> None:
        """Ask the script of a session, which these jobs run, to let it save and leave."""

    def make_folder(self) -> None:
        """Make the pool's folder, unless it is there."""
        self._well("make the folder", self._run("make the folder", 'mkdir -p -- "$root/.payload"', []))

    def place(self, digest: str, archive: Path) -> None:
        """Bring the payload into the pool's folder, unless it is there."""
        if digest not in self._placed:
            packed = base64.encodebytes(archive.read_bytes()).decode()
            self._well("place the payload", self._run("place the payload", _PLACE % packed, [digest]))
            self._placed.add(digest)

    def void(self, key: str) -> bool:
        """Take the claim of a session, so that no job ever can; return False when it is taken."""
        ran = self._run("give up a session", ENTER + _VOID, [key])
        if ran.code == CLAIMED:
            return False
        self._well("give up a session", ran)
        return True

    def extend(self, key: str, until: int) -> None:
        """Let a session that has not begun run until then, in real UTC seconds."""
        self._well("extend a session", self._run("extend a session", ENTER + _EXTEND, [key, str(until)]))

    def logs(self, key: str, offset: int, limit_bytes: int) -> bytes:
        """Return what a session printed from byte ``offset`` on; nothing when there is no such file."""
        ran = self._run("read the output", ENTER + _LOGS, [key, str(offset + 1), str(limit_bytes)])
        if ran.code == _NO_FILE:
            return b""
        self._well("read the output", ran)
        try:
            return base64.b64decode(ran.out, validate=True)
        except binascii.Error as error:
            raise Unreachable(NAME, "read the output", "it broke off", "Ask again") from error

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the folders of sessions."""
        self._well("clean up", self._run("clean up", ENTER + _REMOVE, keys))

    def ask(self, action: str, script: str) -> str:
        """Return what a script prints, for checks."""
        ran = self._run(action, script, [])
        if "configuration source" in ran.err or "configuration source" in ran.out:
            why, remedy = "there is no slurm.conf here", "Set slurm_conf, or host to go through a login node"
            raise Misconfigured(NAME, action, why, remedy)
        if ran.code != 0:
            raise Unreachable(NAME, action, why_of(ran), "Try this command there by hand")
        return ran.out

    def _told(self, folders: str, keys: Sequence[str]) -> dict[str, Evidence]:
        """Return by key what a look at the folders printed."""
        found = dict(map(evidence, filter(None, folders.split("\n"))))
        if set(found) != set(keys):
            raise Unreachable(NAME, "look at the queue", "its answer lacks sessions", "It is asked again")
        return found

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
            raise silent(action, ran)


def packed(*texts: str) -> tuple[str, ...]:
    """Return texts as a script can carry them."""
    return tuple(base64.encodebytes(text.encode()).decode().strip() for text in texts)


def silent(action: str, ran: Ran) -> Unreachable:
    """Return that nobody knows."""
    return Unreachable(NAME, action, why_of(ran), "Nothing is ended meanwhile")


def why_of(ran: Ran) -> str:
    """Return what a script that failed complained of."""
    return ran.last_words or f"it ended with {ran.code}"
