"""Stands in for Lightning's SDK: the part that the adapter calls, with jobs as processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = ["Job", "Status", "Teamspace", "World"]


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - there, it is no clock of ours


class Status(Enum):
    """Those of a job."""

    Pending = "Pending"
    Running = "Running"
    Stopped = "Stopped"
    Completed = "Completed"
    Failed = "Failed"


class World:
    """What Lightning knows: its jobs, and whether it answers. ``folder`` is where they run."""

    folder = Path()
    jobs: dict[str, Job] = {}  # noqa: RUF012 - one Lightning for all
    is_away = False


class Teamspace:
    """A place for jobs."""

    def __init__(self, name: str) -> None:
        self.name = name
        if World.is_away:
            raise ConnectionError("Lightning does not answer")

    def list_jobs(self) -> tuple[Job, ...]:
        """Return all jobs."""
        return tuple(World.jobs.values())


@dataclass
class Job:
    """One job, as its name finds it."""

    name: str
    process: subprocess.Popen[bytes]
    started_at: datetime
    stopped_at: datetime | None = None
    was_stopped: bool = False

    @classmethod
    def run(cls, name: str, machine: str, command: str, env: dict[str, str], **_asked: Any) -> Job:
        """Start a job; its name is unique."""
        del machine
        Teamspace("")
        if name in World.jobs:
            raise RuntimeError(f"a job named {name} exists")
        if any(len(value) > 128 << 10 for value in (command, *env.values())):
            raise ValueError("longer than a machine takes it")
        home = World.folder / name
        home.mkdir()
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", command], cwd=home, env={"PATH": os.environ["PATH"], "HOME": str(home), **env},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        World.jobs[name] = cls(name, process, _now())
        return World.jobs[name]

    @property
    def status(self) -> Status:
        """Return its state, and notice its end."""
        if self.process.poll() is None:
            return Status.Running
        self.stopped_at = self.stopped_at or _now()
        ended = Status.Failed if self.process.returncode else Status.Completed
        return Status.Stopped if self.was_stopped else ended

    @property
    def logs(self) -> str:
        """Return what it printed."""
        return (World.folder / self.name / "log").read_text()

    @property
    def total_cost(self) -> float:
        """Return its dollars so far, at one an hour."""
        return ((self.stopped_at or _now()) - self.started_at).total_seconds() / 3_600

    def delete(self) -> None:
        """Remove it from the list."""
        del World.jobs[self.name]

    def stop(self) -> None:
        """End it, with all that it started."""
        if self.status is Status.Running:
            self.was_stopped = True
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
