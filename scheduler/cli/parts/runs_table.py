"""Table rows for runs, and the warning about training lost when a run is stopped."""

from contextlib import suppress

from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.output import Output, hours
from scheduler.core.run import Ended, Run, Running, Stopping

OUTCOMES = {"yielded": "saved and stopped"}
"""Displayed text by stored outcome; outcomes without an entry are displayed unchanged."""

RUN_COLUMNS = ("run", "-pool", "--~jobs", "state", "-started", "---ends", "-->length", "~outcome")


def run_row(run: Run, out: Output) -> tuple[str, ...]:
    """Return the cells of one run for ``RUN_COLUMNS``; until the run has ended, ``ends`` is its deadline.

    A run in its platform's queue has no start and no end yet: its last cells are the queue position and the reason.
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


def warn_of_loss(cli: Cli, key: str, job: str | None = None) -> None:
    """Warn if a run that was asked to stop cannot save first; write nothing if the platform does not answer.

    ``key`` is the run's ID. ``job`` is the only job that was asked to stop, or None for the whole run. A session that
    cannot see the artifact store cannot stop one job while its other jobs continue.
    """
    from platforms.base import PlatformError, SessionState, StopChannel
    from scheduler.core.job import Active
    from scheduler.core.reconcile import costs_of_stop
    from scheduler.store import jobs, runs

    with cli.app.database.read() as tx:
        run = runs.get(tx, key)
        names = [lane.job for lane in run.lanes if job and lane.outcome is None and lane.job != job]
        states = {name: jobs.get(tx, name).state for name in names}
    others = [name for name, state in states.items() if isinstance(state, Active) and state.wish is None]
    if not isinstance(run.state, Running | Stopping) or run.pool not in cli.app.pools:
        return
    newest = None
    with suppress(PlatformError):
        platform = cli.app.platform(run.pool)
        if platform.capabilities.sees_stop_flag:
            return
        newest = platform.find([key], cli.now).get(key)
    if newest is None or newest.stop_channel is StopChannel.STORE or newest.state is SessionState.ENDED:
        return
    if others and isinstance(run.state, Running):
        cli.out.warn(
            f"{job} shares {key} with {', '.join(others)}, and that session can only leave as a whole: {job} goes on "
            f"to its end at {cli.out.instant(run.deadline)}, unless the other is asked to leave too"
        )
        return
    if newest.stop_channel is not StopChannel.NONE:
        return
    began = None if newest.state is SessionState.QUEUED else newest.started or run.state.started
    lost, waiting = costs_of_stop(run, began, cli.now)
    if lost < waiting:
        cli.out.warn(f"{key} cannot be asked to save: it is ended, and the {hours(lost)} it trained are lost")
    else:
        cli.out.warn(f"{key} cannot be asked to save: it goes on to its own end at {cli.out.instant(run.deadline)}")
