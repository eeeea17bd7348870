"""The program a platform starts: ``python agent.py launch.json`` (or ``python -m jobs.payload.agent launch.json``).

It leaves a result for every lane and exits 0; it exits 2 when launch.json is unreadable, and 1 when a result could be
left nowhere. Python 3.11 and its standard library are all it needs.
"""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from pathlib import Path

_NAME_WHEN_SHIPPED = "payload"


def main() -> int:
    """Run the session that the command line names."""
    # First of all: a SIGTERM that comes while we start waits for its handler instead of killing us without a result.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    supervise = importlib.import_module(f"{_package()}.supervise")
    return int(supervise.main(sys.argv[1:]))


def _package() -> str:
    """Return the name of our package; run as a plain script we have none, so the folder is made one."""
    if __package__:
        return __package__
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        _NAME_WHEN_SHIPPED, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is not the payload's folder")
    sys.modules[_NAME_WHEN_SHIPPED] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _NAME_WHEN_SHIPPED


if __name__ == "__main__":
    sys.exit(main())
