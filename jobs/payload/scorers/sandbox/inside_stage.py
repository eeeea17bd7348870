"""Runs inside: a component with its own tests, which must share one process, since they know each other's insides.

A test counts as passed when the call of it came back; the count is written, with the token of this run, to a descriptor
that is read before any of that code is loaded. Standard library only; run as a script.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_HERE = Path("/in")
_FAILED_MAX = 5


def main() -> None:
    """Load the test file that is named, run its tests, and write what they found."""
    told = int(sys.argv[1])
    token = os.read(int(sys.argv[2]), 64).decode()
    os.close(int(sys.argv[2]))
    name = sys.argv[3]
    del sys.argv[1:]
    sys.path[:0] = [str(_HERE / "code"), str((_HERE / "code" / name).parent)]
    passed, failed = _run(_HERE / "code" / name)
    os.write(told, json.dumps({"token": token, "passed": passed, "failed": failed[:_FAILED_MAX]}).encode())
    os._exit(0)


def _run(path: Path) -> tuple[int, list[str]]:
    tests: list[tuple[str, Callable[[], object]]] = []
    try:
        spec = importlib.util.spec_from_file_location("stage_tests", path)
        if spec is None or spec.loader is None:
            return 0, [f"{path.name} cannot be loaded"]
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it is a failure like any other
        return 0, [f"{path.name}: {type(error).__name__}: {error}"[:300]]
    for name, value in list(vars(module).items()):
        if name.startswith("test_") and inspect.isfunction(value):
            tests.append((name, value))
        elif isinstance(value, type) and issubclass(value, unittest.TestCase):
            tests += [
                (f"{name}.{method}", _method(value, method)) for method in dir(value) if method.startswith("test")
            ]
    passed, failed = 0, []
    for name, test in tests:
        try:
            test()
            passed += 1
        except BaseException as error:  # noqa: BLE001 - as above
            failed.append(f"{name}: {type(error).__name__}: {error}"[:300])
    return passed, failed


def _method(kind: Any, name: str) -> Callable[[], None]:
    def run() -> None:
        result = kind(name).run()
        if not result.wasSuccessful() or result.skipped:
            told = [why for _, why in result.failures + result.errors]
            raise AssertionError(told[0][-200:] if told else "skipped")

    return run


if __name__ == "__main__":
    main()
