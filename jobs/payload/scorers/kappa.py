"""Cohen's kappa: the agreement of two raters beyond chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LABELS_MIN = 200  # with 50 labels, a true kappa of 0.6 is measured as 0.40 to 0.76
AGREEMENT_MIN = 0.6  # lower bound of kappa with which a judge may be the only gate
_ONE_SIDED_5 = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class Kappa:
    """Kappa of ``labels`` things that were labelled twice, and its one-sided 95 % lower bound; None without variety."""

    labels: int
    kappa: float | None
    lower: float | None

    @property
    def may_stand_alone(self) -> bool:
        """Return whether a gate may rely on this judging model only."""
        return self.labels >= LABELS_MIN and self.lower is not None and self.lower >= AGREEMENT_MIN


def kappa_of(table: Sequence[Sequence[int]]) -> Kappa:
    """Return the agreement in a square table of counts (people's labels by judge's), after Fleiss et al. (1969)."""
    labels = sum(map(sum, table))
    if not labels:
        return Kappa(0, None, None)
    rows = [sum(row) / labels for row in table]
    columns = [sum(row[place] for row in table) / labels for place in range(len(table))]
    agreed = sum(table[place][place] for place in range(len(table))) / labels
    chance = math.fsum(row * column for row, column in zip(rows, columns, strict=True))
    if chance > 1 - 1e-12:
        return Kappa(labels, None, None)
    kappa = (agreed - chance) / (1 - chance)
    # The variance of the estimate, its three parts as in the paper.
    same = math.fsum(
        table[place][place] / labels * (1 - (rows[place] + columns[place]) * (1 - kappa)) ** 2
        for place in range(len(table))
    )
    other = (1 - kappa) ** 2 * math.fsum(
        count / labels * (columns[place] + rows[across]) ** 2
        for place, row in enumerate(table)
        for across, count in enumerate(row)
        if across != place
    )
    rest = (kappa - chance * (1 - kappa)) ** 2
    error = math.sqrt(max(0.0, same + other - rest) / labels) / (1 - chance)
    return Kappa(labels, kappa, kappa - _ONE_SIDED_5 * error)
