"""Throughput: estimates of a job's speed on a pool and of a session's overheads, learned from runs.

The spread of a set-up or checkpoint time is the relative deviation of single sessions from the estimate. The P90 is
``SURENESS`` spreads above the estimate.
"""

from dataclasses import dataclass, replace
from math import ceil

_MEMORY = 8  # number of samples from which older ones lose weight: speeds drift with data, drivers and neighbours
SURENESS = 1.3  # spreads between the mean and the P90; of a normal distribution 1.28
# Assumed until measured: queues, downloads and installations make a set-up vary by about a third, stores a checkpoint.
PRIOR_SIGMA = 0.3
_SURE_SIGMA = 0.02  # the least spread: no estimate is more certain than this
# The spread is this many mean deviations, so that the P90 holds although the estimate moves half way each session.
_PER_SURPRISE = 1.5


@dataclass(frozen=True, slots=True)
class Sample:
    """The measurements of one run; None if not measured. ``steps_per_second`` is per lane.

    ``delay_seconds`` is from the launch to the session's start, ``setup_seconds`` from there to the first step.
    ``setup_at_least`` is the length of a session that ended before its first step.
    """

    steps_per_second: float | None
    setup_seconds: float | None = None
    checkpoint_seconds: float | None = None
    delay_seconds: float | None = None
    setup_at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A running estimate for one device without sharing; ``samples`` counts speeds, zero for a prior.

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


def one_device_speed(observed: float, devices: int, device_speedup: tuple[float, ...], sharing: float) -> float:
    """Return the speed of one device without sharing from an observed lane speed.

    ``sharing`` is the pool's speed factor of lanes that share a session, 1.0 for a lane alone.
    """
    gain = device_speedup[min(devices, len(device_speedup)) - 1]
    return observed / (gain * sharing)


def within(seconds: float, sigma: float) -> int:
    """Return the P90 of a time with mean ``seconds`` and relative spread ``sigma``."""
    return ceil(seconds * (1 + SURENESS * sigma))


def learn(estimate: Estimate, sample: Sample) -> Estimate:
    """Return the estimate with one more run; the first sample replaces the prior."""
    share = 1 / min(estimate.samples + 1, _MEMORY)
    # A new observation counts at least half: set-up priors are guesses, and set-up changes with images and caches.
    overheads = _learn_overheads(estimate, sample, max(share, 0.5))
    if sample.steps_per_second is None:
        return overheads
    before = estimate.steps_per_second if estimate.samples else sample.steps_per_second
    surprise = abs(sample.steps_per_second - before) / max(before, 1e-12)
    return replace(
        overheads,
        steps_per_second=before + share * (sample.steps_per_second - before),
        sigma=max(_SURE_SIGMA, (1 - share) * estimate.sigma + share * surprise) if estimate.samples else PRIOR_SIGMA,
        samples=estimate.samples + 1,
    )


def _learn_overheads(estimate: Estimate, sample: Sample, share: float) -> Estimate:
    """Return the estimate with a session's overheads: delay, set-up and checkpoints."""
    setup = sample.setup_seconds
    if setup is None and sample.setup_at_least is not None and sample.setup_at_least > estimate.setup_seconds:
        setup = sample.setup_at_least
    delay = estimate.delay_seconds if sample.delay_seconds is None else sample.delay_seconds
    expected = estimate.delay_seconds + estimate.setup_seconds
    total = None if setup is None else delay + setup
    return replace(
        estimate,
        setup_seconds=_blend(estimate.setup_seconds, setup, share),
        delay_seconds=_blend(estimate.delay_seconds, sample.delay_seconds, share),
        setup_sigma=_spread(estimate.setup_sigma, expected, total, share),
        checkpoint_seconds=_blend(estimate.checkpoint_seconds, sample.checkpoint_seconds, share),
        checkpoint_sigma=_spread(
            estimate.checkpoint_sigma, estimate.checkpoint_seconds, sample.checkpoint_seconds, share
        ),
    )


def _spread(sigma: float, expected: float, observed: float | None, share: float) -> float:
    """Return the spread with one more relative deviation, at most 1; a sample that replaces a prior changes nothing."""
    if observed is None or share >= 1:
        return sigma
    surprise = min(1.0, abs(observed - expected) / max(expected, 1.0))
    return max(_SURE_SIGMA, (1 - share) * sigma + share * _PER_SURPRISE * surprise)


def _blend(before: int, observed: float | None, share: float) -> int:
    return before if observed is None else max(0, round(before + share * (observed - before)))
