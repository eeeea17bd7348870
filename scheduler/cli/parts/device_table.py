"""The table of device counts: what each would cost a job, and which is best."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.cli.shell.output import Output
from scheduler.core.window import HOUR
from scheduler.planner import DeviceChoice


def show_devices(out: Output, job: str, found: Sequence[DeviceChoice]) -> None:
    """Write what each count of devices means for a job, pool by pool."""
    out.line()
    out.line(f"{job}, trained without a break from now on:")
    out.table(("pool", ">GPUs", ">hours", ">GPU hours", ">GPUs left", "in time", "best"), _rows(found))


def _rows(found: Sequence[DeviceChoice]) -> list[tuple[str, ...]]:
    said = {None: "-", True: "yes", False: "no"}
    return [
        (
            one.pool,
            str(one.devices),
            f"{one.seconds / HOUR:.2f}",
            f"{one.device_seconds / HOUR:.2f}",
            str(one.left),
            said[one.in_time],
            "*" if one.chosen else "",
        )
        for one in found
    ]
