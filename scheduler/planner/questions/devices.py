"""Device counts of a job: time and cost of each, and the count that meets the deadline with the fewest device hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from scheduler.core.pool import Pool
from scheduler.core.snapshot import JobView


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """One device count on a pool: seconds of training to the target, and device seconds.

    ``left`` is the number of unused devices of the session, or of the pool if it has ``device_counts``. ``in_time`` is
    None without a deadline.
    """

    pool: str
    devices: int
    seconds: int
    device_seconds: int
    left: int
    in_time: bool | None
    chosen: bool = False


def device_choices(view: JobView, pool: Pool, now: int) -> tuple[DeviceChoice, ...]:
    """Return the device counts that are faster than all smaller ones, as if one session ran from now to the target.

    Chosen is the count in time (without a deadline: any) with the fewest device hours, or the fastest if none is in
    time. Empty for a pool that the job may not use.
    """
    if pool.name not in view.rates:
        return ()
    most = min(view.needs.devices_max, pool.devices_per_session, max(len(view.device_speedup), view.needs.devices_min))
    counts = [n for n in pool.device_counts or range(1, most + 1) if view.needs.devices_min <= n <= most]
    choices: list[DeviceChoice] = []
    quickest = 0.0
    for devices in counts:
        speed = view.speed(pool.name, devices)
        if speed <= quickest:
            continue
        quickest = speed
        seconds = ceil(view.remaining_steps / speed)
        in_time = None if view.deadline is None else now + seconds <= view.deadline
        spare = (pool.devices_max or pool.devices_per_session) - devices
        choices.append(DeviceChoice(pool.name, devices, seconds, seconds * devices, spare, in_time))
    chosen = _chosen(choices)
    return tuple(replace(one, chosen=one is chosen) for one in choices)


def _chosen(choices: Sequence[DeviceChoice]) -> DeviceChoice | None:
    good = [one for one in choices if one.in_time is not False]
    if good:
        return min(good, key=lambda one: (one.device_seconds, one.devices))
    return min(choices, key=lambda one: one.seconds, default=None)
