"""Limits: what no policy can keep of a quota window, tighter than the limit of endless full sessions.

The limit that goodput is divided by assumes that every session is as long as the cap. A window ends: after a failure
its rest is a shorter session with a set-up of its own. This is the optimum over all session lengths and restarts
within one window of one long job, in whole steps, with the payload's checkpoints.
"""

from __future__ import annotations

import math

from jobs.payload.lane.meter import checkpoint_times
from tests.lab.planner.efficiency import efficiency


def window_over_endless(
    window: int, cap: int, setup: float, save: float, failures_per_second: float, step: int = 60
) -> float:
    """Return the expected useful seconds of a window of ``window`` charged seconds over the endless limit's (0 to 1).

    A failure is taken to come at the beginning of its step, so that the answer is never too low.
    """
    rate = failures_per_second
    best = [0.0] * (window // step + 1)
    alive = [math.exp(-rate * n * step) for n in range(len(best))]
    kept = [0.0] * (min(window, cap) // step + 1)
    for length in range(1, len(kept)):
        times = checkpoint_times(length * step, setup, save, rate)
        interval = (length * step - setup - len(times) * save) / max(1, len(times))
        kept[length] = sum(interval * math.exp(-rate * (begin + save)) for begin in times)
    for left in range(1, len(best)):
        best[left], failed = best[left - 1], 0.0
        for length in range(1, min(left, len(kept) - 1) + 1):
            # Sessions that fail in their first step leave the whole window: what is kept then is the answer itself.
            found = (kept[length] + failed + alive[length] * best[left - length]) / alive[1]
            best[left] = max(best[left], found)
            failed += (alive[length] - alive[length + 1]) * best[left - length] if length + 1 < len(alive) else 0.0
    return best[-1] / window / efficiency(cap, setup, save, rate)
