"""Commands that reach a target: ended in time with all their children, and heard no longer than is useful."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from jobs.child_process import OF_A_PERSON, child_environment

HEARD_BYTES = 1 << 16  # of what a command says; whoever says more is cut off
_LAST_WORDS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended. ``code`` is None when it was ended because its time was over."""

    code: int | None
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The end of what it complained of, in one line of printable characters."""
        words = " ".join(self.err.split()) or " ".join(self.out.split())
        return "".join(character for character in words if character.isprintable())[-500:]


def run(
    words: Sequence[str],
    timeout_seconds: float,
    given: bytes = b"",
    first_word_seconds: float | None = None,
    heard_bytes: int = HEARD_BYTES,
) -> Ran:
    """Run a command with ``given`` as its input, and return how it ended. Raises OSError when it cannot be started.

    At most ``heard_bytes`` are heard of each of its two outputs.
    One that puts out nothing within ``first_word_seconds`` is ended; only from its first word on do the others count.
    """
    process = subprocess.Popen(  # its end is waited for below, in bounded time
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=child_environment(OF_A_PERSON),
    )
    heard: dict[str, bytes] = {"out": b"", "err": b""}
    spoke = threading.Event()  # or will not, since it closed its output

    def listen(name: str, stream: IO[bytes]) -> None:
        with stream:
            heard[name] = stream.read(1)
            if name == "out":
                spoke.set()
            heard[name] += stream.read(heard_bytes - len(heard[name]))

    def say(stream: IO[bytes]) -> None:
        with suppress(OSError), stream:  # a command may end without hearing all
            stream.write(given)

    threads = [
        threading.Thread(target=listen, args=("out", process.stdout), daemon=True),
        threading.Thread(target=listen, args=("err", process.stderr), daemon=True),
        threading.Thread(target=say, args=(process.stdin,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    code: int | None = None
    try:
        if first_word_seconds is None or spoke.wait(first_word_seconds):
            code = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        pass  # that it has no code tells it
    finally:
        # Children that outlive it would keep copying, or hold its pipes open.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for thread in threads:
        thread.join(_LAST_WORDS_SECONDS)
    return Ran(code, *(heard[name].decode("utf-8", "replace") for name in ("out", "err")))
