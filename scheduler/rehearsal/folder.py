"""The folder of a rehearsal: its own settings, database, artifacts, sessions and reports."""

import math
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.payload.whole_file import write_whole
from jobs.problem import Refusal

_MARKER = "rehearsal.toml"

# Margins in real seconds: one machine needs them at any speed of the scaled clock.
_CYCLE_WALL = 0.2
_HEARTBEAT_WALL = 0.25
_GRACE_WALL = 0.6
_STOP_MARGIN_WALL = 0.25
_OVERRUN_WALL = 0.1
_SETUP_WALL = 0.35
_VISIBILITY_WALL = 2.0


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rehearsal's folder and clock: ``epoch`` is the scheduled second of its start, ``origin`` the real one."""

    folder: Path
    epoch: int
    hours: float
    scale: float
    origin: float

    @property
    def end(self) -> int:
        """The scheduled second at which the daemon stops launching."""
        return self.epoch + round(self.hours * 3_600)

    @property
    def config(self) -> Path:
        """The settings file; every command reads the rehearsal with ``--config`` and this file."""
        return self.folder / _MARKER

    @property
    def state(self) -> Path:
        """The state folder of the daemon."""
        return self.folder / "state"

    @property
    def log(self) -> Path:
        """The log of the daemon."""
        return self.folder / "daemon.log"


def clear(folder: Path) -> None:
    """Prepare ``folder`` for a new rehearsal: delete an earlier rehearsal. Raises Refusal if it has other files."""
    if folder.exists() and not folder.is_dir():
        raise Refusal(f"{folder} is not a folder", remedy="Name another with --out")
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARKER).exists():
            raise Refusal(f"{folder} is not empty and holds no rehearsal", remedy="Name another folder with --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def reopen(folder: Path) -> Rehearsal:
    """Return the existing rehearsal of ``folder``. Raises Refusal if there is none or its settings are damaged."""
    try:
        values = tomllib.loads((folder / _MARKER).read_text())
        clock, daemon = values["clock"], values["daemon"]
        epoch = int(clock["epoch"])
        hours = (int(daemon["stop_at"]) - epoch) / 3_600
        return Rehearsal(folder, epoch, hours, float(clock["scale"]), float(clock["origin"]))
    except FileNotFoundError:
        raise Refusal(f"{folder} holds no rehearsal to resume", remedy="Start one without --resume") from None
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(f"{folder / _MARKER} is damaged ({error})", remedy="Start again without --resume") from None


def settings_for(rehearsal: Rehearsal, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings document of a rehearsal: ``base`` with its own paths, clock and margins.

    Margins grow with the scale, because starting a process takes real time at any speed of the clock.
    """
    document: dict[str, Any] = {**base}
    document["state_dir"] = str(rehearsal.state)
    document["database_url"] = ""
    document["artifacts"] = base.get("artifacts") or _folder_store(rehearsal)
    document["clock"] = {"scale": rehearsal.scale, "epoch": float(rehearsal.epoch), "origin": rehearsal.origin}
    document["daemon"] = {
        **dict(base.get("daemon", {})),
        "cycle": _seconds(rehearsal, _CYCLE_WALL),
        "heartbeat": _seconds(rehearsal, _HEARTBEAT_WALL),
        "grace": _seconds(rehearsal, _GRACE_WALL),
        "retry_base": _seconds(rehearsal, _CYCLE_WALL),
        "stop_at": rehearsal.end,
    }
    document["logging"] = {"format": "json", "level": "info"}
    document["pools"] = [_pool(rehearsal, pool) for pool in base.get("pools", [])]
    document["targets"] = []
    # Each target becomes a folder, because a rehearsal must not change a real target or run a command there.
    for target in base.get("targets", []):
        name = str(target.get("name", ""))
        emulated = {"name": name, "kind": "directory", "options": {"path": str(rehearsal.folder / "served" / name)}}
        document["targets"].append({**target, **emulated})
    return document


def _folder_store(rehearsal: Rehearsal) -> dict[str, Any]:
    return {"kind": "directory", "root": str(rehearsal.folder / "artifacts")}


def _pool(rehearsal: Rehearsal, pool: Mapping[str, Any]) -> dict[str, Any]:
    floors = {
        "setup": _SETUP_WALL,
        "stop_margin": _STOP_MARGIN_WALL,
        "overrun": _OVERRUN_WALL,
        "visibility": _VISIBILITY_WALL,
    }
    raised = dict(pool)
    for key, wall in floors.items():
        floor = math.ceil(wall * rehearsal.scale)
        raised[key] = f"{max(floor, _seconds_of(pool.get(key)))}s"
    return raised


def _seconds_of(value: object) -> int:
    from jobs.duration import parse_duration

    return 0 if value is None else parse_duration(value)


def _seconds(rehearsal: Rehearsal, wall: float) -> str:
    return f"{max(1, math.ceil(wall * rehearsal.scale))}s"


def stop_clock(rehearsal: Rehearsal, now: int) -> None:
    """Stop the clock of a finished rehearsal, so that commands show its last moment.

    A bucket in the rehearsal's folder is then read as a folder, since its server has ended.
    """
    document = tomllib.loads(rehearsal.config.read_text())
    document["clock"].setdefault("stopped_at", now)
    if document["artifacts"]["root"] == _folder_store(rehearsal)["root"]:
        document["artifacts"] = _folder_store(rehearsal)
    write_settings(rehearsal, document)


def write_settings(rehearsal: Rehearsal, document: Mapping[str, Any]) -> None:
    """Write the rehearsal's settings file; a crash leaves the old one or the new one."""
    import tomli_w

    write_whole(rehearsal.config, tomli_w.dumps(document))
