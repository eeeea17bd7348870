"""When a job has learned enough by its owner's rule, and which checkpoint is its result."""

from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.catalogue import job_from_table
from jobs.definition import table_of
from jobs.problem import ProblemsFound
from jobs.spec import StopRule
from scheduler.core.early_stop import Scored, progress

VALUES = st.lists(st.floats(0, 10, allow_nan=False) | st.just(nan) | st.just(inf), max_size=30)
RULE = StopRule("held_out_loss", patience=3, least=0.01)


def history(*values: float) -> list[Scored]:
    return [Scored(f"key-{step}", step, value) for step, value in enumerate(values, 1)]


def test_training_ends_after_so_many_checkpoints_without_an_improvement_at_the_best() -> None:
    assert not progress(RULE, history(2.0, 1.0, 0.995, 1.1)).why
    found = progress(RULE, history(2.0, 1.0, 0.995, 1.1, 1.2))
    assert found.best == Scored("key-3", 3, 0.995)  # better, if by less than an improvement takes
    assert "has not improved by 0.01 for 3 checkpoints; the best is 0.995 at step 3" in found.why
    assert not progress(RULE, history(2.0, 1.0, 1.1, 1.2, 0.9)).why


def test_a_value_ends_training_at_once_in_the_direction_of_the_aim() -> None:
    rule = StopRule("accuracy", value=0.9, aim="high")
    assert not progress(rule, history(0.2, 0.5, 0.89)).why
    found = progress(rule, history(0.2, 0.91, 0.5))
    assert (found.best, bool(found.why)) == (Scored("key-2", 2, 0.91), True)


def test_a_forecast_ends_training_that_will_miss_its_value_once_three_agree() -> None:
    rule = StopRule("loss", value=0.1, forecast=0.95)
    curve = history(*(1 + 1 / step for step in range(1, 13)))
    assert not progress(rule, curve[:4], 16).why  # one forecast
    assert not progress(rule, curve, 41).why  # too far
    assert not progress(rule, curve, 0).why
    found = progress(rule, curve, 40)
    assert found.why == "loss will not be 0.1 at step 40, with 95 % certainty"
    assert found.best == curve[-1]
    assert not progress(StopRule("loss", value=0.1), curve, 40).why
    assert not progress(rule, [Scored("", step, 1 / step) for step in range(1, 9)], 16).why


def test_what_was_deleted_counts_and_is_no_result() -> None:
    saved = [Scored("gone", 1, 0.5, good=False), *history(9.0, 1.0, 1.1, 1.2)[1:]]
    found = progress(RULE, saved)
    assert (found.best, bool(found.why)) == (Scored("key-2", 2, 1.0), True)
    assert not progress(RULE, [Scored("gone", step, 1.0, good=False) for step in range(9)]).why


@given(VALUES, st.integers(1, 5), st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from(["low", "high"]))
def test_it_ends_when_the_last_checkpoints_gained_nothing_and_only_then(
    values: list[float], patience: int, least: float, aim: str
) -> None:
    rule = StopRule("loss", patience=patience, least=least, aim=aim)  # type: ignore[arg-type] # drawn from its words
    worth = [(-value if aim == "low" else value) if abs(value) < inf else -inf for value in values]
    found = progress(rule, history(*values))
    marks = [-inf]  # the record after each checkpoint, by what counts as an improvement
    for value in worth:
        better = value > marks[-1] and (marks[-1] == -inf or value - marks[-1] >= least)
        marks.append(value if better else marks[-1])
    last = [after > before for before, after in pairwise(marks)][-patience:]
    assert bool(found.why) == (len(values) >= patience and not any(last) and marks[-1] > -inf)
    assert (found.best.value if found.best else None) == (
        None if max(worth, default=-inf) == -inf else values[worth.index(max(worth))]
    )


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"metric": "loss"}, "it never stops the job without patience or value"),
        ({"patience": 3}, "stop.metric"),
        ({"metric": "loss", "patience": 0}, "this must be a number of checkpoints"),
        ({"metric": "loss", "patience": "3 hours"}, "this must be a number of checkpoints"),
        ({"metric": "loss", "patience": 3, "least": -1}, "out of range"),
        ({"metric": "loss", "value": 1.0, "aim": "down"}, "whether a lower or a higher metric is better"),
        ({"metric": "loss", "patience": 3, "pateince": 3}, "there is no such key"),
        ({"metric": "loss", "patience": 3, "forecast": 0.95}, "stop.value"),
        ({"metric": "loss", "value": 1.0, "forecast": 95}, "out of range"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule: dict[str, object], why: str) -> None:
    table = {"name": "ufm", "command": ["train"], "target_step": 10, "steps_per_hour": 1.0, "stop": rule}
    with pytest.raises(ProblemsFound, match=why.replace(".", r"\.")):
        job_from_table(table, "here")


def test_a_rule_is_read_with_its_words() -> None:
    rule = {"metric": "acc", "patience": "1 checkpoint", "aim": "high"}
    table = {"name": "ufm", "command": ["train"], "target_step": 10, "steps_per_hour": 1.0, "stop": rule}
    spec = job_from_table(table, "here")
    assert spec.stop == StopRule("acc", patience=1, aim="high")
    assert job_from_table(table_of(spec), "here") == spec
