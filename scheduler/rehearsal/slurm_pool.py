"""The Slurm pool of a rehearsal: nothing stands in for this machine's cluster, which works in real seconds."""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jobs.problem import Refusal
from platforms.base import PlatformError
from platforms.slurm.checkup import cluster_of
from platforms.slurm.commands import accounting_of
from scheduler import clock
from scheduler.app import App
from scheduler.core.ledger import fold
from scheduler.core.reasons import show
from scheduler.rehearsal.folder import Rehearsal

_Intervals = list[tuple[int, int]]

SCALE = 600.0
_SCALE_MAX = 1_200.0
_NAME = "slurm"
# What Slurm and a process that starts take, in real seconds.
_WALL = {"start_delay": 2.0, "setup": 3.0, "stop_margin": 2.0, "overrun": 4.0, "visibility": 5.0}
_LOOKS, _LOOK_WALL_SECONDS = 10, 0.5  # what ended last is written down a moment later
_LEAVES_SECONDS = 5  # real: what a second job of a key may take to see that it is one


def add(base: dict[str, Any], folder: Path, scale: float) -> None:
    """Add the pool to the settings of a rehearsal. Raises Refusal."""
    if scale > _SCALE_MAX:
        raise Refusal(
            "--slurm",
            f"its jobs work in real seconds, of which --scale {scale:g} leaves too few",
            f"Choose {_SCALE_MAX:g} or less",
        )
    if any(pool.get("name") == _NAME for pool in base["pools"]):
        raise Refusal("--slurm", f"the settings have a pool {_NAME} already", "Rename it, or leave out --slurm")
    conf = os.environ.get("SLURM_CONF", "")
    options = {"slurm_conf": conf} if conf else {}
    try:
        cluster = cluster_of(options)
    except PlatformError as error:
        why = f"--slurm: no cluster of this machine answers ({error.why})"
        raise Refusal(why, remedy="Try sinfo; SLURM_CONF names its file") from None
    base["pools"] = [
        *base["pools"],
        {
            "name": _NAME,
            "platform": "slurm",
            "accelerator": f"{cluster.gres or 'processors'} of the partition {cluster.partition}",
            "devices_per_session": min(2, max(1, cluster.devices)),
            "sessions_max": 2,
            "hours": ["00:00-08:00 UTC", "12:00-20:00 UTC"],  # so that jobs must move on
            "vram_gib": 24,
            "dtypes": ["fp32", "fp16", "bf16"],
            "session_cap": "6h",
            "session_min": "1h",
            **{name: f"{round(wall * scale)}s" for name, wall in _WALL.items()},
            "source": "this machine's cluster, its hours declared for a rehearsal",
            "quotas": [
                {
                    "name": "GPU hours of the week",
                    "kind": "week",
                    "limit": "50h",
                    "resets": "Saturday 00:00",
                    "zone": "UTC",
                }
            ],
            "options": {
                **options,
                "partition": cluster.partition,
                **({"gres": cluster.gres} if cluster.gres else {}),
                # Of this rehearsal alone: Slurm remembers the names of jobs for a while.
                "folder": str(folder / f"slurm-{secrets.token_hex(4)}"),
                "command_seconds": "30",
            },
        },
    ]


def disagreements(rehearsal: Rehearsal, app: App) -> tuple[str, ...] | None:
    """Return where our ledger and Slurm's own accounting differ, by a second or more; None: it keeps no accounts.

    Raises PlatformError.
    """
    pool = next((pool for pool in app.settings.pools if pool.name == _NAME and pool.platform == "slurm"), None)
    if pool is None or not pool.options.get("folder", "").startswith(f"{rehearsal.folder}/"):
        return ()
    from scheduler.store import ledger

    with app.database.read() as tx:
        charges = fold(ledger.entries(tx)).get(_NAME, ())
    ours: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for charge in charges:
        ours[charge.run or "nobody"].append((charge.start, charge.end))
    result: tuple[str, ...] = ()
    for _ in range(_LOOKS):
        theirs = accounting_of(pool.options)
        if theirs is None:
            return None
        result = tuple(_differences(rehearsal, ours, theirs, app.settings.zone))
        if not result:
            break
        clock.pause(_LOOK_WALL_SECONDS)
    return result


def _differences(
    rehearsal: Rehearsal, ours: Mapping[str, _Intervals], accounting: Mapping[str, _Intervals], zone: str
) -> Iterator[str]:
    for key in sorted({*ours, *accounting}):
        mine = ours.get(key, [])
        theirs = [
            (_scheduled(rehearsal, first), _scheduled(rehearsal, last)) for first, last in accounting.get(key, ())
        ]
        long = [last - first > _LEAVES_SECONDS * rehearsal.scale for first, last in theirs if (first, last) not in mine]
        if any(each not in theirs for each in mine) or any(long):
            yield f"accounting: of {key} Slurm has {_words(theirs, zone)}, the ledger {_words(mine, zone)}"


def _scheduled(rehearsal: Rehearsal, real: int) -> int:
    return int(rehearsal.epoch + (real - rehearsal.origin) * rehearsal.scale)


def _words(intervals: _Intervals, zone: str) -> str:
    return ", ".join(f"{show(first, zone)} + {last - first} s" for first, last in intervals) or "nothing"
