"""Use `schedctl` from another machine: run the command line on the daemon's host, through this machine's ssh client."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from config.layers import own_file
from scheduler.cli.shell.exits import PlatformFault, UsageFault

_ADDRESS = re.compile(r"ssh://((?:[\w.-]+@)?[A-Za-z0-9][\w.-]*)(?::([0-9]{1,5}))?(/[\w./-]+)?", re.ASCII)
_SETTING = re.compile(r'^remote *= *"([^"]*)"', re.MULTILINE)
_HERE = (["certify"], ["data"], ["init"], ["rehearse"])  # commands about files or settings of this machine
_COPYING = (["submit"], ["queue", "add"], ["queue", "update"], ["plan", "preview"])  # commands that read files of a job
_FOLDERS = ".cache/schedctl"  # where copies go, relative to the user's home folder on the host
_COPY = """set -e; umask 077; mkdir -p "${0%/*}"; new=$(mktemp -d "$0.XXXXXX"); trap 'rm -rf "$new"' EXIT
tar -xf - -C "$new"; rm -rf "$0"; mv "$new" "$0"
"""
_UNREACHED, _NO_PROGRAM = 255, 127  # exit codes: ssh did not reach the host; the shell there found no such program


class Host(NamedTuple):
    """A host and the path of ``schedctl`` on it; an empty ``port`` leaves the port to the settings of ssh."""

    name: str
    port: str
    program: str

    def ssh(self, *words: str, terminal: bool = False) -> list[str]:
        """Return the ssh command line that runs ``words`` on the host; ``terminal`` gives them a terminal."""
        port = ["-p", self.port] if self.port else []
        return ["ssh", *port, *(["-t"] if terminal else []), self.name, shlex.join(words)]


def host_for(words: Sequence[str]) -> Host | None:
    """Return the host on which a command line runs, from SCHEDCTL_REMOTE or ``remote`` in the user's settings file.

    Return None if it runs on this machine, as help always does. Raises UsageFault for an invalid address.
    """
    address = os.environ.get("SCHEDCTL_REMOTE")
    if address is None:
        try:
            text = own_file(None, os.environ).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        setting = _SETTING.search(text.partition("\n[")[0])
        address = setting[1] if setting else ""
    ours = {word.partition("=")[0] for word in _before_arguments(words)}
    if not address or _command(words)[:1] in ([], *_HERE) or ours & {"-h", "--help", "--config"}:
        return None
    if not (parts := _ADDRESS.fullmatch(address)):
        why = "it is the address of a host that ssh reaches"
        raise UsageFault(f"remote = {address} cannot be read", why, "Write ssh://USER@HOST or ssh://HOST/PATH/schedctl")
    return Host(parts[1], parts[2] or "", parts[3] or "schedctl")


def _before_arguments(words: Sequence[str]) -> list[str]:
    """Return the words before ``--``; those after it are arguments of a job's script."""
    return list(words[: words.index("--")] if "--" in words else words)


def _command(words: Sequence[str]) -> list[str]:
    """Return the words of a command line that are not options."""
    return [word for word in _before_arguments(words) if not word.startswith("-")]


def run_there(host: Host, words: Sequence[str]) -> int:
    """Run a command line on a host, and return its exit code.

    If the command reads files of a job, the folders of these files are first copied to the host, and the command runs
    in the first copy. Raises PlatformFault, CodeError, UsageFault.
    """
    import subprocess  # imported here, so that commands without a host start faster

    written, folders = _with_copies(host, words)
    command = ["sh", "-c", 'cd "$0" && exec "$@"', folders[0]] if folders else []
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    code = subprocess.run(host.ssh(*command, host.program, *written, terminal=terminal), check=False).returncode
    if code == _NO_PROGRAM:
        why = f"{host.program} was not found on {host.name}"
        raise PlatformFault("the command did not run", why, f"Write its path: ssh://{host.name}/opt/uff/bin/schedctl")
    _require_reached(host, code)
    return code


def _require_reached(host: Host, code: int) -> None:
    if code == _UNREACHED:
        why = "ssh failed, and says why above"
        raise PlatformFault(f"{host.name} was not reached", why, f"Try: {shlex.join(host.ssh('true'))}")


def _with_copies(host: Host, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Copy the folders of the files that a command line names to the host.

    Return the command line with paths relative to the first copy, and all copies. Files below the current folder are
    copied with the current folder, as ``submit`` uploads them; any other file with the folder that holds it.
    """
    written, here = list(words), Path.cwd()
    copies: dict[Path, str] = {}
    if not any(_command(words)[: len(command)] == command for command in _COPYING):
        return written, []
    for at, (before, word) in enumerate(pairwise(["", *_before_arguments(words)])):
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "", word)
        path = Path(value).expanduser().absolute()
        if option == "--input" and value:
            _refuse_input(host, value)
        elif value and (path.is_file() or (path.is_dir() and option == "--code")):
            folder = here if path.is_relative_to(here) else path if path.is_dir() else path.parent
            if folder not in copies:
                copies[folder] = _copy(host, folder)
            there = f"../{copies[folder].rpartition('/')[2]}/{path.relative_to(folder)}"
            written[at] = f"{option}={there}" if equals else there
    return written, list(copies.values())


def _refuse_input(host: Host, value: str) -> None:
    """Raise UsageFault if an input is on this machine: it may be too large for a command to send."""
    path = Path(value.rpartition("=")[2]).expanduser().absolute()
    if path.exists():
        why = f"inputs are read on {host.name}, and it is on this machine"
        raise UsageFault(
            f"--input {value}", why, f"Copy it, and name it there: rsync -a {shlex.quote(str(path))} {host.name}:"
        )


def _copy(host: Host, folder: Path) -> str:
    """Copy those files of a folder that a job's code would contain; return the copy's path below the host's home."""
    import hashlib
    import subprocess
    import tarfile
    from socket import gethostname

    from jobs.code.pack import names
    from jobs.spec import Code

    wanted = sorted(names(Code(str(folder))))
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    copy = f"{_FOLDERS}/{gethostname()}/{digest}-{folder.name}"
    with subprocess.Popen(host.ssh("sh", "-c", _COPY, copy), stdin=subprocess.PIPE) as ssh:
        assert ssh.stdin is not None  # noqa: S101 - it is a pipe
        # If ssh ends early, its exit code tells why; the broken pipe adds nothing.
        with suppress(BrokenPipeError), tarfile.open(fileobj=ssh.stdin, mode="w|") as archive:
            for name in wanted:
                archive.add(folder / name, name, recursive=False)
    _require_reached(host, ssh.returncode)
    if ssh.returncode:
        why = "tar failed there, and says why above"
        raise PlatformFault(f"{folder} was not copied to {host.name}", why, "Free room there, and try again")
    return copy
