"""Rewards: any command that scores an evaluation scores what the model writes while it learns.

It finds the records in SCHED_INPUT_SET, each with an ``id``, what was written in SCHED_INPUT_OUTPUTS (``{"id": ...,
"output": ...}`` a line), and leaves ``scores.jsonl`` in SCHED_OUTPUT_DIR. The shipped scorers run what a model wrote in
their sandbox only. What a command leaves is read as a stranger's.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import TrainingRefused

_SCORES = "scores.jsonl"
_BYTES_MAX = 64 << 20
_STEPS_WITHOUT = 50  # in a row without a difference between the rewards of any prompt
_TAIL = 2_000  # characters of what a command said


class Reward:
    """One reward, as TRL calls it: the mean of what a command gives each text over its metrics."""

    def __init__(self, command: str, seconds: float) -> None:
        self._words, self._seconds = shlex.split(command), seconds
        if not self._words:
            raise TrainingRefused("--reward is empty; give a command that scores an evaluation")
        self.__name__ = Path(self._words[-1]).stem  # by which TRL tells one from another

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], record: Sequence[str], **_: Any) -> Any:
        """Return a number for each completion. Raises TrainingRefused where the command fails or leaves one out."""
        del prompts
        with tempfile.TemporaryDirectory(prefix="reward-") as name:
            folder = Path(name)
            items = [{**json.loads(text), "id": str(number)} for number, text in enumerate(record)]
            outputs = [
                {"id": str(number), "output": _text(completion)} for number, completion in enumerate(completions)
            ]
            for file, lines in (("items.jsonl", items), ("outputs.jsonl", outputs)):
                (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
            self._run(folder)
            return self._read(folder / _SCORES, len(outputs))

    def _run(self, folder: Path) -> None:
        more = {"SET": "items.jsonl", "OUTPUTS": "outputs.jsonl"}
        environment = {**os.environ, **{f"SCHED_INPUT_{key}": str(folder / file) for key, file in more.items()}}
        environment["SCHED_OUTPUT_DIR"] = str(folder)
        # It is no process of the group that trains, nor one that may speak to the agent.
        for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SCHED_PROGRESS"):
            environment.pop(key, None)
        try:
            done = subprocess.run(
                self._words,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._seconds,
                check=False,
            )
        except OSError as error:
            raise TrainingRefused(f"the reward {shlex.join(self._words)} cannot be started: {error}") from None
        except subprocess.TimeoutExpired:
            raise TrainingRefused(
                f"the reward {shlex.join(self._words)} took more than {self._seconds:g} s for one step's texts; "
                "--reward-seconds gives it longer"
            ) from None
        if done.returncode:
            raise TrainingRefused(
                f"the reward {shlex.join(self._words)} failed with status {done.returncode}: "
                f"{(done.stderr or done.stdout)[-_TAIL:].strip()}"
            )

    def _read(self, path: Path, count: int) -> list[float]:
        values: list[list[float]] = [[] for _ in range(count)]
        try:
            if path.stat().st_size > _BYTES_MAX:
                raise TrainingRefused(
                    f"the reward {shlex.join(self._words)} left more than {_BYTES_MAX >> 20} MiB of scores"
                )
            lines = path.read_bytes().splitlines()
        except OSError:
            raise TrainingRefused(
                f"the reward {shlex.join(self._words)} left no {_SCORES} in SCHED_OUTPUT_DIR"
            ) from None
        for line in lines:
            score = _score(line)
            if score is not None and score[0] < count:
                values[score[0]].append(score[1])
        missing = sum(not of_text for of_text in values)
        if missing:
            raise TrainingRefused(
                f"the reward {shlex.join(self._words)} left {missing} of {count} texts without a finite number: each "
                'needs a line {"item": its id, "value": ...}'
            )
        return [sum(of_text) / len(of_text) for of_text in values]


class RewardSpread:
    """Watches whether rewards differ within a prompt's texts: where none do, nothing is learned."""

    def __init__(self) -> None:
        self._since: int | None = None  # the step before the first without any

    def note(self, step: int, without: float) -> None:
        """Note the share of groups without spread since the last call. Raises TrainingRefused after 50 without any."""
        if without < 1:
            self._since = step
        elif self._since is None:
            self._since = step - 1
        elif step - self._since >= _STEPS_WITHOUT:
            raise TrainingRefused(
                f"the training stalled: in {step - self._since} steps no prompt had texts with different rewards, and "
                "from equal ones nothing is learned. Take prompts of which the model solves some, a reward with more "
                "than two values, more --generations or a higher --temperature"
            )


def named(commands: Sequence[str]) -> list[list[str]]:
    """Return what commands are wherever they lie: paths differ from place to place."""
    return [[word.rpartition("/")[2] for word in shlex.split(one)] for one in commands]


def _text(completion: Any) -> str:
    """Return a completion's text, which TRL gives as it is or as messages."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def _score(line: bytes) -> tuple[int, float] | None:
    try:
        answer = json.loads(line)
        number, value = int(answer["item"]), float(answer["value"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):  # a header, or nothing that is meant
        return None
    return (number, value) if number >= 0 and math.isfinite(value) else None
