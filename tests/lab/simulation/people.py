"""People: they hold, release, cancel, move and stop things whenever they like, with the real services."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from jobs.problem import Refusal
from scheduler.core.job import Active, Cancelled, Done, Failed, Held
from scheduler.core.run import Running
from scheduler.service.facts import halvings
from scheduler.service.requests import queue, sessions
from scheduler.store import jobs, runs
from scheduler.views.needs import needs
from tests.lab.simulation.blobs import SimulatedBlobs
from tests.lab.simulation.faults import Faults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.store.engine import Database
    from scheduler.store.jobs import JobRecord
    from tests.lab.simulation.world import World


class People:
    """The team around the daemon. ``database`` is theirs: faults of the daemon's connections do not touch it."""

    def __init__(self, world: World, database: Database) -> None:
        self._world = world
        self._database = database
        self._blobs = SimulatedBlobs(world.shelves, Faults(Random(0)))
        self._rng = Random(world.scenario.seed ^ 0x9E0)
        world.recur(world.mood.wishes_per_week, self._wish)

    def fill_queue(self) -> None:
        """Add the scenario's jobs."""
        queue.add(self._database, self._world.scenario.jobs, self._world.now, "people")

    def _wish(self) -> None:
        world, rng, now = self._world, self._rng, self._world.clock.now()
        name = rng.choice(world.scenario.jobs).name
        kind = rng.choice(("hold", "hold", "stop", "stop", "weight", "move", "cancel"))
        try:
            match kind:
                case "hold":
                    queue.hold(self._database, name, "a test", now, "people")
                    world.agenda.add(world.now + rng.randrange(60, 90_000), lambda: self._release(name))
                case "stop":
                    self._stop(now)
                case "weight":
                    queue.change(self._database, name, now, "people", weight=rng.choice((0.5, 2.0, 8.0)))
                case "move":
                    queue.change(self._database, name, now, "people", position=1)
                case _ if rng.random() < 0.1:
                    queue.cancel(self._database, name, now, "people")
        except Refusal:
            return
        world.sometimes(f"people: {kind}")
        world.noticed()

    def _stop(self, now: int) -> None:
        with self._database.read() as tx:
            running = [run.key for run in runs.live(tx) if isinstance(run.state, Running)]
        if running:
            key = self._rng.choice(running)
            if not self._world.shelves.down:
                sessions.stop(self._database, self._blobs, key, "people want it", now, "people")

    def _release(self, name: str) -> None:
        with self._database.read() as tx:
            state = jobs.get(tx, name).state
        if isinstance(state, Held | Failed):
            self._let_run(name)

    def _let_run(self, name: str) -> None:
        queue.release(self._database, name, self._world.clock.now(), "people")
        self._world.burnt[name] = 0
        self._world.noticed()

    def _have_the_rest(self, name: str) -> None:
        """Have every other job that was stopped early go on to its full target."""
        with self._database.read() as tx:
            record = jobs.get(tx, name)
        if record.stopped_early and (self._world.scenario.seed + len(name)) % 2:
            self._let_run(name)
            self._world.sometimes("stopped early, and undone")

    def release_all(self) -> None:
        """Let every held or failed job run again, and those that are listed because their result is lost."""
        for spec in self._world.scenario.jobs:
            self._release(spec.name)
            self._have_the_rest(spec.name)
        pools = [pool.name for pool in self._world.scenario.pools]
        with self._database.read() as tx:
            listed = needs(tx, pools, 0, self._world.clock.now())
        for need in listed:
            if need.what == "result lost":
                self._world.sometimes("a result was lost")
                self._let_run(need.subject)

    def unfinished(self) -> list[str]:
        """Return the jobs that are neither done nor cancelled.

        Those that a cancelled parent or a budget keeps waiting, and those that cannot be launched, are left out.
        """
        with self._database.read() as tx:
            records = {record.spec.name: record for record in jobs.everything(tx)}
            budgets, pools = halvings.budgets(tx), {pool.name: pool for pool in self._world.scenario.pools}
        spent = {name for name, one in records.items() if halvings.budget_spent(one, budgets, pools)}
        self._world.sometimes("budget of a sweep used up", bool(spent))
        return [
            name
            for name, record in records.items()
            if not isinstance(record.state, Done | Cancelled)
            and not _waits_for_ever(record, records)
            and name not in self._world.scenario.unlaunchable | spent
        ]


def _waits_for_ever(job: JobRecord, records: Mapping[str, JobRecord]) -> bool:
    """Whether a job has no lane and the parent of its gate was cancelled before it had come far enough.

    A gate that was passed stays open when its parent is cancelled: behind it the job must finish like any other.
    """
    gate = job.spec.gate
    if gate is None or isinstance(job.state, Active):
        return False
    parent = records[gate.parent]
    return isinstance(parent.state, Cancelled) and parent.done_step < gate.fraction * parent.spec.target_step
