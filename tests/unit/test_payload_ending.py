"""How a lane's end is judged, and how a command's failure is classed."""

import pytest

from jobs.payload.lane.ending import Ending, EndingFacts, Stop, judge
from jobs.payload.lane.failure import Failure, classify

DEADLINE = Stop("yielded", "deadline", 100.0)
SIGTERM = Stop("preempted", "SIGTERM", 100.0)
STALLED = Stop("failed", "no progress: no new step in 30 min", 100.0, "stalled")
# A command that trained to step 50 of 100, saved it, and ended well.
SOUND = EndingFacts(
    target_step=100,
    reported_step=50,
    stored_step=50,
    whole=False,
    saved_since_stop=False,
    unstored=False,
    diverged="",
    unsaved_for="",
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
        (
            SOUND._replace(reported_step=None, stored_step=None),
            "failed",
            "code",
            "ended too early, before it reported a step (stored: none, target: 100)",
        ),
        (SOUND._replace(exit_code=None, began=False, reported_step=None), "yielded", None, "before training began"),
        (SOUND._replace(exit_code=3), "failed", "code", "exit status 3"),
        (SOUND._replace(stop=STALLED), "failed", "stalled", "no new step in 30 min"),
        (SOUND._replace(stop=STALLED, killed=True, exit_code=-9), "failed", "stalled", "no new step in 30 min"),
        (SOUND._replace(stop=STALLED, saved_since_stop=True), "yielded", None, "asked to end, it saved"),
        (SOUND._replace(stop=STALLED, stored_step=100), "finished", None, "target step"),
        (SOUND._replace(stop=STALLED, unstored=True), "failed", "store", "could not be stored"),
        (SOUND._replace(stop=DEADLINE, unsaved_for="40 min"), "failed", "no_checkpoint", "exit status 0"),
        (SOUND._replace(stop=DEADLINE, unsaved_for="40 min", killed=True), "failed", "no_checkpoint", "was killed"),
        (SOUND._replace(stop=SIGTERM, unsaved_for="40 min"), "preempted", None, "SIGTERM"),
        (SOUND._replace(whole=True, stop=DEADLINE, exit_code=-15), "yielded", None, "starts from scratch"),
        (
            SOUND._replace(whole=True, stop=DEADLINE, unsaved_for="3 min"),
            "failed",
            "no_checkpoint",
            "a longer `whole`",
        ),
        (SOUND._replace(whole=True, stop=SIGTERM, exit_code=-15), "preempted", None, "SIGTERM"),
        (SOUND._replace(whole=True, exit_code=3), "failed", "code", "exit status 3"),
        (SOUND._replace(stop=DEADLINE, diverged="no number since 7"), "failed", "diverged", "no number since 7"),
        (SOUND._replace(stored_step=100, diverged="no number"), "finished", None, "target step"),
        (SOUND._replace(stop=SIGTERM, diverged="no number"), "preempted", None, "SIGTERM"),
    ],
)
def test_the_end_is_judged(facts: EndingFacts, outcome: str, error_class: str | None, why: str) -> None:
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
        # An index out of range in the command's own code, which happens again wherever it runs.
        (1, "RuntimeError: CUDA error: device-side assert triggered", "code"),
        (1, "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>", "network"),
        (-11, "", "device"),
    ],
)
def test_a_failure_has_a_class(exit_code: int, errors: str, error_class: str) -> None:
    assert classify(exit_code, errors).error_class == error_class


@pytest.mark.parametrize("exit_code", [*range(-70, 0), *range(256)])
def test_every_exit_status_is_judged(exit_code: int) -> None:
    assert classify(exit_code, "").why


def test_signals_without_a_name_of_their_own_are_told_by_their_place() -> None:
    assert classify(-35, "").why == "the command died of SIGRTMIN+1"
