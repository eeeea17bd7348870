"""Quality gates are read before any hour is spent on a model that they could never judge."""

from typing import Any

import pytest

from jobs.definition import read_gates
from jobs.readers import Wrong
from jobs.spec import QualityGate
from scheduler.service.requests.gate_concerns import smallest_set


def test_gates_are_read_and_written_back() -> None:
    tables = [
        {"metric": "component_atomicity", "kind": "threshold", "minimum": 0.95, "by": "lower"},
        {"metric": "loss.python", "kind": "better", "aim": "low", "margin": 0.01},
        {"metric": "pass@1", "kind": "no_harm"},
        {"metric": "pass@1", "kind": "not_worse", "margin": 0.05},
    ]
    gates = read_gates(tables)
    assert gates[0] == QualityGate("component_atomicity", "threshold", minimum=0.95, by="lower")
    assert [gate.document() for gate in gates] == tables
    assert [gate.compares for gate in gates] == [False, True, True, True]


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({}, "list"),
        ([1], "a gate is a table"),
        ([{"metric": "a", "kind": "better", "minimun": 1}], "no minimun"),
        ([{"kind": "better"}], "names its metric"),
        ([{"metric": "A b", "kind": "better"}], "names its metric"),
        ([{"metric": "a"}], "kind of the gate on a is not known"),
        ([{"metric": "a", "kind": ["better"]}], "is not known"),
        ([{"metric": "a", "kind": "threshold"}], "needs a minimum or a maximum"),
        ([{"metric": "a", "kind": "threshold", "minimum": 0, "maximum": 1}], "needs a minimum or a maximum"),
        ([{"metric": "a", "kind": "threshold", "minimum": True}], "must be a number"),
        ([{"metric": "a", "kind": "threshold", "minimum": float("nan")}], "must be a number"),
        ([{"metric": "a", "kind": "threshold", "minimum": 1, "by": "lower"}], "no number of items shows"),
        ([{"metric": "a", "kind": "threshold", "maximum": 0, "by": "lower"}], "no number of items shows"),
        ([{"metric": "a", "kind": "threshold", "minimum": 1, "by": "upper"}], "by of the gate on a"),
        ([{"metric": "a", "kind": "threshold", "minimum": 1, "margin": 0.1}], "has a margin"),
        ([{"metric": "a", "kind": "better", "by": "lower"}], "has a minimum, a maximum or by"),
        ([{"metric": "a", "kind": "not_worse"}], "needs a margin above 0"),
        ([{"metric": "a", "kind": "no_harm", "margin": -0.1}], "needs a margin above 0"),
        ([{"metric": "a", "kind": "better"}] * 2, "stands twice"),
    ],
)
def test_a_gate_that_cannot_be_judged_by_is_refused(tables: Any, why: str) -> None:
    with pytest.raises(Wrong, match=why) as caught:
        read_gates(tables)
    assert caught.value.remedy


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
