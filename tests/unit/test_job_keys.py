"""A new key of a job is one field with its rule: all that reads, writes, stores, bounds or offers keys follows."""

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args

import pytest

from jobs.catalogue import job_from_table
from jobs.definition import Definition, bounded, table_of
from jobs.nouns.keys import Option, one_of, paths, span
from jobs.problem import Problem, ProblemsFound
from jobs.spec import Gate, JobSpec, Mixture, Needs, Stall, StopRule
from scheduler.cli.commands.job_options import option_of
from scheduler.store import codec


@dataclass(frozen=True, slots=True)
class WarmJob(JobSpec):
    """A job with two keys more than there are."""

    warm_up_seconds: Annotated[int, span(0, 3_600), Option("How long its speed is not measured.")] = 30
    optimizer: Annotated[str, one_of("there is no such optimizer", "adamw", "lion")] = "adamw"


PLAIN: dict[str, Any] = {"name": "a", "role": "job", "command": ["x"], "target_step": 5, "steps_per_hour": 1}


def read(table: dict[str, Any]) -> tuple[WarmJob | None, list[str]]:
    problems: list[Problem] = []
    job = Definition("job.toml", "", problems).record(WarmJob, {**PLAIN, **table})
    return job, [str(problem) for problem in problems]


def test_a_new_key_is_read_and_written_back() -> None:
    job, problems = read({"warm_up": "5m", "optimizer": "lion"})
    assert problems == []
    assert job is not None
    assert (job.warm_up_seconds, job.optimizer) == (300, "lion")
    table = table_of(job)
    assert (table["warm_up"], table["optimizer"]) == ("5m", "lion")
    assert read(table) == (job, [])


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"warm_up": "2h"}, 'warm_up = "2h": this time is out of range; write one from "0s" to "1h"'),
        ({"warm-up": "2m"}, "warm-up: there is no such key; did you mean warm_up?"),
        ({"optimizer": "sgd"}, 'optimizer = "sgd": there is no such optimizer; write "adamw" or "lion"'),
    ],
)
def test_a_wrong_value_of_a_new_key_is_named(table: dict[str, Any], problem: str) -> None:
    assert read(table) == (None, [f"job.toml: {problem}"])


def test_a_new_key_is_stored_and_older_rows_have_its_default() -> None:
    job, _ = read({"warm_up": "5m"})
    document = json.loads(codec.dump(job))
    assert codec.built(WarmJob, document) == job
    del document["warm_up_seconds"]
    assert codec.built(WarmJob, document).warm_up_seconds == 30
    with pytest.raises(ValueError, match="warm_up_seconds is not of type int"):
        codec.built(WarmJob, {**document, "warm_up_seconds": "5m"})


def test_a_stored_number_of_a_new_key_is_bounded() -> None:
    job, _ = read({})
    assert job is not None
    near, faults = bounded(replace(job, warm_up_seconds=10**9))
    assert faults == ("warm_up = 1000000000 is not in the range 0s to 1h",)
    assert near == replace(job, warm_up_seconds=3_600)


def test_a_new_key_is_an_option_of_the_command_line() -> None:
    keys = paths(WarmJob)
    assert (keys["warm_up"].flags, keys["optimizer"].flags) == (["--warm-up"], [])
    kind, declared = get_args(option_of(keys["warm_up"]))
    assert kind == str | None
    assert declared.help == "How long its speed is not measured."


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec("a", "job", ("x",), 5, 1.0, mixture=Mixture("code", 0.0), gate=Gate("b", 0.0)),
        JobSpec("a", "job", ("x",), 5, 1.0, mixture=Mixture(), gate=Gate("b", step=7), needs=Needs(2, 4)),
        JobSpec("a", "job", ("x",), 5, 1.0, stall=Stall(0, None, 60, 0), stop=StopRule("loss", value=0.0)),
    ],
)
def test_zero_and_nothing_are_told_apart_in_a_table(spec: JobSpec) -> None:
    assert job_from_table(table_of(spec), "job.toml") == spec


@pytest.mark.parametrize("code", ["trainer", {"repository": "trainer"}, {"repository": "trainer", "commit": "v2"}])
def test_a_folder_of_code_is_relative_to_the_job_file(code: Any) -> None:
    spec = job_from_table({**PLAIN, "code": code}, "/jobs/job.toml")
    assert spec.code is not None
    assert spec.code.source == "/jobs/trainer"


def test_a_start_is_written_in_full() -> None:
    spec = job_from_table({**PLAIN, "start_from": {"job": "b"}}, "job.toml")
    assert table_of(spec)["start_from"] == {"job": "b", "at": "newest"}


def test_an_evaluation_is_written_in_full() -> None:
    """Programs read these keys of `--dry-run --json`."""
    evaluation = {"command": ["score"], "set": "/items.jsonl"}
    gates = [{"metric": "a", "kind": "better"}]
    table = table_of(job_from_table({**PLAIN, "evaluation": evaluation, "gates": gates}, "job.toml"))
    more = {
        "longest": "30m",
        "needs": {"devices": 1, "vram_gib": 0.0, "dtype": "fp32", "accelerator": "gpu"},
        "pools": [],
    }
    assert table["evaluation"] == evaluation | more | {"promote": "automatic", "at": [1.0], "within": "2d"}
    assert table["gates"] == gates
    assert "pools" not in table


@pytest.mark.parametrize("key", ["after", "evaluation", "mixture", "share", "start_from", "stop"])
def test_an_inherited_table_can_be_switched_off(key: str) -> None:
    assert job_from_table({**PLAIN, key: "off"}, "job.toml") == job_from_table(PLAIN, "job.toml")


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 20_001])
def test_a_path_of_votes_that_no_file_has_is_refused(path: str) -> None:
    evaluation = {"command": ["score"], "set": "items.jsonl", "votes": path}
    with pytest.raises(ProblemsFound, match=r"evaluation\.votes = "):
        job_from_table({**PLAIN, "evaluation": evaluation, "gates": [{"metric": "a", "kind": "better"}]}, "job.toml")
