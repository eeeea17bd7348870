"""Exact binomial probabilities by summing terms, in logarithms, so that neither many items nor tiny chances matter.

Sums of a thousand terms are all that verdicts need of a statistics library, which would be 200 MB in every daemon.
Tests hold them to SciPy's.
"""

from __future__ import annotations

import math

ALPHA = 0.05  # one-sided, of every decision here
_NEGLIGIBLE = 1e-17
_HALVINGS = 60


def log_upper_tail(count: int, trials: int, chance: float) -> float:
    """Return ln P(X >= count) of ``trials`` independent ones of ``chance``."""
    if count <= 0:
        return 0.0
    if count > trials or chance <= 0:
        return -math.inf
    if chance >= 1:
        return 0.0
    if count > trials * chance:  # the terms fall from here on
        return _log_sum(count, trials, chance)
    below = math.exp(_log_sum(trials - count + 1, trials, 1 - chance))  # P(X <= count - 1), counted from the other end
    return math.log1p(-below) if below < 1 else -math.inf


def upper_tail(count: int, trials: int, chance: float) -> float:
    """Return P(X >= count)."""
    return math.exp(log_upper_tail(count, trials, chance))


def lower_bound(passed: int, trials: int) -> float:
    """Return Clopper and Pearson's one-sided 95 % lower bound of the chance behind ``passed`` of ``trials``."""
    if passed <= 0:
        return 0.0
    low, high = 0.0, passed / trials
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if upper_tail(passed, trials, middle) > ALPHA:
            high = middle
        else:
            low = middle
    return low


def mcnemar(wins: int, losses: int) -> float:
    """Return the exact one-sided p-value that wins are no likelier than losses; 1 when there are neither."""
    return upper_tail(wins, wins + losses, 0.5)


def _log_sum(count: int, trials: int, chance: float) -> float:
    """Return ln of the sum of terms from ``count`` on, which must lie above the mean: there each is smaller."""
    log_first = (
        math.lgamma(trials + 1)
        - math.lgamma(count + 1)
        - math.lgamma(trials - count + 1)
        + count * math.log(chance)
        + (trials - count) * math.log1p(-chance)
    )
    odds = chance / (1 - chance)
    term = total = 1.0
    for place in range(count, trials):
        term *= (trials - place) / (place + 1) * odds
        total += term
        if term < total * _NEGLIGIBLE:
            break
    return log_first + math.log(total)
