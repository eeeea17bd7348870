"""What is measured from progress lines: time trained, speed, what a checkpoint costs."""

from typing import Any

from jobs.payload.bounds import TELEMETRY
from jobs.payload.lane.meter import LaneMeter


def test_saves_do_not_count_as_training() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"step": 0}, 100.0)
    meter.feed({"step": 10, "loss": 2.5}, 110.0)
    meter.feed({"saving": 10}, 111.0)
    assert meter.feed({"saved": 10, "held_out_loss": 2.6}, 131.0) == 10
    meter.feed({"step": 20}, 140.0)
    assert meter.began_at == 100.0
    assert meter.trained_seconds(140.0) == 20.0
    assert meter.trained_at_save(10, 150.0) == 11.0
    assert meter.steps_per_second == 1.0
    assert (meter.step, meter.loss, meter.held_out_loss) == (20, 2.5, 2.6)


def test_set_up_goes_on_when_a_session_reports_what_it_learns() -> None:
    meter = LaneMeter(60.0, 75.0)
    data = {"records": {"text": 3}, "left_out": [], "cut": 0, "rows": 1, "tokens": 9, "padding": 0.5}
    data["samples"] = ["2+2=⟦4⟧"]
    meter.feed({"training_data": data}, 90.0)
    meter.feed({"training_data": {"records": "x" * 99}}, 95.0)
    assert (meter.began_at, meter.training_data) == (None, data)
    meter.feed({"step": 0}, 100.0)
    assert meter.began_at == 100.0


def test_before_the_first_line_nothing_was_trained_and_nothing_is_known() -> None:
    meter = LaneMeter(60.0, 75.0)
    assert (meter.training_data, meter.trained_seconds(9.0)) == (None, 0.0)
    meter.end(10.0)
    assert meter.trained_seconds(20.0) == 0.0


def test_training_goes_on_from_where_what_is_saved_was_copied() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"step": 0}, 100.0)
    meter.feed({"saving": 10}, 110.0)
    for now in (112.0, 115.0):  # said twice, it counts once
        meter.feed({"copied": 10}, now)
    meter.feed({"step": 20}, 122.0)
    assert meter.feed({"saved": 10}, 142.0) == 10
    assert meter.trained_seconds(142.0) == 40.0
    assert meter.trained_at_save(10, 142.0) == 10.0
    assert meter.steps_per_second == 1.0
    meter.published(10, 109.0, 149.0)
    assert meter.checkpoint_seconds == 40.0, "from the question to the store: what a last one must be given"


def test_time_stands_still_when_the_command_has_ended() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"step": 0}, 100.0)
    meter.end(130.0)
    assert meter.trained_seconds(500.0) == 30.0


def test_a_checkpoint_asked_for_costs_from_the_question_to_the_store() -> None:
    meter = LaneMeter(60.0, 75.0)
    assert (meter.checkpoint_seconds, meter.expected_checkpoint_seconds, meter.closing_seconds) == (None, 60.0, 75.0)
    meter.feed({"step": 1}, 0.0)
    meter.feed({"saving": 5}, 12.0)
    meter.published(5, 10.0, 30.0)
    assert meter.checkpoint_seconds == 20.0


def test_the_last_checkpoint_is_given_what_earlier_sessions_needed_until_this_one_tells_more() -> None:
    meter = LaneMeter(60.0, 200.0)
    for number, (seconds, given) in enumerate(((20.0, 200.0), (240.0, 300.0), (40.0, 300.0)), 1):
        meter.published(number, 0.0, seconds)
        assert meter.closing_seconds == given
    sure = LaneMeter(60.0, 200.0)
    for number in range(3):
        sure.published(number, 0.0, 20.0)
    assert sure.closing_seconds == 25.0


def test_a_last_checkpoint_that_was_late_counts_for_as_long_as_was_waited() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.not_stored(50.0)
    assert meter.checkpoint_seconds is None  # stopped by something else than lack of time
    meter.not_stored(400.0)
    assert meter.checkpoint_seconds == 400.0


def test_a_save_that_began_before_the_question_does_not_answer_it() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"saving": 5}, 8.0)
    meter.published(5, 10.0, 30.0)
    assert meter.checkpoint_seconds == 22.0


def test_a_checkpoint_without_a_word_is_marked_when_it_is_found() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"step": 1}, 0.0)
    assert meter.trained_at_save(5, 40.0) == 40.0
    assert meter.trained_at_save(5, 90.0) == 40.0
    meter.published(5, None, 95.0)
    assert meter.checkpoint_seconds is None


def test_a_failed_save_is_remembered_until_one_succeeds() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"saving": 5}, 0.0)
    meter.feed({"save_failed": "disk full"}, 1.0)
    assert meter.save_failed == "disk full"
    assert meter.trained_seconds(11.0) == 10.0
    meter.feed({"saved": 6}, 12.0)
    assert meter.save_failed == ""


def test_what_is_not_a_number_is_passed_over() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"step": "7", "loss": float("nan"), "held_out_loss": None, "gpu_memory_bytes": True}, 0.0)
    assert (meter.step, meter.loss, meter.held_out_loss, meter.gpu_memory_bytes) == (None, None, None, None)
    meter.feed({"step": 0, "gpu_memory_bytes": 5, "loss": 1}, 1.0)
    assert (meter.step, meter.loss, meter.gpu_memory_bytes) == (0, 1.0, 5)


def test_the_last_checkpoint_is_given_time_by_the_five_before_it() -> None:
    meter = LaneMeter(60.0, 0.5)
    assert meter.closing_seconds == 0.5
    for number, seconds in enumerate((240.0, 40.0, 20.0, 20.0, 20.0)):
        meter.published(number, 0.0, seconds)
    assert meter.closing_seconds == 300.0
    meter.published(5, 0.0, 20.0)
    assert meter.closing_seconds == 50.0


def test_a_save_is_under_way_until_it_has_ended_or_failed() -> None:
    meter = LaneMeter(60.0, 75.0)
    states = [meter.saving]
    lines: list[dict[str, Any]] = [{"saving": 5}, {"saved": 5}, {"saving": 6}, {"save_failed": "x" * 900}]
    for at, line in enumerate(lines):
        meter.feed(line, float(at))
        states.append(meter.saving)
    assert states == [False, True, False, True, False]
    assert len(meter.save_failed) == 500


def test_speed_counts_from_the_first_step_that_is_reported() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"loss": 3.0}, 100.0)
    meter.feed({"step": 0}, 110.0)
    assert meter.steps_per_second is None
    meter.feed({"step": 20}, 120.0)
    assert meter.steps_per_second == 2.0


def test_a_session_that_goes_on_at_a_step_is_as_fast_as_its_own_steps() -> None:
    meter = LaneMeter(60.0, 75.0)
    assert meter.save_failed == ""
    meter.feed({"step": 50}, 100.0)
    meter.feed({"step": 60, "saving": 62}, 104.0)
    assert (meter.step, meter.steps_per_second) == (62, 3.0)
    late = LaneMeter(60.0, 75.0)
    for line, now in (({"loss": 3.0}, 100.0), ({"step": 0}, 110.0), ({"step": 5}, 120.0)):
        late.feed(line, now)
    assert late.steps_per_second == 0.5


def test_a_checkpoint_takes_the_mean_and_two_tell_too_little_of_the_last() -> None:
    meter = LaneMeter(60.0, 200.0)
    for number, seconds in enumerate((20.0, 40.0)):
        meter.published(number, 0.0, seconds)
    assert (meter.checkpoint_seconds, meter.expected_checkpoint_seconds, meter.closing_seconds) == (30.0, 30.0, 200.0)
    meter.not_stored(200.0)
    assert meter.checkpoint_seconds == 30.0


def test_a_save_that_was_not_announced_is_marked_when_it_has_ended() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"step": 1}, 0.0)
    meter.feed({"saved": 5}, 40.0)
    assert meter.trained_at_save(5, 90.0) == 40.0


def test_figures_are_read_within_their_bounds_and_kept_until_a_newer_one() -> None:
    meter = LaneMeter(60.0, 75.0)
    name, high = next(iter(TELEMETRY.items()))
    for value, kept in ((0.0, 0.0), (-0.5, 0.0), (high, high), (2 * high, high), ("x", high), (0.25, 0.25)):
        meter.feed({name: value}, 0.0)
        assert meter.telemetry[name] == kept
    for size, kept in ((0, 0), (-1, 0), (7, 7)):
        meter.feed({"gpu_memory_bytes": size}, 0.0)
        assert meter.gpu_memory_bytes == kept


def test_memory_of_the_gpus_is_the_largest_unless_the_command_names_it() -> None:
    meter = LaneMeter(60.0, 75.0)
    for busy, memory, largest in ((0.5, 0, 0), (0.9, 7, 7), (0.2, 3, 7)):
        meter.record_gpus(memory, {"gpu_busy": busy})
        assert (meter.telemetry["gpu_busy"], meter.gpu_memory_bytes) == (busy, largest)
    meter.feed({"step": 1, "gpu_memory_bytes": 5}, 0.0)
    meter.record_gpus(9, {})
    assert meter.gpu_memory_bytes == 5


def test_losses_that_are_no_numbers_are_counted_from_the_step_of_the_first() -> None:
    meter = LaneMeter(60.0, 75.0)
    meter.feed({"step": 3, "loss": 2.0}, 0.0)
    assert (meter.losses_lost, meter.lost_since) == (0, None)
    for step in (4, 5):
        meter.feed({"step": step, "loss": float("nan")}, 1.0)
    for odd in (True, "nan", None):
        meter.feed({"step": 6, "loss": odd}, 2.0)
    assert (meter.losses_lost, meter.lost_since) == (2, 4)
    meter.feed({"step": 7, "loss": 0}, 3.0)
    assert (meter.losses_lost, meter.lost_since) == (0, None)
