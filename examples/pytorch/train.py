"""A plain PyTorch loop, resumed exactly: weights, optimiser and random state go into each checkpoint.

    schedctl submit train.py --target-step 20000 -- --rate 1e-3

At a desk: put trainer_kit.py beside it (jobs/payload/trainers/trainer_kit.py), and run ``python train.py``.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import torch
from trainer_kit import Training

if TYPE_CHECKING:
    from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=1e-3)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--batch", type=int, default=128)
options = parser.parse_args()

training = Training()
torch.manual_seed(training.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Sequential(
    torch.nn.Linear(2, options.width), torch.nn.Dropout(0.1), torch.nn.GELU(), torch.nn.Linear(options.width, 1)
).to(device)
optimiser = torch.optim.AdamW(model.parameters(), lr=options.rate)
step = 0
if training.resume_dir:
    model.load_state_dict(torch.load(training.resume_dir / "model.pt", map_location=device, weights_only=True))
    # On the processor: the optimiser puts each state where it belongs, and counts its steps there.
    optimiser.load_state_dict(torch.load(training.resume_dir / "optimiser.pt", map_location="cpu", weights_only=True))
    state = torch.load(training.resume_dir / "state.pt", weights_only=True)
    step = state["step"]
    torch.set_rng_state(state["random"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_random"])
elif training.parent_dir:  # a child of another job begins with its weights, and with nothing else of it
    model.load_state_dict(torch.load(training.parent_dir / "model.pt", map_location=device, weights_only=True))


def write(folder: Path) -> None:
    """Put into a folder all that decides the next step; what changes apart from the rest has a file of its own."""
    torch.save(model.state_dict(), folder / "model.pt")
    torch.save(optimiser.state_dict(), folder / "optimiser.pt")
    state = {"step": step, "random": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda_random"] = torch.cuda.get_rng_state()
    torch.save(state, folder / "state.pt")


loss = torch.tensor(0.0)
training.progress(step)
while step < training.target_step and not training.should_stop:
    if training.should_save:
        training.checkpoint(step, write, {"loss": loss.item()})
    points = torch.rand(options.batch, 2, device=device)
    loss = torch.nn.functional.mse_loss(model(points).squeeze(1), torch.sin(6 * points).prod(dim=1))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    step += 1
    training.progress(step, loss=loss.item())
    if step % 500 == 0:
        print(f"step {step} loss {loss.item():.5f}", flush=True)
training.checkpoint(step, write, {"loss": loss.item()})
