"""Pools: where sessions run, described entirely by data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.core.quota import Quota
from scheduler.core.window import DailyHours, Window, merge


@dataclass(frozen=True, slots=True)
class Pool:
    """One platform, account and accelerator. All times are in seconds.

    A session uses all ``devices_per_session`` devices for one charge; its lanes share them. With ``device_counts`` it
    uses one of these counts, for one job, and all sessions together at most ``devices_max``; then
    ``devices_per_session`` is the largest count, and ``sessions_max`` follows. ``speed`` is the prior relative to the
    reference device, until speeds are measured. ``session_seconds_min`` is the shortest useful training time of a
    session, without set-up and checkpoints.
    """

    name: str
    platform: str
    accelerator: str
    quotas: tuple[Quota, ...] = ()
    hours: tuple[DailyHours, ...] = ()  # empty: always open
    devices_per_session: int = 1
    sessions_max: int = 1
    device_counts: tuple[int, ...] = ()  # ascending; empty: every session holds devices_per_session
    devices_max: int = 0  # with device_counts alone
    session_cap_seconds: int = 43_200
    session_seconds_min: int = 1_800
    vram_gib: float = 16.0
    dtypes: frozenset[str] = frozenset({"fp32", "fp16"})
    speed: float = 1.0
    setup_seconds: int = 600
    start_delay_seconds: int = 180
    stop_margin_seconds: int = 120
    overrun_seconds: int = 0  # how long the platform may bill past the planned end; held as well
    mtbf_seconds: int = 108_000
    visibility_seconds: int = 120  # a launched session shows up in the platform's lists within this time
    price_microdollars_per_hour: int = 0
    sharing: float = 1.0  # speed of each lane when several jobs share a session, relative to running alone
    source: str = "declared"
    as_of: str = ""
    options: Mapping[str, str] = field(default_factory=dict)  # for the platform adapter alone

    @property
    def places(self) -> int:
        """The capacity for sessions: devices on a pool with ``device_counts``, else sessions."""
        return self.devices_max if self.device_counts else self.sessions_max

    @property
    def devices_at_once(self) -> int:
        """The most devices that all sessions use together."""
        return self.devices_max if self.device_counts else self.sessions_max * self.devices_per_session

    def places_of(self, devices: int) -> int:
        """Return the places used by a session whose lanes have ``devices``; 0 means the fewest possible."""
        return max(devices, self.device_counts[0]) if self.device_counts else 1

    def held_devices(self, devices: int) -> int:
        """Return the devices used by a session whose lanes have ``devices``."""
        return devices if self.device_counts else self.devices_per_session

    def open_windows(self, start: int, end: int) -> list[Window]:
        """Return the disjoint openings that overlap [start, end), clipped to it."""
        if not self.hours:
            return [Window(start, end)]
        openings = merge(window for hours in self.hours for window in hours.windows(start, end))
        clipped = ((max(opening.start, start), min(opening.end, end)) for opening in openings)
        return [Window(opens, closes) for opens, closes in clipped if closes > opens]
