"""The planner's benchmark in small: baselines, traces, the year, and every figure it promises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import bench_planner
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar, DailyHours
from jobs.spec import Needs
from scheduler.core.ledger import Charge
from scheduler.core.plan import Plan
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner.verify import verify
from tests.lab.planner import closed_loop, figures
from tests.lab.planner.backfill import backfill
from tests.lab.planner.baselines import OTHERS, ordered, static_week
from tests.lab.planner.cases import EPOCH, KAGGLE, SMALL_MIX, make_pools, random_case, seed_case
from tests.lab.planner.replay import ONLINE, by_order, replay, rules
from tests.lab.planner.speed import steps, warm_ms
from tests.lab.planner.synthetic import KINDS, synthetic
from tests.lab.planner.trace import BadTrace, on_our_pools, read_rows, read_trace
from tests.lab.planner.year import Live, Year

FIGURES = {
    *(name for name in bench_planner.TARGETS if name.startswith(("month_", "busy_"))),
    "seed_ratio_min",
    "ratio_50x6_mean",
    "ratio_50x6_worst",
    "steps_over_plain",
    "quick_ms",
    "polish_ms",
    "ratio_1000x50_mean",
    "big_seconds",
    "big_mib",
    "big_own_mib",
    "big_ratio",
    "warm_over_cold_1000",
    "warm_over_cold_10000",
    "goodput_over_limit",
    "goodput_over_static",
    "flow_over_fifo",
    "rolling_over_calendar",
    "churn_50x6",
    "churn_1000x50",
    "deadlines_over_edf",
    "value_over_edf",
    "dispatcher_ratio_min",
    "lane_hours_per_quota_hour",
}


def job(name: str, hours: float, position: int) -> JobView:
    return JobView(
        name,
        1.0,
        int(hours * HOUR),
        0,
        Needs(),
        {"kaggle": Rate(1.0)},
        {"kaggle": 360},
        {"kaggle": 0},
        position=position,
    )


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_baseline_breaks_no_rule(name: str, seed: int) -> None:
    snapshot = random_case(50, make_pools(SMALL_MIX), seed)
    placements = ordered(snapshot, name)
    assert len(placements) > 20
    assert verify(snapshot, Plan(EPOCH, placements, ())) == []


@pytest.mark.parametrize("gated", [False, True])
def test_the_static_week_breaks_no_rule(gated: bool) -> None:
    snapshot = seed_case(2, gated=gated)
    assert verify(snapshot, Plan(EPOCH, static_week(snapshot), ())) == []


def test_backfill_asks_for_whole_walltimes_and_fills_in_what_does_not_delay_the_first() -> None:
    """Of 30 hours the large job takes 12 and 12; 6 are too short for it and go to the small one behind it."""
    pool = replace(KAGGLE, sessions_max=1)
    plan = backfill(Snapshot(EPOCH, (job("large", 100, 0), job("small", 5, 1)), (PoolView(pool),), WEEK))
    found = [(placed.lanes[0].job, placed.start - EPOCH, placed.end - placed.start) for placed in plan.placements]
    assert found == [
        ("large", 0, 12 * HOUR),
        ("large", 12 * HOUR, 12 * HOUR),
        ("small", 24 * HOUR, 5 * HOUR + 900),
    ]


@pytest.mark.parametrize(("quota_hours", "order"), [(11, ["small", "first"]), (10, ["first"])])
def test_backfill_never_delays_the_first_in_line(quota_hours: int, order: list[str]) -> None:
    """Two hours are open before the first one's place at four: who leaves its hours alone may use them."""
    hours = (DailyHours("UTC", 0, 2 * HOUR), DailyHours("UTC", 4 * HOUR, 20 * HOUR))
    quota = CalendarQuota("week", quota_hours * HOUR, Calendar("week", "UTC", 5))
    pool = replace(KAGGLE, sessions_max=1, hours=hours, quotas=(quota,))
    plan = backfill(Snapshot(EPOCH, (job("first", 8.5, 0), job("small", 1.5, 1)), (PoolView(pool),), DAY))
    assert [placed.lanes[0].job for placed in plan.placements] == order


def test_a_trace_becomes_jobs_on_our_pools(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\ufeffsubmit,duration,gpus,deadline\n600,100,2,\n0,50,1,200\n\n300,0,1,\n900.5,25,1\n", "utf-8")
    rows = read_rows(path)
    assert [(row.submit, row.duration, row.devices, row.slack) for row in rows] == [
        (0, 50, 1, 4.0),
        (600, 100, 2, None),
        (900.5, 25, 1, None),
    ]
    snapshot, count = read_trace(path)
    assert count == 3
    assert sum(view.target_step for view in snapshot.jobs) == pytest.approx(2 * 2_510 * HOUR, rel=1e-6)
    first, _, last = snapshot.jobs
    assert first.deadline == EPOCH + 720 + 4 * first.target_step
    assert last.not_before == EPOCH + int(0.8 * WEEK)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "no job in it"),
        ("submit,duration,gpus\n", 1, "no job in it"),
        ("1,2,1\n1,2\n", 2, "2 columns"),
        ("1,2,1\n1,2,1,5,6,7\n", 2, "6 columns"),
        ("1,2,1\n1,2,1,5,0\n", 2, "weight 0"),
        ("0,1,1\n\n5,x,1,\n", 3, "duration 'x' is no number"),
        ("s,d,g\nt,1,1\n", 2, "submit 't' is no number"),
        ("0,1,0,\n", 1, "0 GPUs"),
        ("0,-1,1,\n", 1, "duration -1 is not a number from zero on"),
        ("0,nan,1,\n", 1, "duration nan is not a number from zero on"),
        ("10,1,1,9\n", 1, "deadline 9 is not after submit 10"),
        ("0,1,1,soon\n", 1, "deadline 'soon' is no number"),
    ],
)
def test_a_trace_that_cannot_be_read_names_the_line(text: str, line: int, why: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(
        BadTrace, match="expected: submit seconds,duration seconds,GPUs,deadline or empty,weight"
    ) as caught:
        read_trace(path)
    assert f"{path}, line {line}: {why}" in str(caught.value)


def test_a_trace_that_is_no_text_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"0,1,1,\n\xff\xfe\x00")
    with pytest.raises(BadTrace, match="no text in UTF-8"):
        read_trace(path)


@pytest.mark.nightly
def test_replaying_a_trace_compares_all_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("".join(f"{n * 60},{100 + n % 7 * 50},{1 + n % 2},{n * 60 + 900}\n" for n in range(60)), "utf-8")
    bench_planner.replay(path)
    out = capsys.readouterr().out
    assert "trace.csv: 60 of 60 jobs, 60 with a deadline" in out
    assert " 0 violations" in out
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["planner", "daemon", *OTHERS]
    with pytest.raises(SystemExit, match=r"bench_planner: .*missing"):
        bench_planner.replay(tmp_path / "missing.csv")
    with pytest.raises(SystemExit, match=r"60 jobs have no slice 6 of 10"):
        bench_planner.replay(path, 6, 10)


@pytest.mark.nightly
def test_a_trace_is_replayed_online_by_the_daemon_s_planner_and_all_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    rows = (f"{n * 600},{100 + n % 7 * 50},1,{n * 600 + 900 if n % 2 else ''},{1 + n % 3}\n" for n in range(24))
    path.write_text("".join(rows), "utf-8")
    monkeypatch.setattr("sys.argv", ["bench_planner.py", str(path), "--online", "--slice", "1", "--jobs", "12"])
    bench_planner.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trace.csv: 12 of 24 jobs, 6 with a deadline; 4 pools"
    assert [line.split()[0] for line in lines[2:]] == ["planner", *ONLINE]


@pytest.mark.nightly
def test_traces_are_told_by_kind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is what the replays came to: of one trace a kind, ratios of single outcomes."""
    run(monkeypatch, "--traces", "--seeds", "1", "--jobs", "20", "--workers", "1")
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[2:]}
    assert list(rows) == list(KINDS)
    for kind in KINDS:
        row, snapshot = rows[kind], on_our_pools(synthetic(kind, 20, 0), 20)
        ours, smith, edf = (replay(snapshot, rules()[name]()) for name in ("planner", "smith", "edf"))
        assert row[0] == row[1] == f"{ours.flow.weighted / smith.flow.weighted:.3f}"
        assert row[2] == row[3] == f"{ours.value / smith.value:.3f}"
        assert row[5:8] == [f"{ours.on_time}", f"({smith.on_time},", f"{edf.on_time});"]


def test_orders_replayed_online_are_what_they_are_called() -> None:
    """One pool, one session at a time, all submitted at once: completions follow the order, computed by hand."""
    pool = replace(KAGGLE, sessions_max=1, quotas=())
    hours, weights = {"a": 6.0, "b": 2.0, "c": 4.0, "d": 9.0}, {"a": 9.0, "b": 1.0, "c": 8.0, "d": 4.0}
    due = {"a": 2, "d": 1}
    jobs = tuple(
        replace(
            job(name, length, position),
            weight=weights[name],
            deadline=EPOCH + due[name] * DAY if name in due else None,
            not_before=EPOCH,
        )
        for position, (name, length) in enumerate(hours.items())
    )
    snapshot = Snapshot(EPOCH, jobs, (PoolView(pool),), WEEK)
    orders = {"fifo": "abcd", "edf": "dabc", "priority": "acdb", "srtf": "bcad", "smith": "cabd"}
    for name, order in orders.items():
        ends, end = {}, 0.0
        for one in order:
            end += hours[one] + 0.1
            ends[one] = end
        outcome = replay(snapshot, by_order(name))
        expected = sum(weights[one] * ends[one] for one in hours) / sum(weights.values())
        assert outcome.flow.weighted == pytest.approx(expected, rel=1e-3), name
        assert outcome.flow.done == 4


def test_a_job_is_hidden_until_it_is_submitted() -> None:
    """A rule that is told of one that is not yet there could keep hours for it."""
    jobs = tuple(replace(job(f"j{n}", 1, n), not_before=EPOCH + n * HOUR) for n in range(4))
    snapshot = Snapshot(EPOCH, jobs, (PoolView(KAGGLE),), WEEK)
    seen: list[tuple[int, set[str]]] = []

    def watch(known: Snapshot, incumbent: Plan | None) -> Plan:
        seen.append((known.now, {view.name for view in known.jobs}))
        return by_order("fifo")(known, incumbent)

    replay(snapshot, watch)
    assert all(EPOCH + int(name[1:]) * HOUR <= now for now, names in seen for name in names)
    assert {name for _, names in seen for name in names} == {"j0", "j1", "j2", "j3"}


@pytest.mark.nightly
def test_short_years_overdraw_nothing_and_give_every_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures.years(range(1), 2)
    assert {"goodput_over_limit", "goodput_over_static", "flow_over_fifo", "rolling_over_calendar"} <= set(found)
    assert all(0.2 < ratio < 5 for ratio in found.values())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert all("0 windows overdrawn; useful 0." in line for line in lines[:5])
    assert "no policy: weighted flow" in lines[5]
    assert found["flow_limit_over_fifo"] < found["flow_over_fifo"]


def test_years_are_told_against_first_in_first_out_seed_by_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 20 jobs 19 wait a day and one 30: the tail is a day, and the mean by weight is all that the last one moves."""

    def year(_: int, task: tuple[int, str]) -> Year:
        seed, name = task
        days = 1.0 if name == "planner" else 2.0 + seed
        return Year(100.0, 80.0, 60.0, {}, 64.0, [(1.0, days)] * 19 + [(1.0, 30 * days)], 19 + seed)

    monkeypatch.setattr(figures, "_year", year)
    run(monkeypatch, "--year", "--years", "2", "--workers", "1")
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["0", "0.500", "0.500", "0.750", "0.750", "19.0", "19.0"],
        ["1", "0.333", "0.333", "0.750", "0.750", "20.0", "20.0"],
        ["mean", "0.417", "0.417", "0.750", "0.750", "19.5", "19.5"],
    ]
    assert year(2, (0, "planner")).tail_days == 1.0


def test_an_overdrawn_year_is_seen() -> None:
    """A policy that ignores quotas is caught by the audit, which knows nothing of how sessions were planned."""

    def careless(snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        del incumbent
        free = tuple(replace(view, pool=replace(view.pool, quotas=())) for view in snapshot.pools)
        return backfill(replace(snapshot, pools=free))

    simulation = closed_loop.Simulation(0, 1, careless)
    simulation.run()
    assert closed_loop.overdrawn(simulation) > 0


def test_what_somebody_else_uses_is_nobodys_and_ends_the_session_it_leaves_no_room_for() -> None:
    """At hour 20 all that is left is used: the session that runs ends there, with what it has saved and no more."""

    def week(*takers: tuple[int, int]) -> closed_loop.Simulation:
        simulation = closed_loop.Simulation(0, 1, closed_loop.first_in_first_out)
        simulation.takers = list(takers)
        simulation.run()
        return simulation

    alone, robbed = week(), week((EPOCH + 20 * HOUR, 9 * HOUR))
    assert sum(alone.year.shares.values()) == pytest.approx(1.0)
    taken = sum(charge.end - charge.start for charge in robbed.taken)
    assert 0 < taken < 9 * HOUR  # nobody uses more than there is
    assert robbed.year.quota_seconds == alone.year.quota_seconds - taken
    ends = [max(charge.end for charge in simulation.charges["kaggle"]) for simulation in (alone, robbed)]
    assert ends[0] > ends[1] == EPOCH + 20 * HOUR
    assert closed_loop.overdrawn(robbed) == 0
    robbed.taken.append(Charge(EPOCH, EPOCH + HOUR))
    assert closed_loop.overdrawn(robbed) == 1


def test_a_session_that_is_cut_keeps_what_was_saved_and_accounts_for_every_second() -> None:
    """Of 1,000 seconds the first 100 are set-up; two saves of 180 seconds were to come, one of them in time."""
    model = closed_loop.Simulation(0, 1, None).arrivals[0][0]
    run = Live("run", model, "kaggle", 0, 1_000, 1_000, 100.0, [(400.0, 120.0), (880.0, 420.0)], False)
    assert run.spent == {"useful": 420.0, "set-up": 100.0, "saving": 360.0, "margin": 120.0}
    run.cut(879)
    assert (run.useful_seconds, run.complete, run.end) == (120.0, False, 879)
    assert run.spent == {"useful": 120.0, "set-up": 100.0, "saving": 180.0, "lost": 479.0}


def test_two_lanes_sell_nearly_two_hours_per_hour() -> None:
    assert figures.lanes()["lane_hours_per_quota_hour"] > 1.9


def test_the_search_steps_as_the_plain_walk_does_in_a_fraction_of_its_time() -> None:
    assert steps()[1] > 2
    assert warm_ms(figures.UNSEARCHED, 1) > 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a benchmark run of this test writes."""
    monkeypatch.setattr(bench_planner, "ROOT", tmp_path)
    return tmp_path / "benchmarks" / "out"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["bench_planner.py", *arguments])
    bench_planner.main()


def test_the_report_has_every_figure_of_the_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(bench_planner.TARGETS) == FIGURES
    given = [*FIGURES - {"dispatcher_ratio_min"}, *bench_planner.ALONE]
    parts = {name: lambda _, name=name: {name: 0.5} for name in given}
    monkeypatch.setattr(bench_planner, "PARTS", parts)
    run(monkeypatch)
    written = json.loads((folder / "planner.json").read_text())
    assert set(written) >= FIGURES | {"seeds", "machine", "versions"}
    out = capsys.readouterr().out
    assert "big_seconds                      0.5000  <= 5" in out
    assert "seed_ratio_min                   0.5000  >= 0.99   not met" in out


def test_a_run_that_is_interrupted_keeps_what_it_has_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: bench_planner.Extent) -> figures.Figures:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        bench_planner, "PARTS", {"one": lambda _: {"big_mib": 1.0}, "two": interrupted, "three": lambda _: {}}
    )
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch)
    assert json.loads((folder / "planner.json").read_text())["big_mib"] == 1.0


def test_measuring_one_part_again_keeps_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        bench_planner, "PARTS", {"one": lambda _: {"big_mib": 1.0}, "two": lambda _: {"big_ratio": 0.9}}
    )
    run(monkeypatch)
    monkeypatch.setitem(bench_planner.PARTS, "two", lambda _: {"big_ratio": 0.95})
    run(monkeypatch, "--only", "two")
    written = json.loads((folder / "planner.json").read_text())
    assert (written["big_mib"], written["big_ratio"]) == (1.0, 0.95)
    assert "big_seconds                           -  <= 5   not measured" in capsys.readouterr().out
