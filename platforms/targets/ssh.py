"""The target ``ssh``: models in a folder of another machine, such as Griffith, that ssh and rsync reach."""

from __future__ import annotations

from collections.abc import Mapping

from platforms.targets.base import TargetContext
from platforms.targets.folder import FolderTarget
from platforms.targets.options import COMMANDS, Options
from platforms.targets.reach import Ssh, checked_ssh, ssh_words

REACH = frozenset({"host", "path", "port", "ssh_config", "known_hosts", "identity", "connect_time", "stall_time"})


def load(name: str, options: Mapping[str, str], context: TargetContext) -> FolderTarget:
    """Return the target; ``host`` and ``path`` are required. Raises TargetError."""
    read = Options(name, options, COMMANDS | REACH, ("host", "path"))
    return FolderTarget(
        name, reach(name, read, context), remote_path(read), read.commands(), read.seconds("copy_time", "1h")
    )


def reach(name: str, read: Options, context: TargetContext) -> Ssh:
    """Return the way there that options describe. Raises TargetError."""
    checked_ssh(name, read.given)
    identity, connect_seconds = read["identity"], read.seconds("connect_time", "10s", 300)
    return Ssh(
        name,
        read["host"],
        ssh_words(read.given, connect_seconds),
        (lambda: context.credential(identity)) if identity else None,
        read.seconds("stall_time", "30s", 3_600),
        connect_seconds,
    )


def remote_path(read: Options) -> str:
    """Return the path as the other side's shell begins: in the home folder."""
    return read["path"].removeprefix("~/")
