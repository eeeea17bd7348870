"""Quality gates: what a version must show to be accepted, as ``[[gates]]`` of a job say it. docs/gates.md explains.

Not to be mixed up with ``gate``, which makes a job wait for its parent.
"""

from __future__ import annotations

import math
import re
from typing import Any

from jobs.problem import did_you_mean
from jobs.readers import Wrong
from jobs.spec import GATE_KINDS, QualityGate

GATES_MAX = 50
_METRIC = re.compile(r"[a-z0-9][a-z0-9_@-]{0,59}(\.[a-z0-9][a-z0-9_-]{0,39})?")
_KEYS = ("metric", "kind", "minimum", "maximum", "by", "margin", "aim")
_MARGIN_MAX = 1e9


def read_gates(value: Any) -> tuple[QualityGate, ...]:
    """Read the ``[[gates]]`` of a job. Raises Wrong for what cannot be judged by, before any hour is spent."""
    if not isinstance(value, list) or len(value) > GATES_MAX:
        raise Wrong(f"this must be a list of at most {GATES_MAX} tables", 'write [[gates]] and metric = "..." below it')
    gates = tuple(_gate(table) for table in value)
    for place, gate in enumerate(gates):
        if gate in gates[:place]:
            raise Wrong(f"the gate {gate.kind} on {gate.metric} stands twice", "remove one")
    return gates


def _gate(table: Any) -> QualityGate:
    if not isinstance(table, dict):
        raise Wrong("a gate is a table", 'write [[gates]] and metric = "..." below it')
    for key in table:
        if key not in _KEYS:
            raise Wrong(f"there is no {key} of a gate", did_you_mean(str(key), _KEYS))
    metric = table.get("metric")
    if not isinstance(metric, str) or not _METRIC.fullmatch(metric):
        raise Wrong("a gate names its metric", 'write metric = "component_atomicity", or "loss.python" for one domain')
    kind = _one_of(table.get("kind"), GATE_KINDS, f"the kind of the gate on {metric}")
    gate = QualityGate(
        metric,
        kind,
        minimum=_number(table, "minimum"),
        maximum=_number(table, "maximum"),
        by=_one_of(table.get("by", "point"), ("point", "lower"), f"by of the gate on {metric}"),
        margin=_number(table, "margin") or 0.0,
        aim=_one_of(table.get("aim", "high"), ("high", "low"), f"aim of the gate on {metric}"),
    )
    _check(gate, table)
    return gate


def _check(gate: QualityGate, table: dict[str, Any]) -> None:
    ends = (gate.minimum, gate.maximum)
    if gate.kind == "threshold":
        if (gate.minimum is None) == (gate.maximum is None):
            raise Wrong(f"the threshold on {gate.metric} needs a minimum or a maximum", "write one of them")
        if "margin" in table or "aim" in table:
            raise Wrong(f"the threshold on {gate.metric} has a margin or an aim", "its minimum or maximum says it all")
        if gate.by == "lower" and (gate.minimum == 1 or gate.maximum == 0):
            raise Wrong(
                f"no number of items shows that {gate.metric} is perfect for certain",
                'write by = "point": then all items must pass',
            )
    elif any(end is not None for end in ends) or "by" in table:
        raise Wrong(f"{gate.kind} on {gate.metric} has a minimum, a maximum or by", 'these are of kind = "threshold"')
    if gate.margin < 0 or (gate.kind == "not_worse" and not gate.margin):
        raise Wrong(
            f"{gate.kind} on {gate.metric} needs a margin above 0",
            "write margin = 0.05 for five points; 0.01 would refuse four of five equal models",
        )


def _number(table: dict[str, Any], key: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MARGIN_MAX:
        raise Wrong(f"{key} of a gate must be a number", "write it without quotation marks, like 0.95")
    return float(value) if math.isfinite(value) else None


def _one_of(value: Any, allowed: tuple[Any, ...], what: str) -> Any:
    if value not in allowed:
        raise Wrong(f"{what} is not known", f"use {', '.join(allowed)}")
    return value
