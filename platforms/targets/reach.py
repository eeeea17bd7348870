"""Transports to a machine that serves models: this machine, or another one by ssh and rsync.

Both transports run a bash script on the machine and copy a folder to it, so callers can use either.
"""

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
from importlib import resources
from pathlib import Path
from typing import IO, Annotated

from jobs.child_process import OF_A_PERSON, child_environment
from jobs.payload.whole_file import create_below
from platforms.options import Written
from platforms.targets.base import Release, TargetError, TargetUnreachable
from platforms.targets.release import SUMS

HEARD_BYTES = 1 << 16  # at most so many bytes of each output of a command are kept
_LAST_WORDS_SECONDS = 2.0  # how long to wait for the output of a command that has ended
_BROKEN = 255  # ssh's own exit code: it could not connect or lost the connection
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
_CLEARING_SECONDS = 30.0
_NOT_WRITTEN = 11  # rsync's exit code for a file that it could not write, possibly because the disk is full
_READ_BYTES_PER_SECOND = 100 << 20  # the rate of a slow disk
_FULL = "No space left on device"
PLAIN_PATH = re.compile(r"(?!(.*/)?\.\.(/|$))(~/|/)?[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*")
_LOCAL_PATH = re.compile(r"[^'\"\s]+")  # no quotes or spaces: rsync splits its ``-e`` command into words
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@:-]{0,250}")


def shell_script(package: str, name: str, **values: object) -> str:
    """Return a shell script that is shipped with a package, after lines that set the variables ``values``."""
    lines = [f"{variable}={shlex.quote(str(value))}" for variable, value in values.items()]
    return "\n".join([*lines, resources.files(package).joinpath(name).read_text(encoding="utf-8")])


# Running commands: each has a timeout, after which its whole process group is killed, and limited output.
@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command. ``code`` is None if the command was killed at its timeout."""

    code: int | None
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The end of its error output, or else of its output: one line of printable characters, at most 500."""
        words = " ".join(self.err.split()) or " ".join(self.out.split())
        return "".join(character for character in words if character.isprintable())[-500:]

    @property
    def why(self) -> str:
        """Its last words, or else its exit code."""
        return self.last_words or f"it ended with {self.code}"


def run(
    words: Sequence[str],
    timeout_seconds: float,
    standard_input: bytes = b"",
    first_word_seconds: float | None = None,
    heard_bytes: int = HEARD_BYTES,
) -> Ran:
    """Run a command with ``standard_input`` and return its result. Raises OSError if it cannot be started.

    At most ``heard_bytes`` of each of its two outputs are kept. With ``first_word_seconds``, a command that prints
    nothing within that time is killed, and ``timeout_seconds`` counts from its first byte of output.
    """
    process = subprocess.Popen(  # waited for below, with a timeout
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=child_environment(OF_A_PERSON),
    )
    heard: dict[str, bytes] = {"out": b"", "err": b""}
    spoke = threading.Event()  # also set when it closed its output without a byte

    def listen(name: str, stream: IO[bytes]) -> None:
        with stream:
            heard[name] = stream.read(1)
            if name == "out":
                spoke.set()
            heard[name] += stream.read(heard_bytes - len(heard[name]))

    def say(stream: IO[bytes]) -> None:
        with suppress(OSError), stream:  # a command may exit before it read all its input
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
        pass  # reported by the exit code None
    finally:
        # Children that outlive the command would continue to copy, or keep its pipes open.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for thread in threads:
        thread.join(_LAST_WORDS_SECONDS)
    return Ran(code, *(heard[name].decode("utf-8", "replace") for name in ("out", "err")))


@dataclass(frozen=True, slots=True)
class Here:
    """The transport to this machine. ``name`` is the target's name, for errors."""

    name: str
    heard_bytes: int = HEARD_BYTES

    def bash(self, script: bytes, words: Sequence[str], timeout_seconds: float) -> Ran:
        """Run a script with the arguments ``words`` and return its result. Raises TargetError, TargetUnreachable."""
        try:
            result = run(["bash", "-s", "--", *words], timeout_seconds, script, heard_bytes=self.heard_bytes)
        except OSError as error:
            raise TargetError(self.name, "start bash", str(error), "Install bash and GNU coreutils") from error
        if result.code is None or result.code < 0:
            raise TargetUnreachable(self.name, "deploy", "it took too long or was ended", "It is tried again")
        return result

    def copy(self, release: Release, folder: str, timeout_seconds: float) -> None:
        """Replace ``folder`` by the files of a release, synced; a local copy has no timeout. Raises TargetError."""
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
    """The transport to another machine, by the ssh and rsync of this one.

    ``options`` are the words between ``ssh`` and the host. ``identity`` returns the path of the private key; it is
    called for each connection. ``connect_seconds`` is the ConnectTimeout that ``options`` set.
    """

    name: str
    host: str
    options: tuple[str, ...]
    identity: Callable[[], Path] | None = None
    stalled_seconds: int = 30  # longest time without any data before rsync gives up
    connect_seconds: int = 10
    heard_bytes: int = HEARD_BYTES

    def bash(self, script: bytes, words: Sequence[str], timeout_seconds: float) -> Ran:
        """Run a script there; see Here.bash. After a broken connection its outcome is unknown, as it may still run."""
        command = shlex.join(["bash", "-s", "--", *words])
        result = self._run([*self._ssh(), "--", self.host, command], timeout_seconds, script)
        if result.code is None or result.code == _BROKEN or result.code < 0:
            raise self._connection_error("reach it", result)
        if result.code == 127:
            raise TargetError(self.name, "run bash there", result.last_words, f"Install bash on {self.host}")
        return result

    def copy(self, release: Release, folder: str, timeout_seconds: float) -> None:
        """Make ``folder`` there contain exactly the files of a release, without sending files that it has already.

        A partial copy is kept under another name, and the next attempt resumes it. Raises TargetError,
        TargetUnreachable.
        """
        # With --checksum each side first reads whole files; until then no data arrives, which must not time out.
        size = sum(path.stat().st_size for path in release.folder.rglob("*"))
        still = self.stalled_seconds + size // _READ_BYTES_PER_SECOND
        words = [
            "rsync", "--recursive", "--times", "--checksum", "--delete", "--delay-updates", "--partial-dir=.part",
            "--fsync", "--mkpath", "--chmod=D755,F644", f"--timeout={still}", "--info=flist1",
            "-e", shlex.join(self._ssh()), "--", f"{release.folder}/", f"{self.host}:{folder}/",
        ]  # fmt: skip
        # rsync's --timeout counts from its handshake on; flist1 prints a line right after the handshake.
        result = self._run(words, timeout_seconds, b"", self.connect_seconds + self.stalled_seconds)
        if result.code == 0:
            return
        if _FULL in result.err or result.code == _NOT_WRITTEN:
            # Remove the partial release, because the server there needs the space on its disk.
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
        raise self._connection_error("copy the release", result)

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

    def _connection_error(self, action: str, result: Ran) -> TargetError:
        last_words = result.last_words
        if "Host key verification failed" in result.err or "IDENTIFICATION HAS CHANGED" in result.err:
            remedy = f"Compare the key with its owner's, then put it into the known_hosts file: ssh-keyscan {self.host}"
            return TargetError(self.name, action, "the key of that host is not the known one", remedy)
        if "Permission denied" in result.err:
            return TargetError(self.name, action, last_words, f"Let {self.host} know the public key of this target")
        why = f"no answer in time. {last_words}" if result.code is None else result.why
        return TargetUnreachable(self.name, action, why, f"Check that {self.host} is on and answers ssh")


Reach = Here | Ssh
"""A transport to the machine that serves: runs a bash script there and copies a folder there."""


_Plain = Annotated[str, Written(form=_LOCAL_PATH)]


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """The options of an ssh connection. They become words of command lines, so each must match a strict pattern."""

    host: Annotated[str, Written(form=HOST)] = ""
    port: Annotated[str, Written(form=re.compile(r"[0-9]{1,5}"))] = ""
    ssh_config: _Plain = ""
    known_hosts: _Plain = ""
    identity: _Plain = ""

    def ssh_words(self, connect_seconds: int) -> tuple[str, ...]:
        """Return the options as words of ssh's command line; ssh never prompts, never accepts an unknown host key."""
        words: list[str] = []
        if self.ssh_config:
            words += ["-F", self.ssh_config]
        if self.known_hosts:
            words += ["-o", f"UserKnownHostsFile={self.known_hosts}"]
        if self.port:
            words += ["-p", self.port]
        words += ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"ConnectTimeout={connect_seconds}"]
        return (*words, *_ALIVE)
