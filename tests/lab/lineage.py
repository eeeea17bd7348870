"""A family: a main model, managers that start from it at a tenth of its way, and one pool."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.payload.store.manifest import Component, Manifest, blob_key
from jobs.spec import JobSpec, StartFrom
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.faults.places import LaunchNews
from scheduler.service.launch.launch import launch_all, reserve
from scheduler.service.outside.ports import Policy
from scheduler.store import checkpoints, generations, jobs
from tests.lab.fake import FakeCloud, FakePlatform, Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.service.outside.ports import Ports

NOW = 1_795_000_000
WEIGHTS = hashlib.sha256(b"abc").hexdigest()


class World(SimpleNamespace):
    """A main model, a manager that starts from it at a tenth of its way, and one pool."""

    def save(self, job: str, step: int, attempt: int = 1) -> Manifest:
        """Let a job have a checkpoint that the daemon knows."""
        weights = Component("weights.npy", WEIGHTS, 3)
        manifest = Manifest(job, step, attempt, f"uff-{job}-{attempt:04d}", 0, None, NOW, 60, {}, (weights,))
        with self.database.write() as tx:
            checkpoints.record(tx, manifest, NOW)
            jobs.note_progress(tx, job, step, manifest.key)
        return manifest

    def store(self, manifest: Manifest, *, whole: bool = True) -> None:
        """Put a checkpoint into the artifact store."""
        document = {"format": 1, **asdict(manifest), "components": [asdict(one) for one in manifest.components]}
        self.ports.artifacts.put(manifest.key, json.dumps(document).encode())
        self.ports.artifacts.put(blob_key(manifest.job, WEIGHTS), b"abc" if whole else b"abd")

    def add_child(self, name: str) -> None:
        """Add another manager that starts from main."""
        start = StartFrom("uff-main", 0.1)
        with self.database.write() as tx:
            jobs.add(tx, JobSpec(name, "manager", ("train",), 500, 100.0, gate=start.gate, start_from=start), NOW)

    def reserves(self, job: str) -> int:
        """Return how many sessions of a job are reserved and launched where a plan wants one now."""
        self.clock.present += 60
        now = self.clock.present
        wanted = Plan(now, (Placement("pool", now, now + HOUR, (PlannedLane(job, 1, 10),)),), ())
        reserved = reserve(self.ports, wanted, now)
        launch_all(self.ports, reserved, LaunchNews())
        self.key = reserved[0].key if reserved else ""
        return len(reserved)

    def launch(self, job: str = "ufm") -> dict[str, Any]:
        """Launch a session of a job; return its lane as the session is told it."""
        assert self.reserves(job) == 1
        lane: dict[str, Any] = self.cloud.sessions[self.key].request.launch["lanes"][0]
        return lane

    def end(self, **said: Any) -> None:
        """Let the session that was launched last end with a last word."""
        self.cloud.cut(self.key, self.clock.present + 30, "exit code 0")
        word = {"format": 1, "outcome": "failed", "error_class": "network", "message": "it broke", **said}
        self.ports.artifacts.put(f"runs/{self.key}/lane-0/result.json", json.dumps(word).encode())
        self.clock.present += 2 * HOUR
        self.cycle.run()

    def record(self, name: str = "ufm") -> jobs.JobRecord:
        """Return a job as stored."""
        with self.database.read() as tx:
            return jobs.get(tx, name)

    def lineage(self) -> list[tuple[int, int | None]]:
        """Return the manager's generations with the step of main that each started from."""
        with self.database.read() as tx:
            return [(found.number, found.parent_step) for found in generations.of_job(tx, "ufm")]


def make_family(make_ports: Callable[..., Ports]) -> World:
    """Return the world, at NOW."""
    cloud = FakeCloud(usual=Script())
    ports = make_ports(
        platforms={"pool": FakePlatform(cloud)},
        pools={"pool": Pool("pool", "fake", "T4", (), sessions_max=2)},
        plan=lambda snapshot, _: Plan(snapshot.now, (), ()),
        policy=Policy(retry_base_seconds=1, retry_cap_seconds=1),
    )
    with ports.database.write() as tx:
        jobs.add(tx, JobSpec("uff-main", "main", ("train",), target_step=1_000, steps_per_hour=100.0), NOW)
    made = World(ports=ports, cloud=cloud, clock=ports.clock, database=ports.database, cycle=Cycle(ports))
    made.add_child("ufm")
    return made
