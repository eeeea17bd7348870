"""Where a platform bills the time in its queue, `quota`, `runs show` and the report say how much it was."""

from typing import Any

from jobs.nouns.window import DAY, HOUR
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.store import ledger, runs
from scheduler.store.engine import Database

Schedctl = Any  # see conftest.py
KEY = "uff-ucm-0009"


def waits(world: Database, pushed: int) -> None:
    """Let a session of two hours have waited 90 minutes, which were billed."""
    began, ended = pushed + 5_400, pushed + 5_400 + 2 * HOUR
    over = Ended(Outcome.FINISHED, ended, began)
    run = Run(KEY, "kaggle", (Lane(0, "ucm", 9, (0,), None),), pushed, ended, ended, over)
    spent = LedgerEntry(EntryKind.SPEND, "kaggle", KEY, began, ended, ended)
    waited = LedgerEntry(EntryKind.ADJUST, "kaggle", KEY, pushed, began, ended, evidence="billed while it waited")
    with world.write() as tx:
        runs.insert(tx, run, pushed)
        ledger.append(tx, [spent, waited])


def test_a_billed_wait_is_told_of_its_session_and_its_quota(world: Database, schedctl: Schedctl) -> None:
    waits(world, 1_790_000_000 - 4 * HOUR)
    shown = schedctl("--json", "runs", "show", KEY).document["run"]
    assert (shown["charged_seconds"], shown["waited_seconds"]) == (12_600, 5_400)
    told = "3h 30m billed, 1h 30m of them while it waited in the queue of kaggle."
    assert told in schedctl("runs", "show", KEY).out
    (meter,) = schedctl("--json", "quota").document["quotas"]
    assert (meter["used"], meter["waited"]) == (12_600, 5_400)
    assert "of 3h 30m used, 1h 30m were billed while sessions waited" in schedctl("quota").out


def test_the_weekly_report_tells_billed_waits_from_training(world: Database, schedctl: Schedctl) -> None:
    waits(world, 1_790_000_000 - 4 * DAY)  # in the week that is over
    told = schedctl("report", "weekly").out
    assert "1.5 h were billed while sessions waited in the queues of their platforms." in told
    assert "queue h, billed" in told
