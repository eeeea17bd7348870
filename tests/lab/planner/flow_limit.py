"""The least weighted flow time that any policy can expect of a simulated year: a linear programme, for comparison only.

Columns are charged hours by (part of a model, pool, week). What makes it a bound: an hour keeps no more than the
stochastic limit of full sessions; quotas, arrivals and true speeds are known ahead; a week's work counts from its first
second; a model counts for the share of it that is done, where main's way to the gate counts for nothing by itself; and
a model ends no sooner than half its fastest time after the mean instant of its work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.nouns.window import DAY, WEEK
from tests.lab.planner.cases import EPOCH
from tests.lab.planner.efficiency import efficiency
from tests.lab.planner.year import FAILURES, SAVE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.lab.planner.closed_loop import Simulation
    from tests.lab.planner.year import Model

GATE = 0.4


@dataclass(slots=True)
class Part:
    """A stretch of a model's work: its share of the steps, what finishing it is worth, and what must come before."""

    model: Model
    share: float
    weight: float
    after: int | None
    columns: list[tuple[int, int, float]] = field(default_factory=list)  # (week, column, share of the part per second)


def least_flow_days(simulation: Simulation) -> float:
    """Return the bound on ``weighted_flow_days`` of a year that was made but not yet run."""
    end = EPOCH + simulation.weeks * WEEK
    models = [model for family in simulation.arrivals for model in family if model.arrived < end]
    parts = _parts(models)
    rows = _Rows()
    caps = {name: pool.session_cap_seconds for name, pool in simulation.pools.items()}
    quotas = {"kaggle": list(simulation.limits), "sagemaker": [28 * 3_600] * simulation.weeks}
    for week in range(simulation.weeks):
        start = EPOCH + week * WEEK
        for model in [found for found in models if found.arrived < start + WEEK]:
            at = max(start, model.arrived)
            alone = rows.row(start + WEEK - at)  # one session at a time
            for part in [found for found in parts if found.model is model]:
                steps = part.share * model.target
                half = steps / max(model.true.values()) / 2
                for pool, quota in quotas.items():
                    kept = efficiency(caps[pool], model.setup, SAVE_SECONDS[pool], FAILURES[pool])
                    share = kept * model.true[pool] / steps
                    column = rows.column(-part.weight * share * max(0.0, end - at - half) / DAY)
                    rows.put(alone, column, 1.0)
                    rows.put(rows.named((pool, week), quota[week]), column, 1.0)
                    rows.put(rows.named(id(part), 1.0), column, share)
                    part.columns.append((week, column, share))
    for part in parts:
        if part.after is None:
            continue
        for last in range(part.columns[0][0], simulation.weeks):  # never ahead of what must come before
            row = rows.row(0.0)
            for sign, found in ((1.0, part), (-1.0, parts[part.after])):
                for week, column, share in found.columns:
                    if week <= last:
                        rows.put(row, column, sign * share)
    unworked = sum(model.weight * (end - model.arrived) / DAY for model in models)
    return (unworked + rows.least()) / sum(model.weight for model in models)


def _parts(models: Sequence[Model]) -> list[Part]:
    """Cut each main at its managers' gate; whatever follows the gate comes after it."""
    parts: list[Part] = []
    gates: dict[str, int] = {}
    for model in models:
        family = model.name.rsplit("-", 1)[0]
        if model.main:
            gates[family] = len(parts)
            parts.append(Part(model, GATE, 0.0, None))
        parts.append(Part(model, 1.0 - GATE if model.main else 1.0, model.weight, gates[family]))
    return parts


class _Rows:
    """A programme while it grows: minimise cost x columns, rows x columns <= upper, columns >= 0."""

    def __init__(self) -> None:
        self.upper: list[float] = []
        self.cost: list[float] = []
        self.entries: list[tuple[int, int, float]] = []  # column, row, value
        self._names: dict[object, int] = {}

    def row(self, upper: float) -> int:
        """Add a row."""
        self.upper.append(upper)
        return len(self.upper) - 1

    def named(self, name: object, upper: float) -> int:
        """Return the row of that name; the first to ask makes it."""
        if name not in self._names:
            self._names[name] = self.row(upper)
        return self._names[name]

    def column(self, cost: float) -> int:
        """Add a column."""
        self.cost.append(cost)
        return len(self.cost) - 1

    def put(self, row: int, column: int, value: float) -> None:
        """Set an entry."""
        self.entries.append((column, row, value))

    def least(self) -> float:
        """Return the optimum by HiGHS."""
        import highspy
        import numpy as np

        self.entries.sort()
        columns, rows, values = zip(*self.entries, strict=True)
        programme = highspy.HighsLp()
        programme.num_col_, programme.num_row_ = len(self.cost), len(self.upper)
        programme.col_cost_, programme.row_upper_ = np.asarray(self.cost), np.asarray(self.upper, dtype=np.float64)
        programme.col_lower_ = np.zeros(len(self.cost))
        programme.col_upper_ = np.full(len(self.cost), highspy.kHighsInf)
        programme.row_lower_ = np.full(len(self.upper), -highspy.kHighsInf)
        programme.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        programme.a_matrix_.start_ = np.searchsorted(np.asarray(columns), np.arange(len(self.cost) + 1))
        programme.a_matrix_.index_, programme.a_matrix_.value_ = np.asarray(rows), np.asarray(values)
        solver = highspy.Highs()
        for option, setting in (("output_flag", False), ("threads", 1), ("random_seed", 1)):
            solver.setOptionValue(option, setting)
        solver.passModel(programme)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"no least flow time: {solver.modelStatusToString(solver.getModelStatus())}")
        return float(solver.getInfo().objective_function_value)
