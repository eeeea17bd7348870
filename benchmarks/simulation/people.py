"""People: they hold, release, cancel, move and stop things whenever they like, with the real services."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from benchmarks.simulation.blobs import SimulatedBlobs
from benchmarks.simulation.faults import Faults
from scheduler.core.job import Cancelled, Done, Failed, Held
from scheduler.core.run import Running
from scheduler.service import queue, sessions
from scheduler.store import jobs, runs

if TYPE_CHECKING:
    from benchmarks.simulation.world import World
    from scheduler.store.engine import Database


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
                    queue.move(self._database, name, 1, now, "people")
                case _ if rng.random() < 0.1:
                    queue.cancel(self._database, name, now, "people")
        except (queue.QueueError, sessions.SessionRefused):
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
            queue.release(self._database, name, self._world.clock.now(), "people")
            self._world.noticed()

    def release_all(self) -> None:
        """Let every held or failed job run again: somebody has looked at it."""
        for spec in self._world.scenario.jobs:
            self._release(spec.name)

    def unfinished(self) -> list[str]:
        """Return the jobs that are neither done nor cancelled, nor behind the gate of a cancelled one."""
        with self._database.read() as tx:
            records = jobs.everything(tx)
        cancelled = {record.spec.name for record in records if isinstance(record.state, Cancelled)}
        return [
            record.spec.name
            for record in records
            if not isinstance(record.state, Done | Cancelled)
            and (record.spec.gate is None or record.spec.gate.parent not in cancelled)
        ]
