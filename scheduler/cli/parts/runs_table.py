"""Runs as rows of a table."""

from __future__ import annotations

from scheduler.cli.shell.output import Output, hours
from scheduler.core.run import Ended, Run, Running, Stopping

OUTCOMES = {"yielded": "saved and stopped"}
"""Outcomes by the words that people read."""

RUN_COLUMNS = ("run", "-pool", "--~jobs", "state", "-started", "---ends", "-->length", "~outcome")


def run_row(run: Run, out: Output) -> tuple[str, ...]:
    """Return one run as a row under ``RUN_COLUMNS``; ``ends`` is the deadline while it is live.

    One that waits in its platform's queue has neither: why it waits stands in their place.
    """
    state = run.state
    if run.wait is not None:
        jobs, place = ", ".join(lane.job for lane in run.lanes), f"number {run.wait.place}" if run.wait.place else ""
        return (run.key, run.pool, jobs, "waiting", "", "", place, run.wait.why)
    started = state.started if isinstance(state, Running | Stopping | Ended) else None
    ends = state.at if isinstance(state, Ended) else run.deadline
    return (
        run.key,
        run.pool,
        ", ".join(lane.job for lane in run.lanes),
        type(state).__name__.lower(),
        out.moment(started),
        out.moment(ends),
        hours(ends - started) if started is not None else "",
        ", ".join(OUTCOMES.get(lane.outcome or "", lane.outcome or "") for lane in run.lanes)
        if isinstance(state, Ended)
        else "",
    )
