"""Server: serves the site from one process until it is told to stop."""

from __future__ import annotations

import signal
import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import uvicorn

from scheduler.web.connection import Limits, bounded
from scheduler.web.site import site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scheduler.app import App
    from scheduler.service.outside.ports import Log
    from scheduler.web.actors import Actors
    from scheduler.web.bearer import Bearer

_GRACE_SECONDS = 3
_LIMITS = Limits()


class _Server(uvicorn.Server):
    """Ends on SIGTERM and Ctrl-C with exit code 0; uvicorn's own would raise the signal once more."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on the first signal, without waiting on the second."""
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def serve(
    app: App,
    bearer: Bearer | None,
    log: Log,
    ready: Callable[[str], None],
    limits: Limits = _LIMITS,
    actors: Actors | None = None,
) -> None:
    """Serve until stopped; ``ready`` is told the address once it listens. Raises OSError, StoreFailure."""
    settings = app.settings.web
    found = site(app, bearer, log, actors)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is named, because only then are answers sent without waiting for the reader's last receipt.
    with closing(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(128)
        port = listening.getsockname()[1]
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{shown}:{port}/"
        log.info("web.started", address=address, token=bearer is not None, actions=actors is not None)
        ready(address)
        config = uvicorn.Config(
            found,
            **bounded(limits),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ws="none",
        )
        _Server(config).run(sockets=[listening])
    log.info("web.stopped")
