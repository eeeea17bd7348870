"""200 sessions are launched in one cycle, each in a thread of its own: the daemon never keeps itself from writing."""

from collections.abc import Callable

from jobs.nouns.pool import Pool
from jobs.spec import JobSpec
from scheduler.core.run import Running
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.calls import Calls
from scheduler.service.outside.ports import Ports
from scheduler.store import jobs, runs
from scheduler.store.engine import Database
from tests.lab.fake import FakeCloud, FakePlatform, Script
from tests.lab.patience import PATIENCE_SECONDS

LAUNCHES = 200


def test_two_hundred_launches_never_find_the_database_locked(
    make_ports: Callable[..., Ports], database: Database
) -> None:
    names = [f"pool-{index:03d}" for index in range(LAUNCHES)]
    url = database.url.render_as_string(hide_password=False)
    ports = make_ports(
        platforms={name: FakePlatform(FakeCloud(1, usual=Script(runs_seconds=None))) for name in names},
        pools={name: Pool(name, "fake", "CPU", vram_gib=16.0, session_cap_seconds=3_600) for name in names},
        database=Database(url, busy_seconds=0.001),  # whoever finds the lock taken fails at once
        plan=lambda snapshot, _: dispatch(snapshot),
        calls=Calls(PATIENCE_SECONDS),
    )
    with database.write() as tx:
        for index in range(LAUNCHES):
            spec = JobSpec(f"job-{index:03d}", "manager", ("train",), 1_000_000, steps_per_hour=1_000.0)
            jobs.add(tx, spec, ports.clock.now())
    cycle = Cycle(ports)
    for _ in range(3):  # the books of the pools are read first
        cycle.run()
    ports.calls.settle(("launch",), PATIENCE_SECONDS)
    ports.database.close()
    with database.read() as tx:
        states = [run.state for run in runs.live(tx)]
    assert len(states) == LAUNCHES
    assert all(isinstance(state, Running) for state in states)
