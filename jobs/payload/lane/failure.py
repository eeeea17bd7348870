"""Why a command failed, in the classes the daemon decides by."""

from __future__ import annotations

import signal
from typing import Literal, NamedTuple

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

_OOM = (
    "out of memory",
    "outofmemoryerror",
    "memoryerror",
    "cannot allocate memory",
    "cublas_status_alloc_failed",
)
_FULL = ("no space left on device", "disk quota exceeded")
_DEVICE = (
    "no kernel image is available",
    "no cuda-capable device",
    "no cuda gpus are available",
    "cuda driver version is insufficient",
    "uncorrectable ecc error",
    "cuda error: unspecified launch failure",
    "nvml: driver/library version mismatch",
    "this device cannot be used",  # finetune.py
)
_DIVERGED = "finetune: the loss diverged"
_NETWORK = (
    "temporary failure in name resolution",
    "name or service not known",
    "network is unreachable",
    "no route to host",
    "we couldn't connect to 'http",  # of the Hub's libraries
)


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
    """Judge a command that ended on its own, by its exit status and the end of its standard error."""
    killed_by = -exit_code if exit_code < 0 else exit_code - _SHELL_SIGNAL_BASE
    said = errors.lower()
    if any(words in said for words in _OOM):
        return Verdict("oom", f"the command ran out of memory (exit status {exit_code})")
    if killed_by == signal.SIGKILL:
        return Verdict("killed", "the command was killed by SIGKILL, not by us: most often for lack of memory")
    if exit_code == EXIT_DATA:
        return Verdict("data", "the command could not read its data")
    if any(words in said for words in _FULL):
        return Verdict("store", f"the session's disk is full (exit status {exit_code})")
    if any(words in said for words in _DEVICE):
        return Verdict("device", f"the command could not use its device (exit status {exit_code})")
    if _DIVERGED in said:
        return Verdict("diverged", "the command says that its loss diverged")
    if any(words in said for words in _NETWORK):
        return Verdict("network", f"the command found no network (exit status {exit_code})")
    if exit_code < 0:
        return Verdict("code", f"the command died of {_name(killed_by)}")
    return Verdict("code", f"the command failed with exit status {exit_code}")


def _name(number: int) -> str:
    """Return what people call a signal; those for real time have a place instead of a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        real = signal.SIGRTMIN <= number <= signal.SIGRTMAX
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if real else f"signal {number}"
