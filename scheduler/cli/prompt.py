"""`schedctl prompt`: print the daemon's cached status line, for shell prompts.

A shell runs this for every prompt. To start fast, it imports almost nothing and reads no database.
"""

import errno
import os
import sys

from scheduler import line

_PIPE = "wake"
_SETTINGS_MAX = 1 << 16  # characters that are searched for a plain state_dir


def show_line(config: str | None) -> int:
    """Write the cached line, with a mark if the daemon does not run; nothing without a line. Return exit code 0."""
    for folder, has_pipe in _folders(config):
        try:
            text = line.read(folder)
        except OSError:
            continue  # not readable by this user; try the next folder
        if text is not None:
            sys.stdout.write(f"{text}{' (no daemon)' if has_pipe and not _has_listener(folder) else ''}\n")
            break
    return 0


def _folders(config: str | None) -> list[tuple[str, bool]]:
    """Return the folders that may hold the line, in search order, each with whether it also has the daemon's pipe.

    With an explicit settings file or state folder, only the state folder is searched; otherwise also the folders of
    the services. Those have no pipe, because the service manager removes the line when the daemon stops.
    """
    named = os.environ.get("SCHEDCTL_STATE_DIR")
    config = config or os.environ.get("SCHEDCTL_CONFIG")
    if named or config:
        return [(named or _plain_state_dir(str(config)) or _parsed_state_dir(str(config)), True)]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [(f"{runtime}/uff-scheduler", False)] if runtime else []
    home = os.path.expanduser("~/.local/state/uff-scheduler")  # noqa: PTH111 - costs less
    return [*own, (line.SYSTEM_FOLDER, False), (home, True)]


def _plain_state_dir(config: str) -> str | None:
    """Return the state folder if the settings file sets it as a plain absolute path before any table, else None."""
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


def _parsed_state_dir(config: str) -> str:
    """Return the state folder from the parsed settings."""
    from pathlib import Path

    from config.paths import load_paths

    return str(load_paths(Path(config)).state_dir)


def _has_listener(folder: str) -> bool:
    """Return whether a daemon listens on the pipe; True if this user has no permission to find out."""
    try:
        os.close(os.open(f"{folder}/{_PIPE}", os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in {errno.ENXIO, errno.ENOENT}
    return True


def parse(words: list[str]) -> tuple[str | None] | None:
    """Return (settings file or None,) for a plain ``prompt``; None for every other command line."""
    match words:
        case ["prompt"]:
            return (None,)
        case ["--config", file, "prompt"] | ["prompt", "--config", file]:
            return (file,)
    return None
