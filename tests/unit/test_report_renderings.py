"""The weekly report: its parts add up, forecasts have error bars, and all renderings carry the same numbers."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from html import unescape
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar
from jobs.payload.store.manifest import Component, Manifest, manifest_key
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Deferral, Placement, Plan, PlannedLane
from scheduler.core.quota import Meter
from scheduler.core.reasons import NotReleased, QuotaEmpty
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.report.document import document_of
from scheduler.report.facts import JobFacts, WeekFacts
from scheduler.report.forecast import forecast
from scheduler.report.loss_curve import loss_curve_svg
from scheduler.report.picture import Picture
from scheduler.report.renderings import html_of, inline, markdown_of, slack_of, text_of
from scheduler.report.report import JobSpeed, JudgedVersion, Need, Report, ReportFacts, report_of
from scheduler.views.weekly_report import week_named

START = 1_794_787_200  # Monday 2026-11-16 00:00 UTC
END = START + WEEK
HOSTILE = "<script>|`*x*` <!channel>\x1b[2J"
POOL = Pool(
    name="kaggle",
    platform="local",
    accelerator="slot",
    quotas=(CalendarQuota("week", 30 * HOUR, Calendar("week", "UTC", weekday=5)),),
)


def a_run(attempt: int, outcome: Outcome) -> Run:
    start = START + attempt * DAY
    lane = Lane(0, "ufm", attempt, (0,), None, outcome)
    state = Ended(outcome, start + 4 * HOUR, None if outcome is Outcome.REJECTED else start)
    return Run(f"uff-ufm-{attempt}", "kaggle", (lane,), start, start + 4 * HOUR, start + 4 * HOUR, state)


def facts(**changes: Any) -> ReportFacts:
    runs = [a_run(1, Outcome.YIELDED), a_run(2, Outcome.LOST), a_run(3, Outcome.REJECTED)]
    manifests = [
        Manifest(
            job="ufm",
            step=step,
            attempt=1,
            run="uff-ufm-1",
            lane=0,
            parent=parent,
            created_at=START + DAY + saved * HOUR,
            trained_seconds=HOUR,
            components=(Component("weights", "0" * 64, 1),),
            metrics={"held_out_loss": 4 - step / 1_000},
        )
        for saved, step, parent in ((1, 1_234, None), (2, 2_345, manifest_key("ufm", 1_234, 1)))
    ]
    entries = [
        LedgerEntry(
            EntryKind.SPEND,
            "kaggle",
            run.key,
            run.planned_start,
            run.deadline,
            END,
            price_microdollars_per_hour=740_000,
        )
        for run in runs[:2]
    ]
    week = WeekFacts(
        START,
        END,
        1.0,
        {"kaggle": POOL},
        {},
        entries,
        runs,
        manifests,
        [JobFacts("ufm", "manager", 9_876, 2_345, "queued")],
    )
    plan = Plan(
        END,
        (Placement("kaggle", END, END + 6 * HOUR, (PlannedLane("ufm", 1, 4_321),)),),
        (Deferral("ucm", QuotaEmpty("kaggle", "week", END + DAY)),),
    )
    fields: dict[str, Any] = {
        "label": "2026-W47",
        "zone": "UTC",
        "now": END,
        "week": week,
        "before": replace(week, start=START - WEEK, end=START, runs=[]),
        "seen_at": {manifest.key: START + DAY for manifest in manifests},
        "deadlines": {"ufm": END + 11 * HOUR},
        "speeds": {("ufm", "kaggle"): JobSpeed(0.2, 0.1, 900)},
        "plan": plan,
        "quotas": [
            Meter("kaggle", "week", "seconds", 30 * HOUR, 8 * HOUR, 0, 22 * HOUR, START, END, END + DAY, "", "")
        ],
        "judged": [
            JudgedVersion("ufm@2", "rejected", HOSTILE, in_force=False),
            JudgedVersion("uam@1", "accepted", "", in_force=True),
        ],
        "needs": [Need("job held", HOSTILE, "by daemon: no data", "schedctl queue show ufm")],
        **changes,
    }
    return ReportFacts(**fields)


@pytest.fixture
def report() -> Report:
    return report_of(facts())


def test_the_parts_of_the_charged_time_add_up_and_each_has_its_cause(report: Report) -> None:
    spent = report.total
    assert (spent.charged, spent.useful, spent.set_up) == (8 * HOUR, 2 * HOUR, 2 * 900)
    assert spent.lost == 4 * HOUR - 900
    assert spent.overhead == 2 * HOUR - 900
    parts = (
        spent.useful + spent.set_up + spent.lost + spent.overhead + spent.running + spent.unattributed + spent.waited
    )
    assert parts == spent.charged
    assert (spent.sessions, spent.refused_starts, spent.cost_microdollars) == (2, 1, 8 * 740_000)


def test_what_was_billed_of_a_wait_is_a_part_of_its_own() -> None:
    """It is neither lost work nor somebody else's."""
    usual = facts()
    wait = LedgerEntry(EntryKind.ADJUST, "kaggle", "uff-ufm-1", START + DAY - HOUR, START + DAY, END)
    spent = report_of(facts(week=replace(usual.week, entries=[*usual.week.entries, wait]))).total
    before = report_of(usual).total
    assert spent == replace(before, charged=before.charged + HOUR, waited=HOUR, expired=before.expired - HOUR)


def test_two_quota_weeks_that_touch_the_week_offer_one_quota_and_the_ended_one_expires(report: Report) -> None:
    assert report.total.offered == 30 * HOUR
    assert report.total.expired == 22 * HOUR


def test_hours_before_the_first_job_were_nobodys_to_use() -> None:
    """The quota's week that ended on Saturday had passed before the first job came on Sunday."""
    assert report_of(facts(since=START + 6 * DAY)).total.expired == 0
    assert report_of(facts(since=START + 4 * DAY)).total.expired == 22 * HOUR
    whole = report_of(facts()).total.offered
    assert report_of(facts(since=START + 4 * DAY)).total.offered == pytest.approx(whole * 3 / 7, rel=0.01)
    assert report_of(facts(since=END + DAY)).total.offered == 0


def test_jobs_that_wait_for_the_same_share_a_line() -> None:
    empty, later = QuotaEmpty("kaggle", "week", END + DAY), NotReleased(END + DAY, "not before")
    jobs = [*(f"m{number}" for number in range(12)), "ucm"]
    plan = Plan(END, (), tuple(Deferral(job, later if job == "ucm" else empty) for job in jobs))
    sections = {section.title: section for section in document_of(report_of(facts(plan=plan))).sections}
    lines = sections["Next seven days"].lines
    names = ", ".join(f"m{number}" for number in range(10))
    assert lines[1:] == (f"{names} and 2 more wait: {empty.sentence()}.", f"ucm waits: {later.sentence()}.")


def test_a_deadline_before_the_late_end_of_the_forecast_is_at_risk(report: Report) -> None:
    (job,) = report.jobs
    assert job.at_risk
    assert (job.steps, job.steps_before, job.checkpoints) == (2_345, 0, 2)
    assert [need.what for need in report.needs] == ["job held"]


def words(report: Report) -> dict[str, str]:
    document = document_of(report)
    slack = "\n".join(block["text"]["text"] for block in slack_of(document))
    return {
        "text": text_of(document),
        "markdown": markdown_of(document).replace("\\", ""),
        "html": unescape(
            re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", html_of(document), flags=re.DOTALL))
        ),
        "slack": unescape(slack),
    }


def test_all_renderings_carry_equal_numbers(report: Report) -> None:
    """Every number of the plain text stands as often in every other rendering, in the same order."""
    found = {
        name: re.findall(r"[+-]?\$?\d[\d,.:-]*%?", text.partition("Models")[2]) for name, text in words(report).items()
    }
    assert len(found["text"]) > 50
    assert found["markdown"] == found["text"]
    assert found["slack"] == found["text"]
    assert found["html"] == found["text"]


def test_the_words_show_the_figures_of_the_json(report: Report) -> None:
    document = json.loads(json.dumps(asdict(report)))
    text = words(report)["text"]
    spent = document["pools"][0]["spent"]
    for part in ("offered", "charged", "useful", "set_up", "lost", "overhead", "expired"):
        assert re.search(rf"(?<![\d.]){spent[part] / 3_600:.1f}(?!\d)", text), part
    for job in document["jobs"]:
        assert f"{job['step']:,}" in text
        assert all(f"{loss:.4f}" in text for _, loss in job["losses"])
    assert f"${spent['cost_microdollars'] / 1e6:.2f}" in text


def test_hostile_names_stay_words(report: Report) -> None:
    document = document_of(report)
    drawn = loss_curve_svg(HOSTILE, report.jobs[0].losses, 5_000)
    assert "<svg" in drawn
    assert "<script>" not in html_of(document, inline([Picture("loss", HOSTILE, drawn, drawn, 640)]))
    assert all("<!channel>" not in block["text"]["text"] for block in slack_of(document))
    assert "\x1b" not in text_of(document) + markdown_of(document)


def test_a_report_leads_with_what_became_of_the_models(report: Report) -> None:
    titles = [section.title for section in document_of(report).sections]
    assert titles[:6] == ["In short", "Actions required", "Models", "Hours and money", "Next seven days", "Versions"]
    text = words(report)["text"]
    assert "Gained: ufm 2,345 steps." in text
    assert f"{report.jobs[0].loss_best:.4f}" in text.partition("Hours and money")[0]
    stalled = replace(facts().week, manifests=[])
    assert "Stalled, trained and saved nothing: ufm." in text_of(document_of(report_of(facts(week=stalled))))


def test_a_week_in_which_nothing_ran_says_so() -> None:
    week = replace(facts().week, entries=[], runs=[], manifests=[], jobs=[])
    before = replace(week, start=START - WEEK, end=START)
    report = report_of(facts(week=week, before=before, plan=None, needs=[], quotas=[], speeds={}))
    assert "Nothing ran this week." in text_of(document_of(report))
    assert "no checkpoint" in text_of(document_of(report)).lower()


def test_a_thousand_jobs_fit_into_one_slack_message_that_says_what_is_missing() -> None:
    jobs = [JobFacts(f"job-{number}-{'x' * 60}", "manager", 100, 0, "queued") for number in range(1_000)]
    blocks = slack_of(document_of(report_of(facts(week=replace(facts().week, jobs=jobs)))))
    assert len(blocks) == 50
    assert all(len(block["text"]["text"]) <= 3_000 for block in blocks)
    assert "schedctl report" in blocks[-1]["text"]["text"]


def test_a_forecast_within_the_plan_is_interpolated_and_widens_with_the_error_of_the_speed() -> None:
    plan = Plan(0, (Placement("kaggle", 1_000, 2_000, (PlannedLane("ufm", 1, 100),)),), ())
    found = forecast("ufm", 50, plan, 0.0, 0.5, 0)
    assert found is not None
    assert (found.earliest, found.expected, found.latest, found.basis) == (1_000, 1_500, 3_000, "plan")


def test_a_forecast_beyond_the_plan_goes_on_at_its_pace_and_without_any_there_is_none() -> None:
    plan = Plan(0, (Placement("kaggle", 0, 1_000, (PlannedLane("ufm", 1, 100),)),), ())
    found = forecast("ufm", 300, plan, 0.0, 0.0, 0)
    assert found is not None
    assert (found.expected, found.basis) == (3_000, "plan's pace")
    assert forecast("ufm", 300, None, 0.0, None, 0) is None
    assert forecast("ufm", 0, plan, 1.0, None, 0) is None


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Auckland"])
def test_weeks_have_names_that_lead_back_to_them_also_across_clock_changes(zone: str) -> None:
    for number in range(60):
        week = week_named("last", zone, START + number * WEEK + 3 * DAY)
        assert week_named(week.label, zone) == week
        assert week_named("last", zone, week.end) == week


@pytest.mark.parametrize("label", ["2026-47", "2026-W54", "W47", "2026-W"])
def test_what_names_no_week_is_refused(label: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the calendar says
        week_named(label, "UTC")


def test_versions_that_were_judged_are_told_and_none_at_all_where_none_was(report: Report) -> None:
    (section,) = [found for found in document_of(report).sections if found.title == "Versions"]
    assert section.lines == ("2 versions evaluated, 1 accepted.",)
    assert section.table is not None
    assert [row[:2] for row in section.table.rows] == [("ufm@2", "rejected"), ("uam@1", "accepted, promoted")]
    without = document_of(replace(report, judged=()))
    assert "Versions" not in [found.title for found in without.sections]


def test_a_message_says_in_its_subject_how_the_week_went() -> None:
    document = document_of(report_of(facts()))
    assert document.subject == "Training W47: 1 at risk, 1 action"
    assert document.sections[0].lines[0] == "Not on track: 1 at risk. 0 of 1 job done."
    assert document.sections[0].lines[-1] == "1 action required."


def test_a_shared_session_is_counted_once() -> None:
    lanes = (PlannedLane("uam", 1, 100), PlannedLane("ulm", 1, 50))
    plan = Plan(0, (Placement("kaggle", END, END + 12 * HOUR, lanes),), ())
    (shared,) = report_of(facts(plan=plan)).planned
    assert (shared.job, shared.sessions, shared.seconds, shared.steps) == ("uam, ulm", 1, 12 * HOUR, 150)


def test_a_week_with_little_productive_time_is_explained() -> None:
    told = facts()
    lost = replace(told.week.runs[1], lanes=(replace(told.week.runs[1].lanes[0], message="out of memory."),))
    week = replace(told.week, runs=[lost], manifests=[])
    (pool,) = report_of(replace(told, week=week)).pools
    assert pool.spent.useful == 0
    assert pool.why.endswith("; session uff-ufm-2 was lost (out of memory)")
    assert f"kaggle: {pool.why}." in text_of(document_of(report_of(replace(told, week=week))))
