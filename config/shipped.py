"""Where the files that ship with this package lie."""

from __future__ import annotations

from pathlib import Path

# Not importlib.resources: its import takes longer than reading every file here; installers unpack us.
_FOLDER = Path(__file__).parent


def shipped(name: str) -> Path:
    """Return the path of a shipped file such as ``models.toml`` or ``rehearsal.toml``."""
    return _FOLDER / name
