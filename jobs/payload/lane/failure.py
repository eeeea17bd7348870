"""Why a command failed, in the classes the daemon decides by."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Literal, NamedTuple

from .failure_patterns import HARDWARE, PATTERNS, WRAPPERS, Pattern

ErrorClass = Literal[
    "oom",
    "data",
    "code",
    "environment",
    "store",
    "device",
    "wrong_device",
    "network",
    "killed",
    "stalled",
    "no_checkpoint",
    "diverged",
    "parent",
    "secret",
]

# A command says "my data is unreadable" by this exit status (EX_DATAERR of sysexits.h).
EXIT_DATA = 65
_SHELL_SIGNAL_BASE = 128

_DIVERGED = "finetune: the loss diverged"
_STALLED = "finetune: the training stalled"
# Native code dies of these for a bad device, a full shared memory, or a processor that lacks an instruction.
_OF_THE_PLACE = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL})
_MEMORY = tuple(one for one in PATTERNS if one.error_class == "oom")
_LAST_LINES = 40  # of a command that prints no traceback
_PREFIX = re.compile(r"^(\[rank\d+\]: ?|\(\w+ pid=\d+[^)]*\) ?|\[\d+\] ?|\d+: )")
_EXCEPTION = re.compile(
    r"([a-z_]\w*\.)*[A-Z]\w*(Error|Exception|Timeout|Interrupt|Exit|Read|Disconnected|Full|Expired)\b"
)
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_SENTENCES: dict[ErrorClass, str] = {
    "oom": "the command ran out of memory",
    "store": "the session's disk or shared memory is full, or cannot be read",
    "device": "the place could not run the command: its device, driver or libraries failed",
    "network": "the command found no network, or a service that it needs gave no answer",
}


class Failure(Exception):
    """A lane cannot go on; ``why`` is one line for people, ``error_class`` decides about the next attempt."""

    def __init__(self, error_class: ErrorClass, why: str) -> None:
        super().__init__(why)
        self.error_class: ErrorClass = error_class
        self.why = why


class Verdict(NamedTuple):
    """A class and the sentence that goes with it."""

    error_class: ErrorClass
    why: str


def classify(exit_code: int, errors: str) -> Verdict:
    """Judge a command that ended on its own, by its exit status and the end of its standard error.

    Proof of the kernel or driver counts first, then the exceptions that ended the command, then its last lines, then
    the signal. What both a place and a job can cause blames the place.
    """
    killed_by = -exit_code if exit_code < 0 else exit_code - _SHELL_SIGNAL_BASE
    if exit_code == EXIT_DATA:
        return Verdict("data", "the command could not read its data")
    lines = [_PREFIX.sub("", line) for line in errors.splitlines()]
    proof = _match(lines, HARDWARE)
    if proof is None and killed_by == signal.SIGKILL and _match(lines, _MEMORY) is None:
        return Verdict("killed", "the command was killed by SIGKILL, not by us: most often for lack of memory")
    if proof is None and _DIVERGED in errors.lower():
        return Verdict("diverged", "the command says that its loss diverged")
    if proof is None and _STALLED in errors.lower():
        return Verdict("stalled", "the command says that it trains on nothing")
    error_class = proof.error_class if proof else _by_exceptions(lines)
    if error_class is None and killed_by in _OF_THE_PLACE:
        error_class = "device"
    if error_class in _SENTENCES:
        how = f"died of {_name(killed_by)}" if exit_code < 0 else f"exit status {exit_code}"
        return Verdict(error_class, f"{_SENTENCES[error_class]} ({how})")
    if exit_code < 0:
        return Verdict("code", f"the command died of {_name(killed_by)}")
    return Verdict("code", f"the command failed with exit status {exit_code}")


def _by_exceptions(lines: Sequence[str]) -> ErrorClass | None:
    """Return the class of the newest traceback that has a cause of its own, else of an echo, else of the last lines."""
    echo: ErrorClass | None = None
    ended = False
    for group in reversed(_groups(lines)):
        causes = [line for line in group if not WRAPPERS.search(line)]
        if not causes:
            continue
        ended = True
        match = _match(causes, PATTERNS)
        if match is None or match.error_class == "code":
            return "code"
        if not match.follows:
            return match.error_class
        echo = match.error_class
    if ended:
        return echo
    match = _match(lines[-_LAST_LINES:], PATTERNS)
    return match.error_class if match else None


def _groups(lines: Sequence[str]) -> list[list[str]]:
    """Return the exceptions of each traceback, those that caused it included, oldest traceback first.

    A line that reads like an exception counts too where no traceback is around it: rich prints those.
    """
    groups: list[list[str]] = []
    chained = inside = False
    for line in lines:
        if line.startswith(_TRACEBACK):
            if not chained or not groups:
                groups.append([])
            chained, inside = False, True
        elif line.startswith(_CHAINED):
            chained = True
        elif line.strip() and inside and not line[0].isspace():
            groups[-1].append(line)
            inside = False
        elif not inside and (_EXCEPTION.match(line) or "what():" in line):
            groups.append([line])
    return [group for group in groups if group]


def _match(lines: Sequence[str], patterns: Sequence[Pattern]) -> Pattern | None:
    """Return the first pattern that any of the lines shows."""
    return next((one for one in patterns if any(one.words.search(line) for line in lines)), None)


def _name(number: int) -> str:
    """Return what people call a signal; those for real time have a place instead of a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        real = signal.SIGRTMIN <= number <= signal.SIGRTMAX
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if real else f"signal {number}"
