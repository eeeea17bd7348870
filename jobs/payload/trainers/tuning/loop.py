"""The training loop: optimiser steps with gradient accumulation, reports of metrics, checkpoints and stopping."""

import argparse
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from ..trainer_kit import Training
from . import checkpoint
from .attention import document_ends
from .checkpoint import StateSnapshot
from .data.rows import RowOrder, Rows, draw_seed
from .devices.card import Device
from .devices.group import Group
from .devices.zero import Zero
from .errors import STEPS, Divergence, TrainingRefused, say
from .model import CausalLM
from .optimizer import Optimizer, rate_at
from .rounds import Rounds
from .start import Start

# Memory, speed and loss of a session's first three steps are reported: the later steps will be similar.
FIRST_STEPS = 3
_GIB = 1 << 30


class FirstSteps:
    """Measures the first steps of a session. ``tokens`` is their number per step, padding included."""

    def __init__(self, card: Device, tokens: int, report: Callable[[str], None]) -> None:
        """``report`` is called once, after the last of these steps, with a text of peak memory, speed and loss."""
        self._card, self._tokens, self._report = card, tokens, report
        self._seconds: list[float] = []

    def passed(self, loss: float, seconds: float) -> bool:
        """Record a step. Return True if it is one of the first and its loss is not finite: report it at once."""
        if len(self._seconds) == FIRST_STEPS:
            return False
        self._seconds.append(seconds)
        if len(self._seconds) == FIRST_STEPS:
            self._report(self._summary(loss))
        return not math.isfinite(loss)

    def _summary(self, loss: float) -> str:
        memory = ""
        if self._card.accelerated:
            peak = torch.cuda.max_memory_reserved() / _GIB
            memory = f"{peak:.1f} of {torch.cuda.get_device_properties().total_memory / _GIB:.1f} GiB at most, "
        # The first step is left out: it compiles, and creates the optimiser state.
        speed = self._tokens * (FIRST_STEPS - 1) / sum(self._seconds[1:])
        return f"{FIRST_STEPS} steps of {self._tokens:,} tokens passed: {memory}{speed:,.0f} tokens/s, loss {loss:.4f}"


_WARM_UP_STEPS = 3  # the first steps of a session, which do not count for its speed
_RECENT = 100  # window of the reported speed, in steps


class LoopWork(NamedTuple):
    """The model and data of a loop: ``rows_at_once`` is the micro-batch per device, ``held_out`` for evaluation."""

    model: CausalLM
    tokenizer: Any
    rows: Rows | Rounds
    order: RowOrder | Rounds
    held_out: Rows
    rows_at_once: int
    fingerprint: dict[str, Any]
    first_steps: FirstSteps


class Loop:
    """A training from step 0 or a restored step to the target step, or until a stop is requested."""

    def __init__(
        self, options: argparse.Namespace, training: Training, group: Group, card: Device, work: LoopWork, start: Start
    ) -> None:
        self._options, self._training, self._group, self._card, self._work = options, training, group, card, work
        self.step = 0
        begun = training.resume_dir or training.parent_dir
        self._optimizer = (
            Zero(options, work.model, card, group, work.rows_at_once, begun)
            if options.zero
            else Optimizer(options, work.model, card, group)
        )
        self._snapshot = StateSnapshot(self._optimizer.uncopied, options.background_saves, first=group.first)
        self._start: Start | None = start  # until the first step
        self._divergence = Divergence(len(work.tokenizer))
        self._window = [0.0, 0]  # losses since the last report: sum, count
        self._last_loss: float | None = None
        self._start_loss: float | None = None
        self._resumptions: list[dict[str, Any]] = []
        self._tokens = options.batch * options.accumulate * options.length  # of a step, padding included
        self._seconds: list[float] = []
        self._padding = 0.0  # share of the last step's tokens without a target
        self._norm = 0.0
        self._began, self._blocked = perf_counter(), 0.0  # start, and seconds that saves blocked since

    def restore(self, folder: Path, resumption: dict[str, Any], *, optimizer: bool = True) -> None:
        """Restore all but the weights from a checkpoint. Without ``optimizer``, restore only the step."""
        self.step = checkpoint.read_step(folder)
        self._resumptions = [{"step": self.step, **resumption}]
        if not optimizer:
            return
        state = checkpoint.read_state(folder)
        self._optimizer.restore(folder, state["scaler"])
        self._window, self._last_loss, self._start_loss = state["window"], state["last_loss"], state["start_loss"]
        self._resumptions = [*state["resumptions"], *self._resumptions]

    def run(self) -> None:
        """Train until the target step or a stop. All ranks decide together, so that they save after the same step."""
        if self._training.parent_dir is not None and len(self._work.held_out):
            self._start_loss = self.held_out_loss()
        self._report(self.step)
        while True:
            requests = self._group.any(self._training.should_save, self._training.should_stop)
            done = self.step >= self._training.target_step
            last = requests[1] or done
            if requests[0] or last:
                began = perf_counter()
                self._save(last=last)
                self._blocked += perf_counter() - began
            if last:
                return
            self._one_step()

    def _one_step(self) -> None:
        began = perf_counter()
        indexes = self._work.order.step(self.step)
        targets = max(1, self._work.rows.targets(indexes))
        share = len(indexes) // self._group.size
        start = self._group.rank * share
        loss = torch.zeros((), device=self._card.device)
        batches = range(start, start + share, self._work.rows_at_once)
        # Layers spread over devices: as many micro-batches as devices are in flight, so that no device idles.
        for beginning in range(0, len(batches), self._options.spread):
            parts = []
            for first in batches[beginning : beginning + self._options.spread]:
                torch.manual_seed(draw_seed(self._training.seed, self.step, first))
                some = indexes[first : first + self._work.rows_at_once]
                parts.append(self._loss(self._work.rows, some) / targets)
            for part in parts:
                # FSDP2 averages gradients over the ranks. A step needs their sum: multiply by the number of ranks.
                self._optimizer.backward(part * self._group.size if self._optimizer.averaged else part)
                loss += part.detach()
        rate = self._options.rate * rate_at(self._options, self.step, self._training.target_step)
        value, self._norm = self._optimizer.step(loss, rate)
        self.step += 1
        self._seconds.append(perf_counter() - began)
        self._padding = 1 - targets / (len(indexes) * self._options.length)
        if self._start is not None:
            self._start.passed("step")
            say(f"the first step ended after {self._start.text()}")
            self._snapshot.prepare()
        self._start = None
        self._count(value)

    def _loss(self, rows: Rows | Rounds, indexes: list[int]) -> Any:
        batch = rows.batch(indexes)
        tokens, targets, positions, documents = (
            torch.from_numpy(part).to(self._card.device, non_blocking=True) for part in batch[:4]
        )
        pixels = {name: torch.from_numpy(part).to(self._card.device) for name, part in batch.images.items()}
        if self._options.apart:  # also with one document per row, because layers would compile twice otherwise
            pixels["document_ends"] = document_ends(batch.positions, self._card.device)
        # With one document per row, no mask is needed; the fastest attention kernels do not accept a mask.
        ends = documents if rows.is_shared and not self._options.apart else None
        device = "cuda" if self._card.accelerated else "cpu"
        with torch.autocast(device, self._card.dtype, enabled=self._card.precision != "fp32"):
            return self._work.model.summed_loss(tokens, targets, positions, ends, **pixels)

    def _count(self, loss: float) -> None:
        self._last_loss = loss if math.isfinite(loss) else self._last_loss
        self._window = [self._window[0] + loss, self._window[1] + 1]
        if why := self._divergence.check(loss):
            raise TrainingRefused(f"{why}. Lower --rate, or look at the data from step {self.step - STEPS} on")
        not_finite = self._work.first_steps.passed(loss, self._seconds[-1])
        if self.step % self._options.report_every and self.step < self._training.target_step:
            self._report(self.step, **({"loss": loss} if not_finite else {}))
            return
        mean = self._window[0] / self._window[1]
        self._window = [0.0, 0]
        self._report(self.step, loss=mean, **self._telemetry())
        say(f"step {self.step} loss {mean:.4f} norm {self._norm:.3f} {self._seconds[-1]:.3f} s")

    def _telemetry(self) -> dict[str, float]:
        """Return speed (of recent steps, without warm-up), padding, gradient norm and peak GPU memory, by metric."""
        values: dict[str, float] = {"padding": self._padding}
        if recent := self._seconds[_WARM_UP_STEPS:][-_RECENT:]:
            values["tokens_per_second"] = self._tokens / statistics.median(recent)
            values["step_seconds_p90"] = sorted(recent)[math.ceil(0.9 * len(recent)) - 1]
        if math.isfinite(self._norm):
            values["gradient_norm"] = self._norm
        if self._card.accelerated:
            devices = range(self._options.spread) if self._options.spread > 1 else (None,)
            values["gpu_memory_bytes"] = max(map(torch.cuda.max_memory_allocated, devices))
        return values

    def _report(self, step: int, **values: float) -> None:
        if self._group.first:
            self._training.progress(step, **values)

    def _save(self, *, last: bool) -> None:
        """Save on rank 0; a large state in the background, except the last. Other ranks help to gather shards."""
        self._training.should_save = False
        if self._group.first:
            self._training.wait()  # finish a background save first: there may be no time for another save
            self._training.begin_saving(self.step)
        elif not self._options.shared:
            return
        work, metrics = self._work, self._metrics()
        if not (self._group.first or self._optimizer.averaged):
            return
        saved, background = self._snapshot.take(last=last)
        if not self._group.first:
            return
        state = {
            "window": self._window,
            "last_loss": self._last_loss,
            "start_loss": self._start_loss,
            "scaler": self._optimizer.scale,
            "resumptions": self._resumptions,
        }
        self._training.checkpoint(
            self.step,
            lambda folder: checkpoint.write(folder, work.model, work.tokenizer, saved, state, work.fingerprint),
            metrics,
            background=background,
        )

    def _metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = dict(self._work.rows.metrics)
        if self._last_loss is not None:
            metrics["loss"] = self._last_loss
        if self._start_loss is not None:
            metrics["start_held_out_loss"] = self._start_loss
        if len(self._work.held_out):
            metrics["held_out_loss"] = self.held_out_loss()
        if self._resumptions:
            metrics["exactness"] = float(self._resumptions[-1]["class"].removeprefix("E"))
        if self._blocked:
            metrics["saves_blocked"] = self._blocked / (perf_counter() - self._began)
        if measured := self._seconds[_WARM_UP_STEPS:]:
            metrics["tokens_per_second"] = self._tokens / statistics.median(measured)
            metrics["padding"] = self._padding
            metrics["gradient_norm"] = self._norm if math.isfinite(self._norm) else -1.0
        return metrics

    def held_out_loss(self) -> float:
        """Return the mean loss in nats per token on the held-out rows; weights are not changed."""
        rows, total = self._work.held_out, 0.0
        self._work.model.whole.eval()
        with torch.no_grad():
            for first in range(0, len(rows), self._work.rows_at_once):
                some = list(range(first, min(first + self._work.rows_at_once, len(rows))))
                total += float(self._loss(rows, some))
        self._work.model.whole.train()
        return total / max(1, int(rows.targets(range(len(rows)))))
