"""The program that a platform starts: ``python agent.py launch.json`` (``python -m jobs.payload.agent launch.json``).

It exits 0 after writing a result for every lane, 2 if launch.json is unreadable, and 1 if a result could not be written
anywhere. It needs Python 3.11 and the standard library only.
"""

import importlib
import importlib.util
import signal
import sys
from pathlib import Path

_NAME_WHEN_SHIPPED = "payload"


def main() -> int:
    """Run the session that the launch document describes; return the exit status. The command line has its path."""
    # First: a SIGTERM during the start is held back until its handler is set, instead of ending without a result.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    supervise = importlib.import_module(f"{_package()}.supervise")
    return int(supervise.main(sys.argv[1:]))


def _package() -> str:
    """Return the name of this package. When the file runs as a script, import its folder as a package first."""
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
