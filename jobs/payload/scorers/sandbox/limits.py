"""What code in the sandbox may use, and how what ran in it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

How = Literal["exited", "killed", "timeout", "output", "memory"]
FILES_MAX = 200
FILE_BYTES_MAX = 16 << 20  # of all files that are given to one program


class SandboxMissing(RuntimeError):
    """There is no sandbox here, and nothing is run without one: why, and what would help."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")
        self.why = why
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Wall seconds of a run; per process: CPU seconds, address space and file size; processes; each tmpfs; output kept.

    ``total_bytes`` bounds the memory of all processes of a run together: by a control group, files in memory included,
    or where none can be had by counting it ten times a second, and then ``files`` bounds how many each tmpfs has.
    """

    wall_seconds: float = 10.0
    cpu_seconds: int = 5
    process_bytes: int = 512 << 20
    total_bytes: int = 1 << 30
    processes: int = 64
    file_bytes: int = 64 << 20
    files: int = 50_000
    open_files: int = 128
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        """Refuse a run that nothing would end."""
        if not 0 < self.wall_seconds <= 3_600:
            raise ValueError(f"a run of {self.wall_seconds} s: the wall limit is above 0 and at most an hour")


@dataclass(frozen=True, slots=True)
class SandboxEnded:
    """How a program ended: by itself with ``status``, by a signal or the wall limit, as it wrote or took too much."""

    how: How
    status: int
    output: bytes

    @property
    def clean(self) -> bool:
        """Return whether it ended by itself with status 0; which says nothing of what it was asked to prove."""
        return self.how == "exited" and self.status == 0
