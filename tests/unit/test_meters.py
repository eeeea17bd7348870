"""Meters: what is used, held and left of every quota, when room comes back, and who set the limit; all at the edges."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from jobs.nouns.window import DAY, EVER, HOUR, AllTime, Calendar
from scheduler.core.ledger import Charge, EntryKind, LedgerEntry
from scheduler.core.quota import Meter, ObservedLimit, current_quotas
from scheduler.service.quota.usage import meters, meters_of
from scheduler.store import ledger

if TYPE_CHECKING:
    from jobs.nouns.quota import Quota
    from scheduler.store.engine import Database

NOON = 20_000 * DAY + DAY // 2  # a whole day's noon, UTC


def meter(quota: Quota, *charges: Charge, now: int = NOON, observed: tuple[ObservedLimit, ...] = ()) -> Meter:
    (found,) = meters_of({"desk": Pool("desk", "fake", "T4", (quota,))}, {"desk": charges}, {"desk": observed}, now)
    return found


def test_what_is_held_is_not_used_and_neither_is_left() -> None:
    day = CalendarQuota("day", 8 * HOUR, Calendar("day"))
    found = meter(day, Charge(NOON - HOUR, NOON), Charge(NOON, NOON + 2 * HOUR, held=True))
    assert (found.used, found.held, found.free, found.limit) == (HOUR, 2 * HOUR, 5 * HOUR, 8 * HOUR)
    assert (found.start, found.end, found.resets_at) == (NOON - DAY // 2, NOON + DAY // 2, NOON + DAY // 2)
    assert (found.pool, found.quota, found.unit) == ("desk", "day", "seconds")


def test_money_is_told_in_micro_dollars() -> None:
    price = 740_000
    charge = Charge(NOON - HOUR, NOON, price_microdollars_per_hour=price)
    budget = MoneyQuota("budget", 5 * price, Calendar("day"))
    found = meter(budget, charge)
    assert (found.unit, found.used, found.free) == ("microdollars", price, 4 * price)
    assert meter(budget, charge, replace(charge, waited=True)).waited == price


@pytest.mark.parametrize(
    ("charges", "resets_at"),
    [
        ((), None),
        ((Charge(NOON - DAY - HOUR, NOON - DAY),), None),  # has left the span this very second
        ((Charge(NOON - DAY - HOUR, NOON - DAY + 1),), NOON),  # is leaving
        ((Charge(NOON - HOUR, NOON),), NOON - HOUR + DAY),
        ((Charge(NOON - HOUR, NOON), Charge(NOON - 3 * HOUR, NOON - 2 * HOUR)), NOON - 3 * HOUR + DAY),
    ],
)
def test_a_rolling_span_gets_room_back_when_its_oldest_use_begins_to_leave(
    charges: tuple[Charge, ...], resets_at: int | None
) -> None:
    assert meter(RollingQuota("rolling", 4 * HOUR), *charges).resets_at == resets_at


@pytest.mark.parametrize(
    ("charges", "resets_at"),
    [
        ((), None),
        ((Charge(NOON - 1, NOON),), NOON - 1 + DAY),
        ((Charge(NOON - DAY, NOON - DAY + HOUR),), None),  # its span ended this very second
        ((Charge(NOON - DAY + 1, NOON - DAY + HOUR),), NOON + 1),
        ((Charge(NOON - DAY, NOON),), None),  # filled its span, and ended with it
        ((Charge(NOON, NOON + HOUR, held=True),), NOON + DAY),  # begins now
        ((Charge(NOON + DAY, NOON + DAY + HOUR, held=True),), None),  # would open the span after the one from now
    ],
)
def test_a_span_that_nothing_has_opened_has_no_end(charges: tuple[Charge, ...], resets_at: int | None) -> None:
    assert meter(FirstUseQuota("first use", 4 * HOUR), *charges).resets_at == resets_at


@pytest.mark.parametrize(
    ("since", "until", "told"),
    [(0, 1, True), (-1, 1, True), (1, 2, False), (-1, 0, False)],
)
def test_an_observation_is_named_while_it_holds(since: int, until: int, *, told: bool) -> None:
    quota = CalendarQuota("day", 8 * HOUR, Calendar("day"), "declared by mia", "2024-01-02")
    seen = ObservedLimit("day", NOON + since, NOON + until, HOUR, NOON - 5, "kaggle")
    found = meter(quota, observed=(seen,))
    assert found.limit == (HOUR if told else 8 * HOUR)
    assert (found.source, found.as_of) == (("kaggle", "2024-10-04") if told else ("declared by mia", "2024-01-02"))


def test_the_newest_observation_of_this_very_quota_is_named() -> None:
    quota = CalendarQuota("day", 8 * HOUR, Calendar("day"))
    observed = tuple(
        ObservedLimit(name, NOON - HOUR, NOON + HOUR, HOUR, NOON - age, source)
        for name, age, source in (("day", 2 * DAY, "old"), ("day", DAY, "newer"), ("week", 0, "of another"))
    )
    found = meter(quota, observed=observed)
    assert (found.source, found.as_of) == ("newer", "2024-10-03")


def test_meters_stand_by_pool_and_count_what_a_month_ago_still_uses_a_month(database: Database) -> None:
    month = CalendarQuota("month", 99 * HOUR, Calendar("month"))
    pools = {name: Pool(name, "fake", "T4", (month,)) for name in ("desk", "cloud")}
    first = month.calendar.window_at(NOON).start
    last = month.calendar.window_at(NOON).end - 1
    with database.write() as tx:
        ledger.append(tx, [LedgerEntry(EntryKind.ADJUST, "desk", None, first, first + HOUR, first)])
    with database.read() as tx:
        found = meters(tx, pools, last)
    assert [(each.pool, each.used) for each in found] == [("cloud", 0), ("desk", HOUR)]


def test_of_what_platforms_told_of_the_account_the_last_is_in_force_unless_it_is_declared() -> None:
    told = [ObservedLimit("account", EVER.start, EVER.end, hours * HOUR, NOON, f"{hours} h") for hours in (30, 20)]
    pool = Pool("desk", "fake", "T4", (CalendarQuota("day", 8 * HOUR, Calendar("day")),))
    assert current_quotas(pool, told) == (*pool.quotas, CalendarQuota("account", 20 * HOUR, AllTime(), "20 h"))
    declared = Pool("desk", "fake", "T4", (CalendarQuota("account", 9 * HOUR, Calendar("week")),))
    assert current_quotas(declared, told) == declared.quotas
