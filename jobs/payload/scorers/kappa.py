"""Cohen's kappa: how far two who label the same things agree beyond what chance would bring about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LABELS_MIN = 200  # with 50 labels a true 0.6 shows as anything from 0.40 to 0.76
AGREEMENT_MIN = 0.6  # of the lower bound: below it a judge is never a sole gate
_ONE_SIDED_5 = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class Kappa:
    """Of ``labels`` things labelled twice: kappa and its one-sided 95 % lower bound, both None without variety."""

    labels: int
    kappa: float | None
    lower: float | None

    @property
    def may_stand_alone(self) -> bool:
        """Return whether a gate may rest on this judge alone."""
        return self.labels >= LABELS_MIN and self.lower is not None and self.lower >= AGREEMENT_MIN


def kappa_of(table: Sequence[Sequence[int]]) -> Kappa:
    """Return the agreement in a square table of counts: rows what people said, columns what the judge said.

    The bound is kappa less 1.645 standard errors, after Fleiss, Cohen and Everitt (1969). With one label only, or none,
    there is nothing that chance could have got wrong, and nothing is said.
    """
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


def table_of(people: Sequence[str], judge: Sequence[str]) -> list[list[int]]:
    """Return the table of counts of two lists of labels of the same things."""
    names = sorted({*people, *judge})
    place = {name: index for index, name in enumerate(names)}
    table = [[0] * len(names) for _ in names]
    for one, other in zip(people, judge, strict=True):
        table[place[one]][place[other]] += 1
    return table
