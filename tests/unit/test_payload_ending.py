"""How a lane's end is judged, and how a command's failure is classed."""

import pytest

from jobs.payload.ending import Ending, Facts, Stop, judge
from jobs.payload.failure import Failure, classify

DEADLINE = Stop("yielded", "deadline", 100.0)
SIGTERM = Stop("preempted", "SIGTERM", 100.0)
# A command that trained to step 50 of 100, saved it, and ended well.
SOUND = Facts(
    target_step=100,
    reported_step=50,
    stored_step=50,
    saved_since_stop=False,
    unstored=False,
    began=True,
    killed=False,
    exit_code=0,
    stop=None,
    failure=None,
    trouble="",
    errors="last words",
)


@pytest.mark.parametrize(
    ("facts", "outcome", "error_class", "why"),
    [
        (SOUND._replace(stored_step=100), "finished", None, "target step"),
        (SOUND._replace(stored_step=100, stop=SIGTERM), "finished", None, "target step"),
        (SOUND._replace(stored_step=100, exit_code=1), "finished", None, "target step"),
        (SOUND._replace(failure=Failure("device", "no GPU")), "failed", "device", "no GPU"),
        (SOUND._replace(stop=SIGTERM), "preempted", None, "SIGTERM"),
        (SOUND._replace(stop=SIGTERM, exit_code=-9, killed=True), "preempted", None, "SIGTERM"),
        (SOUND._replace(stop=DEADLINE), "yielded", None, "deadline"),
        (SOUND._replace(stop=DEADLINE, saved_since_stop=True, exit_code=1), "yielded", None, "deadline"),
        (SOUND._replace(stop=DEADLINE, began=False, exit_code=-15), "yielded", None, "before training began"),
        (SOUND._replace(stop=DEADLINE, unstored=True), "failed", "store", "could not be stored"),
        (SOUND._replace(stop=DEADLINE, killed=True, exit_code=-9), "failed", "killed", "was killed"),
        (SOUND._replace(stop=DEADLINE, reported_step=60), "failed", "code", "without having saved"),
        (SOUND._replace(stop=DEADLINE, exit_code=-15), "failed", "code", "SIGTERM"),
        (SOUND._replace(stop=DEADLINE, stored_step=None), "failed", "code", "without having saved"),
        (SOUND, "failed", "code", "ended too early, at step 50 (stored: 50, target: 100)"),
        (SOUND._replace(exit_code=None, began=False, reported_step=None), "yielded", None, "before training began"),
        (SOUND._replace(exit_code=3), "failed", "code", "exit status 3"),
    ],
)
def test_the_end_is_judged(facts: Facts, outcome: str, error_class: str | None, why: str) -> None:
    ending: Ending = judge(facts)
    assert (ending.outcome, ending.error_class) == (outcome, error_class)
    assert why in ending.why


@pytest.mark.parametrize(
    ("exit_code", "errors", "error_class"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "oom"),
        (1, "MemoryError", "oom"),
        (-9, "", "killed"),
        (137, "", "killed"),
        (65, "no shard", "data"),
        (1, "RuntimeError: No CUDA GPUs are available", "device"),
        (1, "KeyError: 'text'", "code"),
        (-11, "", "code"),
    ],
)
def test_a_failure_has_a_class(exit_code: int, errors: str, error_class: str) -> None:
    assert classify(exit_code, errors).error_class == error_class
