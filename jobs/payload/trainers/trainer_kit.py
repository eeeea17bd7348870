"""The training contract in one small file: import it in a script that the agent starts, or copy it beside your script.

Outside a session, checkpoints go to ./checkpoints, the next start resumes from the newest one, nothing is reported, and
Ctrl-C stops the training. It needs Python 3.8 and the standard library only.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

EXIT_DATA = 65  # exit with this status when the data cannot be read
_FREE_MIN = 1 << 20  # a disk with fewer free bytes counts as full
_FULL = ("no space left on device", "disk quota exceeded")
NO_CORPUS = "A job gets the corpus when its definition says mixture = {}"


class Training:
    """A training loop's connection to the agent. Create it before the loop; use it between steps.

    ``resume_dir`` is the folder of the checkpoint to resume from; None on a first run. On a first run ``parent_dir``
    is the folder of another job's checkpoint that gives the first weights, or None.
    """

    def __init__(self) -> None:
        environment = os.environ
        self.job = environment.get("SCHED_JOB", "job")
        self.seed = int(environment.get("SCHED_SEED") or 0)
        self.target_step = int(environment.get("SCHED_TARGET_STEP") or 1000)
        self.data_dir = Path(environment.get("SCHED_DATA_DIR") or ".")
        resume, progress = environment.get("SCHED_RESUME_DIR"), environment.get("SCHED_PROGRESS")
        self.resume_dir = Path(resume) if resume else None
        parent = environment.get("SCHED_INPUT_PARENT")
        self.parent_dir = Path(parent) if parent and not resume else None
        self._checkpoint_dir = Path(environment.get("SCHED_CHECKPOINT_DIR") or "checkpoints")
        self._checkpoint_dir.mkdir(parents=True, exist_ok=True)
        if not environment.get("SCHED_CHECKPOINT_DIR"):
            self.resume_dir = self.resume_dir or _newest(self._checkpoint_dir)
        self._progress = os.open(progress, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if progress else None
        self._saved_step = json.loads((self.resume_dir / "meta.json").read_bytes())["step"] if self.resume_dir else -1
        self.should_save = self.should_stop = False
        # Python restores the default handler at exit, and the agent may send SIGUSR1 until it sees the exit.
        if hasattr(signal, "SIGUSR1"):
            atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
        self._writer: threading.Thread | None = None
        self._broken: BaseException | None = None  # the error of a background save
        self._listen()

    def progress(self, step: int, **values: float) -> None:
        """Report a step; the first report ends the set-up.

        ``values``: any of loss, held_out_loss, gpu_memory_bytes, tokens_per_second, step_seconds_p90, padding,
        gradient_norm, gpu_busy, gpu_watts and gpu_throttled. Shares are from 0 to 1.
        """
        if threading.current_thread() is threading.main_thread():
            self._listen()
        self._report({"step": int(step), **_numbers(values)})

    def describe_data(self, facts: Mapping[str, Any]) -> None:
        """Report the training data before the first step. docs/your-own-training.md lists the fields."""
        self._report({"training_data": dict(facts)})

    def begin_saving(self, step: int) -> None:
        """Report that a save begins, if a framework writes the files before ``checkpoint`` is called."""
        self._report({"saving": int(step)})

    def checkpoint(
        self, step: int, write: Callable[[Path], None], metrics: Mapping[str, float], *, background: bool = False
    ) -> bool:
        """Save a checkpoint: ``write`` puts its files into a folder. Return False if the disk is full.

        After False, go on training: the agent requests another save. A step is saved once. Put adapter, base and
        optimiser into separate files, because a file that does not change is stored only once, by its digest.

        ``background``: return at once and write in a thread; ``write`` must then hold copies of everything that
        training changes. One save is written at a time; call ``wait`` before the program ends.
        """
        self.should_save = False
        self.wait()
        step = int(step)
        if step == self._saved_step:
            self._report({"saved": step})
            return True
        self.begin_saving(step)
        if not background:
            return self._write(step, write, metrics)
        self._report({"copied": step})
        self._writer = threading.Thread(target=self._write_apart, args=(step, write, metrics), name="save")
        self._writer.start()
        return True

    def wait(self) -> None:
        """Wait for the background save. Raises its error, unless the disk was full."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken

    def _write_apart(self, step: int, write: Callable[[Path], None], metrics: Mapping[str, float]) -> None:
        try:
            self._write(step, write, metrics)
        except BaseException as error:  # noqa: BLE001 - raised again by the next save, which is requested here
            self._broken, self.should_save = error, True

    def _write(self, step: int, write: Callable[[Path], None], metrics: Mapping[str, float]) -> bool:
        partial, final = (self._checkpoint_dir / name for name in (f".partial-{step:08d}", f"step-{step:08d}"))
        shutil.rmtree(partial, ignore_errors=True)
        metrics = _numbers(metrics)
        try:
            partial.mkdir()
            write(partial)
            (partial / "meta.json").write_text(json.dumps({"step": step, "metrics": metrics}))
            # No fsync: the agent copies the folder durably into the store, and this disk ends with the session.
            partial.rename(final)
        except Exception as error:
            why = _no_space(error, self._checkpoint_dir)
            shutil.rmtree(partial, ignore_errors=True)
            if not why:
                raise
            self._report({"save_failed": why})
            return False
        self._saved_step = step
        self._report({"saved": step, **metrics})
        return True

    def _listen(self) -> None:
        """Install the signal handlers. Each step does so again, because LLVM (used by Triton) replaces SIGUSR1's."""
        for name in ("SIGUSR1", "SIGTERM", "SIGINT"):
            if hasattr(signal, name):  # Windows has no SIGUSR1
                signal.signal(getattr(signal, name), self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.should_save = True
        self.should_stop = self.should_stop or number != getattr(signal, "SIGUSR1", None)

    def _report(self, line: dict[str, Any]) -> None:
        if self._progress is not None:
            os.write(self._progress, json.dumps(line).encode() + b"\n")


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return values as Python numbers, also those of NumPy and torch; print and omit any value that is not a number."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        try:
            item = getattr(value, "item", None)
            plain = item() if callable(item) else value
            numbers[str(name)] = plain if isinstance(plain, (int, float)) else float(plain)
        except Exception as error:  # noqa: BLE001 - a foreign object's error must not lose the save
            why = f"{type(value).__name__}: {error}"
            print(f"trainer_kit: {name} is not a number and is not reported ({why})", file=sys.stderr)
    return numbers


def _no_space(error: Exception, folder: Path) -> str:
    """Return the error's text if the disk is full, else "". torch and safetensors raise errors without an errno."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return str(error)
    full = shutil.disk_usage(folder).free < _FREE_MIN or any(words in str(error).lower() for words in _FULL)
    return f"No space left on device: {error}" if full else ""


def _newest(folder: Path) -> Path | None:
    """Return the newest checkpoint of an earlier run outside a session, and print its path; None if there is none."""
    folders = [path for path in folder.glob("step-*") if (path / "meta.json").is_file()]
    if not folders:
        return None
    newest = max(folders, key=lambda path: (len(path.name), path.name))
    print(f"trainer_kit: resuming from {newest}; without {folder} it would start from scratch", file=sys.stderr)
    return newest
