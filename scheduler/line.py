"""Line: the state of things in one line, written by the daemon after each cycle, read by prompts in no time.

The file holds the line and its line break, so that ``cat`` shows it. Only what starts fast may be imported here.
"""

from __future__ import annotations

import os

FILE = "status.line"
SYSTEM_FOLDER = "/run/uff-scheduler"  # the service's, readable by everybody; the line holds no names


def folders(state_dir: str, runtime_directory: str) -> list[str]:
    """Return where the line is kept: in the state folder, and where the service manager gave us one for such things."""
    return [state_dir, *filter(None, runtime_directory.split(":")[:1])]


def write(folder: str, text: str) -> None:
    """Replace the line of a folder as a whole, so that no reader sees half of one. Raises OSError."""
    path = f"{folder}/{FILE}"
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # whatever the mask: who may enter the folder may read the line
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)
    os.replace(f"{path}.new", path)  # noqa: PTH105 - pathlib costs the reader of this file more than its whole work


def remove(folder: str) -> None:
    """Take the line away: nothing is known any more. Where it cannot be removed, the reader finds no daemon."""
    try:
        os.remove(f"{folder}/{FILE}")  # noqa: PTH107 - as above
    except OSError:
        return


def read(folder: str) -> str | None:
    """Return the line of a folder, None when there is none."""
    try:
        with open(f"{folder}/{FILE}", encoding="utf-8") as stream:  # noqa: PTH123 - as above
            return stream.readline().rstrip("\n")
    except FileNotFoundError:
        return None
