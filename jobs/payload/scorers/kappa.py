"""Cohen's kappa: the agreement of two raters beyond chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LABELS_MIN = 200  # with only 50 labels, a true kappa of 0.6 may be measured as anything from 0.40 to 0.76
AGREEMENT_MIN = 0.6  # the least lower bound of kappa with which a judge may be the only gate
_ONE_SIDED_5 = 1.6448536269514722  # the 95 % quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class Kappa:
    """Kappa of ``labels`` answers with two labels each, and its one-sided 95 % lower bound; None if all are equal."""

    labels: int
    kappa: float | None
    lower: float | None

    @property
    def may_stand_alone(self) -> bool:
        """Whether a gate may rely on this judge alone."""
        return self.labels >= LABELS_MIN and self.lower is not None and self.lower >= AGREEMENT_MIN


def kappa_of(table: Sequence[Sequence[int]]) -> Kappa:
    """Return the agreement in a square table of counts, people by judge, with the error of Fleiss et al. (1969)."""
    labels = sum(map(sum, table))
    if not labels:
        return Kappa(0, None, None)
    rows = [sum(row) / labels for row in table]
    columns = [sum(row[index] for row in table) / labels for index in range(len(table))]
    agreed = sum(table[index][index] for index in range(len(table))) / labels
    chance = math.fsum(row * column for row, column in zip(rows, columns, strict=True))
    if chance > 1 - 1e-12:
        return Kappa(labels, None, None)
    kappa = (agreed - chance) / (1 - chance)
    # The three parts of the variance, as in the paper.
    same = math.fsum(
        table[index][index] / labels * (1 - (rows[index] + columns[index]) * (1 - kappa)) ** 2
        for index in range(len(table))
    )
    other = (1 - kappa) ** 2 * math.fsum(
        count / labels * (columns[index] + rows[column]) ** 2
        for index, row in enumerate(table)
        for column, count in enumerate(row)
        if column != index
    )
    correction = (kappa - chance * (1 - kappa)) ** 2
    error = math.sqrt(max(0.0, same + other - correction) / labels) / (1 - chance)
    return Kappa(labels, kappa, kappa - _ONE_SIDED_5 * error)
