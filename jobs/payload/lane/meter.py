"""Meter: measure step, speed and training time from a command's progress lines, and decide when to save checkpoints."""

import math
from collections.abc import Mapping
from typing import Any

from ..bounds import BYTES_MAX, TELEMETRY, Reader, Unfit, brief, clean, measure, number, training_data, whole

_RECENT = 5  # checkpoints
_WHY_MAX = 500  # characters
# The time reserved for the last checkpoint, in multiples of a usual one.
CLOSING = 1.25
# With fewer measured checkpoints than this, the figure of earlier sessions is used as well.
_MEASURED_MIN = 3


class LaneMeter:
    """Accumulates progress lines and publications. All instants and spans are scheduled seconds."""

    def __init__(self, checkpoint_seconds: float, closing_seconds: float) -> None:
        """``checkpoint_seconds`` is the expected duration of a checkpoint, ``closing_seconds`` its 90 % quantile."""
        self._prior_checkpoint_seconds, self._prior_closing_seconds = checkpoint_seconds, closing_seconds
        self._durations: list[float] = []
        self._trained = 0.0  # training time until the last completed save
        self._training_since: float | None = None  # None before training and during a save
        self._trained_at: dict[int, float] = {}  # training time until the save, by step
        self._save_began: dict[int, float] = {}
        self._first: tuple[int, float] | None = None  # (step, training time) of the first and last report
        self._last: tuple[int, float] | None = None
        self.began_at: float | None = None  # end of the set-up: the first progress line
        self.loss: float | None = None
        self.losses_lost = 0  # how many newest reports in a row have a loss that is not finite
        self.lost_since: int | None = None  # step of the first of these reports
        self.held_out_loss: float | None = None
        self.gpu_memory_bytes: int | None = None
        self._names_memory = False  # the command reports its GPU memory itself
        self.telemetry: dict[str, float | None] = dict.fromkeys(TELEMETRY)  # newest value of each metric
        self.training_data: dict[str, Any] | None = None  # description of the data, reported before the first step
        self.save_failed = ""  # why the newest save failed
        self.saving = False  # whether a save has started that neither ended nor failed

    @property
    def step(self) -> int | None:
        """The newest step reported."""
        return self._last[0] if self._last else None

    @property
    def steps_per_second(self) -> float | None:
        """Steps per scheduled second of training, saves excluded."""
        if not self._first or not self._last or self._last[1] <= self._first[1]:
            return None
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])

    @property
    def checkpoint_seconds(self) -> float | None:
        """Mean measured time from the request for a checkpoint to its publication; None if there was none."""
        return sum(self._durations) / len(self._durations) if self._durations else None

    @property
    def expected_checkpoint_seconds(self) -> float:
        """Expected duration of a checkpoint: the measured mean, or the prior."""
        return self._prior_checkpoint_seconds if self.checkpoint_seconds is None else self.checkpoint_seconds

    @property
    def closing_seconds(self) -> float:
        """Time reserved for the last checkpoint: the slowest recent one plus a quarter, or the prior if longer."""
        slowest = CLOSING * max(self._durations[-_RECENT:], default=0.0)
        return slowest if len(self._durations) >= _MEASURED_MIN else max(slowest, self._prior_closing_seconds)

    def feed(self, line: Mapping[str, Any], now: float) -> int | None:
        """Process one progress line; return the step of a checkpoint that the line reports as complete, else None."""
        reader = Reader(line)
        if "training_data" in line:
            self.training_data = reader.read("training_data", training_data) or self.training_data
            return None  # the set-up is not over
        if self.began_at is None:
            self.began_at = self._training_since = now
        step, saving, copied, saved = (reader.read(name, whole) for name in ("step", "saving", "copied", "saved"))
        if saving is not None:
            self._trained = self._trained_at[saving] = self.trained_seconds(now)
            self._training_since = None
            self._save_began[saving] = now
            self.saving = True
        if copied is not None and self._training_since is None:  # training goes on while the copy is written
            self._training_since = now
        if (reached := max(filter(None, (step, saving)), default=step)) is not None:
            self._last = (reached, self.trained_seconds(now))
            self._first = self._first or self._last
        if "loss" in line:
            self._check_loss(line["loss"])
        self._read_figures(reader)
        if saved is not None or "save_failed" in line:
            why = line.get("save_failed", "")
            self.save_failed = clean(why, _WHY_MAX) if isinstance(why, str) else brief(why)
            self.saving = False
            if self._training_since is None:
                self._training_since = now
        if saved is not None:
            self._trained_at.setdefault(saved, self.trained_seconds(now))
        return saved

    def _read_figures(self, reader: Reader) -> None:
        for name in ("loss", "held_out_loss"):
            if (value := reader.read(name, measure)) is not None:
                setattr(self, name, value)
        for name, high in TELEMETRY.items():
            if (value := reader.read(name, number, 0.0, high)) is not None:
                self.telemetry[name] = value
        memory = reader.read("gpu_memory_bytes", whole, 0, BYTES_MAX)
        if memory is not None:
            self.gpu_memory_bytes, self._names_memory = memory, True

    def record_gpus(self, memory_bytes: int | None, metrics: Mapping[str, float]) -> None:
        """Record metrics of GPUs, named as in TELEMETRY, and the memory in use unless the command reports it."""
        self.telemetry.update(metrics)
        if memory_bytes is not None and not self._names_memory:
            self.gpu_memory_bytes = max(self.gpu_memory_bytes or 0, memory_bytes)

    def _check_loss(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        try:
            measure(value)
        except Unfit:
            self.losses_lost += 1
            self.lost_since = self.step if self.lost_since is None else self.lost_since
        else:
            self.losses_lost, self.lost_since = 0, None

    def not_stored(self, seconds: float) -> None:
        """Record that a checkpoint was not stored in time; the seconds spent are a lower bound of its duration."""
        if seconds > self.closing_seconds:
            self._durations.append(seconds)

    def end(self, now: float) -> None:
        """Record that the command has ended."""
        self._trained, self._training_since = self.trained_seconds(now), None

    def trained_seconds(self, now: float) -> float:
        """Return the training time since the command began, saves excluded."""
        return self._trained + (now - self._training_since if self._training_since is not None else 0.0)

    def trained_at_save(self, step: int, now: float) -> float:
        """Return the training time of the checkpoint of ``step``; until ``now`` if its save was not announced."""
        return self._trained_at.setdefault(step, self.trained_seconds(now))

    def published(self, step: int, asked_at: float | None, now: float) -> None:
        """Record that a checkpoint is in the store; its duration counts from ``asked_at`` if the save began later."""
        save_began_at = self._save_began.pop(step, None)
        if asked_at is not None and (save_began_at is None or save_began_at >= asked_at):
            self._durations.append(now - asked_at)
        elif save_began_at is not None:
            self._durations.append(now - save_began_at)


# When to save a checkpoint in a session of known length. Pure.
def interval_count(
    length_seconds: float, setup_seconds: float, checkpoint_seconds: float, failures_per_second: float
) -> int:
    """Return how many equal intervals, each with a checkpoint at its end, keep most training time; 0 if none fits."""
    room = length_seconds - setup_seconds
    # The assumed least duration of a save: without a cost the best number would be infinite.
    cost = max(checkpoint_seconds, 1e-3 * room, 1e-9)
    most = math.floor(room / cost)
    if room <= checkpoint_seconds or most < 1:
        return 0

    def useful(count: int) -> float:
        return _useful_seconds(count, length_seconds, setup_seconds, checkpoint_seconds, failures_per_second)

    # The interval of Young and Daly is near the optimum; useful(n) has one peak, so climb from there.
    count = max(1, min(most, round(room * math.sqrt(failures_per_second / (2 * cost)))))
    while count < most and useful(count + 1) > useful(count):
        count += 1
    while count > 1 and useful(count - 1) >= useful(count):
        count -= 1
    return count


def checkpoint_times(
    length_seconds: float, setup_seconds: float, checkpoint_seconds: float, failures_per_second: float
) -> tuple[float, ...]:
    """Return when to start each save, in seconds after the start of the session; the last one ends with it."""
    count = interval_count(length_seconds, setup_seconds, checkpoint_seconds, failures_per_second)
    if count == 0:
        return ()
    stride = (length_seconds - setup_seconds) / count
    return tuple(setup_seconds + i * stride - checkpoint_seconds for i in range(1, count + 1))


def _useful_seconds(count: int, length: float, setup: float, checkpoint: float, rate: float) -> float:
    """Return the expected training time that checkpoints keep, at ``rate`` failures per second."""
    interval = (length - setup - count * checkpoint) / count
    if interval <= 0:
        return 0.0
    if rate == 0:
        return count * interval
    # The geometric sum of the probabilities that checkpoint 1..n is reached.
    exponent = rate * (interval + checkpoint)
    reached = math.exp(-exponent) * math.expm1(-count * exponent) / math.expm1(-exponent)
    return interval * math.exp(-rate * setup) * reached
