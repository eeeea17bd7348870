"""No share of useful time is below nothing or above all of it, whatever was billed, trained twice or said."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR, WEEK
from jobs.payload.store.manifest import Component, Manifest, manifest_key
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.report.facts import JobFacts, WeekFacts
from scheduler.report.report import ReportFacts, report_of
from scheduler.report.week import Week, week_of
from tests.lab.night import share

START = 1_795_219_200
JOBS = ("uff-main", "ufm")
instants = st.integers(START - 2 * DAY, START + WEEK + 2 * DAY)
lengths = st.integers(0, 12 * HOUR)


@st.composite
def runs(draw: st.DrawFn, pool: Pool, number: int) -> tuple[Run, list[LedgerEntry]]:
    """Draw a session and its entries: billed as long as it was, at a discount, corrected later, or still held."""
    start, length = draw(instants), draw(lengths)
    free = list(range(pool.devices_per_session))
    taken = draw(st.sampled_from(((1,), (2,), (1, 1)))) if len(free) > 1 else (1,)
    lanes, first = [], 0
    for index, devices in enumerate(taken):
        lanes.append(Lane(index, JOBS[index], number, tuple(range(first, first + devices)), None, Outcome.YIELDED))
        first += devices
    billed = draw(st.integers(0, length))
    key = f"uff-{number}"
    entries = [LedgerEntry(EntryKind.HOLD, pool.name, key, start, start + length, start)]
    if draw(st.booleans()):
        entries.append(LedgerEntry(EntryKind.SPEND, pool.name, key, start, start + billed, start + length))
        if draw(st.booleans()):
            back = draw(st.integers(0, billed))
            entries.append(
                LedgerEntry(EntryKind.ADJUST, pool.name, key, start, start + back, start + length, credit=True)
            )
    state = Ended(Outcome.YIELDED, start + billed, start)
    return Run(key, pool.name, tuple(lanes), start, start + length, start + length, state), entries


@st.composite
def weeks(draw: st.DrawFn) -> WeekFacts:
    """Draw a week: its sessions, what they published, what others used and what was given back."""
    pool = Pool("kaggle", "local", "slots", devices_per_session=draw(st.sampled_from((1, 2))), sessions_max=4)
    found = [draw(runs(pool, number)) for number in range(1, draw(st.integers(1, 4)) + 1)]
    entries = [entry for _, mine in found for entry in mine]
    for credit in draw(st.lists(st.booleans(), max_size=2)):
        at = draw(instants)
        entries.append(LedgerEntry(EntryKind.ADJUST, pool.name, None, at, at + draw(lengths), at, credit))
    manifests: dict[str, Manifest] = {}
    for run, _ in found:
        for lane in run.lanes:
            parent = draw(st.none() | st.sampled_from([*manifests, manifest_key(lane.job, 7, 999)]))
            for step in sorted(draw(st.sets(st.integers(1, 50), max_size=4))):
                key = manifest_key(lane.job, step, lane.attempt)
                created = draw(instants)
                manifests[key] = Manifest(
                    lane.job, step, lane.attempt, run.key, lane.index, parent, created,
                    draw(lengths), {}, (Component("weights", "0" * 64, 1),),
                )  # fmt: skip
                parent = key
    return WeekFacts(
        START,
        START + WEEK,
        1.0,
        {pool.name: pool},
        {},
        entries,
        [run for run, _ in found],
        list(manifests.values()),
        [JobFacts(job, "main", 50, 0, "queued") for job in JOBS],
        {run.key: draw(instants) for run, _ in found if draw(st.booleans())},
    )


def shares(week: Week) -> list[float]:
    """Return every share that a table or a message could print."""
    parts = [pool.useful_seconds / pool.charged_seconds for pool in week.pools if pool.charged_seconds > 0]
    return [*parts, week.goodput]


@settings(max_examples=share(300), deadline=None)
@given(weeks())
def test_no_useful_share_is_below_nothing_or_above_all(facts: WeekFacts) -> None:
    week = week_of(facts)
    assert all(pool.useful_seconds >= 0 for pool in week.pools)
    assert all(0 <= share <= 1 for share in shares(week)), week.pools
    if week.charged_seconds <= 0:
        assert week.useful_seconds == 0


@settings(max_examples=share(200), deadline=None)
@given(weeks())
def test_the_parts_of_a_report_add_up_and_none_is_more_than_the_whole(facts: WeekFacts) -> None:
    report = report_of(ReportFacts("week", "UTC", START + WEEK, facts, facts, {}, {}, {}, None, (), ()))
    spent = report.total
    parts = asdict(spent)
    for name in ("offered", "charged", "expired", "cost_microdollars", "sessions", "refused_starts"):
        del parts[name]
    assert sum(parts.values()) == spent.charged
    assert 0 <= spent.goodput <= 1
    assert min(spent.useful, spent.set_up, spent.lost) >= 0
