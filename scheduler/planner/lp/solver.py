"""Solver: HiGHS, imported on first use; it starts from the basis of its last solution."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.planner.lp.linear import Programme

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class SolverFailed(Exception):
    """The solver is missing, failed or reached its limit; ``why`` is the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(f"no linear plan: {why}")
        self.why = why


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum: its value ``bound``, ``seconds`` by column, ``prices`` by row (value per unit)."""

    bound: float
    seconds: NDArray[np.float64]
    prices: NDArray[np.float64]
    iterations: int


class LinearSolver(Protocol):
    """A solver of programmes; it may start from its last solution."""

    def solve(self, programme: Programme) -> Solution:
        """Return an optimum of ``programme``; raises SolverFailed."""


# Below this many columns the primal method without presolve takes a third of the time (measured at 11,000 columns). At
# 23,000 columns it takes half the time, but the next solution, from its basis, takes twice as long.
PRESOLVED_COLUMNS_MIN = 15_000
DUAL, PRIMAL = 1, 4  # values of HiGHS's option simplex_strategy
Setting = tuple[str, Any]
ALWAYS: tuple[Setting, ...] = (("output_flag", False), ("threads", 1), ("random_seed", 1))
SMALL: tuple[Setting, ...] = (
    ("presolve", "off"),
    ("simplex_scale_strategy", 2),  # HiGHS's default, as is the tolerance
    ("dual_feasibility_tolerance", 1e-7),
)
# Scaling a large programme takes a sixth of the time of a warm start. Without it the duals need a smaller tolerance,
# because a column may have 100,000 seconds.
LARGE = (("presolve", "choose"), ("simplex_scale_strategy", 0), ("dual_feasibility_tolerance", 1e-9))
PERTURBATION = "primal_simplex_bound_perturbation_multiplier"
# Limits of simplex steps per row. They limit the work independently of the machine's load, so that plans are
# reproducible; the time limit only stops a solver that hangs. The dual method needs at most 0.2 steps per row, except
# with many equal jobs (15,500 steps for 1,000 jobs), where the primal method needs very few.
STEPS_PER_ROW = 10
DUAL_STEPS_PER_ROW = 0.5


class Solver:
    """HiGHS with one thread and a fixed seed. A programme of the same shape starts from the last basis."""

    def __init__(self, time_limit_seconds: float = 30.0) -> None:
        try:
            import highspy
        except ImportError as error:
            raise SolverFailed(f"highspy is not installed ({error})") from error
        self._highs = highspy.Highs()
        self._time_limit_seconds = time_limit_seconds
        self._set(ALWAYS)
        self._loaded: Programme | None = None

    def solve(self, programme: Programme) -> Solution:
        """Return an optimum of ``programme``; raises SolverFailed."""
        import highspy
        import numpy as np

        highs = self._highs
        small = len(programme.cost) < PRESOLVED_COLUMNS_MIN
        warm = self._loaded is not None and programme.same_shape(self._loaded)
        if self._loaded is not None and warm:
            feasible = self._change(programme, self._loaded)
        else:
            self._load(programme)
            feasible = small
        self._set(SMALL if small else LARGE)
        # A warm start takes few steps and does not stall; a perturbation would only add clean-up work.
        highs.setOptionValue(PERTURBATION, 0.0 if warm and feasible else 1.0)
        # The primal method can continue from a feasible basis, which remains when only costs change.
        highs.setOptionValue("simplex_strategy", PRIMAL if feasible else DUAL)
        self._loaded = programme
        # HiGHS counts running time from its first run.
        highs.setOptionValue("time_limit", highs.getRunTime() + self._time_limit_seconds)
        rows = len(programme.upper)
        if feasible or not self._run(int(DUAL_STEPS_PER_ROW * rows)):
            highs.setOptionValue("simplex_strategy", PRIMAL)
            self._run(STEPS_PER_ROW * rows)
        status = highs.getModelStatus()
        # The model is empty when no pool has room; that is an optimum too.
        if status not in {highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kModelEmpty}:
            self._loaded = None
            raise SolverFailed(f"HiGHS stopped with {highs.modelStatusToString(status)}")
        optimum = highs.getSolution()
        info = highs.getInfo()
        return Solution(
            bound=-float(info.objective_function_value),
            seconds=np.asarray(optimum.col_value),
            prices=np.maximum(0.0, -np.asarray(optimum.row_dual)),
            iterations=int(info.simplex_iteration_count),
        )

    def _run(self, steps: int) -> bool:
        """Run at most ``steps`` simplex steps; return whether they were enough."""
        import highspy

        self._highs.setOptionValue("simplex_iteration_limit", steps)
        self._highs.run()
        return bool(self._highs.getModelStatus() != highspy.HighsModelStatus.kIterationLimit)

    def _set(self, settings: Iterable[Setting]) -> None:
        for option, setting in settings:
            self._highs.setOptionValue(option, setting)

    def _load(self, programme: Programme) -> None:
        import highspy
        import numpy as np

        lp = highspy.HighsLp()
        count, rows = len(programme.cost), len(programme.upper)
        lp.num_col_, lp.num_row_ = count, rows
        lp.col_cost_ = -programme.cost
        lp.col_lower_, lp.col_upper_ = np.zeros(count), np.full(count, highspy.kHighsInf)
        lp.row_lower_, lp.row_upper_ = np.full(rows, -highspy.kHighsInf), programme.upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = programme.starts, programme.rows
        lp.a_matrix_.value_ = programme.values
        self._highs.clearModel()
        if self._highs.passModel(lp) == highspy.HighsStatus.kError:
            raise SolverFailed("HiGHS refused the model")

    def _change(self, programme: Programme, before: Programme) -> bool:
        """Pass only the differences to HiGHS, which keeps its basis; return whether only costs differ."""
        import highspy
        import numpy as np

        highs = self._highs
        columns = np.nonzero(programme.cost != before.cost)[0].astype(np.int32)
        if len(columns):
            highs.changeColsCost(len(columns), columns, -programme.cost[columns])
        rows = np.nonzero(programme.upper != before.upper)[0].astype(np.int32)
        if len(rows):
            lower = np.full(len(rows), -highspy.kHighsInf)
            highs.changeRowsBounds(len(rows), rows, lower, programme.upper[rows])
        entries = np.nonzero(programme.values != before.values)[0]
        column_of = np.searchsorted(programme.starts, entries, side="right") - 1
        for column, row, coefficient in zip(
            column_of.tolist(), programme.rows[entries].tolist(), programme.values[entries].tolist(), strict=True
        ):
            highs.changeCoeff(row, column, coefficient)
        return not len(rows) and not len(entries)
