"""Lightning with one callback: it saves when the agent asks, and goes on where it was cut.

    schedctl submit train.py --target-step 20000

At a desk: put trainer_kit.py beside it (jobs/payload/trainers/trainer_kit.py), and run ``python train.py``.
"""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING, Any

import lightning
import torch
from trainer_kit import Training

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Numbers(torch.utils.data.IterableDataset):  # type: ignore[misc]  # not there where types are checked
    """Numbers without end; each step draws its own points."""

    def __iter__(self) -> Iterator[int]:
        """Return an endless stream."""
        while True:
            yield 0


class Model(lightning.LightningModule):  # type: ignore[misc]  # likewise
    """A small network that learns a surface."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.net = torch.nn.Sequential(
            torch.nn.Linear(2, 64), torch.nn.Dropout(0.1), torch.nn.GELU(), torch.nn.Linear(64, 1)
        )

    def training_step(self, batch: Any, number: int) -> Any:
        """Return the loss of one step."""
        del batch, number
        points = torch.rand(128, 2, device=self.device)
        return torch.nn.functional.mse_loss(self.net(points).squeeze(1), torch.sin(6 * points).prod(dim=1))

    def configure_optimizers(self) -> Any:
        """Return the optimiser."""
        return torch.optim.AdamW(self.parameters(), lr=self.rate)


class Scheduled(lightning.Callback):  # type: ignore[misc]  # likewise
    """Reports steps, saves when asked, stops when asked, and saves at the target step."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.on_sigterm = signal.getsignal(signal.SIGTERM)
        self.random: dict[str, torch.Tensor] = {}

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """End set-up. Lightning would end at once on SIGTERM: the agent asks with it for a checkpoint first."""
        del module
        signal.signal(signal.SIGTERM, self.on_sigterm)
        if self.random:
            torch.set_rng_state(self.random["cpu"])
            if "cuda" in self.random:
                torch.cuda.set_rng_state(self.random["cuda"])
        self.training.progress(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        """Between two steps: report, and save or stop when that is due."""
        del batch, number
        training, step, loss = self.training, trainer.global_step, float(outputs["loss"])

        def write(folder: Path) -> None:
            trainer.save_checkpoint(folder / "lightning.ckpt")
            torch.save(module.state_dict(), folder / "model.pt")

        training.progress(step, loss=loss)
        if training.should_save or training.should_stop or step >= training.target_step:
            training.checkpoint(step, write, {"loss": loss})
        trainer.should_stop = trainer.should_stop or training.should_stop

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the random state, which Lightning leaves out: without it a resumed run is another one."""
        del trainer, module
        checkpoint["random"] = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            checkpoint["random"]["cuda"] = torch.cuda.get_rng_state()

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the random state until training starts."""
        del trainer, module
        self.random = {name: state.cpu() for name, state in checkpoint["random"].items()}


parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=1e-3)
options = parser.parse_args()
training = Training()
torch.manual_seed(training.seed)
trainer = lightning.Trainer(
    max_steps=training.target_step,
    devices=1,
    callbacks=[Scheduled(training)],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
trainer.fit(
    Model(options.rate),
    torch.utils.data.DataLoader(Numbers(), generator=torch.Generator()),
    ckpt_path=training.resume_dir / "lightning.ckpt" if training.resume_dir else None,
    weights_only=True,
)
