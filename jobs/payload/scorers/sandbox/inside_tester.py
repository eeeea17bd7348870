"""Runs inside, in another sandbox than the candidate: hidden tests, which call the candidate's functions from afar.

What comes back is read as literals and compared here, where no code of the candidate's ever runs. The last line that is
printed has the token of this run and how many tests passed. Standard library only; run as a script.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCE = Path("/in/tests.py")
_LINE_MAX = 1 << 20
_FAILED_MAX = 5


class Remote:
    """The candidate as the tests see it: its functions by name, which take and return plain values."""

    def __init__(self, ask: Callable[[str, Any, Any], Any], name: str) -> None:
        self._ask, self._name = ask, name

    def __getattr__(self, name: str) -> Remote:
        return Remote(self._ask, f"{self._name}.{name}" if self._name else name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of this name."""
        return self._ask(self._name, args, kwargs)


def main() -> None:
    """Run the tests and print what they found."""
    requests, answers = (int(word) for word in sys.argv[1:3])
    token, entry = sys.argv[3], sys.argv[4]
    with os.fdopen(requests, "w", encoding="utf-8") as asking, os.fdopen(answers, encoding="utf-8") as told:

        def ask(name: str, args: Any, kwargs: Any) -> Any:
            asking.write(json.dumps({"call": name, "args": _literal(args), "kwargs": _literal(kwargs)}) + "\n")
            asking.flush()
            line = told.readline(_LINE_MAX)
            if not line.endswith("\n"):
                raise AssertionError("the code ended, or answered too much")
            answer = json.loads(line)
            if "error" in answer:
                raise _error(answer)
            return ast.literal_eval(answer["value"])

        passed, failed = _run(Remote(ask, ""), entry)
        print(json.dumps({"token": token, "passed": passed, "failed": failed[:_FAILED_MAX]}), flush=True)
        os._exit(0)  # the other side may be gone, which no longer matters


def _literal(value: Any) -> str:
    text = repr(value)
    ast.literal_eval(text)
    return text


def _error(answer: dict[str, Any]) -> Exception:
    kind = getattr(builtins, str(answer["error"]), None)
    text = str(answer.get("message", ""))[:500]
    return kind(text) if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError(text)


def _run(candidate: Remote, entry: str) -> tuple[int, list[str]]:
    """Return how many tests passed, and what the others said."""
    space: dict[str, Any] = {"__name__": "tests", "candidate": candidate}
    if entry:
        space[entry] = getattr(candidate, entry)
    exec(compile(_SOURCE.read_bytes(), str(_SOURCE), "exec"), space)  # noqa: S102 - what it is for
    tests: list[tuple[str, Callable[[], object]]] = []
    for name, value in list(space.items()):
        if name.startswith("test_") and callable(value):
            tests.append((name, value))
        elif name == "check":
            tests.append((name, lambda: space["check"](space[entry] if entry else candidate)))
        elif isinstance(value, type) and issubclass(value, unittest.TestCase):
            tests += [
                (f"{name}.{method}", _method(value, method)) for method in dir(value) if method.startswith("test")
            ]
    passed, failed = 0, []
    for name, test in tests:
        try:
            test()
            passed += 1
        except Exception as error:  # noqa: BLE001 - whatever a test raises is its result
            failed.append(f"{name}: {type(error).__name__}: {error}"[:300])
    return passed, failed


def _method(kind: type[unittest.TestCase], name: str) -> Callable[[], None]:
    def run() -> None:
        result = kind(name).run()
        if result is None or not result.wasSuccessful() or result.skipped:
            told = [why for _, why in (result.failures + result.errors if result else [])]
            raise AssertionError(told[0][-200:] if told else "skipped")

    return run


if __name__ == "__main__":
    main()
