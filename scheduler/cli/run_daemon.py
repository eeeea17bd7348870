"""Run the daemon, as `schedctl daemon` does. Sessions wait to be adopted meanwhile: as little as possible is loaded."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scheduler.cli.shell.context import Cli


def run_daemon(cli: Cli) -> None:
    """Run it in the foreground until it is asked to stop."""
    with _loading():
        import structlog

        from config.logging import configure
        from scheduler.app import load_app, require_one_account
        from scheduler.daemon import Daemon

        settings = cli.app.settings
    require_one_account(settings)
    configure(settings.logging, cli.app.redact)
    load = None if sys.stdin.isatty() else partial(load_app, cli.options.config)
    Daemon(cli.app, structlog.get_logger("scheduler"), load).run()


@contextmanager
def _loading() -> Iterator[None]:
    """Load modules without what a daemon does not need for it.

    Imports leave no garbage, and a collector that looks for it takes a tenth of a start. Another tenth is rich, which
    structlog would load to draw tracebacks that we have written plainly.
    """
    gc.disable()
    without_rich = "rich" not in sys.modules
    if without_rich:
        sys.modules["rich"] = None  # type: ignore[assignment] # makes an import of it fail
    try:
        yield
    finally:
        if without_rich:
            del sys.modules["rich"]
        gc.enable()
