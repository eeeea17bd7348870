"""The options of a Slurm pool, held against what may become words of command lines."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from platforms.base import BadOption, Misconfigured
from platforms.options import Written, read_options
from platforms.targets.base import BadTargetOption
from platforms.targets.reach import Here, Reach, Ssh, checked_ssh, ssh_words

NAME = "slurm"
DOC = "docs/slurm.md"
# What sbatch gets unchanged, by option.
_REQUESTS = {
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "constraint": "--constraint",
    "exclude": "--exclude",
    "memory": "--mem",
}
_SSH = frozenset({"host", "port", "ssh_config", "known_hosts", "identity"})
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:=&|()\[\]*+-]{0,250}", re.ASCII)
_Word = Annotated[str, Written(form=_WORD, error=BadOption)]
_Count = Annotated[int, Written(least=1)]
_PATH = re.compile(r"(~/|/)[^'\"\\%\s]+")
_HEARD_BYTES = 8 << 20  # of one answer: some ten thousand lines of squeue
_DROPPED = ("slurmrestd", "token_file")  # options of older versions
_SOCKET_BYTES = 80  # a path of a Unix socket is at most 108, of which ssh needs some for itself


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What a pool may set; docs/slurm.md explains each."""

    partition: _Word = ""  # the cluster's default
    account: _Word = ""  # the user's default
    qos: _Word = ""  # the account's default
    constraint: _Word = ""
    exclude: _Word = ""
    memory: _Word = ""
    gres: _Word = ""
    cpus: _Count = 1
    nodes: _Count = 1
    folder: str = ""
    python: str = ""
    slurm_conf: str = ""
    pending_max: int = 4
    command_seconds: _Count = 10
    host: str = ""
    port: str = ""
    ssh_config: str = ""
    known_hosts: str = ""
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings(SlurmOptions):
    """What a pool asks of Slurm. ``folder`` lies on a file system that the cluster's nodes and its clients share."""

    reach: Reach
    owner: str  # tells our jobs from those of other pools and daemons of this account

    def words(self, devices: int) -> list[str]:
        """Return what sbatch gets of a session with so many devices, which its nodes share evenly."""
        words = [f"--nodes={self.nodes}", f"--ntasks={self.nodes}"]
        words += [f"{word}={text}" for name, word in _REQUESTS.items() if (text := getattr(self, name))]
        words.append(f"--cpus-per-task={self.cpus}")
        if self.nodes > 1:
            words.append("--ntasks-per-node=1")
        return [*words, f"--gres={self.gres}:{devices // self.nodes}"] if self.gres and devices else words


def read_settings(options: Mapping[str, str], state_folder: Path, python: str) -> SlurmSettings:
    """Return the settings of a pool. Raises Misconfigured."""
    if dropped := [name for name in _DROPPED if name in options]:
        why = f"{' and '.join(dropped)}: Slurm is no longer asked through slurmrestd"
        remedy = "Remove them and go through the login node by ssh: host, folder, known_hosts; see docs/slurm.md"
        raise BadOption(NAME, "load", why, remedy)
    option_values = read_options(NAME, SlurmOptions, options)
    for name in ("folder", "python", "slurm_conf"):
        if not (_PATH.fullmatch(options.get(name, "/x")) or (name == "python" and _WORD.fullmatch(options[name]))):
            raise BadOption(NAME, "load", f"{name} = {options[name]!r} is not usable", "Give a path from / on")
    far = bool(options.get("host"))
    if not far and (ssh_options := sorted(_SSH & set(options))):
        raise BadOption(NAME, "load", f"{', '.join(ssh_options)} without host", "Name the login node: host = ...")
    if far and not {"folder", "known_hosts"} <= set(options):
        raise BadOption(NAME, "load", "with host, folder and known_hosts are needed as well", f"See {DOC}")
    folder = options.get("folder", str(state_folder / "cluster"))
    values: dict[str, Any] = {
        **asdict(option_values),
        "folder": folder,
        "python": options.get("python", "python3" if far else python),
        "reach": _ssh(options, folder, option_values.command_seconds) if far else Here(NAME, _HEARD_BYTES),
        "owner": hashlib.sha256(f"{option_values.host}:{folder}".encode()).hexdigest()[:16],
    }
    return SlurmSettings(**values)


def _ssh(options: Mapping[str, str], folder: str, command_seconds: int) -> Ssh:
    """Return the way to the login node: one connection for all commands, which never asks and trusts no new host."""
    values = {name: text for name, text in options.items() if name in _SSH}
    try:
        checked_ssh(NAME, {**values, "path": folder})
    except BadTargetOption as error:
        raise BadOption(NAME, "load", str(error), f"See {DOC}") from None
    words = (
        *ssh_words(values, max(1, command_seconds - 2)),
        "-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", f"ControlPath={_sockets()}/%C",
    )  # fmt: skip
    identity = values.get("identity")
    return Ssh(NAME, values["host"], words, (lambda: Path(identity)) if identity else None, heard_bytes=_HEARD_BYTES)


def _sockets() -> Path:
    """Return the folder of the connections' sockets, which no other user may use."""
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
