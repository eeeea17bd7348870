"""Names of the version before: what was written by them is still read, and the new name comes first."""

import os
from pathlib import Path
from typing import Any

import pytest

from config.layers import read_layers
from config.load import load
from jobs.catalogue import job_from_table, read_catalogue
from jobs.definition import table_of
from jobs.problem import ProblemsFound
from jobs.spec import Gate
from jobs.toml_file import line_of
from scheduler.service.requests.concerns import of_names

PLAIN = {"name": "a", "command": ["x"], "target_step": 5, "steps_per_hour": 1}


@pytest.mark.parametrize(
    ("more", "priority"),
    [({}, 1.0), ({"weight": 3}, 3.0), ({"priority": 4}, 4.0), ({"weight": 3, "priority": 4}, 4.0)],
)
def test_weight_is_the_old_name_of_priority(more: dict[str, Any], priority: float) -> None:
    spec = job_from_table({**PLAIN, **more}, "a file")
    assert spec.weight == priority
    assert table_of(spec)["priority"] == priority


@pytest.mark.parametrize("key", ["gate", "after"])
@pytest.mark.parametrize("parent", ["parent", "job"])
def test_gate_is_the_old_name_of_after(key: str, parent: str) -> None:
    spec = job_from_table({**PLAIN, key: {parent: "uff-main", "fraction": 0.2}}, "a file")
    assert spec.gate == Gate("uff-main", 0.2)
    assert table_of(spec)["after"] == {"job": "uff-main", "fraction": 0.2}


def test_a_job_waits_for_a_fraction_or_a_step() -> None:
    spec = job_from_table({**PLAIN, "after": {"job": "uff-main", "step": 5_000}}, "a file")
    assert spec.gate == Gate("uff-main", 0.0, 5_000)
    assert table_of(spec)["after"] == {"job": "uff-main", "step": 5_000}
    with pytest.raises(ProblemsFound, match="it has both fraction and step; keep one of them"):
        job_from_table({**PLAIN, "after": {"job": "uff-main", "step": 5_000, "fraction": 0.2}}, "a file")


def test_the_name_in_a_job_replaces_the_other_one_in_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    jobs = "".join(
        f'[[jobs]]\nname = "{name}"\ncommand = ["x"]\ntarget_step = 5\nsteps_per_hour = 1\n{more}\n'
        for name, more in (("a", ""), ("b", "weight = 5"), ("c", "priority = 6"))
    )
    file.write_text(f"[defaults]\npriority = 2\n{jobs}")
    assert [job.weight for job in read_catalogue([file]).jobs] == [2.0, 5.0, 6.0]
    (warning,) = of_names([file])
    assert str(warning) == (
        f"{file}:14: jobs.b.weight = 5: this key is now called priority; rename it; the old name works"
    )


def test_a_pipe_is_not_read_again(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "job.toml")
    assert of_names([pipe]) == []
    assert line_of(str(pipe), "weight") is None


def test_a_job_without_a_role_is_a_job() -> None:
    assert job_from_table(PLAIN, "a file").role == "job"
    assert job_from_table({**PLAIN, "role": "manager"}, "a file").role == "manager"


@pytest.mark.parametrize(
    ("lines", "days"), [('letters = "5d"', 5), ('messages = "6d"', 6), ('letters = "5d"\nmessages = "6d"', 6)]
)
def test_letters_is_the_old_name_of_messages_in_the_settings(tmp_path: Path, lines: str, days: int) -> None:
    (file := tmp_path / "config.toml").write_text(f"[retention]\n{lines}\n")
    assert load(file, environ={}).retention.messages_seconds == days * 86_400
    warnings = [str(one) for one in read_layers(file, environ={}).renamed]
    expected = (
        f'{file}:2: retention.letters = "5d": this key is now called retention.messages; rename it; the old name works'
    )
    assert warnings == ([expected] if "letters" in lines else [])


def test_the_environment_may_use_an_old_name() -> None:
    assert load(environ={"SCHEDCTL_RETENTION__LETTERS": "7d"}).retention.messages_seconds == 7 * 86_400
