"""The status line: the daemon writes it after each cycle, and shell prompts read it within milliseconds.

The file contains the line and a line break, so that ``cat`` can show it. This module must be fast to import.
"""

import os

FILE = "status.line"
SYSTEM_FOLDER = "/run/uff-scheduler"  # of the service; everybody may read it, and the line has no names


def folders(state_dir: str, runtime_directory: str) -> list[str]:
    """Return the folders to write the line to: the state folder, and the service manager's runtime folder if any."""
    return [state_dir, *filter(None, runtime_directory.split(":")[:1])]


def write(folder: str, text: str) -> None:
    """Replace the line in a folder atomically. Raises OSError."""
    path = f"{folder}/{FILE}"
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # whatever the umask: everyone with access to the folder may read the line
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)
    os.replace(f"{path}.new", path)  # noqa: PTH105 - pathlib costs the reader of this file more than its whole work


def remove(folder: str) -> None:
    """Remove the line, because the state is unknown. If that fails, readers notice that no daemon runs."""
    try:
        os.remove(f"{folder}/{FILE}")  # noqa: PTH107 - as above
    except OSError:
        return


def read(folder: str) -> str | None:
    """Return the line in a folder, None if there is none."""
    try:
        with open(f"{folder}/{FILE}", encoding="utf-8") as stream:  # noqa: PTH123 - as above
            return stream.readline().rstrip("\n")
    except FileNotFoundError:
        return None
