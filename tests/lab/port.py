"""A client of ``schedctl port``: starts it, writes frames, reads answers and what comes unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from tests.lab.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@dataclass
class PortClient:
    """One conversation. ``unasked`` are the frames that came while an answer was waited for."""

    process: subprocess.Popen[bytes]
    hello: dict[str, Any] = field(default_factory=dict)
    unasked: list[dict[str, Any]] = field(default_factory=list)
    _tags: count[int] = field(default_factory=lambda: count(1))

    def write(self, body: bytes) -> None:
        """Write one frame."""
        self.write_raw(len(body).to_bytes(4) + body)

    def write_raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        if self.process.stdin is None:
            raise AssertionError("no pipe")
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """Return the next frame. Raises EOFError."""
        if self.process.stdout is None:
            raise AssertionError("no pipe")
        head = self.process.stdout.read(4)
        if len(head) < 4:
            raise EOFError
        body = self.process.stdout.read(int.from_bytes(head))
        found: dict[str, Any] = json.loads(body)
        return found

    def send(self, verb: str, **args: Any) -> int:
        """Ask without waiting for the answer; return the tag."""
        tag = next(self._tags)
        self.write(json.dumps({"tag": tag, "verb": verb, "args": args}).encode())
        return tag

    def answer(self, tag: int) -> dict[str, Any]:
        """Return the frame that answers ``tag``."""
        while (found := self.read()).get("tag") != tag:
            self.unasked.append(found)
        return found

    def ask(self, verb: str, **args: Any) -> Any:
        """Return what a verb answers. Raises AssertionError for an error."""
        found = self.answer(self.send(verb, **args))
        if "ok" not in found:
            raise AssertionError(found["error"])
        return found["ok"]

    def refused(self, verb: str, **args: Any) -> dict[str, Any]:
        """Return the error that a verb answers with."""
        found = self.answer(self.send(verb, **args))
        told: dict[str, Any] = found["error"]
        return told

    def events(self, subscription: int, enough: int) -> list[dict[str, Any]]:
        """Return at least ``enough`` events of a subscription, and all others that came with them."""
        found: list[dict[str, Any]] = []
        frames, self.unasked = self.unasked, []
        while True:
            for frame in frames:
                if frame.get("subscription") == subscription:
                    found += frame["events"]
                else:
                    self.unasked.append(frame)
            if len(found) >= enough:
                return found
            frames = [self.read()]

    def end(self) -> int:
        """Close the input and return the exit code."""
        if self.process.stdin is None:
            raise AssertionError("no pipe")
        self.process.stdin.close()
        return self.process.wait(PATIENCE_SECONDS)


def command(config: Path, *words: str) -> list[str]:
    """Return the command line of a port, or of another command, on a settings file."""
    return [sys.executable, "-m", "scheduler", "--config", str(config), *(words or ("port",))]


@contextmanager
def talking(config: Path, words: Sequence[str] = (), **environ: str) -> Iterator[PortClient]:
    """Talk to a port until the end of the block; it never outlives it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDCTL_")}
    with (
        config.with_name("port.log").open("ab") as said,
        subprocess.Popen(
            command(config, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**inherited, **environ},
        ) as process,
    ):
        try:
            client = PortClient(process)
            client.hello = client.read()["hello"]
            yield client
        finally:
            process.kill()
