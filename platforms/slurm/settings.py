"""The options of a Slurm pool, held against what may become words of command lines."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from platforms.base import BadOption, Misconfigured
from platforms.registry import read_count, reject_unknown
from platforms.targets.base import BadTargetOption
from platforms.targets.reach import Here, Reach, Ssh, checked_ssh, ssh_words

NAME = "slurm"
DOC = "docs/slurm.md"
# What sbatch is told as it stands, by option.
_ASKED = {
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "constraint": "--constraint",
    "exclude": "--exclude",
    "memory": "--mem",
}
_SSH = frozenset({"host", "port", "ssh_config", "known_hosts", "identity"})
_KNOWN = frozenset(_ASKED) | _SSH | {
    "command_seconds", "cpus", "folder", "gres", "nodes", "pending_max", "python",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:=&|()\[\]*+-]{0,250}", re.ASCII)
_PATH = re.compile(r"(~/|/)[^'\"\\%\s]+")
_HEARD_BYTES = 8 << 20  # of one answer: some ten thousand lines of squeue
_DROPPED = ("slurmrestd", "token_file")  # options of older versions
_SOCKET_BYTES = 80  # a path of a Unix socket is at most 108, of which ssh needs some for itself


@dataclass(frozen=True, slots=True)
class Settings:
    """What a pool asks of Slurm. ``folder`` lies on a file system that the cluster's nodes and its clients share."""

    reach: Reach
    folder: str
    owner: str  # tells our jobs from those of other pools and daemons of this account
    asked: tuple[str, ...]
    gres: str
    account: str  # "": the user's default
    python: str
    pending_max: int
    command_seconds: int
    slurm_conf: str
    nodes: int
    partition: str  # "": the cluster's default
    qos: str  # "": the account's default

    def words(self, devices: int) -> list[str]:
        """Return what sbatch is told of a session with so many devices, which its nodes share evenly."""
        asked = [f"--nodes={self.nodes}", f"--ntasks={self.nodes}", *self.asked]
        if self.nodes > 1:
            asked.append("--ntasks-per-node=1")
        return [*asked, f"--gres={self.gres}:{devices // self.nodes}"] if self.gres and devices else asked


def read_settings(options: Mapping[str, str], state_folder: Path, python: str) -> Settings:
    """Return the settings of a pool. Raises Misconfigured."""
    if dropped := [name for name in _DROPPED if name in options]:
        why = f"{' and '.join(dropped)}: Slurm is no longer asked through slurmrestd"
        remedy = "Remove them and go through the login node by ssh: host, folder, known_hosts; see docs/slurm.md"
        raise BadOption(NAME, "load", why, remedy)
    reject_unknown(NAME, options, _KNOWN | {"expected_device", "slurm_conf"})
    for name in (*_ASKED, "gres"):
        if name in options and not _WORD.fullmatch(options[name]):
            raise BadOption(NAME, "load", f"{name} = {options[name]!r} is not usable", f"See {DOC}")
    for name in ("folder", "python", "slurm_conf"):
        if not (_PATH.fullmatch(options.get(name, "/x")) or (name == "python" and _WORD.fullmatch(options[name]))):
            raise BadOption(NAME, "load", f"{name} = {options[name]!r} is not usable", "Give a path from / on")
    far = bool(options.get("host"))
    if not far and (given := sorted(_SSH & set(options))):
        raise BadOption(NAME, "load", f"{', '.join(given)} without host", "Name the login node: host = ...")
    if far and not {"folder", "known_hosts"} <= set(options):
        raise BadOption(NAME, "load", "with host, folder and known_hosts are needed as well", f"See {DOC}")
    folder = options.get("folder", str(state_folder / "cluster"))
    command_seconds = read_count(NAME, options, "command_seconds", 10) or 1
    asked = [f"{word}={options[name]}" for name, word in _ASKED.items() if options.get(name)]
    return Settings(
        _ssh(options, folder, command_seconds) if far else Here(NAME, _HEARD_BYTES),
        folder,
        hashlib.sha256(f"{options.get('host', '')}:{folder}".encode()).hexdigest()[:16],
        (*asked, f"--cpus-per-task={read_count(NAME, options, 'cpus', 1) or 1}"),
        options.get("gres", ""),
        options.get("account", ""),
        options.get("python", "python3" if far else python),
        read_count(NAME, options, "pending_max", 4),
        command_seconds,
        options.get("slurm_conf", ""),
        read_count(NAME, options, "nodes", 1) or 1,
        options.get("partition", ""),
        options.get("qos", ""),
    )


def _ssh(options: Mapping[str, str], folder: str, command_seconds: int) -> Ssh:
    """Return the way to the login node: one connection for all commands, which never asks and trusts no new host."""
    given = {name: text for name, text in options.items() if name in _SSH}
    try:
        checked_ssh(NAME, {**given, "path": folder})
    except BadTargetOption as error:
        raise BadOption(NAME, "load", str(error), f"See {DOC}") from None
    words = (
        *ssh_words(given, max(1, command_seconds - 2)),
        "-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", f"ControlPath={_sockets()}/%C",
    )  # fmt: skip
    identity = given.get("identity")
    return Ssh(NAME, given["host"], words, (lambda: Path(identity)) if identity else None, heard_bytes=_HEARD_BYTES)


def _sockets() -> Path:
    """Return the folder of the connections' sockets, which nobody else may use."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"uff-ssh-{os.geteuid()}"
    if len(str(folder)) > _SOCKET_BYTES - 40:
        folder = Path("/tmp") / folder.name  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise Misconfigured(NAME, "load", str(error), "Set XDG_RUNTIME_DIR to a folder of this user") from error
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise Misconfigured(NAME, "load", f"{folder} is not this user's alone", f"Remove {folder}")
    return folder
