"""`schedctl prompt`: the daemon's cached line, for shell prompts. Answered before anything else is loaded.

Neither settings nor database are read where that can be helped: asking must cost what starting Python costs.
"""

from __future__ import annotations

import errno
import os
import sys

from scheduler import line

_PIPE = "wake"
_SETTINGS_MAX = 1 << 16  # characters in which the plainest way has to come


def show_line(config: str | None) -> int:
    """Write the line of the settings' daemon; one that does not run is shown. No output if nothing is known."""
    for folder, has_pipe in _folders(config):
        try:
            text = line.read(folder)
        except OSError:
            continue  # not for this user to read; another folder may be
        if text is not None:
            sys.stdout.write(f"{text}{' (no daemon)' if has_pipe and not _answers(folder) else ''}\n")
            break
    return 0


def _folders(config: str | None) -> list[tuple[str, bool]]:
    """Return where the line may lie, and whether the daemon's pipe lies beside it.

    With settings of one's own that is their state folder, else also the services'. From those the service manager
    removes the line together with the daemon.
    """
    named = os.environ.get("SCHEDCTL_STATE_DIR")
    config = config or os.environ.get("SCHEDCTL_CONFIG")
    if named or config:
        return [(named or _quickly(str(config)) or _slowly(str(config)), True)]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [(f"{runtime}/uff-scheduler", False)] if runtime else []
    home = os.path.expanduser("~/.local/state/uff-scheduler")  # noqa: PTH111 - costs less
    return [*own, (line.SYSTEM_FOLDER, False), (home, True)]


def _quickly(config: str) -> str | None:
    """Return the state folder if the file names it in the plainest way, before any table; None: read it properly."""
    try:
        plain_file = os.open(os.path.expanduser(config), os.O_RDONLY | os.O_NONBLOCK)  # noqa: PTH111 - costs less
        with open(plain_file, encoding="utf-8") as stream:  # noqa: PTH123 - likewise
            for words in stream.read(_SETTINGS_MAX).splitlines():
                if words.startswith("["):
                    return None
                name, is_set, value = words.partition("=")
                if is_set and name.strip() == "state_dir":
                    value = value.strip()
                    plain = len(value) > 2 and value[0] == value[-1] == '"' and not set(value[1:-1]) & set('"\\')
                    return value[1:-1] if plain and value[1] == "/" else None
    except (OSError, UnicodeDecodeError):
        return None
    return None


def _slowly(config: str) -> str:
    from pathlib import Path

    from config.paths import load_paths

    return str(load_paths(Path(config)).state_dir)


def _answers(folder: str) -> bool:
    """Return whether a daemon listens, as far as this user may know."""
    try:
        os.close(os.open(f"{folder}/{_PIPE}", os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in {errno.ENXIO, errno.ENOENT}
    return True


def parse(words: list[str]) -> tuple[str | None] | None:
    """Return the settings file named in a plain ``prompt``, which may be none; None for every other command line."""
    match words:
        case ["prompt"]:
            return (None,)
        case ["--config", file, "prompt"] | ["prompt", "--config", file]:
            return (file,)
    return None
