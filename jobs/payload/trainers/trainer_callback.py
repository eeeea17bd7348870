"""The training contract for Hugging Face's Trainer: a callback that reports, saves and stops, and resumes.

::

    scheduled = SchedulerCallback()
    arguments = TrainingArguments("trainer", max_steps=scheduled.target_step, save_strategy="no", seed=scheduled.seed,
                                  logging_nan_inf_filter=False)
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[scheduled])
    trainer.train(resume_from_checkpoint=scheduled.resume_from)

Saves happen at the end of an optimiser step, so that a resumed run repeats and skips nothing. Leave ``save_strategy``
at "no": the agent decides when to save. With ``logging_steps`` above 1, the first loss after a resume is the mean over
the steps since the resume, because the Trainer does not keep earlier ones.

For several devices start one process per device: ``{python} {payload}/trainers/ranks.py train.py``.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

# When a script beside it imports this module, the module has no package.
if TYPE_CHECKING or __package__:
    from .trainer_kit import Training
else:
    from trainer_kit import Training

# By name in TRL's logs: the name in a checkpoint's metrics.
_OF_TRL = {
    "reward": "reward", "rewards/accuracies": "preferred", "rewards/margins": "margin",
    "frac_reward_zero_std": "groups_without_spread",
}  # fmt: skip


class SchedulerCallback(TrainerCallback):  # type: ignore[misc]  # not installed where types are checked
    """Reports steps, saves and stops when asked to, and saves at the target step.

    ``held_out`` computes a loss of the model for each checkpoint's metrics. It must not draw random numbers (the
    Trainer's own evaluation does), or a resumed run differs from an uninterrupted run. ``metrics`` are added to each
    checkpoint's metrics; ``beside`` may add files to its folder.
    """

    def __init__(
        self,
        training: Training | None = None,
        held_out: Callable[[Any], float] | None = None,
        metrics: Mapping[str, float] | None = None,
        beside: Callable[[Path], None] | None = None,
    ) -> None:
        self._training = training or Training()
        self._held_out, self._beside = held_out, beside
        self._metrics = dict(metrics or {})
        self._loss: float | None = None
        self._start_loss: float | None = None  # held-out loss of the parent's weights, before the first step
        self.target_step = self._training.target_step
        self.seed = self._training.seed
        resume = self._training.resume_dir
        self.resume_from = str(resume) if resume else None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Report the end of set-up. Raises SystemExit for one process with several devices (DataParallel)."""
        del control
        if args.n_gpu > 1:
            raise SystemExit(
                f"{args.n_gpu} devices and one process: the Trainer would use DataParallel, which is slower than one "
                "device and multiplies the batch. Start one process per device: "
                "{python} {payload}/trainers/ranks.py SCRIPT"
            )
        if self.resume_from and "default" in getattr(model, "peft_config", {}):
            _load_adapter(model, Path(self.resume_from))
        if self._training.parent_dir is not None and self._held_out is not None:
            self._start_loss = self._held_out(model)
        self._training.progress(int(state.global_step))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Report step and loss, NaN included (unless ``logging_nan_inf_filter`` hides it), to detect divergence."""
        del args, control
        self._metrics |= {_OF_TRL[name]: float(value) for name, value in (logs or {}).items() if name in _OF_TRL}
        loss = (logs or {}).get("loss")
        if loss is not None and state.is_world_process_zero:
            self._loss = float(loss) if math.isfinite(loss) else self._loss
            values = {"gpu_memory_bytes": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
            self._training.progress(int(state.global_step), loss=float(loss), **values)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Report the step, and let the Trainer save or stop if that is due."""
        del args
        step = int(state.global_step)
        if state.is_world_process_zero:
            self._training.progress(step)
        save, stop = self._agreed()
        if save or stop or step >= self.target_step:
            self._training.should_save = False
            if state.is_world_process_zero:
                self._training.begin_saving(step)
            control.should_save = True
        if stop:
            control.should_training_stop = True
        return control

    def _agreed(self) -> tuple[bool, bool]:
        """Return whether any rank got a request to save, and to stop. All ranks must do so at the same step."""
        requests = self._training.should_save, self._training.should_stop
        if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
            return requests
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        flags = torch.tensor([int(request) for request in requests], device=device)
        torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX)
        save, stop = flags.tolist()
        return bool(save), bool(stop)

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Move the Trainer's checkpoint to the agent, on rank 0, after all ranks have written their part."""
        del control
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if not state.is_world_process_zero:
            return
        step = int(state.global_step)
        written = Path(args.output_dir) / f"checkpoint-{step}"
        metrics = dict(self._metrics) if self._loss is None else {**self._metrics, "loss": self._loss}
        if self._start_loss is not None:
            metrics["start_held_out_loss"] = self._start_loss
        if self._held_out is not None:
            metrics["held_out_loss"] = self._held_out(model)

        def move(folder: Path) -> None:
            for path in written.iterdir():
                shutil.move(path, folder / path.name)
            if self._beside is not None:
                self._beside(folder)

        self._training.checkpoint(step, move, metrics)
        shutil.rmtree(written, ignore_errors=True)


def _load_adapter(model: Any, folder: Path) -> None:
    """Load the trained adapter. transformers 5.17 silently skips it if a second (reference) adapter exists."""
    if (path := folder / "adapter_model.safetensors").is_file():
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        set_peft_model_state_dict(model, load_file(path), adapter_name="default")
