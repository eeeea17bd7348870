"""A small character language model that trains with NumPy only.

Embedding of the last characters, one hidden layer, softmax, Adam. Reads ``train-*.jsonl`` and ``heldout.jsonl`` (one
``{"text": ...}`` per line) from SCHED_DATA_DIR. Resumes bit-exactly on the same machine: weights, Adam moments, random
state and data position are files of the checkpoint.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# NumPy reads these when it is loaded. One thread, because lanes share a machine and sums must be reproducible.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402 - must be loaded after the lines above
from numpy.typing import NDArray  # noqa: E402 - this loads NumPy too

# Started as a script, this module has no package.
if TYPE_CHECKING or __package__:
    from .trainer_kit import EXIT_DATA, NO_CORPUS, Training
else:
    from trainer_kit import EXIT_DATA, NO_CORPUS, Training

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
BLOCK_BYTES = 1 << 17  # bytes of a training file in one block
BLOCK_STEPS = 32  # steps on one block
RECORD_BYTES_MAX = 1 << 20
HELD_OUT_WINDOWS = 1024
LOSS_MEMORY = 0.98  # weight of the earlier mean in the reported loss
WARM_UP_STEPS = 100  # without a warm-up, Adam's first steps undo what a parent learned
ADAM_MEAN, ADAM_SQUARE, ADAM_FLOOR = np.float32(0.9), np.float32(0.999), np.float32(1e-8)

# Newline, printable ASCII, and one code for every other byte.
ALPHABET = 97
_CODE_OF_BYTE = np.zeros(256, np.uint8)
_CODE_OF_BYTE[10] = 1
_CODE_OF_BYTE[32:127] = np.arange(2, ALPHABET)


class UnreadableCorpus(Exception):
    """The corpus is missing or has no usable record."""


class CharShape(NamedTuple):
    """The sizes of a model. A checkpoint can only be loaded into a model of the same sizes."""

    context: int
    embedding: int
    width: int

    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the parameters in the order of the flat vector."""
        inputs = self.context * self.embedding
        return ((ALPHABET, self.embedding), (inputs, self.width), (self.width,), (self.width, ALPHABET), (ALPHABET,))


class CharModel:
    """Parameters and Adam's moments as flat float32 vectors, with views of the parts."""

    def __init__(self, shape: CharShape, generator: np.random.Generator) -> None:
        self.shape = shape
        self._ends = np.cumsum([int(np.prod(size)) for size in shape.sizes()]).tolist()
        self.weights: Floats = np.zeros(self._ends[-1], np.float32)
        self.moments: Floats = np.zeros((2, self._ends[-1]), np.float32)
        self._gradient: Floats = np.zeros(self._ends[-1], np.float32)
        embedding, hidden, _, output, _ = self._parts(self.weights)
        embedding[:] = generator.standard_normal(embedding.shape) * 0.5
        hidden[:] = generator.standard_normal(hidden.shape) / np.sqrt(hidden.shape[0])
        output[:] = generator.standard_normal(output.shape) / np.sqrt(output.shape[0]) * 0.1

    def _parts(self, flat: Floats) -> list[Floats]:
        parts = zip([0, *self._ends[:-1]], self._ends, self.shape.sizes(), strict=True)
        return [flat[start:end].reshape(size) for start, end, size in parts]

    def _forward(self, windows: Codes) -> tuple[Floats, Floats, Floats, float]:
        """Return inputs, activations, probabilities and mean loss (nats per character) of (n, context + 1) windows."""
        embedding, hidden, hidden_bias, output, output_bias = self._parts(self.weights)
        inputs = embedding[windows[:, :-1]].reshape(len(windows), -1)
        active = np.maximum(inputs @ hidden + hidden_bias, 0)
        scores = active @ output + output_bias
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        hit = scores[np.arange(len(windows)), windows[:, -1]]
        return inputs, active, scores, float(-np.log(np.maximum(hit, 1e-12)).mean())

    def loss(self, windows: Codes) -> float:
        """Return the mean loss of windows in nats per character; weights are not changed."""
        return self._forward(windows)[3]

    def learn(self, windows: Codes, step: int, rate: float) -> float:
        """Make step number ``step`` (from 1) on a batch; return the batch's loss before the step."""
        _, hidden, _, output, _ = self._parts(self.weights)
        inputs, active, error, loss = self._forward(windows)
        error[np.arange(len(windows)), windows[:, -1]] -= 1
        error /= len(windows)
        to_embedding, to_hidden, to_hidden_bias, to_output, to_output_bias = self._parts(self._gradient)
        np.matmul(active.T, error, out=to_output)
        error.sum(axis=0, out=to_output_bias)
        back = error @ output.T
        back *= active > 0
        np.matmul(inputs.T, back, out=to_hidden)
        back.sum(axis=0, out=to_hidden_bias)
        spread = (back @ hidden.T).reshape(-1, self.shape.embedding)
        # A product with the one-hot matrix sums by character, much faster than np.add.at.
        one_hot = (windows[:, :-1].reshape(-1, 1) == np.arange(ALPHABET, dtype=np.uint8)).astype(np.float32)
        np.matmul(one_hot.T, spread, out=to_embedding)
        self._adam(step, rate)
        return loss

    def _adam(self, step: int, rate: float) -> None:
        mean, square = self.moments
        mean += (1 - ADAM_MEAN) * (self._gradient - mean)
        square += (1 - ADAM_SQUARE) * (self._gradient * self._gradient - square)
        scale = np.float32(rate * np.sqrt(1 - float(ADAM_SQUARE) ** step) / (1 - float(ADAM_MEAN) ** step))
        self.weights -= scale * mean / (np.sqrt(square) + ADAM_FLOOR)


class Stream:
    """Training text in blocks, in seeded order. One block is in memory; ``position`` counts blocks since step 0."""

    def __init__(self, data_dir: Path, seed: int, context: int) -> None:
        self._shards = [(path, path.stat().st_size) for path in sorted(data_dir.glob("train-*.jsonl"))]
        self._blocks = [(path, start) for path, size in self._shards for start in range(0, size, BLOCK_BYTES)]
        if not self._blocks:
            raise UnreadableCorpus(f"{data_dir} has no train-*.jsonl that is not empty. {NO_CORPUS}")
        self._seed = seed
        self._window = context + 1
        self.position = -1
        self._text: Codes = np.zeros(0, np.uint8)

    def seek(self, position: int) -> None:
        """Load the block at ``position``, or the next one with enough text."""
        for candidate in range(position, position + len(self._blocks)):
            lap, place = divmod(candidate, len(self._blocks))
            order = np.random.default_rng((self._seed, lap)).permutation(len(self._blocks))
            path, start = self._blocks[order[place]]
            self._text = encode(records(path, start, BLOCK_BYTES))
            if len(self._text) > self._window:
                self.position = candidate
                return
        raise UnreadableCorpus(f"{self._shards[0][0].parent} has no record with enough text for one window")

    def batch(self, generator: np.random.Generator, size: int) -> Codes:
        """Return ``size`` random windows of the current block, shape (size, context + 1)."""
        starts = generator.integers(0, len(self._text) - self._window + 1, size)
        windows: Codes = np.lib.stride_tricks.sliding_window_view(self._text, self._window)[starts]
        return windows


def records(path: Path, start: int, length: int) -> Iterator[str]:
    """Yield the texts of the lines that begin in ``path[start:start + length]``; invalid lines are skipped."""
    with path.open("rb") as stream:
        if start:
            stream.seek(start - 1)
            stream.readline()
        while stream.tell() < start + length and (line := stream.readline(RECORD_BYTES_MAX)):
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if isinstance(text, str):
                yield text


def encode(texts: Iterator[str]) -> Codes:
    """Return the codes of texts, separated by newlines."""
    return _CODE_OF_BYTE[np.frombuffer("\n".join(texts).encode(errors="replace"), np.uint8)]


def held_out_sample(data_dir: Path, context: int) -> Codes | None:
    """Return evenly spaced held-out windows; None if there are none."""
    path = data_dir / "heldout.jsonl"
    if not path.exists():
        return None
    text = encode(records(path, 0, 2 * BLOCK_BYTES))
    if len(text) <= context:
        return None
    windows: Codes = np.lib.stride_tricks.sliding_window_view(text, context + 1)
    return windows[np.linspace(0, len(windows) - 1, min(HELD_OUT_WINDOWS, len(windows))).astype(np.int64)]


class CharRun:
    """The state of one job's training, saved and restored as a whole."""

    def __init__(self, training: Training, options: argparse.Namespace) -> None:
        shape = CharShape(options.context, options.embedding, options.width)
        self._generator = np.random.default_rng(training.seed)
        self._model = CharModel(shape, self._generator)
        self._stream = Stream(training.data_dir, training.seed, shape.context)
        self._held_out = held_out_sample(training.data_dir, shape.context)
        self._batch, self._rate = options.batch, options.rate
        self._training = training
        self.step = 0
        self.loss = float("nan")  # exponential mean over the steps so far
        self._start_loss: float | None = None  # held-out loss of another job's weights, before the first step
        position = self._restore(training.resume_dir) if training.resume_dir else 0
        if training.parent_dir:
            self._load_parent(training.parent_dir)
        self._stream.seek(position)

    def advance(self) -> None:
        """Train one step."""
        if self.step and self.step % BLOCK_STEPS == 0:
            self._stream.seek(self._stream.position + 1)
        windows = self._stream.batch(self._generator, self._batch)
        self.step += 1
        loss = self._model.learn(windows, self.step, self._rate * min(1.0, self.step / WARM_UP_STEPS))
        self.loss = loss if self.step == 1 else LOSS_MEMORY * self.loss + (1 - LOSS_MEMORY) * loss

    def save(self) -> bool:
        """Write a checkpoint with its held-out loss; return False if the disk is full."""
        metrics = {"loss": self.loss} if self.step else {}
        if self._start_loss is not None:
            metrics["start_held_out_loss"] = self._start_loss
        if self._held_out is not None:
            metrics["held_out_loss"] = self._model.loss(self._held_out)
        return self._training.checkpoint(self.step, self._write, metrics)

    def _write(self, folder: Path) -> None:
        np.save(folder / "weights.npy", self._model.weights)
        np.save(folder / "optimizer.npy", self._model.moments)
        state = {
            "step": self.step,
            "loss": self.loss,
            "position": self._stream.position,
            "shape": list(self._model.shape),
            "batch": self._batch,
            "generator": self._generator.bit_generator.state,
        }
        (folder / "state.json").write_text(json.dumps(state))

    def _load_parent(self, folder: Path) -> None:
        """Load the weights, and nothing else, of another job's checkpoint."""
        shape = json.loads((folder / "state.json").read_bytes())["shape"]
        if shape != list(self._model.shape):
            raise SystemExit(f"the parent has shape {shape}, not {list(self._model.shape)}: use the parent's options")
        self._model.weights[:] = np.load(folder / "weights.npy")
        if self._held_out is not None:
            self._start_loss = self._model.loss(self._held_out)

    def _restore(self, folder: Path) -> int:
        """Restore a checkpoint; return its data position."""
        state: dict[str, Any] = json.loads((folder / "state.json").read_bytes())
        if (state["shape"], state["batch"]) != (list(self._model.shape), self._batch):
            raise SystemExit(f"the checkpoint has shape {state['shape']} and batch {state['batch']}: use these options")
        self._model.weights[:] = np.load(folder / "weights.npy")
        self._model.moments[:] = np.load(folder / "optimizer.npy")
        self.step, self.loss = state["step"], state["loss"]
        self._generator.bit_generator.state = state["generator"]
        return int(state["position"])


class CharPace:
    """Limits the speed to that of an emulated device, so that a rehearsal runs alike on all machines."""

    def __init__(self, steps_per_second: float) -> None:
        self._seconds = 1 / steps_per_second if steps_per_second else 0.0
        self._next = time.monotonic()

    def keep(self) -> None:
        """Wait until the next step is due. Steps after a late step are not made faster to catch up."""
        now = time.monotonic()
        self._next = max(self._next + self._seconds, now - self._seconds)
        if self._next > now:
            time.sleep(self._next - now)


def emulated_speed(pace: float, gain: float) -> float:
    """Return steps per second: ``pace``, times ``gain`` if CUDA_VISIBLE_DEVICES has more than one device."""
    devices = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return pace * (gain if len(devices) > 1 else 1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train until the target step or a stop request; return the exit status."""
    parser = argparse.ArgumentParser(description="Train a small character language model.")
    parser.add_argument("--width", type=int, default=128, help="hidden units")
    parser.add_argument("--context", type=int, default=16, help="characters the model sees")
    parser.add_argument("--embedding", type=int, default=16, help="numbers per character")
    parser.add_argument("--batch", type=int, default=64, help="windows per step")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate of Adam")
    parser.add_argument("--report-every", type=int, default=10, metavar="STEPS", help="steps between reports")
    parser.add_argument("--pace", type=float, default=0.0, metavar="STEPS", help="at most this many steps per second")
    parser.add_argument("--gain", type=float, default=1.0, help="with --pace: speed of several devices over one")
    options = parser.parse_args(arguments)
    training = Training()
    try:
        run = CharRun(training, options)
        training.progress(run.step)
        pace = CharPace(emulated_speed(options.pace, options.gain))
        while run.step < training.target_step:
            if training.should_save:
                run.save()
            if training.should_stop:
                return 0
            run.advance()
            pace.keep()
            if run.step % options.report_every == 0:
                training.progress(run.step, loss=run.loss)
                print(f"step {run.step} loss {run.loss}", flush=True)
        return 0 if run.save() else 1
    except (UnreadableCorpus, OSError) as error:
        print(f"charlm: {error}", file=sys.stderr)
        return EXIT_DATA if isinstance(error, UnreadableCorpus) else 1


if __name__ == "__main__":
    sys.exit(main())
