"""The line of a key: where a message sends the reader of a settings file."""

from pathlib import Path

import pytest

from config.errors import ConfigError
from config.load import load
from jobs.catalogue import job_from_toml, read_catalogue
from jobs.problem import ProblemsFound
from jobs.toml_file import line_of

TEXT = '''zone = "UTC"
note = """
[pools]
zone = "none"
"""
[daemon]
cycle = "1m"
"quoted.key" = 1

[[pools]]
name = "desk"

[[pools.quotas]]
name = "hours"
limit = "30h"

[[pools]]
name = "kaggle"
options.image = "x"
[[pools.quotas]]
name = "hours"
[[pools.quotas]]
name = "money"
limit = "$5"
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("zone", 1),
        ("daemon", 6),
        ("daemon.cycle", 7),
        ("daemon.quoted.key", 8),
        ("pools.desk.name", 11),
        ("pools.0.name", 11),
        ("pools.desk.quotas.hours.limit", 15),
        ("pools.kaggle.options.image", 19),
        ("pools.kaggle.quotas.money.limit", 24),
        ("pools.kaggle.limit", 17),
        ("nothing", None),
    ],
)
def test_a_key_has_the_line_that_sets_it_or_that_of_its_table(key: str, line: int | None, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TEXT)
    assert line_of(str(file), key) == line


def test_what_is_no_file_has_no_line(tmp_path: Path) -> None:
    assert line_of("command line", "zone") is None
    assert line_of(str(tmp_path), "zone") is None
    (tmp_path / "broken.toml").write_text("zone = ")
    assert line_of(str(tmp_path / "broken.toml"), "zone") is None


def test_every_problem_of_settings_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'zone = "Nowhere"\n\n[daemon]\ncycel = "1m"\n\n[[pools]]\nname = "a"\nplatform = "local"\nhours = 3\n'
    )
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert {problem.key: problem.line for problem in caught.value.problems} == {
        "zone": 1,
        "daemon.cycel": 4,
        "pools.a.hours": 9,
    }
    assert str(caught.value.problems[0]).startswith(f"{file}:1: zone = ")


def test_every_problem_of_models_and_of_a_job_names_its_line(tmp_path: Path) -> None:
    models, job = tmp_path / "models.toml", tmp_path / "job.toml"
    body = 'command = ["x"]\ntarget_step = 0\nsteps_per_hour = 1\n'
    models.write_text(f'[[jobs]]\nname = "a"\n{body}\n[[jobs]]\nname = "b"\n{body}weight = 0\n')
    with pytest.raises(ProblemsFound) as of_models:
        read_catalogue([models])
    lines = {problem.key: problem.line for problem in of_models.value.problems}
    assert lines == {"jobs.a.target_step": 4, "jobs.b.target_step": 10, "jobs.b.weight": 12}
    job.write_text(f'name = "a"\n{body}')
    with pytest.raises(ProblemsFound) as of_job:
        job_from_toml(job)
    assert [problem.line for problem in of_job.value.problems] == [3]
