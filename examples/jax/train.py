"""A JAX loop, resumed exactly: parameters, Adam's moments and the step, from which each step's random key is made.

    schedctl submit train.py --target-step 20000 -- --rate 1e-3

At a desk: put trainer_kit.py beside it (jobs/payload/trainers/trainer_kit.py), and run ``python train.py``.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from trainer_kit import Training

if TYPE_CHECKING:
    from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=1e-3)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--batch", type=int, default=128)
options = parser.parse_args()

training = Training()
key = jax.random.key(training.seed)
Arrays = dict[str, Any]


def beginning() -> Arrays:
    """Two layers, drawn from the seed."""
    first, second = jax.random.split(key)
    return {
        "in": jax.random.normal(first, (2, options.width)),
        "bias": jnp.zeros(options.width),
        "out": jax.random.normal(second, (options.width, 1)) / options.width**0.5,
    }


def loss_of(weights: Arrays, points: jax.Array) -> jax.Array:
    """Mean squared error of a batch, of shape (batch, 2)."""
    found = (jax.nn.gelu(points @ weights["in"] + weights["bias"]) @ weights["out"]).squeeze(1)
    return jnp.mean((found - jnp.prod(jnp.sin(6 * points), axis=1)) ** 2)


@jax.jit
def one_step(step: int, weights: Arrays, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays, Arrays, jax.Array]:
    """Adam, written out: weights and their two moments after the next step, and the loss before it."""
    points = jax.random.uniform(jax.random.fold_in(key, step), (options.batch, 2))
    loss, slope = jax.value_and_grad(loss_of)(weights, points)
    first = jax.tree.map(lambda mean, new: 0.9 * mean + 0.1 * new, first, slope)
    second = jax.tree.map(lambda mean, new: 0.999 * mean + 0.001 * new**2, second, slope)
    weights = jax.tree.map(
        lambda weight, mean, spread: (
            weight
            - options.rate * mean / (1 - 0.9 ** (step + 1)) / (jnp.sqrt(spread / (1 - 0.999 ** (step + 1))) + 1e-8)
        ),
        weights,
        first,
        second,
    )
    return weights, first, second, loss


def read(path: Path) -> Arrays:
    """Read what ``write`` has written."""
    with np.load(path, allow_pickle=False) as found:
        return {name: jnp.asarray(found[name]) for name in found.files}


def write(folder: Path) -> None:
    """Put into a folder all that decides the next step; what changes apart from the rest has a file of its own."""
    for name, arrays in (("weights", weights), ("first", first), ("second", second)):
        np.savez(folder / f"{name}.npz", **{part: np.asarray(value) for part, value in arrays.items()})
    (folder / "step").write_text(str(step))


weights, step = beginning(), 0
first = jax.tree.map(jnp.zeros_like, weights)
second = first
if training.resume_dir:
    weights, first, second = (read(training.resume_dir / f"{name}.npz") for name in ("weights", "first", "second"))
    step = int((training.resume_dir / "step").read_text())
elif training.parent_dir:  # a child of another job begins with its weights, and with nothing else of it
    weights = read(training.parent_dir / "weights.npz")

loss = 0.0
training.progress(step)
while step < training.target_step and not training.should_stop:
    if training.should_save:
        training.checkpoint(step, write, {"loss": loss})
    weights, first, second, step_loss = one_step(step, weights, first, second)
    step, loss = step + 1, float(step_loss)
    training.progress(step, loss=loss)
    if step % 500 == 0:
        print(f"step {step} loss {loss:.5f}", flush=True)
training.checkpoint(step, write, {"loss": loss})
