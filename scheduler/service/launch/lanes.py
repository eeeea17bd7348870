"""Lanes: who shares a session, noted in the artifact store before its launch.

A launch key names the first job alone. Whoever must do without the database, because a backup older than the launch was
restored, reads here which other jobs have their lane in the session, before any of them has reported or saved.
"""

from __future__ import annotations

import json

from jobs.payload.bounds import read_json
from platforms.artifacts.base import BlobStore, Missing
from scheduler.core.run import Run

_NOTE_BYTES = 1 << 20


def note_lanes(artifacts: BlobStore, run: Run) -> None:
    """Write who shares the session of ``run``; nothing for one job alone. May be repeated. Raises StoreError."""
    if len(run.lanes) > 1:
        lanes = [{"lane": lane.index, "job": lane.job, "attempt": lane.attempt} for lane in run.lanes]
        artifacts.put(_key(run.key), json.dumps({"lanes": lanes}).encode())


def noted_lanes(artifacts: BlobStore, key: str) -> dict[int, tuple[str, int]]:
    """Return job and attempt by lane, as noted for a launch key; nothing when nothing was noted.

    Raises StoreError, and ValueError when the note makes no sense.
    """
    try:
        note = read_json(artifacts.read(_key(key), _NOTE_BYTES))
        planned_lanes = {lane["lane"]: (lane["job"], lane["attempt"]) for lane in note["lanes"]}
    except Missing:
        return {}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a note of lanes: {error}") from None
    for index, (job, attempt) in planned_lanes.items():
        if type(index) is not int or type(job) is not str or type(attempt) is not int:
            raise ValueError(f"not a lane: lane {index!r}, job {job!r}, attempt {attempt!r}")
    return planned_lanes


def _key(key: str) -> str:
    return f"runs/{key}/lanes.json"


# The stop flag: the object in the artifact store that asks a session, or one lane of it, to save and leave.
def stop_flag_key(run: str) -> str:
    """Return where the payload of a launch key looks for its stop flag."""
    return f"runs/{run}/stop"


def put_stop_flag(artifacts: BlobStore, run: str, why: str, lane: int | None = None) -> None:
    """Ask one lane to stop, or all of the run. Raises StoreError."""
    artifacts.put(stop_flag_key(run), json.dumps({"reason": why, "lane": lane}).encode())
