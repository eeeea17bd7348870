"""The target ``directory``: models in a folder of this machine, or of a disk that it mounts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from platforms.targets.base import TargetContext
from platforms.targets.folder import FolderTarget
from platforms.targets.options import COMMANDS, Options
from platforms.targets.reach import Here


def load(name: str, options: Mapping[str, str], context: TargetContext) -> FolderTarget:
    """Return the target. Option ``path`` is required; restart and health check are commands. Raises TargetError."""
    del context
    read = Options(name, options, COMMANDS | {"path"}, ("path",))
    path = Path(read["path"]).expanduser()
    if not path.is_absolute():
        raise read.wrong(f"path = {read['path']!r}", "Write it from / or ~/ on")
    return FolderTarget(name, Here(name), str(path), read.commands(), read.seconds("copy_time", "1h"))
