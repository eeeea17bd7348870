"""What a session may do in the artifact store: write what is its own, read what it starts from. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.payload.store.manifest import blob_key
from platforms.artifacts.base import Grant
from scheduler.service.outside.stop_flag import stop_flag_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobs.payload.store.manifest import Manifest
    from scheduler.core.run import Run

# Beyond what is held for the session: clocks that disagree, and a last report that is repeated.
_SLACK_SECONDS = 900


def grant(run: Run, restore: Iterable[Manifest], data: Iterable[str], wall_seconds: float) -> Grant:
    """Return a run's rights; ``wall_seconds`` is the real time until it must be over.

    ``restore`` are the checkpoints it may start from, ``data`` the store prefixes of its training data, code and trees.
    """
    reads = {stop_flag_key(run.key)}
    for lane in run.lanes:
        reads |= {f"runs/{run.key}/lane-{lane.index}/{name}.json" for name in ("heartbeat", "result")}
    for manifest in restore:
        reads.add(manifest.key)
        reads |= {blob_key(manifest.job, component.sha256) for component in manifest.components}
    return Grant(
        run=run.key,
        jobs=tuple(sorted({lane.job for lane in run.lanes})),
        reads=tuple(sorted(reads)),
        folders=tuple(sorted({prefix.rstrip("/") for prefix in data} - {""})),
        lasts_seconds=max(0, round(wall_seconds)) + _SLACK_SECONDS,
    )
