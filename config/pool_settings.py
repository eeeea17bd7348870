"""Pools and quotas as people declare them; the scheduler makes its own pools of them."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from config.section import Line, PositiveFloat, PositiveInt, PositiveSeconds, Seconds, Section, ZoneName
from config.values import Amount, BadValue, OpeningHours, Reset, amount, opening_hours, price, reset
from jobs.duration import show_duration

QuotaKind = Literal["week", "day", "month", "rolling", "first-use", "money-day", "money-week", "money-month"]

_DAY = 86_400
_LENGTHS = {"day": _DAY, "week": 7 * _DAY, "month": 31 * _DAY}
_SPANS = {"rolling", "first-use"}
_TELL_PRICES = {"skypilot"}  # platforms that tell what an hour costs, where no price_per_hour is set


def _text(parse: Any) -> Any:
    """Let ``parse`` read what a file says; values made by code pass as they are."""

    def read(value: object) -> object:
        if isinstance(value, OpeningHours | Amount | Reset):
            return value
        if not isinstance(value, str):
            raise BadValue("this must be text", "put it in quotation marks")
        return parse(value)

    return BeforeValidator(read)


def _date(value: object) -> object:
    return value.isoformat() if isinstance(value, date) else value


class QuotaSettings(Section):
    """One rule that bounds a pool's hours or money.

    ``kind`` is a calendar period (``week``, ``day``, ``month``, in ``zone`` from ``resets`` on), ``rolling``,
    ``first-use`` (both over ``span``), or a calendar budget in money. ``charge`` is what an hour counts: once for a
    session, or once for each of its devices.
    """

    name: str = Field(min_length=1, max_length=60)
    kind: QuotaKind
    zone: ZoneName = "UTC"
    resets: Annotated[Reset, _text(reset)] = Reset()
    span_seconds: PositiveSeconds = _DAY
    charge: Literal["session", "device"] = "session"
    limit: Annotated[Amount, BeforeValidator(lambda text: text if isinstance(text, Amount) else amount(text))]
    source: str = "declared"
    as_of: Annotated[str, BeforeValidator(_date)] = ""

    @property
    def limit_seconds(self) -> int:
        """The limit of a quota in hours."""
        return self.limit.value if self.limit.unit == "seconds" else 0

    @property
    def limit_microdollars(self) -> int:
        """The limit of a quota in money."""
        return self.limit.value if self.limit.unit == "microdollars" else 0

    @property
    def window_seconds_max(self) -> int:
        """The length of its longest window, clock changes aside."""
        return self.span_seconds if self.kind in _SPANS else _LENGTHS[self.kind.removeprefix("money-")]

    @field_validator("resets")
    @classmethod
    def _resets_with_a_calendar(cls, value: Reset, info: ValidationInfo) -> Reset:
        kind = info.data.get("kind", "week")
        if kind in _SPANS:
            raise BadValue(f"a {kind} quota has no reset time", "remove it, or use kind week, day or month")
        if value.weekday and not kind.endswith("week"):
            raise BadValue("only a week resets on a weekday", 'write the time alone, like "06:00"')
        return value

    @field_validator("span_seconds")
    @classmethod
    def _span_without_a_calendar(cls, value: int, info: ValidationInfo) -> int:
        kind = info.data.get("kind", "rolling")
        if kind not in _SPANS:
            raise BadValue(f"a {kind} quota takes its length from the calendar", "remove it")
        return value

    @field_validator("charge")
    @classmethod
    def _charge_of_its_kind(cls, value: str, info: ValidationInfo) -> str:
        kind = str(info.data.get("kind", "week"))
        if value == "device" and (kind == "first-use" or kind.startswith("money-")):
            raise BadValue(f"a {kind} quota cannot count devices", "use kind week, day, month or rolling")
        return value

    @field_validator("limit")
    @classmethod
    def _limit_of_its_kind(cls, value: Amount, info: ValidationInfo) -> Amount:
        kind = info.data.get("kind")
        if kind is not None and kind.startswith("money-") and value.unit == "seconds":
            raise BadValue(f"a {kind} quota is limited in money", 'write it like "$12.50"')
        if kind is not None and not kind.startswith("money-") and value.unit == "microdollars":
            raise BadValue(f"a {kind} quota is limited in time", f'write it like "30h", or use kind money-{kind}')
        return value


class PoolSettings(Section):
    """One metered place: platform, account and accelerator. Adapters read ``options``; nothing else does."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$")
    platform: str = Field(min_length=1)
    accelerator: str = "cpu"
    enabled: bool = True
    hours: tuple[Annotated[OpeningHours, _text(opening_hours)], ...] = ()
    devices_per_session: PositiveInt = 1
    sessions_max: PositiveInt = 1
    device_counts: tuple[PositiveInt, ...] = ()
    devices_max: Annotated[Annotated[int, Field(ge=0, le=1_000_000)], Field(validate_default=True)] = 0
    vram_gib: PositiveFloat = 16.0
    dtypes: frozenset[str] = frozenset({"fp32", "fp16"})
    speed: PositiveFloat = 1.0
    sharing: Annotated[PositiveFloat, Field(ge=0.01, le=1)] = 1.0
    setup_seconds: Seconds = 600
    start_delay_seconds: Seconds = 180
    stop_margin_seconds: Seconds = 120
    overrun_seconds: Seconds = 0
    mtbf_seconds: PositiveSeconds = 108_000
    visibility_seconds: Seconds = 120
    session_seconds_min: PositiveSeconds = Field(default=1_800, alias="session_min")
    session_cap_seconds: Annotated[PositiveSeconds, Field(validate_default=True)] = 43_200
    price_microdollars_per_hour: Annotated[int, BeforeValidator(price)] = Field(default=0, alias="price_per_hour")
    quotas: tuple[QuotaSettings, ...] = ()
    source: str = "declared"
    as_of: Annotated[str, BeforeValidator(_date)] = ""
    options: dict[str, Line] = Field(default_factory=dict)

    @property
    def sessions_at_once(self) -> int:
        """How many sessions there can be at once, the smallest where they differ."""
        return self.devices_max // min(self.device_counts) if self.device_counts else self.sessions_max

    @field_validator("device_counts")
    @classmethod
    def _counts_instead(cls, counts: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if counts and list(counts) != sorted(set(counts)):
            raise BadValue("the counts must ascend", "write them like [1, 2, 4]")
        if counts and info.data.get("devices_per_session", 1) != 1:
            raise BadValue("devices_per_session says how many devices every session has", "set one of the two")
        if counts and info.data.get("sessions_max", 1) != 1:
            raise BadValue("sessions_max is not used with it", "set devices_max: the devices of all sessions together")
        return counts

    @field_validator("devices_max")
    @classmethod
    def _enough_for_the_largest(cls, value: int, info: ValidationInfo) -> int:
        counts = info.data.get("device_counts", ())
        if value and not counts:
            raise BadValue("it goes with device_counts", "set sessions_max, or device_counts as well")
        if counts and 0 < value < max(counts):
            raise BadValue(f"no session could have {max(counts)} devices", "raise it, or shorten device_counts")
        return value or max(counts, default=0)

    @field_validator("price_microdollars_per_hour")
    @classmethod
    def _one_price(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("device_counts"):
            raise BadValue("with device_counts no two sessions need cost the same", "leave it out; count device hours")
        return value

    @field_validator("session_cap_seconds")
    @classmethod
    def _cap_holds_a_session(cls, cap: int, info: ValidationInfo) -> int:
        parts = [info.data.get(name) for name in ("setup_seconds", "session_seconds_min", "stop_margin_seconds")]
        needed = sum(part for part in parts if part is not None)
        if cap < needed:
            raise BadValue(
                f"no session of use fits: setup + session_min + stop_margin need {show_duration(needed)}",
                "raise it, or lower those three",
            )
        return cap

    @field_validator("quotas")
    @classmethod
    def _quotas_that_bind(cls, quotas: tuple[QuotaSettings, ...], info: ValidationInfo) -> tuple[QuotaSettings, ...]:
        sessions, counts = info.data.get("sessions_max", 1), info.data.get("device_counts", ())
        devices = info.data.get("devices_max", 1)
        names = [quota.name for quota in quotas]
        for quota in quotas:
            if names.count(quota.name) > 1:
                raise BadValue(f"two quotas are named {quota.name}", "give each its own name")
            if quota.charge == "device" and not counts:
                raise BadValue(f"{quota.name}: all sessions have as many devices", "set device_counts, or no charge")
            at_once, why = sessions, f"sessions_max = {sessions}"
            if counts:
                at_once, why = devices if quota.charge == "device" else devices // counts[0], f"devices_max = {devices}"
            most = quota.window_seconds_max * at_once
            if quota.limit_seconds > most:
                raise BadValue(
                    f"{quota.name}: a limit of {show_duration(quota.limit_seconds)} can never be reached, "
                    f"its window has {show_duration(most)} with {why}",
                    "correct the limit, or leave the quota out",
                )
            quotes_prices = info.data.get("platform") in _TELL_PRICES
            if quota.limit_microdollars and not quotes_prices and not info.data.get("price_microdollars_per_hour", 1):
                raise BadValue(f"{quota.name}: hours of this pool cost nothing", "set price_per_hour of the pool")
        return quotas
