"""What the command's progress lines tell: where it is, how fast, how long it trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..bounds import BYTES_MAX, TELEMETRY, Reader, Unfit, brief, clean, measure, number, training_data, whole

_RECENT = 5
_WHY_MAX = 500
# The last checkpoint is given so many times what one takes.
CLOSING = 1.25
# Fewer checkpoints than this say less of the next one than all the sessions before.
_TELLING = 3


class LaneMeter:
    """Folds progress lines and publications. All instants and spans are scheduled seconds."""

    def __init__(self, checkpoint_seconds: float, closing_seconds: float) -> None:
        """Take what a checkpoint is expected to take, and what nine in ten take at most."""
        self._prior_checkpoint_seconds, self._prior_closing_seconds = checkpoint_seconds, closing_seconds
        self._durations: list[float] = []
        self._trained = 0.0  # up to the last save that has ended
        self._training_since: float | None = None  # None before training and during a save
        self._marks: dict[int, float] = {}  # training time up to the save of a step
        self._save_began: dict[int, float] = {}
        self._first: tuple[int, float] | None = None  # (step, training time) of the first and the last report
        self._last: tuple[int, float] | None = None
        self.began_at: float | None = None  # when set-up was over: the first progress line
        self.loss: float | None = None
        self.losses_lost = 0  # so many of the last reports in a row had a loss that is no finite number
        self.lost_since: int | None = None  # the step of the first of them
        self.held_out_loss: float | None = None
        self.gpu_memory_bytes: int | None = None
        self._names_memory = False  # the command says itself how much it uses
        self.telemetry: dict[str, float | None] = dict.fromkeys(TELEMETRY)  # the newest of each figure
        self.training_data: dict[str, Any] | None = None  # what it learns, told before its first step
        self.save_failed = ""  # why the newest save failed
        self.saving = False  # a save was begun, and neither ended nor failed

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
        """Mean measured time from asking for a checkpoint to having it published."""
        return sum(self._durations) / len(self._durations) if self._durations else None

    @property
    def expected_checkpoint_seconds(self) -> float:
        """What a checkpoint is likely to take: the measured mean, or the prior."""
        return self._prior_checkpoint_seconds if self.checkpoint_seconds is None else self.checkpoint_seconds

    @property
    def closing_seconds(self) -> float:
        """What the last checkpoint is given: the slowest of the recent ones and a quarter more.

        While there are few of them, at least what earlier sessions needed.
        """
        slowest = CLOSING * max(self._durations[-_RECENT:], default=0.0)
        return slowest if len(self._durations) >= _TELLING else max(slowest, self._prior_closing_seconds)

    def feed(self, line: Mapping[str, Any], now: float) -> int | None:
        """Take one progress line; return the step of a checkpoint that it says is complete."""
        reader = Reader(line)
        if "training_data" in line:
            self.training_data = reader.read("training_data", training_data) or self.training_data
            return None  # set-up goes on
        if self.began_at is None:
            self.began_at = self._training_since = now
        step, saving, copied, saved = (reader.read(name, whole) for name in ("step", "saving", "copied", "saved"))
        if saving is not None:
            self._trained = self._marks[saving] = self.trained_seconds(now)
            self._training_since = None
            self._save_began[saving] = now
            self.saving = True
        if copied is not None and self._training_since is None:  # it trains while the copy is written
            self._training_since = now
        if (reached := max(filter(None, (step, saving)), default=step)) is not None:
            self._last = (reached, self.trained_seconds(now))
            self._first = self._first or self._last
        if "loss" in line:
            self._judge_loss(line["loss"])
        self._read_figures(reader)
        if saved is not None or "save_failed" in line:
            why = line.get("save_failed", "")
            self.save_failed = clean(why, _WHY_MAX) if isinstance(why, str) else brief(why)
            self.saving = False
            if self._training_since is None:
                self._training_since = now
        if saved is not None:
            self._marks.setdefault(saved, self.trained_seconds(now))
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

    def note_gpus(self, busy: float, memory_bytes: int) -> None:
        """Note a share of the time in which the GPUs worked, and the memory in use where the command names none."""
        self.telemetry["gpu_busy"] = busy
        if not self._names_memory:
            self.gpu_memory_bytes = max(self.gpu_memory_bytes or 0, memory_bytes)

    def _judge_loss(self, value: Any) -> None:
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
        """Note that a checkpoint was not in the store after so long: it would have taken longer still."""
        if seconds > self.closing_seconds:
            self._durations.append(seconds)

    def end(self, now: float) -> None:
        """Note that the command has ended."""
        self._trained, self._training_since = self.trained_seconds(now), None

    def trained_seconds(self, now: float) -> float:
        """Return the training time since the command began, saves excluded."""
        return self._trained + (now - self._training_since if self._training_since is not None else 0.0)

    def trained_at_save(self, step: int, now: float) -> float:
        """Return the training time that a checkpoint of ``step`` holds; ``now`` if its save was not announced."""
        return self._marks.setdefault(step, self.trained_seconds(now))

    def published(self, step: int, asked_at: float | None, now: float) -> None:
        """Note that a checkpoint is in the store; if its save began after ``asked_at`` it counts from then."""
        save_began_at = self._save_began.pop(step, None)
        if asked_at is not None and (save_began_at is None or save_began_at >= asked_at):
            self._durations.append(now - asked_at)
        elif save_began_at is not None:
            self._durations.append(now - save_began_at)


# When to save a checkpoint in a session of known length (pure).
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
