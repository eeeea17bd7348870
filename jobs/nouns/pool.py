"""Pools: the places where sessions run, each with its devices, limits and price, as people declare them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from jobs.duration import show_duration
from jobs.nouns import values
from jobs.nouns.quota import Dated, MoneyQuota, Quota, WrittenQuota, charges_by_device, longest_window, read_quota
from jobs.nouns.window import DailyHours, Window, merge

_TOGETHER = "set devices_max: the devices of all sessions together"
_OR_COUNTS = "set sessions_max, or device_counts as well"
_PRICES = "with device_counts no two sessions need cost the same"


@dataclass(frozen=True, slots=True)
class Pool:
    """One platform, account and accelerator. All times are in seconds.

    A session uses all ``devices_per_session`` devices for one charge; its lanes share them. With ``device_counts`` it
    uses one of these counts, for one job, and all sessions together at most ``devices_max``; then
    ``devices_per_session`` is the largest count, and ``sessions_max`` follows. ``speed`` is the prior relative to the
    reference device, until speeds are measured. ``session_seconds_min`` is the shortest useful training time of a
    session, without set-up and checkpoints. ``sharing`` is the speed of each lane when several jobs share a session,
    relative to running alone.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = values.TABLE

    name: Annotated[str, values.Bounds(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$")]
    platform: Annotated[str, values.Bounds(min_length=1)]
    accelerator: str = "cpu"
    quotas: tuple[Annotated[Quota, values.After(read_quota, WrittenQuota)], ...] = ()
    # Empty: always open.
    hours: tuple[Annotated[DailyHours, values.Before(values.text_of(values.opening_hours))], ...] = ()
    devices_per_session: values.PositiveInt = 1
    sessions_max: values.PositiveInt = 1
    device_counts: tuple[values.PositiveInt, ...] = ()  # ascending; empty: every session holds devices_per_session
    devices_max: Annotated[int, values.Bounds(ge=0, le=1_000_000)] = 0  # with device_counts only
    session_cap_seconds: values.PositiveSeconds = 43_200
    session_seconds_min: values.PositiveSeconds = 1_800
    vram_gib: values.PositiveFloat = 16.0
    dtypes: frozenset[str] = frozenset({"fp32", "fp16"})
    speed: values.PositiveFloat = 1.0
    setup_seconds: values.Seconds = 600
    start_delay_seconds: values.Seconds = 180
    stop_margin_seconds: values.Seconds = 120
    overrun_seconds: values.Seconds = 0  # how long the platform may bill past the planned end; reserved as well
    mtbf_seconds: values.PositiveSeconds = 108_000
    visibility_seconds: values.Seconds = 120  # a launched session shows up in the platform's lists within this time
    price_microdollars_per_hour: Annotated[int, values.Before(values.price)] = 0
    sharing: Annotated[float, values.Bounds(ge=0.01, le=1, allow_inf_nan=False), values.NUMBER] = 1.0
    source: str = "declared"
    as_of: Dated = ""
    options: Mapping[str, values.Line] = field(default_factory=dict)  # for the platform adapter only
    enabled: bool = True

    @property
    def kind(self) -> Literal["gpu", "tpu"]:
        """The kind of its devices: "tpu", or "gpu" for all other devices, also processors."""
        return "tpu" if self.accelerator.lower().startswith("tpu") else "gpu"

    @property
    def places(self) -> int:
        """The capacity for sessions: devices on a pool with ``device_counts``, else sessions."""
        return self.devices_max if self.device_counts else self.sessions_max

    @property
    def devices_at_once(self) -> int:
        """The largest number of devices that all sessions may use together."""
        return self.devices_max if self.device_counts else self.sessions_max * self.devices_per_session

    def places_of(self, devices: int) -> int:
        """Return how many ``places`` a session takes whose lanes use ``devices``; 0 means the smallest session."""
        return max(devices, self.device_counts[0]) if self.device_counts else 1

    def held_devices(self, devices: int) -> int:
        """Return how many devices a session holds whose lanes use ``devices``."""
        return devices if self.device_counts else self.devices_per_session

    def open_windows(self, start: int, end: int) -> list[Window]:
        """Return the times in [start, end) at which the pool is open, as disjoint windows in order."""
        if not self.hours:
            return [Window(start, end)]
        openings = merge(window for hours in self.hours for window in hours.windows(start, end))
        clipped = ((max(opening.start, start), min(opening.end, end)) for opening in openings)
        return [Window(opens, closes) for opens, closes in clipped if closes > opens]


def declared(pool: Pool) -> Pool:
    """Return a pool from a file with the fields that follow from ``device_counts``. Raises BadTable for conflicts."""
    counts, most = pool.device_counts, max(pool.device_counts, default=0)
    devices, sessions = pool.devices_max or most, pool.sessions_max
    needed = pool.setup_seconds + pool.session_seconds_min + pool.stop_margin_seconds
    enough = f"no session of use fits: setup + session_min + stop_margin need {show_duration(needed)}"
    both = "devices_per_session says how many devices every session has"
    values.refuse(
        (list(counts) != sorted(set(counts)), "device_counts", "the counts must ascend", "write them like [1, 2, 4]"),
        (counts and pool.devices_per_session != 1, "device_counts", both, "set one of the two"),
        (counts and sessions != 1, "device_counts", "sessions_max is not used with it", _TOGETHER),
        (devices and not counts, "devices_max", "it goes with device_counts", _OR_COUNTS),
        (devices < most, "devices_max", f"no session could have {most} devices", "raise it, or shorten device_counts"),
        (counts and pool.price_microdollars_per_hour, "price_per_hour", _PRICES, "leave it out; count device hours"),
        (pool.session_cap_seconds < needed, "session_cap", enough, "raise it, or lower those three"),
        *(rule for quota in pool.quotas for rule in _rules_of(quota, pool, devices)),
    )
    if not counts:
        return pool
    return replace(pool, devices_max=devices, devices_per_session=most, sessions_max=devices // counts[0])


def _rules_of(quota: Quota, pool: Pool, devices: int) -> Iterator[values.Rule]:
    """Yield the rules that a quota of a pool must not break; ``devices`` is the total of all sessions."""
    name, counts, by_device = quota.name, pool.device_counts, charges_by_device(quota)
    twice = [each.name for each in pool.quotas].count(name) > 1
    yield twice, "quotas", f"two quotas are named {name}", "give each its own name"
    why = f"{name}: all sessions have as many devices"
    yield by_device and not counts, "quotas", why, "set device_counts, or no charge"
    at_once, why = pool.sessions_max, f"sessions_max = {pool.sessions_max}"
    if counts:
        at_once, why = devices if by_device else devices // counts[0], f"devices_max = {devices}"
    limit, most = 0 if isinstance(quota, MoneyQuota) else quota.limit_seconds, longest_window(quota) * at_once
    why = f"its window has {show_duration(most)} with {why}"
    why = f"{name}: a limit of {show_duration(limit)} can never be reached, {why}"
    yield limit > most, "quotas", why, "correct the limit, or leave the quota out"
