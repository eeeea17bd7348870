"""A person holds a job whose session cannot be asked to save: they are told at once what that costs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from jobs.spec import JobSpec
from scheduler.cli.main import main
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Running
from scheduler.core.snapshot import Snapshot
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.requests import queue
from scheduler.store import lease, runs
from tests.lab.patience import until

Account = Any


@pytest.fixture
def held(
    account_at: Callable[..., Account], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[int, int], str]]:
    """Runs a job for some scheduled seconds of its session, holds it, and returns what the person is told."""
    account = account_at(scale=60.0, lets_kernels_in=False)
    app = account.app(tmp_path)

    def run(session_seconds: int, trained_seconds: int) -> str:
        spec = JobSpec("ufm", "manager", ("{python}", "-c", "import signal; signal.pause()"), 100, 1_000.0)
        queue.add(app.database, [spec], account.now(), "test")
        taken = lease.acquire(app.database, "test", 600)
        assert taken is not None

        def at_once(snapshot: Snapshot, _: Plan | None) -> Plan:
            # Asked again, it says the same: a launch that a slow answer put off is not the end of it.
            placed = Placement("kaggle", snapshot.now, snapshot.now + session_seconds, (PlannedLane("ufm", 1, 1),))
            return Plan(snapshot.now, () if snapshot.jobs[0].running else (placed,), ())

        ports = replace(app.ports(structlog.get_logger(), taken.epoch), plan=at_once, data_prefix=lambda _: "")
        cycle = Cycle(ports)

        def runs_there() -> bool:
            cycle.run()
            with app.database.read() as tx:
                live = runs.live(tx)  # none yet, where a plan takes longer than a cycle waits
            running = bool(live) and isinstance(live[0].state, Running)
            return running and account.place.sessions()[0].started_at is not None

        until(runs_there, "a session that runs")
        until(
            lambda: account.clock.now() >= account.place.sessions()[0].started_at + trained_seconds,
            "the time to pass",
            every=0.01,
        )
        # In this process: one that starts here takes long on a busy machine, and the session goes on meanwhile.
        code = main(["--config", str(tmp_path / "settings.toml"), "queue", "hold", "ufm"])
        told = capsys.readouterr()
        assert code == 0, told.err
        assert "ufm is held as soon as uff-ufm-0001 has saved and ended." in told.out
        return told.err

    yield run
    app.database.close()


def test_one_that_has_much_left_is_ended_and_the_loss_is_named(held: Callable[[int, int], str]) -> None:
    assert "uff-ufm-0001 cannot be asked to save: it is ended, and the 0h " in held(40_000, 60)


def test_one_that_is_nearly_over_is_waited_for(held: Callable[[int, int], str]) -> None:
    assert "uff-ufm-0001 cannot be asked to save: it goes on to its own end at " in held(900, 480)
