"""What a stop may cost: told to whoever asks for one, when the session cannot be asked to save."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.output import hours
from scheduler.core.run import Run

if TYPE_CHECKING:
    from sqlalchemy import Connection


def warn_of_loss(cli: Cli, key: str, job: str | None = None) -> None:
    """Say what becomes of a run that was asked to stop, if it cannot be asked to save; nothing when that is unknown.

    With ``job``, that one alone was asked to leave: where it shares its session with others that go on, only a session
    that sees the artifact store can let it go.
    """
    from platforms.base import PlatformError, SessionState, StopChannel
    from scheduler.core.reconcile import costs_of_stop
    from scheduler.core.run import Running, Stopping
    from scheduler.store import runs

    with cli.app.database.read() as tx:
        run = runs.get(tx, key)
        others = [] if job is None else _going_on(tx, run, job)
    if not isinstance(run.state, Running | Stopping) or run.pool not in cli.app.pools:
        return
    seen = None
    with suppress(PlatformError):
        platform = cli.platform(run.pool)
        if platform.capabilities.sees_stop_flag:
            return
        seen = platform.find([key], cli.now).get(key)
    if seen is None or seen.stop_channel is StopChannel.STORE or seen.state is SessionState.ENDED:
        return
    if others and isinstance(run.state, Running):
        cli.out.warn(
            f"{job} shares {key} with {', '.join(others)}, and that session can only leave as a whole: {job} goes on "
            f"to its end at {cli.out.instant(run.deadline)}, unless the other is asked to leave too"
        )
        return
    if seen.stop_channel is not StopChannel.NONE:
        return
    began = None if seen.state is SessionState.QUEUED else seen.started or run.state.started
    lost, waiting = costs_of_stop(run, began, cli.now)
    if lost < waiting:
        cli.out.warn(f"{key} cannot be asked to save: it is ended, and the {hours(lost)} it trained are lost")
    else:
        cli.out.warn(f"{key} cannot be asked to save: it goes on to its own end at {cli.out.instant(run.deadline)}")


def _going_on(tx: Connection, run: Run, job: str) -> list[str]:
    """Return the other jobs of a session that nobody has asked to leave."""
    from scheduler.core.job import Active
    from scheduler.store import jobs

    names = [lane.job for lane in run.lanes if lane.outcome is None and lane.job != job]
    states = {name: jobs.get(tx, name).state for name in names}
    return [name for name, state in states.items() if isinstance(state, Active) and state.wish is None]
