"""Changes: what may be done to jobs and runs, by the same requests as the command line's."""

from __future__ import annotations

from scheduler.bridge.arguments import Weight, Words
from scheduler.bridge.surface import Surface
from scheduler.service.requests import queue, sessions
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import run_json
from scheduler.wake import wake
from scheduler.web.questions import job_rows
from scheduler.web.shapes import JobRow, Name, RunRow, Shape


class JobChanged(Shape):
    """The job as it is now; a running one saves and leaves first, which takes a moment."""

    job: JobRow


class RunStopped(Shape):
    """The run as it is now, and whether its session was told; if not, the daemon tells it."""

    run: RunRow
    told: bool


def hold(surface: Surface, job: Name, why: Words = "") -> JobChanged:
    """Keep a job from running; a running one saves, leaves and is then held."""
    why = surface.app.redact(why) or "held by hand"
    return _changed(surface, queue.hold(surface.app.database, job, why, surface.now, surface.who))


def release(surface: Surface, job: Name) -> JobChanged:
    """Let a held, failed or cancelled job run again."""
    return _changed(surface, queue.release(surface.app.database, job, surface.now, surface.who))


def cancel(surface: Surface, job: Name) -> JobChanged:
    """Cancel a job; a running one saves and leaves first. Its checkpoints stay."""
    return _changed(surface, queue.cancel(surface.app.database, job, surface.now, surface.who))


def priority(surface: Surface, job: Name, weight: Weight) -> JobChanged:
    """Change what one hour of a job is worth."""
    return _changed(surface, queue.change(surface.app.database, job, surface.now, surface.who, weight=weight))


def stop(surface: Surface, run: Name, why: Words = "") -> RunStopped:
    """Ask a running session to save and end; its jobs go back to the queue."""
    app = surface.app
    why = app.redact(why) or "stopped by hand"
    done = sessions.stop(app.database, app.artifacts, run, why, surface.now, surface.who)
    wake(app.settings.state_dir)
    return RunStopped(run=RunRow(**run_json(done.run)), told=done.told)


def _changed(surface: Surface, record: JobRecord) -> JobChanged:
    wake(surface.app.settings.state_dir)
    with surface.source.read() as tx:
        return JobChanged(job=job_rows(surface.source, tx, [record])[0])
