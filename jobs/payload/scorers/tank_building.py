"""Tank Building: a stage's checklist, where a component comes with its tests. Run in the sandbox.

The score is the share of the list that holds: the component is there and parses; it brings tests; these are green; they
are red when the component is emptied (else they test nothing); and the tests of earlier stages are still green.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .given import NotGiven, ScorerInput
from .items import Item, ScoreLine
from .sandbox.hidden_tests import count_tests, run_stage_tests
from .sandbox.sandbox import Sandbox

METRIC = "tank_building"
GREEN = "integration_tests"  # 1 when every test that there is passes
FILES_MAX = 50


def score(items: Sequence[Item], candidate: ScorerInput, metric: str) -> Iterator[ScoreLine]:
    """Score each item's first output: ``files`` (sources by path), or the same as JSON in its text.

    An item may give ``earlier``: test files of earlier stages, by path.
    """
    sandbox = candidate.needs_sandbox()
    domain = metric[len(METRIC) :]
    for item in items:
        earlier = item.task.get("earlier", {})
        if not isinstance(earlier, dict) or not all(count_tests(str(text)) for text in earlier.values()):
            raise NotGiven(f"item {item.id}: earlier must be a table of test files, each with a test in it")
        files = _files(candidate, item.id)
        done, faults, green = _checked(sandbox, files, {str(path): str(text) for path, text in earlier.items()})
        listing = "; ".join(faults)
        yield ScoreLine(item.id, item.cluster, metric, done, listing)
        yield ScoreLine(item.id, item.cluster, GREEN + domain, float(green), listing)


def _checked(sandbox: Sandbox, files: Mapping[str, str], earlier: Mapping[str, str]) -> tuple[float, list[str], bool]:
    """Return the share of the list that holds, what does not, and whether all tests are green."""
    tests = {path: text for path, text in files.items() if _is_test(path)}
    code = {path: text for path, text in files.items() if path.endswith(".py") and not _is_test(path)}
    faults = []
    emptied = {path: _emptied(text) for path, text in code.items()}
    if not code or any(text is None for text in emptied.values()):
        faults.append("there is no component" if not code else "the component does not parse")
    if not any(count_tests(text) for text in tests.values()):
        faults.append("it brings no test")
    whys = [_why(sandbox, files, path) for path in tests]
    green = bool(tests) and not any(whys)
    if not green:
        faults.append(f"its tests are not green: {next(filter(None, whys), 'there are none')}")
    hollow = {**files, **{path: text or "" for path, text in emptied.items()}}
    if not green or any(not _why(sandbox, hollow, path) for path in tests):  # what is red anyway shows nothing
        faults.append("its tests do not notice that the component is empty")
    # Earlier tests replace whatever the model may have put in their place.
    lost = [path for path in earlier if _why(sandbox, {**files, **earlier}, path)]
    if lost:
        faults.append(f"tests of an earlier stage fail: {', '.join(lost)[:100]}")
    parts_expected = 5 if earlier else 4
    return (parts_expected - len(faults)) / parts_expected, faults, green and not lost


def _why(sandbox: Sandbox, files: Mapping[str, str], path: str) -> str:
    """Return what is wrong with the tests of a file, nothing when they are green."""
    try:
        exam = run_stage_tests(sandbox, files, path)
    except ValueError as error:  # paths or sizes that no sandbox is given
        return str(error)
    return "" if exam.green else exam.why or "not all of its tests ran"


def _files(candidate: ScorerInput, item: str) -> dict[str, str]:
    """Return the files that a model wrote for an item; none when it is no table of texts."""
    files: Any = next((record.get("files") for record in candidate.outputs.get(item, ()) if "files" in record), None)
    if files is None:
        try:
            files = json.loads(candidate.texts(item)[0])
        except (ValueError, RecursionError):
            return {}
        files = files.get("files", files) if isinstance(files, dict) else None
    if (
        not isinstance(files, dict)
        or len(files) > FILES_MAX
        or not all(isinstance(text, str) for text in files.values())
    ):
        return {}
    return dict(files)


def _is_test(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def _emptied(code: str) -> str | None:
    """Return a component whose functions do nothing; None when it does not parse."""
    try:
        tree = ast.parse(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = [ast.Pass()]
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
