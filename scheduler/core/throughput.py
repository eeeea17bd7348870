"""Throughput: what runs teach about the speed, set-up and checkpoint time of a job on a pool."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 8  # samples after which older ones begin to fade: speeds drift with data, drivers and neighbours


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run showed. ``steps_per_second`` is per lane as it ran; the other two may be unknown."""

    steps_per_second: float
    setup_seconds: float | None = None
    checkpoint_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A running estimate for one device used alone. ``sigma`` is the relative standard error."""

    steps_per_second: float
    sigma: float
    samples: int
    setup_seconds: int
    checkpoint_seconds: int


def alone(observed: float, devices: int, device_speedup: tuple[float, ...], sharing: float) -> float:
    """Turn an observed lane speed into the speed of one device used alone.

    ``sharing`` is the pool's slow-down of lanes that share a session, one when the lane had it to itself.
    """
    gain = device_speedup[min(devices, len(device_speedup)) - 1]
    return observed / (gain * sharing)


def learn(old: Estimate | None, sample: Sample, setup_prior: int, checkpoint_prior: int) -> Estimate:
    """Fold one more run into the estimate; the first sample replaces the prior of the speed at once."""
    samples = old.samples if old is not None else 0
    share = 1 / min(samples + 1, _MEMORY)
    before = old.steps_per_second if old is not None and samples else sample.steps_per_second
    speed = before + share * (sample.steps_per_second - before)
    surprise = abs(sample.steps_per_second - before) / max(before, 1e-12)
    spread = old.sigma if old is not None and samples else 0.3
    return Estimate(
        steps_per_second=speed,
        sigma=max(0.02, (1 - share) * spread + share * surprise) if samples else spread,
        samples=samples + 1,
        setup_seconds=_blend(old.setup_seconds if old is not None else setup_prior, sample.setup_seconds, share),
        checkpoint_seconds=_blend(
            old.checkpoint_seconds if old is not None else checkpoint_prior, sample.checkpoint_seconds, share
        ),
    )


def _blend(before: int, observed: float | None, share: float) -> int:
    # Half at least of a new observation counts: set-up priors are guesses, and set-up changes with images and caches.
    return before if observed is None else max(1, round(before + max(share, 0.5) * (observed - before)))
