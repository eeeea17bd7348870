"""The few settings that commands for reading need, loaded without the slow import of the settings model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from config.layers import read_layers


@dataclass(frozen=True, slots=True)
class Paths:
    """The state folder, the database, the time zone for display, and all values as written."""

    state_dir: Path
    database_url: str
    zone: str
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)


def load_paths(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Paths:
    """Return the same values as :func:`config.load.load`, but validate only these. Raises ConfigError."""
    values = read_layers(path, environ).values
    match values:
        case {"state_dir": str(state_dir), "database_url": str(url), "zone": str(zone)} if url and _exists(zone):
            return Paths(Path(state_dir), url, zone, values)
    # Something is wrong; the settings model reports it.
    from config.load import load

    settings = load(path, environ)
    return Paths(settings.state_dir, settings.database_url, settings.zone, values)


def _exists(zone: str) -> bool:
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError):
        return False
    return True
