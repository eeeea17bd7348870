"""The rules by which a command is taken to burn hours for nothing, on a clock of the test's own."""

import math

import pytest

from jobs.payload.lane.ending import DEADLINE, StallLimits, StallWatch, Stop, minutes
from jobs.payload.lane.meter import LaneMeter

LIMITS = StallLimits(first_progress_seconds=900, no_progress_seconds=600, checkpoint_seconds=1_200, loss_nan=3)
PAUSE = 60.0


class Session:
    """A command that began at second 100 and is looked at every 30 s."""

    def __init__(self, limits: StallLimits = LIMITS) -> None:
        self.meter, self.watch, self.now = LaneMeter(60.0, 75.0), StallWatch(limits, PAUSE), 100.0
        self.watch.begin(self.now)

    def say(self, **line: object) -> None:
        """Let the command report."""
        self.meter.feed(line, self.now)
        self.watch.record_progress(self.meter, self.now)

    def until(self, at: float) -> Stop | None:
        """Look every 30 s; return why it must end, if it must before ``at``."""
        while self.now < at:
            self.now = min(at, self.now + 30)
            if stop := self.watch.check(self.meter, self.now):
                return stop
        return None


def test_silence_is_borne_until_its_bound_and_no_longer() -> None:
    session = Session()
    assert session.until(999) is None
    assert session.until(1_000) == Stop(
        "failed", "no first progress: nothing was reported or saved in 15 min", 1_000, "stalled"
    )


def test_a_first_word_of_any_kind_ends_the_wait_for_it() -> None:
    """From then on a step must follow the last one."""
    session = Session()
    assert session.until(900) is None
    session.say(gpu_memory_bytes=5)
    assert session.watch.due_at(session.meter) == 100 + 600, "no step has come yet: it counts from the start"
    session.say(step=0)
    assert session.watch.due_at(session.meter) == 900 + 600


def test_only_a_step_that_is_new_is_progress() -> None:
    session = Session()
    session.say(step=40)
    assert session.until(490) is None
    for line in ({"step": 40}, {"step": 39}, {"loss": 1.0}, {"held_out_loss": 2.0}, {"saving": 40}):
        session.say(**line)
    stop = session.until(2_000)
    assert stop is not None
    assert (stop.at, stop.error_class) == (700, "stalled")
    assert "newest is 40" in stop.why


@pytest.mark.parametrize("line", [{"step": 41}, {"saving": 41}])
def test_a_new_step_begins_the_wait_anew(line: dict[str, int]) -> None:
    session = Session()
    session.say(step=40)
    assert session.until(690) is None
    session.say(**line)
    assert session.until(1_289) is None
    assert session.until(1_290) is not None


def test_a_checkpoint_in_the_store_is_progress_and_ends_the_wait_for_a_first_word() -> None:
    session = Session()
    session.until(800)
    session.watch.stored(session.now)
    assert session.until(100_000) is None, "it works without a word"
    session.say(step=1)
    assert session.until(200_000) is not None


def test_the_longest_wait_between_two_steps_is_told() -> None:
    session = Session()
    session.until(500)
    session.say(step=1)
    assert session.watch.longest_quiet == 0, "set-up is no wait for a step"
    session.until(620)
    session.say(step=2)
    session.until(650)
    session.say(step=3)
    assert session.watch.longest_quiet == 120
    session.until(5_000)
    assert session.watch.longest_quiet == 600, "as long as it was borne"


def test_a_pause_of_the_whole_machine_does_not_count() -> None:
    """A laptop was closed for an hour: what was left of the bound is left."""
    session = Session()
    session.say(step=1)
    session.until(400)
    session.now += 3_600
    assert session.watch.check(session.meter, session.now) is None
    began = session.now
    stop = session.until(began + 10_000)
    assert stop is not None
    assert stop.at - began == pytest.approx(600 - 300 - PAUSE, abs=30)


def test_every_rule_can_be_switched_off() -> None:
    session = Session(StallLimits())
    assert session.until(50_000) is None
    for _ in range(10):
        session.say(step=1, loss=math.nan)
    assert session.until(100_000) is None
    assert session.watch.unsaved_for(Stop("yielded", DEADLINE, session.now, at_deadline=True)) == ""


def test_nothing_is_wrong_before_the_command_has_begun() -> None:
    watch, meter = StallWatch(LIMITS, PAUSE), LaneMeter(60.0, 75.0)
    assert watch.check(meter, 1e9) is None
    assert watch.due_at(meter) == math.inf
    assert watch.unsaved_for(Stop("yielded", DEADLINE, 1e9, at_deadline=True)) == ""


def test_a_loss_that_is_no_number_is_counted_until_one_is() -> None:
    session = Session()
    for step, loss in enumerate((math.nan, math.inf, 2.0, -math.inf, math.nan), 1):
        session.say(step=step, loss=loss)
        session.say(step=step)  # a line without a loss says nothing of it
        assert session.until(session.now + 30) is None
    assert (session.meter.losses_lost, session.meter.lost_since, session.meter.loss) == (2, 4, 2.0)
    session.say(step=6, loss=math.nan)
    stop = session.until(session.now + 30)
    assert stop is not None
    assert (stop.outcome, stop.error_class) == ("failed", "diverged")
    assert stop.why == "the loss is not a finite number since step 4, 3 reports in a row"


@pytest.mark.parametrize("odd", ["nan", None, True, [], {}])
def test_a_loss_of_another_kind_says_nothing(odd: object) -> None:
    session = Session()
    session.say(step=1, loss=math.nan)
    session.say(step=2, loss=odd)
    assert session.meter.losses_lost == 1


@pytest.mark.parametrize(
    ("stop", "ran"),
    [
        (Stop("yielded", DEADLINE, 1_299, at_deadline=True), ""),
        (Stop("yielded", DEADLINE, 1_300, at_deadline=True), "20 min"),
        (Stop("yielded", "stop flag: hold by ann", 5_000), ""),
        (Stop("preempted", "SIGTERM", 5_000), ""),
        (None, ""),
    ],
)
def test_who_had_time_to_save_and_did_not_is_empty_handed(stop: Stop | None, ran: str) -> None:
    session = Session()
    assert session.watch.unsaved_for(stop) == ran
    session.watch.stored(1_000)
    assert session.watch.unsaved_for(stop) == ""


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (5_400, "90 min")])
def test_spans_are_told_in_words(seconds: float, words: str) -> None:
    assert minutes(seconds) == words


def test_idle_gpus_end_a_command_that_reports_steps() -> None:
    """The time counts from the first report below the share, begins again after one above it, and stops in a sleep."""
    session = Session(StallLimits(idle_seconds=600, idle_below=0.05))
    session.meter.record_gpus(1, {"gpu_busy": 0.04})
    assert session.until(600) is None
    session.meter.record_gpus(1, {"gpu_busy": 0.05})
    assert session.until(700) is None
    session.meter.record_gpus(1, {"gpu_busy": 0.01})
    assert session.until(730) is None
    assert session.watch.due_at(session.meter) == 730 + 600
    session.now += 300 - 30  # no look for so long: the machine was suspended
    assert session.until(1_500) is None
    stop = session.until(1_700)
    assert stop is not None
    assert (stop.error_class, stop.at) == ("stalled", 1_590), "the first look after 730 + 600 + 300 - PAUSE"
    assert "its GPUs were less than 5 % busy for 10 min" in stop.why


def test_no_rule_and_no_measurement_let_gpus_be_idle() -> None:
    for limits, busy in ((StallLimits(), 0.0), (StallLimits(idle_seconds=60, idle_below=0.05), None)):
        session = Session(limits)
        if busy is not None:
            session.meter.record_gpus(1, {"gpu_busy": busy})
        assert session.until(9_000) is None
