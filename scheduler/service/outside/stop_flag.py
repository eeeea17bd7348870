"""The stop flag: the object in the artifact store that asks a session, or one lane of it, to save and leave."""

from __future__ import annotations

import json

from platforms.artifacts.base import BlobStore


def stop_flag_key(run: str) -> str:
    """Return where the payload of a launch key looks for its stop flag."""
    return f"runs/{run}/stop"


def put_stop_flag(artifacts: BlobStore, run: str, why: str, lane: int | None = None) -> None:
    """Ask one lane to stop, or all of the run. Raises StoreError."""
    artifacts.put(stop_flag_key(run), json.dumps({"reason": why, "lane": lane}).encode())
