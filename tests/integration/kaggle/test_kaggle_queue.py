"""Time in Kaggle's queue: whatever its list calls the last run, and whether it bills the wait or not, books agree."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import Calendar, Window
from jobs.spec import JobSpec
from platforms.base import LaunchRequest, SessionState
from scheduler.core.ledger import EntryKind, LedgerEntry, seconds_within
from scheduler.core.run import Lane, Outcome, Run, Running, end
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import SETTLED_SECONDS, read_books
from scheduler.store import events, jobs, ledger, runs

Account = Any
KEY = "uff-ufm-0001"
QUEUE = 5_400
SCALE = 3_600.0  # the account's seconds in one of ours
QUOTA = CalendarQuota("GPU hours of the week", 108_000, Calendar("week", "UTC", 5))
AGENT = """
import time
print("hello", flush=True)
time.sleep(0.3)  # trains for eighteen minutes of the account's clock
"""


def launch(account: Account) -> int:
    """Launch a session that is over soon after it began; return when it was planned."""
    bundle = Path(account.folder) / "bundle"
    (bundle / "payload").mkdir(parents=True, exist_ok=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    planned = account.now()
    document = {"format": 1, "run": KEY, "clock": account.clock.payload_clock(), "lanes": []}
    account.adapter().launch(LaunchRequest(KEY, "p", 1, planned + 40_000, document, str(bundle), {}), planned)
    return int(planned)


def orphans(ports: Ports) -> int:
    with ports.database.read() as tx:
        return len(events.tail(tx, kinds=["quota.orphan_suspected"]))


@pytest.mark.parametrize("looks", ["often", "when it runs", "when it is over"])
@pytest.mark.parametrize("bills_queue", [False, True])
@pytest.mark.parametrize("last_run", ["start", "push", "end"])
def test_a_wait_is_neither_lost_nor_blamed_on_others(
    make_ports: Callable[..., Ports],
    account_at: Callable[..., Account],
    hand_clock: Any,
    last_run: str,
    bills_queue: bool,
    looks: str,
) -> None:
    shown = {"last_run_is_push": last_run == "push", "last_run_is_end": last_run == "end"}
    account = account_at(scale=SCALE, queue_seconds=QUEUE, bills_queue=bills_queue, **shown)
    ports = make_ports(
        platforms={"kaggle": account.adapter()}, pools={"kaggle": Pool("kaggle", "kaggle", "T4 x2", quotas=(QUOTA,))}
    )
    planned = launch(account)
    with ports.write() as tx:
        jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), planned)
    (session,) = account.place.sessions()

    books = account.place.quota

    def quota() -> dict[str, Any]:
        # The instant of the answer, however long a busy machine takes for the call.
        hand_clock.present = max(hand_clock.present, account.now())
        answer: dict[str, Any] = books()
        return answer

    account.place.quota = quota

    def audit() -> None:
        hand_clock.present = account.now()
        read_books(ports, ["kaggle"])

    def look_until(state: SessionState) -> Any:
        if looks != "often":
            while (session.started_at if state is SessionState.RUNNING else session.ended_at) is None:
                account.patience.wait(0.01)
        return account.until(KEY, state, SessionState.ENDED)

    started = planned
    if looks != "when it is over":
        started = look_until(SessionState.RUNNING).started or planned
    run = Run(KEY, "kaggle", (Lane(0, "ufm", 1, (0,), None),), planned, planned + 40_000, planned + 40_000,
              Running(f"{KEY}/v1", started))  # fmt: skip
    with ports.write() as tx:
        runs.insert(tx, run, planned)
    audit()
    assert orphans(ports) == 0
    session.join()
    over = look_until(SessionState.ENDED)
    now = account.now()
    with ports.write() as tx:
        runs.change_state(tx, KEY, run.state, end(run.state, Outcome.LOST, over.ended, over.started), "end_lost", now)
        entry = LedgerEntry(EntryKind.SPEND, "kaggle", KEY, over.started, over.ended, now)
        ledger.append(tx, [entry])
    # By its own clock it is known when it began, whoever looked when: no more than a little of its wait is charged.
    assert over.started >= session.started_at - QUEUE / 3
    assert over.started <= session.started_at
    assert over.ended >= session.ended_at - QUEUE / 3
    audit()
    assert orphans(ports) == 0
    hand_clock.present = account.now() + SETTLED_SECONDS
    read_books(ports, ["kaggle"])
    start, until = account.place.week(account.now())
    with ports.database.read() as tx:
        booked = seconds_within(ledger.charges(tx, 0)["kaggle"], Window(int(start), int(until)))
    assert booked == math.ceil(account.place.seconds_used(start, until))
    assert orphans(ports) == 0


def test_what_is_more_than_a_wait_is_somebody_elses(
    make_ports: Callable[..., Ports], account_at: Callable[..., Account], hand_clock: Any
) -> None:
    account = account_at(scale=SCALE, queue_seconds=QUEUE, bills_queue=True, unannounced_extra_seconds=QUEUE)
    ports = make_ports(
        platforms={"kaggle": account.adapter()}, pools={"kaggle": Pool("kaggle", "kaggle", "T4 x2", quotas=(QUOTA,))}
    )
    planned = launch(account)
    seen = account.until(KEY, SessionState.RUNNING, SessionState.ENDED)
    running = Running(f"{KEY}/v1", seen.started)
    run = Run(KEY, "kaggle", (Lane(0, "ufm", 1, (0,), None),), planned, planned + 40_000, planned + 40_000, running)
    with ports.write() as tx:
        jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), planned)
        runs.insert(tx, run, planned)
    hand_clock.present = account.now()
    read_books(ports, ["kaggle"])
    assert orphans(ports) == 1
