"""What a stop may cost: told to whoever asks for one, when the session cannot be asked to save."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.cli.context import Cli


def warn_of_loss(cli: Cli, key: str) -> None:
    """Say what becomes of a run that was asked to stop, if it cannot be asked to save; nothing when that is unknown."""
    from platforms.base import PlatformError, SessionState, StopChannel
    from scheduler.core.run import Running, Stopping
    from scheduler.store import runs

    with cli.app.database.read() as tx:
        run = runs.get(tx, key)
    if not isinstance(run.state, Running | Stopping) or run.pool not in cli.app.pools:
        return
    seen = None
    with suppress(PlatformError):
        platform = cli.platform(run.pool)
        if platform.capabilities.heeds_stop_flag:
            return
        seen = platform.find([key], cli.now).get(key)
    if seen is None or seen.heeds is not StopChannel.NONE or seen.state is SessionState.ENDED:
        return
    # The same sum as in core/reconcile.py, which decides.
    trained = 0 if seen.state is SessionState.QUEUED else max(0, cli.now - (seen.started or run.state.started))
    left = max(0, run.deadline - cli.now)
    if trained < left:
        cli.out.warn(f"{key} cannot be asked to save: it is ended, and the {_hours(trained)} it trained are lost")
    else:
        cli.out.warn(f"{key} cannot be asked to save: it goes on to its own end at {cli.out.instant(run.deadline)}")


def _hours(seconds: int) -> str:
    return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"
