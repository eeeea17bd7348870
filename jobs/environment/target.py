"""Targets: the Python and the platform that a session has and that packages are picked for."""

from __future__ import annotations

import platform
import re
import sys
from functools import cache
from typing import NamedTuple

from jobs.payload.store.lock import BadLock, target_name

_PYTHON = re.compile(r"3\.\d{1,2}", re.ASCII)
_PLATFORM = re.compile(r"(x86_64|aarch64)-manylinux_2_(\d{1,2})", re.ASCII)
# The C libraries that uv knows wheels for; between two of them the older one is meant.
_MINORS = (17, 28, *range(31, 41))
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST = {"x86_64": 5, "aarch64": 17}


class Target(NamedTuple):
    """A Python such as 3.12 and a platform such as x86_64-manylinux_2_28."""

    python: str
    platform: str

    @property
    def name(self) -> str:
        """What it is called in locks."""
        return target_name(self.python, self.platform)

    @property
    def machine(self) -> str:
        """The processor: x86_64 or aarch64."""
        return self.platform.partition("-")[0]

    def __str__(self) -> str:
        return f"Python {self.python} on {self.platform}"

    def tags(self) -> list[str]:
        """Return the names, newest first, under which wheels for this platform may be filed."""
        newest = int(self.platform.rpartition("_")[2])
        found = []
        for minor in range(newest, _OLDEST[self.machine] - 1, -1):
            found.append(f"manylinux_2_{minor}_{self.machine}")
            if minor in _LEGACY:
                found.append(f"{_LEGACY[minor]}_{self.machine}")
        return [*found, f"linux_{self.machine}"]


@cache
def here() -> Target:
    """Return the target of the interpreter that runs this."""
    machine = platform.machine()
    library, version = platform.libc_ver()
    own = int(version.split(".")[1]) if library == "glibc" and re.match(r"2\.\d+", version) else _MINORS[0]
    minor = max([known for known in _MINORS if known <= own], default=_MINORS[0])
    return Target(f"{sys.version_info[0]}.{sys.version_info[1]}", f"{machine}-manylinux_2_{minor}")


def parse_target(python: str, where: str) -> Target:
    """Read a target from what people write. Raises BadLock."""
    if not _PYTHON.fullmatch(python):
        raise BadLock(f"{python!r} is no Python version; write it like 3.12")
    match = _PLATFORM.fullmatch(where)
    if match is None or int(match[2]) not in _MINORS:
        raise BadLock(f"{where!r} is no platform; write it like x86_64-manylinux_2_28")
    return Target(python, where)
