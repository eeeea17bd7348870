"""Output for people: clean, aligned, in their zone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.size import size
from scheduler.cli.commands.plan import picture
from scheduler.cli.main import parse_plain_command
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.output import Output, clean, hours, plain, share
from scheduler.cli.shell.table import column_of, drawn, width_of
from scheduler.core.plan import KeptHours
from scheduler.views.coming_week import ComingWeek, Kind, LaneWeek, Stretch


@given(st.text())
def test_clean_text_can_always_be_printed(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(clean(text)) == clean(text)


@given(st.text(alphabet=st.characters(categories=("L", "N", "P"))))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("a\tb\r\nc", "a b  c"),
        ("left\u202eright", "leftright"),
        ("nul\0 del\x7f c1\x9b", "nul del c1"),
    ],
)
def test_what_steers_a_terminal_is_taken_out(text: str, shown: str) -> None:
    assert clean(text) == shown


NAMES = st.text(alphabet="abc-", min_size=1, max_size=24)
ROWS = st.lists(st.tuples(NAMES, NAMES, NAMES, st.text(alphabet="日ab ", max_size=300)), max_size=5)


@given(ROWS, st.integers(60, 200), st.booleans())
def test_tables_fit_their_width_and_keep_every_name(rows: list[tuple[str, ...]], width: int, one_line: bool) -> None:
    columns = [column_of(title) for title in ("job", "-pool", "-->size", "~why")]
    lines = list(drawn(columns, rows, width, one_line=one_line, paint=plain))
    assert max(map(width_of, lines)) <= width
    assert all(any(line.startswith(row[0]) for line in lines) for row in rows)
    if one_line:
        assert len(lines) == len(rows) + 1


def test_what_matters_least_is_left_out_first_and_what_says_nothing_before() -> None:
    columns = [column_of(title) for title in ("job", "--pool", "-state", "---size")]
    rows = [("a" * 20, "kaggle", "held", ""), ("b" * 20, "desk", "done", "")]

    def titles(width: int) -> list[str]:
        return next(iter(drawn(columns, rows, width, one_line=True, paint=plain))).split()

    assert titles(80) == ["job", "pool", "state", "size"]
    assert titles(36) == ["job", "pool", "state"]
    assert titles(30) == ["job", "state"]
    assert titles(10) == ["job"]


def test_a_command_to_copy_stands_whole_on_a_line_of_its_own() -> None:
    columns = [column_of(title) for title in ("job", "~why", "_remedy")]
    command = "schedctl queue release " + "a" * 80
    lines = list(drawn(columns, [("ufm", "it is held " * 20, command)], 40, one_line=True, paint=plain))
    assert lines[2] == f"  {command}"
    assert max(map(len, lines[:2])) <= 40


def test_wide_tables_have_everything_and_chosen_columns_come_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    columns, rows = ("job", "-pool", "~why"), [("ufm", "desk", "w" * 500)]
    Output(as_json=False, colour=False, wide=True).table(columns, rows)
    assert f"ufm  desk  {'w' * 500}\n" in capsys.readouterr().out
    Output(as_json=False, colour=False, only=("pool", "job")).table(columns, rows)
    assert capsys.readouterr().out == "POOL  JOB\ndesk  ufm\n"
    with pytest.raises(UsageFault, match="job, pool, why"):
        Output(as_json=False, colour=False, only=("size",)).table(columns, rows)


def test_plain_tables_are_aligned_also_for_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False, colour=False).table(("name", ">step", "~why"), [("日本", "7", "a"), ("e\u0301", "12", "")])
    assert capsys.readouterr().out == "NAME  STEP  WHY\n日本     7  a\ne\u0301       12\n"


def test_facts_leave_out_what_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False, colour=False).facts(("job", "ufm"), ("deadline", ""), ("weight", "1"))
    assert capsys.readouterr().out == "job     ufm\nweight  1\n"


def test_talk_is_not_mixed_with_data(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False, colour=False).say("hello")
    Output(as_json=True, colour=False).say("nobody listens")
    Output(as_json=True, colour=False).warn("but this matters")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hello\nschedctl: warning: but this matters\n")


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC", "Mon 2026-09-21 14:13 UTC"),
        ("Europe/Berlin", "Mon 2026-09-21 16:13 CEST"),
        ("Asia/Kathmandu", "Mon 2026-09-21 19:58 +0545"),
    ],
)
def test_instants_are_shown_in_the_zone_of_the_settings(zone: str, shown: str) -> None:
    assert Output(as_json=False, colour=False, zone=zone).instant(1_790_000_000) == shown


def test_a_terminal_gets_a_rich_table_without_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    Output(as_json=False, colour=False).table(("state", "why"), [("held", "[bold]not markup[/bold]")])
    out = capsys.readouterr().out
    assert "[bold]not markup[/bold]" in out
    assert "\x1b[3" not in out


@pytest.mark.parametrize("columns", ["10", "40", "200"])
def test_a_narrow_terminal_cuts_nothing_off(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", columns)
    row = ("uff-uff-main-0001", "running", "123456", "words that may be wrapped at will")
    Output(as_json=False, colour=False).table(("key", "state", ">step", "~why"), [row])
    out = capsys.readouterr().out
    assert all(cell in out for cell in row[:3])
    assert set(row[3].split()) <= set(out.split())


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0h 00m"), (5_400, "1h 30m"), (108_000, "30h 00m"), (-90, "-0h 02m"), (3_599, "1h 00m")],
)
def test_hours_and_minutes(seconds: int, shown: str) -> None:
    assert hours(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (1_536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_sizes(count: int, shown: str) -> None:
    assert size(count) == shown


def lane(pool: str, number: int, *stretches: tuple[int, int, str]) -> LaneWeek:
    """A lane whose stretches are named after their job, or "." for empty hours and "" for hours that cannot be used."""
    kinds: dict[str, Kind] = {".": "empty", "": "unusable"}
    return LaneWeek(
        pool,
        number,
        tuple(Stretch(start, end, kinds.get(job, "planned"), job.strip("."), "") for start, end, job in stretches),
    )


def test_the_picture_has_a_line_for_each_lane_with_its_gaps_and_one_for_expected_work() -> None:
    week = ComingWeek(
        0,
        40,
        (
            lane("desk", 1, (0, 30, ""), (30, 38, "."), (38, 40, "uim")),
            lane("kaggle", 1, (0, 20, "uff-main"), (20, 40, "ulm")),
            lane("kaggle", 2, (0, 10, "."), (10, 30, "ufm"), (30, 40, "")),
        ),
        (),
        (KeptHours("ucm", "", 25, 10, 0.8, False),),
    )
    assert picture(week, 40) == [
        "",
        "desk                                   ........[]",
        "kaggle 1 [uff-main==========][ulm===============]",
        "kaggle 2 ..........[ufm===============]",
        "expected                          (ucm~~~~~)",
        "         one column is 0h 00m; dots are empty hours, blanks cannot be used",
    ]


def test_the_picture_names_days_where_their_midnights_are_and_jobs_as_far_as_they_fit() -> None:
    """Berlin's days begin at 22:00 UTC in September; names are cut to fit, and left out when hardly a letter would."""
    noon = 1_789_941_600 + 12 * 3_600  # Mon 2026-09-21 12:00 CEST
    hours_of = [(0, 6, "uff-main"), (6, 8, "."), (8, 15, "ufm"), (15, 18, ""), (18, 21, "ucm"), (21, 35, "uff-main")]
    lanes = (lane("kaggle", 1, *((noon + a * 3_600, noon + b * 3_600, job) for a, b, job in hours_of)),)
    assert picture(ComingWeek(noon, noon + 35 * 3_600, lanes, (), ()), 35, "Europe/Berlin") == [
        "                   'Tue 22",
        "kaggle [uff-]..[ufm==]   [=][uff-main====]",
        "       one column is 1h 00m; dots are empty hours, blanks cannot be used",
    ]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["queue", "list", "--help"],
        ["queue", "list", "extra"],
        ["queue", "list", "--json=1"],
        ["queue", "list", "--sate", "held"],
        ["--state", "held", "queue", "list"],
        ["queue", "list", "--state"],
        ["list", "queue"],
        ["daemon", "--help"],
        ["daemon", "extra"],
        ["daemon", "--state", "held"],
        ["daemon", "--config"],
        ["daemon", "--config="],
        ["service", "daemon"],
    ],
)
def test_only_a_plain_listing_or_daemon_takes_the_fast_way(words: list[str]) -> None:
    assert parse_plain_command(words) is None


def test_the_fast_way_reads_options_wherever_they_stand() -> None:
    asked = parse_plain_command(["--config", "a.toml", "queue", "--json", "list", "--state=held", "--state", "done"])
    assert asked is not None
    options, command, states = asked
    assert command == ["queue", "list"]
    assert (str(options.config), options.json, options.no_color, states) == ("a.toml", True, False, ["held", "done"])


def test_a_daemon_takes_the_fast_way_with_the_options_of_every_command() -> None:
    asked = parse_plain_command(["--config=a.toml", "daemon", "--debug"])
    assert asked is not None
    options, command, _ = asked
    assert (str(options.config), options.debug, command) == ("a.toml", True, ["daemon"])


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(0, 5, "0 %"), (1, 3, "33 %"), (4_975, 5_000, "99 %"), (5_000, 5_000, "100 %"), (6, 5, "120 %"), (1, 0, "")],
)
def test_only_what_is_whole_is_a_hundred_percent(part: int, whole: int, said: str) -> None:
    assert share(part, whole) == said
