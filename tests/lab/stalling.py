"""One desk, one job, and a daemon whose sessions end as a test says."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.payload.store.manifest import Component, Manifest, manifest_key
from jobs.spec import JobSpec
from scheduler.core.job import JobState, Queued
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Policy, Ports
from scheduler.store import checkpoints, events, jobs
from scheduler.store.engine import Database
from tests.lab.fake import FakeCloud, FakePlatform, Script

NOW = 1_795_000_000
DESK = Pool("desk", "fake", "CPU", session_cap_seconds=4 * HOUR, setup_seconds=600, start_delay_seconds=180)
UFM = JobSpec("ufm", "manager", ("train",), 1_000, steps_per_hour=100.0, setup_seconds=60, checkpoint_seconds=10)


class World:
    """One desk, one job, and a daemon whose sessions end as a test says."""

    def __init__(self, make_ports: Callable[..., Ports], database: Database, spec: JobSpec) -> None:
        self.cloud, planner = FakeCloud(usual=Script(runs_seconds=None)), Planner(PlannerOptions(search_steps=0))
        pools = {"desk": replace(DESK, sessions_max=4)}
        platforms = {"desk": FakePlatform(self.cloud)}
        self.ports = make_ports(
            platforms=platforms, pools=pools, plan=planner.plan, policy=Policy(retry_base_seconds=60, failures_max=5)
        )
        self.database = database
        with database.write() as tx:
            jobs.add(tx, spec, NOW)
        self.cycle = Cycle(self.ports)
        self.cycle.run()

    @property
    def now(self) -> int:
        """Scheduled seconds."""
        return self.ports.clock.now()

    def launches(self) -> int:
        """How many sessions there were."""
        return len(self.cloud.sessions)

    def end(self, after: int = HOUR, step: int | None = None, **result: Any) -> JobState:
        """Let the newest session end, with a checkpoint if ``step`` says so; then the daemon goes on."""
        key = list(self.cloud.sessions)[-1]
        at = self.now + after
        self.cloud.cut(key, at - 1, "exit code 0")
        if step is not None:
            with self.database.write() as tx:
                part = Component("model.bin", "0" * 64, 1)
                attempt = jobs.get(tx, "ufm").attempts
                name = manifest_key("ufm", step, attempt)
                checkpoints.record(tx, Manifest("ufm", step, attempt, key, 0, None, 1, 1, {}, (part,)), at)
                jobs.note_progress(tx, "ufm", step, name)
        document = {"started_at": self.now, "ended_at": at, "setup_seconds": None, **result}
        self.ports.artifacts.put(f"runs/{key}/lane-0/result.json", json.dumps(document).encode())
        self.ports.clock.present = at  # type: ignore[attr-defined]
        self.cycle.run()
        state = self.state()
        for _ in range(12):
            self.ports.clock.present += HOUR  # type: ignore[attr-defined]
            self.cycle.run()
            if not isinstance(self.state(), Queued):
                break
        return state

    def stalls(self, rule: str = "stalled", why: str = "no progress: no new step in 30 min", **more: Any) -> JobState:
        """Let the newest session burn its hours."""
        return self.end(outcome="failed", error_class=rule, why=why, **more)

    def state(self) -> JobState:
        """How the job is."""
        with self.database.read() as tx:
            return jobs.get(tx, "ufm").state

    def told(self, kind: str) -> list[Any]:
        """Return the events of a kind."""
        with self.database.read() as tx:
            return events.tail(tx, limit=1_000, kinds=[kind])
