"""Throughput: the first run replaces the prior, later ones are averaged, and sharing is taken out."""

from __future__ import annotations

import pytest

from scheduler.core.backoff import retry_delay
from scheduler.core.throughput import Estimate, Sample, alone, learn


def test_the_first_measured_speed_replaces_the_prior_at_once() -> None:
    estimate = learn(None, Sample(2.0, 100.0, 4.0), setup_prior=600, checkpoint_prior=60)
    assert (estimate.steps_per_second, estimate.samples) == (2.0, 1)


def test_set_up_and_checkpoint_times_move_half_way_at_least() -> None:
    estimate = learn(None, Sample(2.0, 100.0, 4.0), setup_prior=600, checkpoint_prior=60)
    assert (estimate.setup_seconds, estimate.checkpoint_seconds) == (100, 4)
    again = learn(estimate, Sample(2.0, 200.0, None), setup_prior=600, checkpoint_prior=60)
    assert (again.setup_seconds, again.checkpoint_seconds) == (150, 4)


def test_steady_speeds_make_the_estimate_sure_and_jumps_make_it_doubtful() -> None:
    steady = jumpy = Estimate(1.0, 0.3, 1, 10, 1)
    for index in range(12):
        steady = learn(steady, Sample(1.0), 10, 1)
        jumpy = learn(jumpy, Sample(2.0 if index % 2 else 0.5), 10, 1)
    assert steady.sigma < 0.1 < jumpy.sigma


def test_an_estimate_follows_a_lasting_change_of_speed() -> None:
    estimate = Estimate(1.0, 0.05, 50, 10, 1)
    for _ in range(20):
        estimate = learn(estimate, Sample(3.0), 10, 1)
    assert estimate.steps_per_second == pytest.approx(3.0, rel=0.1)


def test_the_speed_of_one_device_alone_takes_out_devices_and_sharing() -> None:
    assert alone(3.6, 2, (1.0, 1.8), 1.0) == pytest.approx(2.0)
    assert alone(0.9, 1, (1.0, 1.8), 0.9) == pytest.approx(1.0)
    assert alone(5.4, 4, (1.0, 1.8), 1.0) == pytest.approx(3.0), "counts beyond the table use its last entry"


def test_retry_delays_double_up_to_a_cap_and_differ_between_jobs() -> None:
    delays = [retry_delay("ufm", failures, 60, 3_600) for failures in range(1, 40)]
    assert all(45 <= delay <= 4_500 for delay in delays)
    assert 3 * delays[0] < delays[3]
    assert len({retry_delay(f"job{index}", 3, 60, 3_600) for index in range(20)}) > 5


def test_a_delay_before_any_failure_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        retry_delay("ufm", 0, 60, 3_600)
