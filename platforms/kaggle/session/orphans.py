"""Orphans: kernels of ours that run and that nobody's books name, told by their own source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from platforms.base import Observed, SessionState
from platforms.kaggle.kernel.source import is_source_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from platforms.kaggle.api.client import Client

_LOOK_BACK_SECONDS = 13 * 3_600  # no session lasts longer
_LIVE = {"QUEUED": SessionState.QUEUED, "RUNNING": SessionState.RUNNING, "CANCEL_REQUESTED": SessionState.RUNNING}


def find_orphans(client: Client, slug_prefix: str, known: Collection[str], now: int) -> Sequence[Observed]:
    """Return live sessions of kernels that we pushed for keys that ``known`` does not name. Raises Unreachable.

    Only what may still run is looked at, and only the first line of a kernel's source proves that it is ours.
    """
    found = []
    for slug, began in client.kernels():
        if began and began < now - _LOOK_BACK_SECONDS:
            break  # the list goes from the newest run on
        key = slug.removeprefix(slug_prefix)
        if key in known or not slug.startswith(slug_prefix):
            continue
        status = client.status(slug)
        if status is None or status[0] not in _LIVE:
            continue
        source = client.source(slug)
        if source is not None and is_source_of(key, source):
            found.append(Observed(key, _LIVE[status[0]], f"{slug}/v1", int(began) or None, detail=status[0].lower()))
    return found
