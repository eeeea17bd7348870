"""Ways to a folder that serves models: on this machine, or on another by ssh and rsync.

Both do two things, run a script of bash there and bring a folder there, so that all else is the same for both.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

from jobs.child_process import OF_A_PERSON, child_environment
from jobs.payload.whole_file import create_below
from platforms.options import Written
from platforms.targets.base import Release, TargetError, TargetUnreachable
from platforms.targets.release import SUMS

HEARD_BYTES = 1 << 16  # of a command's output; the rest is cut off
_LAST_WORDS_SECONDS = 2.0
_BROKEN = 255  # ssh's own exit code: not connected, or not any more
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
_CLEARING_SECONDS = 30.0
_NOT_WRITTEN = 11  # rsync's exit code; of a full disk the other side does not always get to say more
_READ_BYTES_PER_SECOND = 100 << 20  # of a slow disk
_FULL = "No space left on device"
PLAIN_PATH = re.compile(r"(?!(.*/)?\.\.(/|$))(~/|/)?[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*")
_LOCAL_PATH = re.compile(r"[^'\"\s]+")  # rsync splits the command that it reaches the other side by
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@:-]{0,250}")


# Commands, ended in time with all their children, and heard no longer than is useful.
@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended. ``code`` is None when it was ended because its time was over."""

    code: int | None
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The end of what it complained of, in one line of printable characters."""
        words = " ".join(self.err.split()) or " ".join(self.out.split())
        return "".join(character for character in words if character.isprintable())[-500:]

    @property
    def why(self) -> str:
        """Its last words, or with what it ended."""
        return self.last_words or f"it ended with {self.code}"


def run(
    words: Sequence[str],
    timeout_seconds: float,
    standard_input: bytes = b"",
    first_word_seconds: float | None = None,
    heard_bytes: int = HEARD_BYTES,
) -> Ran:
    """Run a command with ``given`` as its input, and return how it ended. Raises OSError when it cannot be started.

    At most ``heard_bytes`` are heard of each of its two outputs.
    One that puts out nothing within ``first_word_seconds`` is ended; only from its first word on do the others count.
    """
    process = subprocess.Popen(  # its end is waited for below, in bounded time
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=child_environment(OF_A_PERSON),
    )
    heard: dict[str, bytes] = {"out": b"", "err": b""}
    spoke = threading.Event()  # or will not, since it closed its output

    def listen(name: str, stream: IO[bytes]) -> None:
        with stream:
            heard[name] = stream.read(1)
            if name == "out":
                spoke.set()
            heard[name] += stream.read(heard_bytes - len(heard[name]))

    def say(stream: IO[bytes]) -> None:
        with suppress(OSError), stream:  # a command may end without hearing all
            stream.write(standard_input)

    threads = [
        threading.Thread(target=listen, args=("out", process.stdout), daemon=True),
        threading.Thread(target=listen, args=("err", process.stderr), daemon=True),
        threading.Thread(target=say, args=(process.stdin,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    code: int | None = None
    try:
        if first_word_seconds is None or spoke.wait(first_word_seconds):
            code = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        pass  # that it has no code tells it
    finally:
        # Children that outlive it would keep copying, or hold its pipes open.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for thread in threads:
        thread.join(_LAST_WORDS_SECONDS)
    return Ran(code, *(heard[name].decode("utf-8", "replace") for name in ("out", "err")))


@dataclass(frozen=True, slots=True)
class Here:
    """This machine. ``name`` is that of the target, for errors."""

    name: str
    heard_bytes: int = HEARD_BYTES

    def bash(self, script: bytes, words: Sequence[str], timeout_seconds: float) -> Ran:
        """Run a script with ``words`` as its arguments. Raises TargetError, TargetUnreachable."""
        try:
            result = run(["bash", "-s", "--", *words], timeout_seconds, script, heard_bytes=self.heard_bytes)
        except OSError as error:
            raise TargetError(self.name, "start bash", str(error), "Install bash and GNU coreutils") from error
        if result.code is None or result.code < 0:
            raise TargetUnreachable(self.name, "deploy", "it took too long or was ended", "It is tried again")
        return result

    def copy(self, release: Release, folder: str, timeout_seconds: float) -> None:
        """Make ``folder`` hold the files of a release alone, synced. A disk of this machine has no time-out."""
        del timeout_seconds
        root = Path(folder)
        try:
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            for name in (*release.files, SUMS):
                create_below(root, name, release.folder / name)
        except OSError as error:
            shutil.rmtree(root, ignore_errors=True)  # free the disk
            raise TargetError(self.name, "copy the release", str(error), f"Make room on the disk of {root}") from error


@dataclass(frozen=True, slots=True)
class Ssh:
    """Another machine, by the ssh and rsync of this one.

    ``options`` are the words between ``ssh`` and the host. ``identity`` finds the file of the key when it is needed.
    ``connect_seconds`` are what the options grant for connecting.
    """

    name: str
    host: str
    options: tuple[str, ...]
    identity: Callable[[], Path] | None = None
    stalled_seconds: int = 30  # in which not a byte moves
    connect_seconds: int = 10
    heard_bytes: int = HEARD_BYTES

    def bash(self, script: bytes, words: Sequence[str], timeout_seconds: float) -> Ran:
        """Run a script there; see Here.bash. After a broken connection it may go on: the outcome is unknown then."""
        command = shlex.join(["bash", "-s", "--", *words])
        result = self._run([*self._ssh(), "--", self.host, command], timeout_seconds, script)
        if result.code is None or result.code == _BROKEN or result.code < 0:
            raise self._broken("reach it", result)
        if result.code == 127:
            raise TargetError(self.name, "run bash there", result.last_words, f"Install bash on {self.host}")
        return result

    def copy(self, release: Release, folder: str, timeout_seconds: float) -> None:
        """Make ``folder`` there hold the files of a release and nothing else. What is there already is not sent.

        A partial copy is kept under another name, and the next try goes on from it.
        """
        # Each side reads whole files to know what is there already, and nothing moves meanwhile.
        size = sum(path.stat().st_size for path in release.folder.rglob("*"))
        still = self.stalled_seconds + size // _READ_BYTES_PER_SECOND
        words = [
            "rsync", "--recursive", "--times", "--checksum", "--delete", "--delay-updates", "--partial-dir=.part",
            "--fsync", "--mkpath", "--chmod=D755,F644", f"--timeout={still}", "--info=flist1",
            "-e", shlex.join(self._ssh()), "--", f"{release.folder}/", f"{self.host}:{folder}/",
        ]  # fmt: skip
        # rsync counts from its handshake on, and says that it makes its list of files when that is done.
        result = self._run(words, timeout_seconds, b"", self.connect_seconds + self.stalled_seconds)
        if result.code == 0:
            return
        if _FULL in result.err or result.code == _NOT_WRITTEN:
            # Whoever serves there needs the disk more than a part of a release does.
            self.bash(b'rm -rf -- "$1"', [folder], _CLEARING_SECONDS)
            why = "the disk there is full"
            if _FULL not in result.err:
                why = f"a file could not be written there. {result.last_words}".strip()
            remedy = f"Make room on the disk of {self.host}, then deploy again; the old version serves on"
            raise TargetError(self.name, "copy the release", why, remedy)
        if "unknown option" in result.err:
            remedy = "Install rsync 3.2.4 or newer on both sides"
            raise TargetError(self.name, "copy the release", result.last_words, remedy)
        if result.code == 127 or "command not found" in result.err:
            raise TargetError(self.name, "copy the release", "there is no rsync there", f"Install it on {self.host}")
        raise self._broken("copy the release", result)

    def _ssh(self) -> list[str]:
        key = ["-i", str(self.identity()), "-o", "IdentitiesOnly=yes"] if self.identity else []
        return ["ssh", *self.options, *key]

    def _run(
        self, words: Sequence[str], timeout_seconds: float, stdin: bytes, first_word_seconds: float | None = None
    ) -> Ran:
        try:
            return run(words, timeout_seconds, stdin, first_word_seconds, self.heard_bytes)
        except OSError as error:
            raise TargetError(self.name, f"start {words[0]}", str(error), f"Install {words[0]} here") from error

    def _broken(self, action: str, result: Ran) -> TargetError:
        last_words = result.last_words
        if "Host key verification failed" in result.err or "IDENTIFICATION HAS CHANGED" in result.err:
            remedy = f"Compare the key with its owner's, then put it into the known_hosts file: ssh-keyscan {self.host}"
            return TargetError(self.name, action, "the key of that host is not the known one", remedy)
        if "Permission denied" in result.err:
            return TargetError(self.name, action, last_words, f"Let {self.host} know the public key of this target")
        why = f"no answer in time. {last_words}" if result.code is None else result.why
        return TargetUnreachable(self.name, action, why, f"Check that {self.host} is on and answers ssh")


Reach = Here | Ssh
"""A way to the machine that serves: both run a script of bash there and bring a folder there."""


_Plain = Annotated[str, Written(form=_LOCAL_PATH)]


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """How a machine is reached; what becomes words of command lines is held against what these can be."""

    host: Annotated[str, Written(form=HOST)] = ""
    port: Annotated[str, Written(form=re.compile(r"[0-9]{1,5}"))] = ""
    ssh_config: _Plain = ""
    known_hosts: _Plain = ""
    identity: _Plain = ""

    def ssh_words(self, connect_seconds: int) -> tuple[str, ...]:
        """Return the words of ssh's command line that they come to. Never asks, never trusts a new host."""
        words: list[str] = []
        if self.ssh_config:
            words += ["-F", self.ssh_config]
        if self.known_hosts:
            words += ["-o", f"UserKnownHostsFile={self.known_hosts}"]
        if self.port:
            words += ["-p", self.port]
        words += ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"ConnectTimeout={connect_seconds}"]
        return (*words, *_ALIVE)
