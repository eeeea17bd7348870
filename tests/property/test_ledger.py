"""The ledger adds up the same whatever the order of its entries, and nothing is lost at the edges of windows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.nouns.window import Calendar, Window
from scheduler.core.ledger import (
    Charge,
    EntryKind,
    LedgerEntry,
    corrections,
    cost_within,
    device_seconds_within,
    fold,
    seconds_within,
)

POOLS = ["kaggle", "local"]
RUNS = ["uff-a-0001", "uff-b-0001", "uff-a-0002"]


@st.composite
def entries(draw: st.DrawFn) -> LedgerEntry:
    kind = draw(st.sampled_from(EntryKind))
    start = 50_000 * draw(st.integers(0, 8))
    return LedgerEntry(
        kind=kind,
        pool=draw(st.sampled_from(POOLS)),
        run=draw(st.sampled_from([*RUNS, None] if kind is EntryKind.ADJUST else RUNS)),
        start=start,
        end=start + draw(st.sampled_from([0, 1, 3_600, 50_000, 60_000])),
        at=draw(st.integers(0, 10)),
        credit=kind is EntryKind.ADJUST and draw(st.booleans()),
        price_microdollars_per_hour=draw(st.sampled_from([0, 1, 740_000])),
    )


books = st.lists(entries(), max_size=12)


def entry(kind: EntryKind, start: int, end: int, *, run: str | None = RUNS[0], credit: bool = False) -> LedgerEntry:
    return LedgerEntry(kind, "kaggle", run, start, end, at=0, credit=credit)


def total(*found: LedgerEntry) -> int:
    return seconds_within(fold(found).get("kaggle", ()), Window(0, 10**9))


@given(books, st.randoms(use_true_random=False))
def test_the_order_of_entries_does_not_matter(book: list[LedgerEntry], random: object) -> None:
    shuffled = list(book)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fold(shuffled) == fold(book)


def test_entries_that_differ_in_one_field_have_one_order() -> None:
    """Equal books give equal tuples: nothing may hang on what a sort leaves open."""
    same = [
        LedgerEntry(EntryKind.ADJUST, "kaggle", RUNS[0], 0, 60, 0, credit, price)
        for credit in (True, False)
        for price in (2, 1)
    ]
    assert fold(same) == fold(same[::-1])
    one_of_each = [entry(EntryKind.SPEND, 0, 60, run=run) for run in RUNS]
    assert fold(one_of_each) == fold(one_of_each[::-1])
    hold_and_adjust = [entry(EntryKind.HOLD, 0, 60), entry(EntryKind.ADJUST, 0, 60)]
    assert fold(hold_and_adjust) == fold(hold_and_adjust[::-1])


@given(books)
def test_replaying_the_book_gives_the_same_charges(book: list[LedgerEntry]) -> None:
    assert fold(iter(book)) == fold(tuple(book))


@given(books, st.integers(0, 12))
def test_pools_do_not_touch_each_other(book: list[LedgerEntry], cut: int) -> None:
    alone = {pool: fold(found for found in book if found.pool == pool) for pool in POOLS}
    together = fold(book)
    assert together == {pool: charges for part in alone.values() for pool, charges in part.items()}


@given(books)
def test_a_run_counts_its_spend_else_its_hold_else_nothing(book: list[LedgerEntry]) -> None:
    """The rule, read from the entries of each run."""
    for pool in POOLS:
        expected = 0
        for run in [*RUNS, None]:
            mine = [found for found in book if (found.pool, found.run) == (pool, run)]
            by_kind = {kind: [found for found in mine if found.kind is kind] for kind in EntryKind}
            if by_kind[EntryKind.SPEND]:
                counted = by_kind[EntryKind.SPEND]
            elif by_kind[EntryKind.RELEASE]:
                counted = []
            else:
                holds = by_kind[EntryKind.HOLD]
                counted = sorted(holds, key=lambda found: (found.at, found.end, found.start))[-1:]
            expected += sum(found.end - found.start for found in counted)
            for found in by_kind[EntryKind.ADJUST]:
                expected += (found.end - found.start) * (-1 if found.credit else 1)
        charges = fold(book).get(pool, ())
        assert seconds_within(charges, Window(0, 10**9)) == expected
        assert list(charges) == sorted(charges, key=lambda charge: charge.start)


@given(books, st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "UTC"]))
def test_the_parts_in_the_windows_add_up_to_the_whole(book: list[LedgerEntry], zone: str) -> None:
    for charges in fold(book).values():
        days = list(Calendar("day", zone).windows(-100_000, 600_000))
        assert sum(seconds_within(charges, day) for day in days) == sum(
            charge.sign * (charge.end - charge.start) for charge in charges
        )


@given(books)
def test_splitting_a_window_never_makes_it_cheaper(book: list[LedgerEntry]) -> None:
    """Each part is rounded up on its own, so at most one micro-dollar per charge and part is added."""
    for charges in fold(book).values():
        spent = [charge for charge in charges if charge.sign > 0]
        whole = cost_within(spent, Window(0, 500_000))
        parts = cost_within(spent, Window(0, 123_456)) + cost_within(spent, Window(123_456, 500_000))
        assert whole <= parts <= whole + len(spent)


@given(st.integers(0, 50_000), st.integers(0, 50_000), st.integers(1, 50_000))
def test_a_refund_is_the_hold_less_the_spend(start: int, used: int, held: int) -> None:
    hold = entry(EntryKind.HOLD, start, start + held)
    spend = entry(EntryKind.SPEND, start, start + used)
    assert total(hold) == held
    assert total(hold, spend) == used
    assert total(hold, entry(EntryKind.RELEASE, start, start)) == 0


def test_a_credit_takes_back_exactly_what_was_charged() -> None:
    spend, credit = entry(EntryKind.SPEND, 100, 400), entry(EntryKind.ADJUST, 100, 400, credit=True)
    assert total(spend, credit) == 0
    assert total(spend, entry(EntryKind.ADJUST, 400, 450)) == 350
    assert total(spend, entry(EntryKind.ADJUST, 1000, 1060, run=None)) == 360


def test_a_moved_hold_counts_in_place_of_the_first_and_ends_with_it() -> None:
    first, second = entry(EntryKind.HOLD, 0, 100), replace(entry(EntryKind.HOLD, 100, 250), at=1)
    assert total(first, second) == total(second, first) == 150
    assert total(first, second, entry(EntryKind.SPEND, 0, 120)) == 120


def test_a_spend_counts_although_its_run_was_released() -> None:
    """What was really charged wins over what we believed."""
    assert total(entry(EntryKind.RELEASE, 0, 0), entry(EntryKind.SPEND, 0, 60)) == 60


def test_only_open_holds_are_marked_as_held() -> None:
    charges = fold([entry(EntryKind.HOLD, 0, 10), entry(EntryKind.SPEND, 0, 5, run=RUNS[1])])["kaggle"]
    assert {charge.run: charge.held for charge in charges} == {RUNS[0]: True, RUNS[1]: False}


@pytest.mark.parametrize(
    ("kind", "run", "start", "end", "credit", "why"),
    [
        (EntryKind.SPEND, RUNS[0], 10, 9, False, "ends before it starts"),
        (EntryKind.HOLD, None, 0, 9, False, "must name its run"),
        (EntryKind.SPEND, None, 0, 9, False, "must name its run"),
        (EntryKind.RELEASE, None, 0, 0, False, "must name its run"),
        (EntryKind.SPEND, RUNS[0], 0, 9, True, "only an adjust entry can be a credit"),
        (EntryKind.HOLD, RUNS[0], 0, 9, True, "only an adjust entry can be a credit"),
    ],
)
def test_entries_that_make_no_sense_cannot_be_made(
    kind: EntryKind, run: str | None, start: int, end: int, credit: bool, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        entry(kind, start, end, run=run, credit=credit)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_a_charge_counts_the_seconds_it_shares_with_a_window(start: int, end: int, opens: int, closes: int) -> None:
    common = len(set(range(start, end)) & set(range(opens, closes)))
    assert Charge(start, max(start, end)).within(opens, closes) == common
    assert Charge(start, max(start, end), sign=-1).within(opens, closes) == -common


def test_money_is_rounded_against_us() -> None:
    charge = Charge(0, 1, price_microdollars_per_hour=1)
    assert charge.cost_within(0, 1) == 1
    assert Charge(0, 3600, price_microdollars_per_hour=740_000).cost_within(0, 1800) == 370_000


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.booleans()), max_size=6),
    st.integers(0, 60),
    st.integers(0, 40),
)
def test_corrections_make_any_books_say_what_the_bill_says(
    entries: list[tuple[int, int, bool]], start: int, length: int
) -> None:
    """Second by second, whatever was charged and credited before; and there is nothing left to correct."""
    charges = [Charge(at, at + seconds, -1 if credit else 1) for at, seconds, credit in entries]
    end = start + length
    more = [Charge(at, until, -1 if credit else 1) for at, until, credit in corrections(charges, start, end)]
    for second in range(110):
        said = sum(charge.within(second, second + 1) for charge in (*charges, *more))
        assert said == (start <= second < end)
    assert corrections([*charges, *more], start, end) == []


def test_only_time_billed_before_the_first_spend_was_waited() -> None:
    spends = [entry(EntryKind.SPEND, 100, 200), entry(EntryKind.SPEND, 300, 400)]
    adjusts = [entry(EntryKind.ADJUST, start, start + 50) for start in (50, 51, 200)]
    credited = entry(EntryKind.ADJUST, 50, 100, credit=True)
    foreign = entry(EntryKind.ADJUST, 10, 20, run=None)
    charges = fold([*spends, *adjusts, credited, foreign])["kaggle"]
    assert [charge for charge in charges if charge.waited] == [Charge(50, 100, run=RUNS[0], exact=False, waited=True)]


def test_an_entry_of_no_length_is_no_charge() -> None:
    assert fold([LedgerEntry(EntryKind.SPEND, "p", "run", 10, 10, 10)]).get("p", ()) == ()


def test_what_is_written_without_price_or_devices_is_free_and_of_one_device() -> None:
    charges, hour = fold([entry(EntryKind.SPEND, 0, 3_600)])["kaggle"], Window(0, 3_600)
    for made in (charges, [Charge(0, 3_600)]):
        assert (cost_within(made, hour), device_seconds_within(made, hour)) == (0, 3_600)
