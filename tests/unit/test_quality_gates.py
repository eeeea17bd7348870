"""Quality gates are read before any hour is spent on a model that they could never judge."""

from typing import Any

import pytest

from jobs.catalogue import job_from_table
from jobs.definition import table_of
from jobs.problem import ProblemsFound
from jobs.spec import JobSpec, QualityGate
from scheduler.service.requests.concerns import smallest_set


def read(gates: Any) -> JobSpec:
    evaluation = {"command": ["score"], "set": "/items.jsonl"}
    table = {"name": "a", "command": ["x"], "target_step": 5, "steps_per_hour": 1, "evaluation": evaluation}
    return job_from_table({**table, "gates": gates}, "a file")


def test_gates_are_read_and_written_back() -> None:
    tables = [
        {"metric": "component_atomicity", "kind": "threshold", "minimum": 0.95, "by": "lower"},
        {"metric": "loss.python", "kind": "better", "aim": "low", "margin": 0.01},
        {"metric": "pass@1", "kind": "no_harm"},
        {"metric": "pass@1", "kind": "not_worse", "margin": 0.05, "leak": "report"},
        {"metric": "pass@2", "kind": "no_harm", "leak_limit": 0.0},
    ]
    spec = read(tables)
    gates = spec.gates
    assert gates[0] == QualityGate("component_atomicity", "threshold", minimum=0.95, by="lower")
    assert table_of(spec)["gates"] == tables
    assert [gate.compares for gate in gates] == [False, True, True, True, True]


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"metric": "a"}, "gates: this must be a list of at most 50 tables"),
        ([1], "gates.1 = 1: this must be a table"),
        ([{"metric": "a", "kind": "better", "minimun": 1}], "gates.1.minimun: there is no such key"),
        ([{"kind": "better"}], "gates.1.metric: is missing"),
        ([{"metric": "A b", "kind": "better"}], "names its metric"),
        ([{"metric": "a"}], "gates.1.kind: is missing"),
        ([{"metric": "a", "kind": ["better"]}], "gates.1.kind = ['better']: there is no such kind of gate"),
        ([{"metric": "a", "kind": "threshold"}], "needs a minimum or a maximum"),
        ([{"metric": "a", "kind": "threshold", "minimum": 0, "maximum": 1}], "needs a minimum or a maximum"),
        ([{"metric": "a", "kind": "threshold", "minimum": True}], "must be a number"),
        ([{"metric": "a", "kind": "threshold", "minimum": float("nan")}], "must be a number"),
        ([{"metric": "a", "kind": "threshold", "minimum": 1, "by": "lower"}], "no number of items shows"),
        ([{"metric": "a", "kind": "threshold", "maximum": 0, "by": "lower"}], "no number of items shows"),
        (
            [{"metric": "a", "kind": "threshold", "minimum": 1, "by": "upper"}],
            'gates.1.by = "upper": this says whether the mean counts',
        ),
        ([{"metric": "a", "kind": "threshold", "minimum": 1, "margin": 0.1}], "has a margin"),
        ([{"metric": "a", "kind": "better", "by": "lower"}], "has a minimum, a maximum or by"),
        ([{"metric": "a", "kind": "not_worse"}], "needs a margin above 0"),
        ([{"metric": "a", "kind": "no_harm", "margin": -0.1}], "needs a margin above 0"),
        ([{"metric": "a", "kind": "better", "leak": "ignore"}], "what follows when items were seen in training"),
        ([{"metric": "a", "kind": "better", "leak_limit": 5}], "of the test set"),
        ([{"metric": "a", "kind": "better"}] * 2, "stands twice"),
    ],
)
def test_a_gate_that_cannot_be_judged_by_is_refused(tables: Any, why: str) -> None:
    with pytest.raises(ProblemsFound) as caught:
        read(tables)
    (problem,) = caught.value.problems
    assert why in str(problem)
    assert problem.remedy


@pytest.mark.parametrize(
    ("gate", "guards", "least"),
    [
        (QualityGate("a", "threshold", minimum=0.95, by="lower"), 1, 59),
        (QualityGate("a", "threshold", maximum=0.05, by="lower"), 1, 59),
        (QualityGate("a", "threshold", minimum=0.95), 1, 1),
        (QualityGate("a", "better"), 1, 5),
        (QualityGate("a", "no_harm"), 6, 7),
    ],
)
def test_the_smallest_set_that_can_decide_is_known_beforehand(gate: QualityGate, guards: int, least: int) -> None:
    assert smallest_set(gate, guards) == least
