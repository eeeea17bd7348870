"""Admission: whether a pool's cluster has room for one more session. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.plural import counted
from platforms.base import Refused
from platforms.slurm.judge import is_waiting
from platforms.slurm.settings import NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from platforms.base import LaunchRequest
    from platforms.slurm.qos import Cap
    from platforms.slurm.settings import Settings
    from platforms.slurm.sightings import Poll


def admit(
    request: LaunchRequest, poll: Poll, settings: Settings, caps: Sequence[Cap], sessions: tuple[int, int]
) -> None:
    """Raise Refused when there is no room for one more; ``sessions`` are how many are live, and how many may be."""
    if request.devices % settings.nodes:
        why = f"{counted(request.devices, 'device')} cannot be shared by {settings.nodes} nodes evenly"
        raise Refused(NAME, "launch", why, "Choose devices_per_session that nodes divides", permanent=True)
    live, most = sessions
    if live >= most:
        raise Refused(NAME, "launch", f"{live} of at most {most} sessions are live", "Wait until one ends")
    waiting = sum(is_waiting(line) for line in poll.lines)
    if waiting >= settings.pending_max:
        why = f"{counted(waiting, 'job')} of this pool wait in Slurm's queue, and pending_max allows no more"
        raise Refused(NAME, "launch", why, "Wait until one starts")
    # It would wait in the queue, while another pool could run it.
    devices = request.devices if settings.gres else 0
    if why := next(filter(None, (cap.refuses(devices) for cap in caps)), ""):
        raise Refused(NAME, "launch", why, "Let the pool ask for no more: devices_max, sessions_max")
