"""A script inside the sandbox: run ``hidden`` tests of a candidate, or the tests of a ``stage`` with its component.

Hidden tests call the functions of the candidate, which is in another sandbox. Answers are parsed as literals and
compared here, where no code of the candidate runs. The last printed line has the run's token and the passed tests.

Tests of a stage share a process with the component. A test has passed when its call has returned. The script reads the
token before it loads that code, and writes it with the number to a descriptor. It needs the standard library only.
"""

import ast
import asyncio
import builtins
import importlib.util
import inspect
import json
import os
import sys
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_HERE = Path("/in")
_LINE_MAX = 1 << 20
_FAILED_MAX = 5


class Remote:
    """What tests see of the candidate: functions by name, which accept and return plain values."""

    def __init__(self, call: Callable[[str, Any, Any], Any], name: str) -> None:
        self._call, self._name = call, name

    def __getattr__(self, name: str) -> "Remote":
        return Remote(self._call, f"{self._name}.{name}" if self._name else name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of this name in the candidate, and return its value."""
        return self._call(self._name, args, kwargs)


def main() -> None:
    """Run the tests that the command line names, and report the result."""
    kind, *words = sys.argv[1:]
    del sys.argv[1:]
    if kind == "hidden":
        _hidden(int(words[0]), int(words[1]), words[2], words[3])
    else:
        _stage(int(words[0]), int(words[1]), words[2])


def _hidden(requests: int, answers: int, token: str, entry: str) -> None:
    with os.fdopen(requests, "w", encoding="utf-8") as calls, os.fdopen(answers, encoding="utf-8") as replies:

        def call(name: str, args: Any, kwargs: Any) -> Any:
            calls.write(json.dumps({"call": name, "args": _literal(args), "kwargs": _literal(kwargs)}) + "\n")
            calls.flush()
            line = replies.readline(_LINE_MAX)
            if not line.endswith("\n"):
                raise AssertionError("the code ended, or answered too much")
            answer = json.loads(line)
            if "error" in answer:
                raise _error(answer)
            return ast.literal_eval(answer["value"])

        candidate = Remote(call, "")
        space: dict[str, Any] = {"__name__": "tests", "candidate": candidate}
        if entry:
            space[entry] = getattr(candidate, entry)
        source = _HERE / "tests.py"
        exec(compile(source.read_bytes(), str(source), "exec"), space)  # noqa: S102 - the purpose of this script
        tests = _tests_in(space)
        if "check" in space:
            tests.append(("check", lambda: space["check"](space[entry] if entry else candidate)))
        print(_result(token, *_run(tests)), flush=True)
        os._exit(0)  # at once: whether the candidate has ended does not matter now


def _stage(answer_to: int, token_from: int, name: str) -> None:
    token = os.read(token_from, 64).decode()
    os.close(token_from)
    path = _HERE / "code" / name
    sys.path[:0] = [str(_HERE / "code"), str(path.parent)]
    try:
        spec = importlib.util.spec_from_file_location("stage_tests", path)
        if spec is None or spec.loader is None:
            raise ImportError("it cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        outcome = _run(_tests_in(vars(module)))
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it is a failure like any other
        outcome = 0, [f"{path.name}: {type(error).__name__}: {error}"[:300]]
    os.write(answer_to, _result(token, *outcome).encode())
    os._exit(0)


def _literal(value: Any) -> str:
    text = repr(value)
    ast.literal_eval(text)
    return text


def _error(answer: dict[str, Any]) -> Exception:
    kind = getattr(builtins, str(answer["error"]), None)
    text = str(answer.get("message", ""))[:500]
    return kind(text) if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError(text)


def _tests_in(space: Mapping[str, Any]) -> list[tuple[str, Callable[[], object]]]:
    """Return the tests of a module by its names: functions ``test_*``, and methods of test cases."""
    tests: list[tuple[str, Callable[[], object]]] = []
    for name, value in space.items():
        if name.startswith("test_") and inspect.isfunction(value):
            tests.append((name, value))
        elif isinstance(value, type) and issubclass(value, unittest.TestCase):
            tests += [(f"{name}.{case}", _method(value, case)) for case in dir(value) if case.startswith("test")]
    return tests


def _method(kind: type[unittest.TestCase], name: str) -> Callable[[], None]:
    def run() -> None:
        result = kind(name).run()
        if result is None or not result.wasSuccessful() or result.skipped:
            reasons = [why for _, why in (result.failures + result.errors if result else [])]
            raise AssertionError(reasons[0][-200:] if reasons else "skipped")

    return run


def _run(tests: list[tuple[str, Callable[[], object]]]) -> tuple[int, list[str]]:
    """Return how many tests passed, and the messages of the failed tests."""
    passed, failed = 0, []
    for name, test in tests:
        try:
            outcome = test()
            if inspect.iscoroutine(outcome):  # without being awaited, it would pass and never run
                asyncio.run(outcome)
            passed += 1
        except BaseException as error:  # noqa: BLE001 - whatever a test raises, SystemExit too, is its result
            failed.append(f"{name}: {type(error).__name__}: {error}"[:300])
    return passed, failed


def _result(token: str, passed: int, failed: list[str]) -> str:
    return json.dumps({"token": token, "passed": passed, "failed": failed[:_FAILED_MAX]})


if __name__ == "__main__":
    main()
