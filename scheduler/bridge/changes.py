"""Changes: what may be done to jobs and runs, by the same requests as the command line's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.bridge import arguments as given
from scheduler.service.requests import queue, sessions
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import run_json
from scheduler.wake import wake
from scheduler.web.queue import rows
from scheduler.web.shapes import JobRow, RunRow, Shape

if TYPE_CHECKING:
    from scheduler.bridge.surface import Surface


class JobChanged(Shape):
    """The job as it is now; a running one saves and leaves first, which takes a moment."""

    job: JobRow


class RunStopped(Shape):
    """The run as it is now, and whether its session was told; if not, the daemon tells it."""

    run: RunRow
    told: bool


def hold(surface: Surface, asked: given.Hold) -> JobChanged:
    """Keep a job from running; a running one saves, leaves and is then held."""
    why = surface.app.redact(asked.why) or "held by hand"
    return _changed(surface, queue.hold(surface.app.database, asked.job, why, surface.now, surface.who))


def release(surface: Surface, asked: given.OneJob) -> JobChanged:
    """Let a held, failed or cancelled job run again."""
    return _changed(surface, queue.release(surface.app.database, asked.job, surface.now, surface.who))


def cancel(surface: Surface, asked: given.OneJob) -> JobChanged:
    """Cancel a job; a running one saves and leaves first. Its checkpoints stay."""
    return _changed(surface, queue.cancel(surface.app.database, asked.job, surface.now, surface.who))


def priority(surface: Surface, asked: given.Priority) -> JobChanged:
    """Change what one hour of a job is worth."""
    found = queue.change(surface.app.database, asked.job, surface.now, surface.who, weight=asked.weight)
    return _changed(surface, found)


def stop(surface: Surface, asked: given.StopRun) -> RunStopped:
    """Ask a running session to save and end; its jobs go back to the queue."""
    app = surface.app
    why = app.redact(asked.why) or "stopped by hand"
    done = sessions.stop(app.database, app.artifacts, asked.run, why, surface.now, surface.who)
    wake(app.settings.state_dir)
    return RunStopped(run=RunRow(**run_json(done.run)), told=done.told)


def _changed(surface: Surface, record: JobRecord) -> JobChanged:
    wake(surface.app.settings.state_dir)
    with surface.source.read() as tx:
        return JobChanged(job=rows(surface.source, tx, [record])[0])
