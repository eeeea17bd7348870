"""What the simulation found once, each in the smallest form that shows it."""

from __future__ import annotations

from scheduler.core.reconcile import Facts, Finish, Sighting, reconcile
from scheduler.core.run import Lane, Run, Running


def _facts(*, complete: bool, results: dict[int, dict[str, object]]) -> Facts:
    run = Run("uff-main-0001", "weekly", (Lane(0, "main", 1, (0,), None),), 1_000, 5_000, 5_100, Running("r", 1_000))
    return Facts(run, Sighting("ended", "r", 1_000, 4_000), True, results, {}, 60, 300, complete)


def test_an_end_is_not_believed_until_the_artifact_store_has_told_what_was_published() -> None:
    # Closing the run during an outage of the store sent the job back to a step before one that was published.
    said = {0: {"outcome": "yielded", "checkpoint_step": 7}}
    assert reconcile([_facts(complete=False, results=said)], 9_000_000) == []
    (step,) = reconcile([_facts(complete=True, results=said)], 6_000)
    assert isinstance(step, Finish)
