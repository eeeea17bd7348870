"""Wake-up: a named pipe in the state folder, through which commands make the daemon start a cycle at once."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PIPE = "wake"
_WAKE, _CLOSE = b"w", b"c"


def wake(state_dir: Path) -> bool:
    """Wake the daemon of ``state_dir``; return whether one listened. Never raises: the next cycle runs anyway."""
    try:
        # A non-blocking open for writing fails if there is no reader.
        descriptor = os.open(state_dir / _PIPE, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    with suppress(OSError):
        os.write(descriptor, _WAKE)
    os.close(descriptor)
    return True


class Waker:
    """The daemon's end of the pipe; calls ``on_wake`` in its own thread until it is closed."""

    def __init__(self, state_dir: Path, on_wake: Callable[[], object]) -> None:
        path = state_dir / _PIPE
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Open in both directions, so that reads wait for writers instead of ending when the last one closes the pipe.
        self._descriptor = os.open(path, os.O_RDWR)
        self._on_wake = on_wake
        self._thread = threading.Thread(target=self._serve, name="wake", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close the pipe."""
        os.write(self._descriptor, _CLOSE)
        self._thread.join()
        os.close(self._descriptor)

    def _serve(self) -> None:
        while _CLOSE not in (received := os.read(self._descriptor, 64)):
            if received:
                self._on_wake()
