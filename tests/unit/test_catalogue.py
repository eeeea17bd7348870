"""The catalogue: job definitions in TOML, and what is said about wrong ones."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.layers import shipped
from jobs.catalogue import job_from_table, job_from_toml, read_catalogue
from jobs.definition import KEYS, table_of
from jobs.duration import parse_duration, parse_instant, show_duration
from jobs.problem import Problem, ProblemsFound
from jobs.spec import Gate, JobSpec, Mixture, Needs, Share, Stall

ESSENTIALS = 'role = "manager"\ncommand = ["x"]\ntarget_step = 10\nsteps_per_hour = 1\n'


def job(name: str, more: str = "") -> str:
    return f'[[jobs]]\nname = "{name}"\n{ESSENTIALS}{more}\n'


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Write a definition and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "models.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_shipped_catalogue_has_the_main_model_and_six_managers() -> None:
    jobs = {spec.name: spec for spec in read_catalogue([shipped("models.toml")]).jobs}
    assert list(jobs) == ["uff-main", "ufm", "ucm", "urm", "ulm", "uim", "uam"]
    assert [spec.weight for spec in jobs.values()] == [8, 4, 4, 3, 3, 2, 2]
    assert [spec.role for spec in jobs.values()] == ["main"] + ["manager"] * 6
    shares = {name: spec.mixture.extra_share for name, spec in jobs.items() if spec.mixture}
    assert shares == {"uff-main": 0, "ufm": 0.3, "ucm": 0.4, "urm": 0.3, "ulm": 0.5, "uim": 0.3, "uam": 0.4}
    assert all(spec.gate and spec.gate.parent == "uff-main" for spec in jobs.values() if spec.role == "manager")
    assert jobs["uff-main"].gate is None
    assert len({spec.seed for spec in jobs.values()}) == 7


@pytest.mark.parametrize(
    ("default", "own", "meant"),
    [
        ("", "", None),
        ("", "mixture = {}", Mixture()),
        ("mixture = {}", "", Mixture()),
        ("mixture = {}", 'mixture = "off"', None),
    ],
)
def test_a_job_without_a_mixture_gets_no_corpus(
    written: Callable[[str], Path], default: str, own: str, meant: Mixture | None
) -> None:
    (spec,) = read_catalogue([written(f"[defaults]\n{default}\n{job('a', own)}")]).jobs
    assert spec.mixture == meant
    assert job_from_table(table_of(spec), "again") == spec


def test_a_whole_job_has_one_step_that_takes_as_long_as_it_says(written: Callable[[str], Path]) -> None:
    text = '[defaults]\nrole = "manager"\ncommand = ["x"]\ntarget_step = 10\nsteps_per_hour = 1\n'
    spec, other = read_catalogue([written(f'{text}[[jobs]]\nname = "w"\nwhole = "7h"\n[[jobs]]\nname = "o"\n')]).jobs
    assert (spec.whole, spec.target_step, spec.steps_per_hour) == (True, 1, 1 / 7)
    assert (other.whole, other.target_step) == (False, 10)
    assert table_of(spec)["whole"] == "7h"
    assert job_from_table(table_of(spec), "again") == spec


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ('whole = "30s"', 'this time is out of range; write one from "1m" to "100h"'),
        ('whole = "101h"', "this time is out of range"),
        ("whole = true", "whole = true"),
        ('whole = "3h"\ntarget_step = 5', "target_step = 5: a job that is run whole has one step"),
        ('whole = "3h"\nsteps_per_hour = 5', "steps_per_hour = 5: a job that is run whole has one step"),
    ],
)
def test_a_whole_job_that_makes_no_sense_is_told(written: Callable[[str], Path], more: str, why: str) -> None:
    with pytest.raises(ProblemsFound, match=re.escape(why)):
        job_from_toml(written(f'name = "w"\nrole = "main"\ncommand = ["x"]\n{more}\n'))


def test_every_manager_has_keywords_for_its_domain() -> None:
    table = read_catalogue([shipped("models.toml")]).domains
    assert sorted(table) == ["uam", "ucm", "ufm", "uim", "ulm", "urm"]
    assert "gpu" in table["urm"]


def test_a_job_file_may_set_everything(written: Callable[[str], Path]) -> None:
    path = written(
        'name = "uff-7b"\nrole = "main"\ncommand = ["{python}", "{payload}/t.py", "--lr", "3e-6"]\n'
        "target_step = 20_000\nsteps_per_hour = 410.5\nweight = 2\nseed = 7\n"
        'setup = "20m"\ncheckpoint = "1m 30s"\npools = ["kaggle"]\ndevice_speedup = [1, 1.8]\n'
        "not_before = 2026-12-01T09:00:00+01:00\ndeadline = 2027-01-01T00:00:00Z\n"
        'needs = { devices = [1, 2], vram_gib = 15, dtype = "fp16" }\n'
        'mixture = { domain = "ulm", extra_share = 0.5 }\ngate = { parent = "base", fraction = 1 }\n'
        'environment = { WANDB_MODE = "offline" }\nshare = { with = "base", percent = 30 }\n'
        'stall = { first_progress = "2h", no_progress = "off", checkpoint = "90m", loss_nan = 5, same_error = "off", '
        'idle = "20m", idle_below = 0.1 }\n'
    )
    expected = JobSpec(
        name="uff-7b",
        role="main",
        command=("{python}", "{payload}/t.py", "--lr", "3e-6"),
        target_step=20_000,
        steps_per_hour=410.5,
        weight=2.0,
        needs=Needs(1, 2, 15.0, "fp16"),
        mixture=Mixture("ulm", 0.5),
        gate=Gate("base", 1.0),
        share=Share("base", 30),
        pools=("kaggle",),
        seed=7,
        setup_seconds=1200,
        checkpoint_seconds=90,
        device_speedup=(1.0, 1.8),
        environment={"WANDB_MODE": "offline"},
        not_before=1796112000,
        deadline=1798761600,
        stall=Stall(7_200, 0, 5_400, 5, 0, 1200, 0.1),
    )
    assert job_from_toml(path) == expected


def test_defaults_hold_for_jobs_that_say_nothing_else(written: Callable[[str], Path]) -> None:
    text = '[defaults]\nrole = "manager"\ncommand = ["x"]\ntarget_step = 5\nsteps_per_hour = 1\nweight = 3\n'
    jobs = read_catalogue([written(text + '[[jobs]]\nname = "a"\n[[jobs]]\nname = "b"\nweight = 1\n')]).jobs
    assert [(spec.name, spec.weight) for spec in jobs] == [("a", 3.0), ("b", 1.0)]


def test_any_number_of_managers_works(written: Callable[[str], Path]) -> None:
    text = "".join(job(f"m{n}", f'gate = {{ parent = "m{n - 1}", fraction = 0.1 }}' if n else "") for n in range(60))
    assert len(read_catalogue([written(text)]).jobs) == 60


def test_what_a_job_leaves_out_is_the_default_of_its_spec() -> None:
    spec = job_from_table({"name": "a", "role": "main", "command": ["x"], "target_step": 1, "steps_per_hour": 1}, "f")
    assert spec == JobSpec(name="a", role="main", command=("x",), target_step=1, steps_per_hour=1.0)


def test_gates_point_across_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text(job("main"), encoding="utf-8")
    second.write_text(job("udm", 'gate = { parent = "main", fraction = 0.5 }'), encoding="utf-8")
    assert [spec.name for spec in read_catalogue([first, second]).jobs] == ["main", "udm"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('name = "Bad Name"', 'name = "Bad Name": this is no usable name'),
        ('name = "w\\n"', "this is no usable name"),
        ('role = "boss"', 'role = "boss": there is no such role; write "job", "main", "manager" or "evaluate"'),
        ('command = "python x"', "a command is a list of words"),
        ("command = []", "a command is a list of words"),
        ('command = ["{home}/x"]', "nothing is filled in for {home}; use {python}, {payload} or {input:NAME}"),
        ('command = ["x", "--data={input:tests}"]', "the job has no input 'tests'; add inputs = { tests = "),
        ('command = ["x", "{input:test}"]\ninputs = { tests = "/a" }', "no input 'test'; did you mean tests?"),
        ("target_step = 0", "target_step = 0: this number is out of range; write one from 1 to 999,999,999,999 steps"),
        ("target_step = -5", "target_step = -5: this number is out of range"),
        ("target_step = 1.5", "target_step = 1.5: this must be a whole number"),
        ("target_step = true", "target_step = true: this must be a whole number"),
        ("steps_per_hour = 0", "steps_per_hour = 0: this number is out of range; write one from 0.01 to"),
        ("steps_per_hour = inf", "steps_per_hour = inf: this number is out of range"),
        ("weight = -1", "weight = -1: this number is out of range"),
        ('weight = "8"', 'weight = "8": this must be a number; write it without quotation marks'),
        ('setup = "-1m"', 'setup = "-1m": a duration cannot be negative'),
        ('setup = "20 minutes"', "a duration is written like"),
        ("seed = -1", "seed = -1: this number is out of range"),
        ('pools = "kaggle"', "this must be a list of texts"),
        ("device_speedup = [2.0]", "begin with 1.0"),
        ("device_speedup = []", "this must be a list of numbers"),
        ("deadline = 2026-12-01", "a date and time is written like"),
        ("deadline = 2026-12-01T00:00:00", "needs its offset from UTC"),
        ("deadline = 5\nnot_before = 6", "deadline = 5: is not after not_before"),
        ("needs = 3", "needs = 3: this must be a table"),
        ("needs = { vram = 3 }", "needs.vram: there is no such key; did you mean vram_gib?"),
        ("needs = { devices = [2, 1] }", "needs.devices = [2, 1]: this is no number of devices"),
        ("needs = { devices = 0 }", "needs.devices = 0: this is no number of devices"),
        ("needs = { vram_gib = -1 }", "needs.vram_gib = -1: this number is out of range"),
        ('needs = { dtype = "fp64" }', "there is no such number format"),
        ("stall = true", "stall = true: this must be a table"),
        ('stall = { silence = "1h" }', "stall.silence: there is no such key; known are"),
        ('stall = { first_progress = "30s" }', 'this time is out of range; write one from "1m" to "30d", or "off"'),
        ('stall = { no_progress = "31d" }', "this time is out of range"),
        ('stall = { checkpoint = "soon" }', "stall.checkpoint"),
        ("stall = { loss_nan = 0 }", 'this number is out of range; write one from 1 to 1,000,000 reports, or "off"'),
        ("stall = { loss_nan = true }", "this must be a whole number"),
        ("stall = { same_error = 1 }", "write one from 2 to 1,000 sessions"),
        ('mixture = { domain = "x" }', "mixture.extra_share: is missing"),
        ('mixture = { domain = "x", extra_share = 1.5 }', "out of range; write one from 0 to 1"),
        ('gate = { parent = "x", fraction = 20 }', "gate.fraction = 20: this number is out of range"),
        ('gate = { parent = "a", fraction = 0.2 }', "a job cannot wait for itself"),
        ("environment = { A = 1 }", "this must be a table of texts"),
        ('environment = { SCHED_SEED = "1" }', "SCHED_SEED is not a variable that a job may set"),
        ('environment = { HF_TOKEN = "x" }', "HF_TOKEN looks like a secret"),
        ("wieght = 3", "wieght: there is no such key; did you mean weight?"),
    ],
)
def test_each_mistake_has_one_message(written: Callable[[str], Path], change: str, message: str) -> None:
    keys = [line.partition(" =")[0] for line in change.split("\n")]
    essentials = [line for line in f'name = "a"\n{ESSENTIALS}'.split("\n") if line.partition(" =")[0] not in keys]
    path = written("\n".join([*essentials, change]))
    with pytest.raises(ProblemsFound) as caught:
        job_from_toml(path)
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(f"{path}:")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "token", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "DB_PASSWORD"]
)
def test_a_secret_is_refused_without_being_shown(name: str) -> None:
    table = {"name": "a", "role": "main", "command": ["x"], "target_step": 1, "steps_per_hour": 1}
    with pytest.raises(ProblemsFound, match=rf'write secrets = \["{name.upper()}"\]') as caught:
        job_from_table({**table, "environment": {name: "canary"}}, "f")
    assert "canary" not in str(caught.value)
    assert job_from_table({**table, "environment": {name: ""}}, "f").environment == {name: ""}, "unset on purpose"


def test_words_that_only_sound_like_secrets_are_taken() -> None:
    table = {"name": "a", "role": "main", "command": ["x"], "target_step": 1, "steps_per_hour": 1}
    plain = {"TOKENIZERS_PARALLELISM": "false", "EOS_TOKEN": "</s>", "SORT_KEY": "loss", "MAX_TOKENS": "9"}
    assert job_from_table({**table, "environment": plain}, "f").environment == plain


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ProblemsFound) as caught:
        job_from_table({}, "command line")
    missing = [problem.key for problem in caught.value.problems]
    assert missing == ["name", "command", "target_step", "steps_per_hour"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (job("a") + job("a"), "a job of this name is already defined"),
        (job("a", 'gate = { parent = "b", fraction = 0.1 }'), 'gate.parent = "b": there is no such job'),
        (
            job("a", 'gate = { parent = "b", fraction = 0.1 }')
            + job("b", 'gate = { parent = "c", fraction = 0.1 }')
            + job("c", 'gate = { parent = "a", fraction = 0.1 }'),
            "the gates wait for each other: a -> b -> c -> a",
        ),
        (
            job("a", 'share = { with = "b", percent = 30 }'),
            'jobs.a.share = "b": there is no job b to share hours with; Add b first',
        ),
        (
            job("a", 'share = { with = "b", percent = 30 }') + job("b", 'share = { with = "a", percent = 30 }'),
            "b shares its hours with a already; Let one of them keep the rest, as b",
        ),
        (
            job("a")
            + job("b", 'share = { with = "a", percent = 60 }')
            + job("c", 'share = { with = "a", percent = 40 }'),
            "those who share with a take 100 % together; Leave a something of its hours",
        ),
        (job("a", 'share = { with = "a", percent = 30 }'), "a job cannot share hours with itself; name another job"),
        (job("a", 'share = { with = "b" }'), "share.percent: is missing"),
        (job("a", 'share = { with = "b", percent = 100 }'), "1 to 99 % of the hours of both"),
        (job("a", 'mixture = { domain = "art", extra_share = 0.1 }'), "there are no keywords of this domain"),
        ("[job]\n", "job: there is no such table; did you mean jobs?"),
        ("jobs = 3\n", "this must be a list of tables; write [[jobs]]"),
        ("defaults = 3\n", "this must be a table; write [defaults]"),
        ("domains = 3\n", "this must be a table; write [domains]"),
        ('[domains]\nurm = "gpu"\n', 'domains.urm = "gpu": this must be a list of words'),
        ("[domains]\nurm = []\n", "this must be a list of words"),
        ("[[jobs\n", "is not TOML"),
    ],
)
def test_a_catalogue_that_contradicts_itself_is_refused(
    written: Callable[[str], Path], text: str, message: str
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        read_catalogue([written(text)])
    assert message in str(caught.value)


def test_who_waits_for_a_cycle_is_not_blamed_for_it(written: Callable[[str], Path]) -> None:
    gates = {"a": "b", "b": "a", "c": "a"}
    text = "".join(job(name, f'gate = {{ parent = "{gate}", fraction = 0.1 }}') for name, gate in gates.items())
    with pytest.raises(ProblemsFound) as caught:
        read_catalogue([written(text)])
    assert [problem.key for problem in caught.value.problems] == ["jobs.a.gate.parent", "jobs.b.gate.parent"]


def test_problems_of_all_files_are_reported(written: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound) as caught:
        read_catalogue([written("x = 1\n"), tmp_path / "absent.toml"])
    assert [problem.file for problem in caught.value.problems] == [
        str(tmp_path / "models.toml"),
        str(tmp_path / "absent.toml"),
    ]


def test_a_catalogue_is_not_taken_for_a_job() -> None:
    with pytest.raises(ProblemsFound, match="this is a catalogue, not one job"):
        job_from_toml(shipped("models.toml"))


@given(st.integers(0, 10**8))
def test_a_shown_duration_reads_back(seconds: int) -> None:
    assert parse_duration(show_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("12h", 43200), ("90m", 5400), ("90 min", 5400), ("1h 30m", 5400), ("1h30m", 5400), ("2d", 172800)],
        *[("1.5h", 5400), ("1w", 604800), ("45s", 45), ("45", 45), (45, 45), ("0s", 0), (" 3H ", 10800)],
    ],
)
def test_durations_as_people_write_them(text: object, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", -1, "-1h", "-1", "1h-30m", "1x", True, 1.5, None, "9" * 12, "1e3s"])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="a duration"):
        parse_duration(text)


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_clear_error(text: str) -> None:
    try:
        outcome = f"a duration of {parse_duration(text)}"
    except ValueError as error:
        outcome = str(error)
    assert outcome.startswith("a duration")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(KEYS),
)
def test_no_value_of_any_key_escapes_as_another_error(value: object, key: str) -> None:
    table = {"name": "a", "role": "main", "command": ["x"], "target_step": 1, "steps_per_hour": 1, key: value}
    problems: tuple[Problem, ...] = ()
    try:
        job_from_table(table, "f")
    except ProblemsFound as error:
        problems = error.problems
    assert all(problem.file == "f" and problem.why for problem in problems)


@pytest.mark.parametrize("text", ["soon", "2026-13-01T00:00:00Z", None, 1.5, True, []])
def test_what_is_no_instant(text: object) -> None:
    with pytest.raises(ValueError, match="a date and time"):
        parse_instant(text)
