"""The options of a Slurm pool, validated because they become words of command lines."""

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from platforms.base import BadOption, Misconfigured
from platforms.options import Written, read_options
from platforms.targets.reach import PLAIN_PATH, Here, Reach, Ssh, SshOptions

NAME = "slurm"
DOC = "docs/slurm.md"
# Options passed unchanged to sbatch: setting -> option of sbatch.
_REQUESTS = {
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "constraint": "--constraint",
    "exclude": "--exclude",
    "memory": "--mem",
}
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:=&|()\[\]*+-]{0,250}", re.ASCII)
_Word = Annotated[str, Written(form=_WORD)]
_Count = Annotated[int, Written(least=1)]
_PATH = re.compile(r"(~/|/)[^'\"\\%\s]+")
_PROGRAM = re.compile(f"{_PATH.pattern}|{_WORD.pattern}")
_FROM_ROOT = "Give a path from / on"
_Path = Written(form=_PATH, remedy=_FROM_ROOT)
_HEARD_BYTES = 8 << 20  # limit of one answer: some ten thousand lines of squeue
_DROPPED = ("slurmrestd", "token_file")  # options of older versions
_SOCKET_BYTES = 80  # the path of a Unix socket has at most 108 bytes, and ssh needs some of them


@dataclass(frozen=True, kw_only=True)
class SlurmSettings(SshOptions):
    """The settings of a pool (docs/slurm.md). ``folder`` must be on a file system that nodes and clients share."""

    partition: _Word = ""  # the cluster's default
    account: _Word = ""  # the user's default
    qos: _Word = ""  # the account's default
    constraint: _Word = ""
    exclude: _Word = ""
    memory: _Word = ""
    gres: _Word = ""
    cpus: _Count = 1
    nodes: _Count = 1
    folder: Annotated[str, _Path] = ""
    python: Annotated[str, Written(form=_PROGRAM, remedy=_FROM_ROOT)] = ""
    slurm_conf: Annotated[str, _Path] = ""
    pending_max: int = 4
    command_seconds: _Count = 10

    @property
    def owner(self) -> str:
        """An ID of 16 hex digits, made of host and folder, that separates our jobs from those of other pools."""
        return hashlib.sha256(f"{self.host}:{self.folder}".encode()).hexdigest()[:16]

    @cached_property
    def reach(self) -> Reach:
        """The transport to the cluster: one ssh connection for all commands; no prompts, no unknown host keys."""
        if not self.host:
            return Here(NAME, _HEARD_BYTES)
        words = (
            *self.ssh_words(max(1, self.command_seconds - 2)),
            "-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", f"ControlPath={_sockets()}/%C",
        )  # fmt: skip
        identity = (lambda: Path(self.identity)) if self.identity else None
        return Ssh(NAME, self.host, words, identity, heard_bytes=_HEARD_BYTES)

    def words(self, devices: int) -> list[str]:
        """Return the options of sbatch for a session whose ``devices`` are spread evenly over its nodes."""
        words = [f"--nodes={self.nodes}", f"--ntasks={self.nodes}"]
        words += [f"{word}={text}" for name, word in _REQUESTS.items() if (text := getattr(self, name))]
        words.append(f"--cpus-per-task={self.cpus}")
        if self.nodes > 1:
            words.append("--ntasks-per-node=1")
        return [*words, f"--gres={self.gres}:{devices // self.nodes}"] if self.gres and devices else words


def read_settings(options: Mapping[str, str], state_folder: Path, python: str) -> SlurmSettings:
    """Return the settings of a pool. Raises BadOption."""
    if dropped := [name for name in _DROPPED if name in options]:
        why = f"{' and '.join(dropped)}: Slurm is no longer asked through slurmrestd"
        remedy = "Remove them and go through the login node by ssh: host, folder, known_hosts; see docs/slurm.md"
        raise BadOption(NAME, "load", why, remedy)
    read = read_options(NAME, SlurmSettings, options, BadOption)
    if not read.host and (ssh_options := sorted({each.name for each in fields(SshOptions)} & set(options))):
        raise BadOption(NAME, "load", f"{', '.join(ssh_options)} without host", "Name the login node: host = ...")
    if read.host and not {"folder", "known_hosts"} <= set(options):
        raise BadOption(NAME, "load", "with host, folder and known_hosts are needed as well", f"See {DOC}")
    if read.host and not PLAIN_PATH.fullmatch(read.folder):
        raise BadOption(NAME, "load", f"folder = {read.folder!r} is not usable", f"See {DOC}")
    folder = read.folder or str(state_folder / "cluster")
    return replace(read, folder=folder, python=read.python or ("python3" if read.host else python))


def folders(options: Mapping[str, str]) -> list[Path]:
    """Return the local path of the shared folder, if the option names one; it is not used over ssh."""
    folder = options.get("folder", "")
    return [Path(folder)] if folder.startswith("/") and "host" not in options else []


def _sockets() -> Path:
    """Return the folder for ssh's control sockets. Raises Misconfigured unless it is private to this user."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"uff-ssh-{os.geteuid()}"
    if len(str(folder)) > _SOCKET_BYTES - 40:
        folder = Path("/tmp") / folder.name  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise Misconfigured(NAME, "load", str(error), "Set XDG_RUNTIME_DIR to a folder of this user") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise Misconfigured(NAME, "load", f"{folder} is not this user's alone", f"Remove {folder}")
    return folder
