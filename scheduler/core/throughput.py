"""Throughput: what runs teach about the speed of a job on a pool, and about what a session there loses.

The spread of a set-up or a checkpoint tells how far single sessions are from the estimate, relative to it. Nine in ten
stay within ``SURENESS`` spreads above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

_MEMORY = 8  # samples after which older ones begin to fade: speeds drift with data, drivers and neighbours
SURENESS = 1.3
# Assumed until measured: queues, downloads and installations make a set-up vary by about a third, stores a save.
PRIOR_SIGMA = 0.3
_SURE_SIGMA = 0.02
# So many mean surprises make a spread: as an estimate moves half way with every session, nine in ten then stay within.
_PER_SURPRISE = 1.5


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run showed. ``steps_per_second`` is per lane as it ran; whatever was not seen is None.

    ``delay_seconds`` lie between the launch and the session's start, ``setup_seconds`` between that and the first
    step. ``setup_at_least`` is for a session that ended before its first step: how long it had tried.
    """

    steps_per_second: float | None
    setup_seconds: float | None = None
    checkpoint_seconds: float | None = None
    delay_seconds: float | None = None
    setup_at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A running estimate for one device used alone; ``samples`` counts speeds, and is zero for a prior.

    ``sigma`` is the relative standard error of the speed, ``setup_sigma`` the relative spread of delay and set-up
    together, ``checkpoint_sigma`` that of a checkpoint.
    """

    steps_per_second: float
    sigma: float
    samples: int
    setup_seconds: int
    checkpoint_seconds: int
    delay_seconds: int = 0
    setup_sigma: float = PRIOR_SIGMA
    checkpoint_sigma: float = PRIOR_SIGMA


def alone(observed: float, devices: int, device_speedup: tuple[float, ...], sharing: float) -> float:
    """Turn an observed lane speed into the speed of one device used alone.

    ``sharing`` is the pool's slow-down of lanes that share a session, one when the lane had it to itself.
    """
    gain = device_speedup[min(devices, len(device_speedup)) - 1]
    return observed / (gain * sharing)


def within(seconds: float, sigma: float) -> int:
    """Return the seconds that nine in ten stay within."""
    return ceil(seconds * (1 + SURENESS * sigma))


def learn(known: Estimate, sample: Sample) -> Estimate:
    """Fold one more run into what is known; the first sample replaces the prior at once."""
    share = 1 / min(known.samples + 1, _MEMORY)
    # Half at least of a new observation counts: set-up priors are guesses, and set-up changes with images and caches.
    lost = _lost(known, sample, max(share, 0.5))
    if sample.steps_per_second is None:
        return lost
    before = known.steps_per_second if known.samples else sample.steps_per_second
    surprise = abs(sample.steps_per_second - before) / max(before, 1e-12)
    return replace(
        lost,
        steps_per_second=before + share * (sample.steps_per_second - before),
        sigma=max(_SURE_SIGMA, (1 - share) * known.sigma + share * surprise) if known.samples else PRIOR_SIGMA,
        samples=known.samples + 1,
    )


def _lost(known: Estimate, sample: Sample, share: float) -> Estimate:
    """Fold what a session lost: the wait for its start, its set-up, its saves."""
    setup = sample.setup_seconds
    if setup is None and sample.setup_at_least is not None and sample.setup_at_least > known.setup_seconds:
        setup = sample.setup_at_least
    delay = known.delay_seconds if sample.delay_seconds is None else sample.delay_seconds
    expected = known.delay_seconds + known.setup_seconds
    seen = None if setup is None else delay + setup
    return replace(
        known,
        setup_seconds=_blend(known.setup_seconds, setup, share),
        delay_seconds=_blend(known.delay_seconds, sample.delay_seconds, share),
        setup_sigma=_spread(known.setup_sigma, expected, seen, share),
        checkpoint_seconds=_blend(known.checkpoint_seconds, sample.checkpoint_seconds, share),
        checkpoint_sigma=_spread(known.checkpoint_sigma, known.checkpoint_seconds, sample.checkpoint_seconds, share),
    )


def _spread(sigma: float, expected: float, observed: float | None, share: float) -> float:
    """Fold a surprise, relative to what was expected and one at most, into a spread.

    What replaces a prior (``share`` one) says nothing of the spread between sessions.
    """
    if observed is None or share >= 1:
        return sigma
    surprise = min(1.0, abs(observed - expected) / max(expected, 1.0))
    return max(_SURE_SIGMA, (1 - share) * sigma + share * _PER_SURPRISE * surprise)


def _blend(before: int, observed: float | None, share: float) -> int:
    return before if observed is None else max(0, round(before + share * (observed - before)))
