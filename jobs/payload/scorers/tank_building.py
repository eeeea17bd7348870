"""Tank Building: the checklist of a stage, in which the model writes a component with its tests, run in the sandbox.

The score is the share of these points that are true: the component parses; it has tests; they pass; they fail if the
bodies of its functions are removed (otherwise they test nothing); the tests of earlier stages still pass.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .given import NotGiven, ScorerInput
from .items import Item, ScoreLine
from .sandbox.hidden_tests import count_tests, run_stage_tests
from .sandbox.sandbox import Sandbox

METRIC = "tank_building"
GREEN = "integration_tests"  # a second metric: 1 if all tests pass, else 0
FILES_MAX = 50


def score(items: Sequence[Item], candidate: ScorerInput, metric: str) -> Iterator[ScoreLine]:
    """Score each item's first output, sources by path; ``earlier`` of an item has test files of earlier stages."""
    sandbox = candidate.needs_sandbox()
    domain = metric[len(METRIC) :]
    for item in items:
        earlier = item.task.get("earlier", {})
        if not isinstance(earlier, dict) or not all(count_tests(str(text)) for text in earlier.values()):
            raise NotGiven(f"item {item.id}: earlier must be a table of test files, each with a test in it")
        files = _files(candidate, item.id)
        share, faults, green = _check(sandbox, files, {str(path): str(text) for path, text in earlier.items()})
        listing = "; ".join(faults)
        yield ScoreLine(item.id, item.cluster, metric, share, listing)
        yield ScoreLine(item.id, item.cluster, GREEN + domain, float(green), listing)


def _check(sandbox: Sandbox, files: Mapping[str, str], earlier: Mapping[str, str]) -> tuple[float, list[str], bool]:
    """Return the share of the checklist that is true, the faults, and whether all tests pass."""
    tests = {path: text for path, text in files.items() if _is_test(path)}
    code = {path: text for path, text in files.items() if path.endswith(".py") and not _is_test(path)}
    faults = []
    emptied = {path: _without_bodies(text) for path, text in code.items()}
    if not code or any(text is None for text in emptied.values()):
        faults.append("there is no component" if not code else "the component does not parse")
    if not any(count_tests(text) for text in tests.values()):
        faults.append("it has no test")
    failures = [_failure(sandbox, files, path) for path in tests]
    green = bool(tests) and not any(failures)
    if not green:
        faults.append(f"its tests are not green: {next(filter(None, failures), 'there are none')}")
    stripped = {**files, **{path: text or "" for path, text in emptied.items()}}
    # Tests that fail in any case prove nothing.
    if not green or any(not _failure(sandbox, stripped, path) for path in tests):
        faults.append("its tests do not notice that the component is empty")
    # Earlier tests replace files of the model with the same name.
    broken = [path for path in earlier if _failure(sandbox, {**files, **earlier}, path)]
    if broken:
        faults.append(f"tests of an earlier stage fail: {', '.join(broken)[:100]}")
    parts_expected = 5 if earlier else 4
    return (parts_expected - len(faults)) / parts_expected, faults, green and not broken


def _failure(sandbox: Sandbox, files: Mapping[str, str], path: str) -> str:
    """Return why the tests of a file do not pass; "" if they do."""
    try:
        outcome = run_stage_tests(sandbox, files, path)
    except ValueError as error:  # paths or sizes that the sandbox refuses
        return str(error)
    return "" if outcome.green else outcome.why or "not all of its tests ran"


def _files(candidate: ScorerInput, item: str) -> dict[str, str]:
    """Return the files that a model wrote for an item; {} if they are not a table of texts."""
    files: Any = next((record.get("files") for record in candidate.outputs.get(item, ()) if "files" in record), None)
    if files is None:
        try:
            files = json.loads(candidate.texts(item)[0])
        except (ValueError, RecursionError):
            return {}
        files = files.get("files", files) if isinstance(files, dict) else None
    if isinstance(files, dict) and len(files) <= FILES_MAX and all(isinstance(text, str) for text in files.values()):
        return dict(files)
    return {}


def _is_test(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def _without_bodies(code: str) -> str | None:
    """Return a component whose functions have empty bodies; None if it does not parse."""
    try:
        tree = ast.parse(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = [ast.Pass()]
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
