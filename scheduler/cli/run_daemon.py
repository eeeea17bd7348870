"""`schedctl daemon`. It imports few modules: the faster the daemon starts, the sooner it adopts running sessions."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scheduler.cli.shell.context import Cli


def run_daemon(cli: Cli) -> None:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C. Without a terminal it can reload its settings."""
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
    """Make imports in the block faster: switch garbage collection off, and prevent the import of rich.

    Imports leave no garbage, but the collector would take a tenth of the start. Another tenth would be rich, which
    structlog imports to draw tracebacks; our tracebacks are plain text.
    """
    gc.disable()
    without_rich = "rich" not in sys.modules
    if without_rich:
        sys.modules["rich"] = None  # type: ignore[assignment] # makes an import of rich fail
    try:
        yield
    finally:
        if without_rich:
            del sys.modules["rich"]
        gc.enable()
