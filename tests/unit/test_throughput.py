"""Throughput: the first run replaces the prior, later ones are averaged, and sharing is taken out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler.core.blame import retry_delay
from scheduler.core.throughput import Estimate, Sample, learn, one_device_speed, within

PRIOR = Estimate(0.0, 0.3, 0, setup_seconds=600, checkpoint_seconds=60, delay_seconds=180)


def test_the_first_measured_speed_replaces_the_prior_at_once() -> None:
    estimate = learn(PRIOR, Sample(2.0, 100.0, 4.0))
    assert (estimate.steps_per_second, estimate.samples) == (2.0, 1)


def test_set_up_delay_and_checkpoint_times_move_half_way_at_least() -> None:
    estimate = learn(PRIOR, Sample(2.0, 100.0, 4.0, 30.0))
    assert (estimate.setup_seconds, estimate.checkpoint_seconds, estimate.delay_seconds) == (100, 4, 30)
    again = learn(estimate, Sample(2.0, 200.0, None, 90.0))
    assert (again.setup_seconds, again.checkpoint_seconds, again.delay_seconds) == (150, 4, 60)


def test_steady_speeds_make_the_estimate_sure_and_jumps_make_it_doubtful() -> None:
    steady = jumpy = Estimate(1.0, 0.3, 1, 10, 1)
    for index in range(12):
        steady = learn(steady, Sample(1.0))
        jumpy = learn(jumpy, Sample(2.0 if index % 2 else 0.5))
    assert steady.sigma < 0.1 < jumpy.sigma


def test_an_estimate_follows_a_lasting_change_of_speed() -> None:
    estimate = Estimate(1.0, 0.05, 50, 10, 1)
    for _ in range(20):
        estimate = learn(estimate, Sample(3.0))
    assert estimate.steps_per_second == pytest.approx(3.0, rel=0.1)


def test_spreads_follow_how_much_sessions_differ() -> None:
    """Half of what lies between the launch and the first step is the queue: its changes count as much."""
    steady = jumpy = learn(PRIOR, Sample(1.0, 300.0, 40.0, 300.0))
    assert (steady.setup_sigma, steady.checkpoint_sigma) == (0.3, 0.3)
    for index in range(12):
        steady = learn(steady, Sample(1.0, 300.0, 40.0, 300.0))
        jumpy = learn(jumpy, Sample(1.0, 300.0, 80.0 if index % 2 else 20.0, 900.0 if index % 2 else 0.0))
    assert max(steady.setup_sigma, steady.checkpoint_sigma) < 0.05
    assert min(jumpy.setup_sigma, jumpy.checkpoint_sigma) > 0.3
    assert within(jumpy.delay_seconds + jumpy.setup_seconds, jumpy.setup_sigma) >= 1_200


def test_nine_in_ten_sessions_stay_within_what_is_planned_for() -> None:
    """Set-ups of a lognormal spread of 0.3, as measured on real platforms."""
    chance = random.Random(7)
    estimate, late, sessions = learn(PRIOR, Sample(1.0, 600.0)), 0, 2_000
    for _ in range(sessions):
        setup = 600.0 * chance.lognormvariate(0.0, 0.3)
        late += 180 + setup > within(180 + estimate.setup_seconds, estimate.setup_sigma)
        estimate = learn(estimate, Sample(1.0, setup))
    assert 0.05 < late / sessions < 0.15


def test_a_session_that_never_trained_teaches_how_long_it_tried() -> None:
    tried = learn(PRIOR, Sample(None, setup_at_least=5_000.0, delay_seconds=400.0))
    assert (tried.setup_seconds, tried.delay_seconds, tried.samples) == (5_000, 400, 0)
    assert learn(tried, Sample(2.0, 800.0)).setup_seconds == 800
    known = learn(PRIOR, Sample(2.0, 1_000.0, 4.0))
    again = learn(known, Sample(None, setup_at_least=3_000.0))
    assert (again.setup_seconds, again.steps_per_second, again.samples) == (2_000, 2.0, 1)
    assert within(again.setup_seconds, again.setup_sigma) > 3_000
    assert learn(known, Sample(None, setup_at_least=900.0)) == known, "cut off early, it says nothing"


def test_the_speed_of_one_device_alone_takes_out_devices_and_sharing() -> None:
    assert one_device_speed(3.6, 2, (1.0, 1.8), 1.0) == pytest.approx(2.0)
    assert one_device_speed(0.9, 1, (1.0, 1.8), 0.9) == pytest.approx(1.0)
    assert one_device_speed(5.4, 4, (1.0, 1.8), 1.0) == pytest.approx(3.0), "counts beyond the table use its last entry"


def test_retry_delays_double_up_to_a_cap_and_differ_between_jobs() -> None:
    delays = [retry_delay("ufm", failures, 60, 3_600) for failures in range(1, 40)]
    assert all(45 <= delay <= 4_500 for delay in delays)
    assert 3 * delays[0] < delays[3]
    assert len({retry_delay(f"job{index}", 3, 60, 3_600) for index in range(20)}) > 5


def test_a_delay_before_any_failure_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        retry_delay("ufm", 0, 60, 3_600)


def test_a_surprise_is_relative_to_what_was_known_and_the_first_run_is_none() -> None:
    first = learn(replace(PRIOR, steps_per_second=7.0), Sample(2.0))
    assert (first.steps_per_second, first.sigma) == (2.0, 0.3)
    slow = learn(Estimate(0.02, 0.3, 1, 10, 1), Sample(0.03))
    fast = learn(Estimate(200.0, 0.3, 1, 10, 1), Sample(300.0))
    assert slow.sigma == pytest.approx(fast.sigma) == pytest.approx(0.5 * 0.3 + 0.5 * 0.5)


def test_a_set_up_that_was_cut_off_counts_only_when_it_was_longer_than_expected() -> None:
    shorter = learn(PRIOR, Sample(None, setup_at_least=599.0))
    longer = learn(PRIOR, Sample(None, setup_at_least=1_000.0))
    assert (shorter.setup_seconds, longer.setup_seconds) == (600, 1_000)


def test_a_lane_that_stood_still_twice_is_no_surprise() -> None:
    still = learn(Estimate(0.0, 0.3, 1, 10, 1), Sample(0.0))
    assert still.steps_per_second == 0.0
    assert still.sigma == pytest.approx(0.5 * 0.3)


def test_nothing_is_ever_known_to_more_than_two_percent() -> None:
    known = PRIOR
    for _ in range(99):
        known = learn(known, Sample(2.0, 600.0, 60.0, 180.0))
    assert (known.sigma, known.setup_sigma, known.checkpoint_sigma) == (0.02, 0.02, 0.02)
