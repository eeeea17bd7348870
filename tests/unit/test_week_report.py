"""The week's figures come from the ledger and the manifests, and every broken rule is found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, MoneyQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from jobs.payload.store.manifest import Component, Manifest
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.report.facts import JobFacts, WeekFacts
from scheduler.report.week import to_json, week_of

if TYPE_CHECKING:
    from pathlib import Path

START = 1_795_219_200  # Saturday 2026-11-21 00:00 UTC
KAGGLE = Pool(
    name="kaggle",
    platform="local",
    accelerator="two slots",
    quotas=(CalendarQuota("week", 30 * HOUR, Calendar("week", "UTC", weekday=5)),),
    devices_per_session=2,
    sessions_max=2,
)


def run(key: str, start: int, end: int, jobs: tuple[str, ...] = ("ufm",), outcome: Outcome = Outcome.YIELDED) -> Run:
    lanes = tuple(Lane(index, job, int(key[-1]), (index,), None, outcome) for index, job in enumerate(jobs))
    return Run(key, "kaggle", lanes, start, end, end, Ended(outcome, end, start))


def spend(of: Run) -> LedgerEntry:
    assert isinstance(of.state, Ended)
    return LedgerEntry(EntryKind.SPEND, of.pool, of.key, of.state.started or 0, of.state.at, of.state.at)


def saved(of: Run, job: str, step: int, at: int, **changes: Any) -> Manifest:
    lane = next(lane for lane in of.lanes if lane.job == job)
    fields: dict[str, Any] = {
        "job": job,
        "step": step,
        "attempt": lane.attempt,
        "run": of.key,
        "lane": lane.index,
        "parent": None,
        "created_at": at,
        "trained_seconds": HOUR,
        "components": (Component("weights", "0" * 64, 1),),
        "metrics": {"held_out_loss": 3.0 - step / 1_000},
        **changes,
    }
    return Manifest(**fields)


def facts(runs: list[Run], manifests: list[Manifest], **changes: Any) -> WeekFacts:
    fields: dict[str, Any] = {
        "start": START,
        "end": START + 7 * DAY,
        "scale": 3_600.0,
        "pools": {"kaggle": KAGGLE},
        "observed": {},
        "entries": [spend(each) for each in runs],
        "runs": runs,
        "manifests": manifests,
        "jobs": [JobFacts("ufm", "manager", 1_000, 200, "queued")],
        **changes,
    }
    return WeekFacts(**fields)


def test_charges_are_summed_per_window_and_useful_time_is_weighted_by_the_share_of_devices() -> None:
    shared = run("uff-ufm-1", START, START + 4 * HOUR, ("ufm", "ucm"))
    manifests = [saved(shared, "ufm", 100, START + HOUR), saved(shared, "ucm", 100, START + HOUR)]
    week = week_of(facts([shared], manifests))
    (pool,) = week.pools
    assert (pool.charged_seconds, pool.useful_seconds, pool.lane_seconds) == (4 * HOUR, HOUR, 8 * HOUR)
    assert pool.windows[0].charged_seconds == 4 * HOUR
    assert week.goodput == pytest.approx(0.25)
    assert week.shared_runs == 1
    assert week.violations == ()


def test_a_spot_session_is_as_useful_as_it_was_long_and_not_as_its_discounted_bill() -> None:
    cheap = run("uff-ufm-1", START, START + HOUR)  # four hours, billed as one
    manifests = [saved(cheap, "ufm", 100, START + 3 * HOUR, trained_seconds=2 * HOUR)]
    (pool,) = week_of(facts([cheap], manifests, last_signs={cheap.key: START + 4 * HOUR})).pools
    assert (pool.charged_seconds, pool.useful_seconds) == (HOUR, HOUR // 4)  # one of two devices, half the time


def test_steps_that_were_trained_twice_count_once() -> None:
    one, two = run("uff-ufm-1", START, START + HOUR), run("uff-ufm-2", START + HOUR, START + 2 * HOUR)
    first = saved(one, "ufm", 100, START + HOUR // 2, trained_seconds=HOUR // 2)
    lost = saved(one, "ufm", 200, START + HOUR, trained_seconds=HOUR // 2, parent=first.key)
    again = saved(two, "ufm", 250, START + 2 * HOUR, parent=first.key)
    (pool,) = week_of(facts([one, two], [first, lost, again])).pools
    assert pool.useful_seconds == (HOUR // 2 + HOUR) // 2  # on one of two devices


def test_a_session_across_the_end_of_the_week_counts_for_its_part() -> None:
    end = START + 7 * DAY
    late = run("uff-ufm-1", end - HOUR, end + HOUR)
    (pool,) = week_of(facts([late], [saved(late, "ufm", 100, end)])).pools
    assert (pool.charged_seconds, pool.useful_seconds) == (HOUR, HOUR // 2)  # on one of two devices


def test_a_resume_elsewhere_is_proven_by_the_parent_of_the_first_checkpoint() -> None:
    first = run("uff-ufm-1", START, START + HOUR)
    second = replace(run("uff-ufm-2", START + 2 * HOUR, START + 3 * HOUR), pool="other")
    parent = saved(first, "ufm", 100, START + HOUR - 9)
    child = saved(second, "ufm", 200, START + 3 * HOUR - 9, parent=parent.key)
    pools = {"kaggle": KAGGLE, "other": replace(KAGGLE, name="other")}
    (job,) = week_of(facts([first, second], [parent, child], pools=pools)).jobs
    assert (job.resumes, job.resumed_elsewhere, job.pools) == (1, 1, ("kaggle", "other"))
    assert (job.loss_first, job.loss_last) == (2.9, 2.8)


def test_a_window_over_its_limit_is_a_violation() -> None:
    long = run("uff-ufm-1", START, START + 31 * HOUR)
    assert any(text.startswith("quota: kaggle") for text in week_of(facts([long], [])).violations)


@pytest.mark.parametrize(("told_at", "broken"), [(START + 5 * HOUR, False), (START, True)])
def test_what_others_used_is_a_violation_only_of_launches_that_knew_of_it(told_at: int, broken: bool) -> None:
    """A launch leaves room for what is booked; what a person uses afterwards nobody could leave room for."""
    mine = run("uff-ufm-1", START + HOUR, START + 12 * HOUR)
    theirs = LedgerEntry(EntryKind.ADJUST, "kaggle", None, START, START + 20 * HOUR, told_at)
    week = week_of(facts([mine], [], entries=[spend(mine), theirs]))
    assert any(text.startswith("quota: kaggle") for text in week.violations) == broken


def test_a_rolling_span_over_its_limit_is_found_where_it_is_fullest() -> None:
    pool = replace(KAGGLE, quotas=(RollingQuota("rolling", 4 * HOUR),))
    runs = [
        run("uff-ufm-1", START + 20 * HOUR, START + 23 * HOUR),
        run("uff-ufm-2", START + 26 * HOUR, START + 28 * HOUR),
    ]
    week = week_of(facts(runs, [], pools={"kaggle": pool}))
    assert any("18000 s of 14400 s" in text for text in week.violations)


def test_money_is_told_and_a_budget_over_its_limit_is_a_violation() -> None:
    budget = MoneyQuota("money of the day", 1_400_000, Calendar("day"))
    pool = replace(KAGGLE, quotas=(budget,), price_microdollars_per_hour=736_400)
    long = run("uff-ufm-1", START + 22 * HOUR, START + 26 * HOUR)
    entry = replace(spend(long), price_microdollars_per_hour=736_400)
    week = week_of(facts([long], [], pools={"kaggle": pool}, entries=[entry]))
    assert week.pools[0].cost_microdollars == 4 * 736_400
    assert [text for text in week.violations if "$1.472800 of $1.400000" in text] == list(week.violations)
    assert len(week.violations) == 2  # two hours of either day


def test_a_checkpoint_that_goes_backwards_is_a_violation() -> None:
    one, two = run("uff-ufm-1", START, START + HOUR), run("uff-ufm-2", START + HOUR, START + 2 * HOUR)
    manifests = [saved(one, "ufm", 200, START + 60), saved(two, "ufm", 150, START + HOUR + 60)]
    assert any(text.startswith("checkpoint: ufm") for text in week_of(facts([one, two], manifests)).violations)


def test_a_job_that_was_restarted_from_step_0_breaks_no_rule() -> None:
    one, two = run("uff-ufm-1", START, START + HOUR), run("uff-ufm-2", START + HOUR, START + 2 * HOUR)
    manifests = [saved(one, "ufm", 200, START + 60), saved(two, "ufm", 150, START + HOUR + 60)]
    assert not week_of(replace(facts([one, two], manifests), firsts={"ufm": [2]})).violations
    back = [*manifests, saved(two, "ufm", 140, START + HOUR + 90)]
    (told,) = week_of(replace(facts([one, two], back), firsts={"ufm": [2]})).violations
    assert "from step 150 back to 140" in told


def test_an_attempt_that_publishes_after_its_successor_is_a_violation() -> None:
    one, two = run("uff-ufm-1", START, START + HOUR), run("uff-ufm-2", START + HOUR, START + 2 * HOUR)
    manifests = [saved(two, "ufm", 300, START + HOUR), saved(one, "ufm", 200, START + HOUR + 60)]
    assert any(text.startswith("twice: ") for text in week_of(facts([one, two], manifests)).violations)


def test_too_many_sessions_at_once_and_one_over_its_cap_are_violations() -> None:
    runs = [run(f"uff-ufm-{index}", START + index, START + HOUR) for index in range(3)]
    runs.append(run("uff-ufm-9", START + 2 * HOUR, START + 15 * HOUR))
    violations = week_of(facts(runs, [])).violations
    assert any(text.startswith("concurrency: 3 sessions") for text in violations)
    assert any(text.startswith("session: uff-ufm-9") for text in violations)


def test_the_document_has_the_documented_keys() -> None:
    one = run("uff-ufm-1", START, START + HOUR)
    document = json.loads(json.dumps(to_json(week_of(facts([one], [saved(one, "ufm", 100, START + 60)])))))
    assert set(document) >= {"scale", "hours", "violations", "pools", "jobs", "runs"}
    assert set(document["pools"][0]) >= {"name", "quota_seconds", "charged_seconds", "useful_seconds", "windows"}
    assert set(document["pools"][0]["windows"][0]) >= {"start", "end", "limit_seconds", "charged_seconds"}
    wanted = {"name", "role", "target_step", "step", "runs", "pools", "resumes", "checkpoints"}
    assert set(document["jobs"][0]) >= wanted | {"loss_first", "loss_last"}
    assert set(document["runs"][0]) >= {"key", "pool", "lanes", "start", "end", "outcome"}


def test_the_documentation_names_every_key_of_the_document(repository: Path) -> None:
    one = run("uff-ufm-1", START, START + HOUR)
    document = to_json(week_of(facts([one], [saved(one, "ufm", 100, START + 60)])))
    text = (repository / "docs" / "rehearsal.md").read_text(encoding="utf-8")
    assert {key for key in _keys_of(document) if f"`{key}`" not in text and f"`{key}[]`" not in text} == set()


def _keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(_keys_of(found) for found in value.values()))
    return set().union(*(_keys_of(found) for found in value)) if isinstance(value, list) else set()


def on_devices(key: str, start: int, end: int, count: int) -> Run:
    lane = Lane(0, "ufm", int(key[-1]), tuple(range(count)), None, Outcome.YIELDED)
    return Run(key, "kaggle", (lane,), start, end, end, Ended(Outcome.YIELDED, end, start))


def test_where_sessions_ask_for_their_devices_people_are_told_device_hours() -> None:
    week = CalendarQuota("device hours", 20 * HOUR, Calendar("week", "UTC", weekday=5), by_device=True)
    sessions = CalendarQuota("hours", 20 * HOUR, Calendar("week", "UTC", weekday=5))
    pool = replace(
        KAGGLE,
        quotas=(week, sessions),
        device_counts=(1, 2, 4),
        devices_max=6,
        devices_per_session=4,
        sessions_max=6,
    )
    runs = [on_devices("uff-ufm-1", START, START + 4 * HOUR, 4), on_devices("uff-ufm-2", START, START + 2 * HOUR, 2)]
    entries = [replace(spend(one), devices=one.devices) for one in runs]
    manifests = [saved(runs[0], "ufm", 100, START + 2 * HOUR)]
    found = week_of(facts(runs, manifests, pools={"kaggle": pool}, entries=entries))
    (figures,) = found.pools
    assert (figures.quota_seconds, figures.charged_seconds) == (20 * HOUR, 20 * HOUR)
    assert figures.useful_seconds == 4 * HOUR  # an hour on each of four devices
    assert [one.charged_seconds for one in figures.windows] == [20 * HOUR, 6 * HOUR]
    assert found.violations == ()
    more = [*runs, on_devices("uff-ufm-3", START + HOUR, START + 2 * HOUR, 1)]
    broken = week_of(
        facts(more, [], pools={"kaggle": pool}, entries=[replace(spend(one), devices=one.devices) for one in more])
    ).violations
    assert any("75600 s of 72000 s of device hours" in words for words in broken)
    assert any("3 sessions on kaggle" in words and "allowed are 6 devices" in words for words in broken)
