"""Findings: the possible errors of a resumed run, each with its level and its repair."""

from typing import NamedTuple

EXACT, SAME_STATE, INEXACT, FAILED = LEVELS = ("E0", "E1", "E2", "failed")
# E0: the resumed run is bit-identical. E1: it differs only by the noise of two runs without a resume.
# E2: it trains differently. failed: steps or state are lost.


class Repair(NamedTuple):
    """The level of a kind of finding, and how a person repairs the script."""

    level: str
    remedy: str


_SAVE_ON_TERM = "Install a handler of SIGTERM before the first progress line; save after the step and exit with 0"
_STATE = "Save and load it with the weights, in the same folder"
REPAIRS = {
    "crashed": Repair(FAILED, "Run the script with SCHED_RESUME_DIR set to a checkpoint, and repair the error"),
    "ignored_sigterm": Repair(FAILED, _SAVE_ON_TERM),
    "not_saved_at_sigterm": Repair(FAILED, _SAVE_ON_TERM),
    "lost_steps": Repair(FAILED, "Save after the last step that was reported, before the exit"),
    "unfinished_save": Repair(FAILED, "Wait for the thread that writes before the script exits: training.wait()"),
    "never_saved": Repair(FAILED, "On SIGUSR1 save soon and continue, not at the end only"),
    "sigusr1_ended_it": Repair(FAILED, "Install a handler of SIGUSR1 before the first progress line"),
    "damaged_save": Repair(FAILED, "Write into another folder, meta.json last, and then rename it to step-NNNNNNNN"),
    "wrong_step": Repair(FAILED, "Save the number of steps that are done, and continue to count from it"),
    "older_state": Repair(FAILED, "Restore the newest state, with the step that it was saved at, not the best one"),
    "repeated_data": Repair(
        FAILED, "Save the position in the data and the state of the random numbers; skip what was read when resuming"
    ),
    "loss_jump": Repair(FAILED, "Save and load all weights, of every process: rank 0 saves what all ranks need"),
    "other_state": Repair(INEXACT, f"Newest weights, buffers or dropout's random numbers are not restored. {_STATE}"),
    "other_update": Repair(INEXACT, f"Optimiser, learning rate or the scaler of mixed precision restart. {_STATE}"),
    "other_numbers": Repair(
        INEXACT, f"The state of the random numbers or the order of the data is not restored. {_STATE}"
    ),
    "first_mean": Repair(SAME_STATE, "Nothing is wrong with the state. To report the same, log the loss of each step"),
    "other_files": Repair(SAME_STATE, f"Counters of resumes may differ; averaged weights must not. {_STATE}"),
}


class ResumeFinding(NamedTuple):
    """One error of a resumed run; ``log`` is the log line that shows it."""

    kind: str
    message: str
    log: str = ""

    @property
    def level(self) -> str:
        """The level of the finding, one of LEVELS."""
        return REPAIRS[self.kind].level


def worst(levels: list[str]) -> str:
    """Return the worst of the levels; E0 if there are none."""
    return max(levels, key=LEVELS.index, default=EXACT)
