"""Skew: how far the clock of Slurm's controller is from ours. It tells instants by its own, our books are by ours."""

from __future__ import annotations

from jobs.payload.bounds import INSTANT_MAX, digits

TOLERATED_SECONDS = 30


def skew(told: str, began: float, ended: float, known: int) -> int:
    """Return the seconds that the controller's clock is ahead of ours, 0 for less than anybody needs to know.

    ``told`` is what it showed at a moment between ``began`` and ``ended`` of ours, all in real UTC seconds. ``known``
    is what was found before. It stays while it explains what was told, so that both ends of a session move alike.
    """
    shown = digits(told, INSTANT_MAX)
    if shown is None or began - TOLERATED_SECONDS <= shown - known <= ended + TOLERATED_SECONDS:
        return known
    found = round(shown - (began + ended) / 2)
    return found if abs(found) > TOLERATED_SECONDS else 0
