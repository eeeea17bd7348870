"""Charts tell what the books say, at any width, and no name can break them."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from xml.etree import ElementTree as ET  # our own output, not somebody's

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, Quota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar, Window
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.quota import meter
from scheduler.core.run import Ended, Lane, Outcome, Run, Running
from scheduler.report.burn_down import amount, burn_down_of, burn_down_svg
from scheduler.report.chart import STYLE, Frame, days, hues_of, labels, short, ticks
from scheduler.report.loss_curve import loss_curve_svg
from scheduler.report.timeline import Timeline, timeline_of, timeline_svg

NOW = 1_795_262_400  # Saturday 2026-11-21 12:00 UTC
SPAN = Window(NOW - 3 * DAY, NOW + 4 * DAY)
POOL = Pool(name="kaggle", platform="fake", accelerator="T4 x2", devices_per_session=2, sessions_max=2)
EVIL = '</text><script>alert("1")</script>&\x1b[31m\u202e'


def parsed(picture: str) -> ET.Element:
    return ET.fromstring(picture)  # noqa: S314 - our own output


def a_run(key: str, start: int, end: int, *jobs: str, outcome: Outcome | None = Outcome.YIELDED) -> Run:
    lanes = tuple(Lane(index, job, 1, (index,), None, outcome) for index, job in enumerate(jobs))
    state = Running(key, start) if outcome is None else Ended(outcome, end, start)
    return Run(key, "kaggle", lanes, start, end, end, state)


def place(start: int, end: int, *jobs: str) -> Placement:
    return Placement("kaggle", start, end, tuple(PlannedLane(job, 1, 10) for job in jobs))


def timeline(runs: list[Run], *places: Placement) -> Timeline:
    return timeline_of(SPAN, NOW, [POOL], runs, Plan(NOW - 60, places, ()), {})


def on_the_axis(picture: str) -> list[tuple[float, float]]:
    """Return where the days' names of a timeline in pixels begin and end."""
    found = []
    for inner in parsed(picture).iter("{http://www.w3.org/2000/svg}svg"):
        text = inner.findtext("{http://www.w3.org/2000/svg}text") or ""
        if re.fullmatch(r"[A-Z][a-z]{2} \d+ [A-Z][a-z]{2}", text):
            left = float(inner.attrib["x"]) + 4
            found.append((left, left + 6 * len(text)))
    return found


# The timeline


@pytest.mark.parametrize("width", [375, 768, 1_280])
@pytest.mark.parametrize("length", [1, 7, 30, 200])
def test_the_names_of_the_days_are_thinned_until_they_lie_beside_one_another(width: int, length: int) -> None:
    span = Window(NOW, NOW + length * DAY)
    drawn = timeline_of(span, NOW, [POOL], [], Plan(NOW, (), ()), {})
    places = on_the_axis(timeline_svg(drawn, "UTC", width))
    assert len(places) >= min(length, 3)
    assert all(end <= left for (_, end), (left, _) in pairwise(places))


def test_a_model_has_one_colour_and_its_name_stands_in_a_narrow_bar_as_far_as_it_fits() -> None:
    assert hues_of(["a", "b", *"cdefghi"]) == {**{name: number for number, name in enumerate("abcdefgh")}, "i": 0}
    runs = [a_run("r1", SPAN.start, SPAN.start + HOUR // 2, "uff-main"), a_run("r2", SPAN.start, SPAN.end, "ufm")]
    drawn = timeline_of(SPAN, NOW, [POOL], runs, None, {}, {"uff-main": 5})
    bars = [bar for bar in timeline_svg(drawn, "UTC", 1_000).split("<g>") if "<title>" in bar]
    assert ['class="h5"' in bar for bar in bars] == ["uff-main" in bar for bar in bars]
    span = Window(SPAN.start, SPAN.start + DAY)
    for hours, name in ((1, "uff-…"), (2, "uff-main")):
        narrow = timeline_of(
            span, NOW, [POOL], [a_run("r", SPAN.start, SPAN.start + hours * HOUR, "uff-main")], None, {}
        )
        assert f">{name}</text>" in timeline_svg(narrow, "UTC", 1_000), hours


@pytest.mark.parametrize("edges", [(0.04, 0.96), (2.0, 2.0)])
@pytest.mark.parametrize("width", [None, 270, 1_000])
def test_words_of_an_axis_never_lie_on_one_another(width: int | None, edges: tuple[float, float]) -> None:
    rng = random.Random(5)
    for _ in range(200):
        marks = [(at, "w" * rng.randint(1, 9)) for at in sorted(rng.random() for _ in range(rng.randint(1, 20)))]
        shown = list(labels(Frame(width), marks, edges))
        assert shown[0][0] == marks[0][0]
        assert "roomy" not in shown[0][1]
        on_a_phone = [label for label in shown if "roomy" not in label[1]]
        for pixels, visible in ((width or 370, shown), (width or 270, on_a_phone)):
            before = 0.0 if edges[0] > 1 else -100.0
            for at, style, text in visible:
                left = at * pixels - 7.5 * len(text) * (1 if "end" in style else 0.5 if "middle" in style else 0)
                assert left >= before
                before = left + 7.5 * len(text)


def test_sessions_that_overlap_lie_on_different_rows() -> None:
    drawn = timeline(
        [
            a_run("r1", NOW - 9 * HOUR, NOW - 5 * HOUR, "a"),
            a_run("r2", NOW - 7 * HOUR, NOW - 3 * HOUR, "b"),
            a_run("r3", NOW - 4 * HOUR, NOW - 1 * HOUR, "c"),
        ]
    )
    assert {session.key: session.slot for session in drawn.sessions} == {"r1": 0, "r2": 1, "r3": 0}
    assert drawn.slots == {"kaggle": 2}


def test_a_running_session_reaches_to_its_planned_end_and_is_not_drawn_again_as_planned() -> None:
    going = a_run("r1", NOW - HOUR, NOW + 5 * HOUR, "a", "b", outcome=None)
    drawn = timeline([going], place(NOW - HOUR, NOW + 5 * HOUR, "b", "a"), place(NOW + 8 * HOUR, NOW + 9 * HOUR, "a"))
    assert [(session.phase, session.start, session.ends) for session in drawn.sessions] == [
        ("running", NOW - HOUR, NOW + 5 * HOUR),
        ("planned", NOW + 8 * HOUR, NOW + 9 * HOUR),
    ]


def test_a_session_that_never_began_or_lies_elsewhere_is_left_out() -> None:
    refused = Run(
        "r1",
        "kaggle",
        (Lane(0, "a", 1, (0,), None, Outcome.REJECTED),),
        NOW,
        NOW,
        NOW,
        Ended(Outcome.REJECTED, NOW, None),
    )
    old = a_run("r2", SPAN.start - 9 * HOUR, SPAN.start, "a")
    drawn = timeline([refused, old], place(NOW - 2 * HOUR, NOW - HOUR, "a"))
    assert drawn.sessions == ()


@pytest.mark.parametrize(
    ("outcome", "phase"), [(Outcome.LOST, "bad"), (Outcome.FAILED, "bad"), (Outcome.FINISHED, "past")]
)
def test_what_was_lost_is_told_apart(outcome: Outcome, phase: str) -> None:
    (session,) = timeline([a_run("r1", NOW - HOUR, NOW - 60, "a", outcome=outcome)]).sessions
    assert session.phase == phase


def test_a_pool_that_is_closed_now_is_not_called_closed_in_weeks_gone_by() -> None:
    shut = {"kaggle": [Window(NOW - HOUR, NOW + 9 * DAY)]}
    for start, label in ((SPAN.start, True), (SPAN.start - 14 * DAY, False)):
        span = Window(start, start + 7 * DAY)
        picture = timeline_svg(timeline_of(span, NOW, [POOL], [], None, shut), "UTC")
        assert ((">closed<" in picture), ('class="closed"' in picture)) == (label, label)


@pytest.mark.parametrize("width", [None, 900])
def test_the_picture_is_well_formed_whatever_the_names_are(width: int | None) -> None:
    pool = Pool(name=EVIL, platform="fake", accelerator="")
    run = Run(
        EVIL,
        EVIL,
        (Lane(0, EVIL, 1, (0,), None, Outcome.FAILED),),
        NOW - DAY,
        NOW,
        NOW,
        Ended(Outcome.FAILED, NOW, NOW - DAY),
    )
    drawn = timeline_of(SPAN, NOW, [pool], [run], None, {EVIL: [Window(NOW, NOW + HOUR)]})
    text = timeline_svg(drawn, "UTC", width, link='/runs/"')
    tree = parsed(text)
    assert not [found for found in tree.iter() if found.tag.endswith("script")]
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_bars_lie_where_their_hours_are() -> None:
    text = timeline_svg(timeline([a_run("r1", SPAN.start, SPAN.start + DAY, "a", "b")]), "UTC", 700)
    bars = [found for found in parsed(text).iter() if found.get("class") == "past"]
    assert [(bar.get("x"), bar.get("width")) for bar in bars] == [("0.00", "100.00")] * 2
    assert len({bar.get("y") for bar in bars}) == 2


# Burn-down


def some_charges(seed: int, price: int = 0) -> list[Charge]:
    chance = random.Random(seed)
    found = []
    for number in range(40):
        start = NOW - 3 * DAY + chance.randrange(4 * DAY)
        length = chance.randrange(60, 4 * HOUR)
        sign = -1 if number % 9 == 0 else 1
        found.append(Charge(start, start + length, sign, price_microdollars_per_hour=price))
    return found


QUOTAS: list[Quota] = [
    CalendarQuota("day", 4 * HOUR, Calendar("day", "Europe/Berlin")),
    CalendarQuota("week", 30 * HOUR, Calendar("week", "UTC", weekday=5)),
    RollingQuota("span", 10 * HOUR, DAY),
    FirstUseQuota("first", 6 * HOUR, DAY),
    MoneyQuota("money", 50_000_000, Calendar("month", "UTC")),
]


@pytest.mark.parametrize("quota", QUOTAS, ids=lambda quota: str(quota.name))
@pytest.mark.parametrize("seed", range(5))
def test_the_measured_line_ends_at_what_the_quota_itself_counts(quota: Quota, seed: int) -> None:
    price = 1_234_567 if isinstance(quota, MoneyQuota) else 0
    until_now = [
        Charge(c.start, min(c.end, NOW), c.sign, price_microdollars_per_hour=price)
        for c in some_charges(seed, price)
        if c.start < NOW
    ]
    chart = burn_down_of("kaggle", quota, until_now, (), (), NOW)
    counted = meter("kaggle", quota, until_now, NOW)
    # Each charge of money is rounded up on its own; the line is rounded once.
    assert abs(chart.left - (counted.limit - counted.used - counted.held)) <= len(until_now) * bool(price)
    assert chart.measured[0][0] == chart.start
    assert chart.measured[-1][0] == chart.ahead[0][0] == NOW
    assert chart.ahead[-1][0] == chart.end
    assert [at for at, _ in chart.measured] == sorted({at for at, _ in chart.measured})


def test_a_rolling_quota_gives_back_what_was_used_a_span_ago_at_every_instant() -> None:
    quota, charges = RollingQuota("span", 10 * HOUR, DAY), some_charges(3)
    chart = burn_down_of("desk", quota, charges, (), (), NOW)
    for at, left in (*chart.measured, *chart.ahead):
        assert left == quota.limit_seconds - sum(charge.within(at - DAY, at) for charge in charges)


def test_what_is_held_and_planned_counts_as_it_passes() -> None:
    quota = CalendarQuota("day", 8 * HOUR, Calendar("day", "UTC"))
    held = Charge(NOW - HOUR, NOW + HOUR, held=True)
    chart = burn_down_of("kaggle", quota, [held], (), [Charge(NOW + 2 * HOUR, NOW + 5 * HOUR)], NOW)
    assert chart.left == 7 * HOUR
    assert chart.left_at_end == 3 * HOUR
    parsed(burn_down_svg(chart, "UTC"))
    assert "3.0 h at the end by the plan" in burn_down_svg(chart, "UTC", 500)


def test_a_quota_of_nothing_can_be_drawn() -> None:
    quota = CalendarQuota("day", 1, Calendar("day", "UTC"))
    parsed(burn_down_svg(burn_down_of(EVIL, quota, (), (), (), NOW), "UTC"))


def test_amounts_read_as_hours_and_money() -> None:
    assert [amount(5_400, "seconds"), amount(-3_250_000, "microdollars")] == ["1.5 h", "-$3.25"]


# Loss curve, scales


def test_losses_that_are_no_numbers_are_left_out_of_the_curve() -> None:
    picture = loss_curve_svg(EVIL, [(1, float("nan")), (2, 3.0), (3, float("inf")), (9, 1.5)], 10)
    (line,) = [found for found in parsed(picture).iter() if found.tag.endswith("polyline")]
    assert len(str(line.get("points")).split()) == 2
    assert loss_curve_svg("a", [(1, float("nan")), (2, 3.0)], 10) == ""


@pytest.mark.parametrize("losses", [(2.0, 2.0), (0.0, 0.0), (1e-12, 2e-12), (1e9, -1e9)])
def test_any_range_of_losses_can_be_drawn(losses: tuple[float, float]) -> None:
    parsed(loss_curve_svg("a", list(enumerate(losses)), 0))


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 30, 3) == [0, 10, 20, 30]
    assert ticks(1.7, 2.6) == [1.75, 2.0, 2.25, 2.5]
    assert ticks(5, 5) == [5]


def test_days_have_23_to_25_hours() -> None:
    autumn = list(days(1_792_792_800, 1_792_792_800 + 3 * DAY, "Europe/Berlin"))  # from Saturday 2026-10-24 00:00 on
    assert [later - earlier for earlier, later in pairwise(autumn)] == [DAY, 25 * HOUR]


def test_counts_are_short() -> None:
    assert [short(n) for n in (950, 1_500, 12_000, 3_000_000)] == ["950", "1.5k", "12k", "3M"]


# Colours


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_words_on_bars_can_be_read(theme: int) -> None:
    palette = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", STYLE.split("@media")[theme]))
    for ink, paper in (
        ("on-bar", "past"),
        ("on-bar", "live"),
        ("on-bar", "bad"),
        ("ink", "plan-fill"),
        ("ink", "shade"),
    ):
        lighter, darker = sorted((luminance(palette[ink]), luminance(palette[paper])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, paper)


def test_sessions_that_ask_for_their_devices_lie_on_so_many_rows() -> None:
    pool = Pool("h100", "fake", "H100", device_counts=(1, 2, 4), devices_max=8, devices_per_session=4, sessions_max=8)
    runs = [
        Run(f"r{n}", "h100", (Lane(0, f"j{n}", 1, tuple(range(n)), None),), NOW - n, NOW + HOUR, NOW + HOUR, state)
        for n, state in ((4, Running("r4", NOW - 4)), (2, Running("r2", NOW - 2)), (1, Running("r1", NOW - 1)))
    ]
    later = Placement("h100", NOW + 2 * HOUR, NOW + 3 * HOUR, (PlannedLane("j9", 4, 10),))
    drawn = timeline_of(SPAN, NOW, [pool], runs, Plan(NOW - 60, (later,), ()), {})
    assert {session.lanes[0].job: session.slot for session in drawn.sessions} == {"j4": 0, "j2": 4, "j1": 6, "j9": 0}
    assert drawn.slots == {"h100": 7}
    heights = re.findall(r'class="rest"[^>]* height="([\d.]+)"', timeline_svg(drawn, "UTC", 700))
    assert [round((float(height) + 3) / 18) for height in heights] == [4, 2, 1]


def test_a_quota_of_device_hours_burns_down_by_all_devices_of_a_session() -> None:
    quota = CalendarQuota("q", 100 * HOUR, Calendar("week"), by_device=True)
    charges = [Charge(NOW - 2 * HOUR, NOW - HOUR, devices=4)]
    planned = [Charge(NOW + HOUR, NOW + 2 * HOUR, devices=2)]
    chart = burn_down_of("h100", quota, charges, (), planned, NOW)
    assert (chart.left, chart.left_at_end) == (96 * HOUR, 94 * HOUR)
    assert meter("h100", quota, charges, NOW).used == 4 * HOUR
