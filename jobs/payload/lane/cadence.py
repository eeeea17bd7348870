"""When to save a checkpoint in a session of known length (pure).

A session trains after ``setup_seconds``, fails with a constant ``failures_per_second``, and keeps only what its last
completed checkpoint holds. With n equal intervals, of which the last checkpoint ends exactly at the session's end, the
expected time kept is

    useful(n) = d * sum_{i=1..n} exp(-rate * (setup + i * (d + checkpoint)))
    d = (length - setup - n * checkpoint) / n

and the best n gives what no policy that cannot foresee failures beats. Failures are memoryless, so planning again from
the present (set-up ran long, a save was slower than thought) is the same problem with a shorter session.
"""

from __future__ import annotations

import math


def interval_count(
    length_seconds: float, setup_seconds: float, checkpoint_seconds: float, failures_per_second: float
) -> int:
    """Return how many equal intervals, each closed by a checkpoint, keep most time; 0 when not even one fits."""
    room = length_seconds - setup_seconds
    # A save is never free: at no cost the best count would be infinite.
    cost = max(checkpoint_seconds, 1e-3 * room, 1e-9)
    most = math.floor(room / cost)
    if room <= checkpoint_seconds or most < 1:
        return 0

    def useful(count: int) -> float:
        return _useful_seconds(count, length_seconds, setup_seconds, checkpoint_seconds, failures_per_second)

    # Young and Daly's interval lands beside the optimum; useful(n) has one peak, so climb from there.
    count = max(1, min(most, round(room * math.sqrt(failures_per_second / (2 * cost)))))
    while count < most and useful(count + 1) > useful(count):
        count += 1
    while count > 1 and useful(count - 1) >= useful(count):
        count -= 1
    return count


def checkpoint_times(
    length_seconds: float, setup_seconds: float, checkpoint_seconds: float, failures_per_second: float
) -> tuple[float, ...]:
    """Return when to begin each save, in seconds after the session's start; the last one ends at its end."""
    count = interval_count(length_seconds, setup_seconds, checkpoint_seconds, failures_per_second)
    if count == 0:
        return ()
    stride = (length_seconds - setup_seconds) / count
    return tuple(setup_seconds + i * stride - checkpoint_seconds for i in range(1, count + 1))


def _useful_seconds(count: int, length: float, setup: float, checkpoint: float, rate: float) -> float:
    interval = (length - setup - count * checkpoint) / count
    if interval <= 0:
        return 0.0
    if rate == 0:
        return count * interval
    # The geometric sum of the probabilities that checkpoint 1..n is reached.
    exponent = rate * (interval + checkpoint)
    reached = math.exp(-exponent) * math.expm1(-count * exponent) / math.expm1(-exponent)
    return interval * math.exp(-rate * setup) * reached
