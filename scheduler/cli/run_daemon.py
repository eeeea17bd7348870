"""`schedctl daemon`. Few modules are loaded: a fast start lets the daemon adopt running sessions soon."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scheduler.cli.shell.context import Cli


def run_daemon(cli: Cli) -> None:
    """Run the daemon in the foreground until it is asked to stop."""
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
    """Speed up imports in the block: no garbage collection, and no import of rich.

    Imports leave no garbage, yet the collector takes a tenth of the start. Another tenth is rich, which structlog would
    import to draw tracebacks; ours are plain text.
    """
    gc.disable()
    without_rich = "rich" not in sys.modules
    if without_rich:
        sys.modules["rich"] = None  # type: ignore[assignment] # lets an import of rich fail
    try:
        yield
    finally:
        if without_rich:
            del sys.modules["rich"]
        gc.enable()
