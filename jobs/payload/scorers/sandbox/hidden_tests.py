"""Hidden tests of code that a model wrote: tests and code run in two sandboxes, and exchange plain values only.

The code may print, end its process or patch modules, but the results come from the other sandbox: the code passes only
if it returns the values that the tests expect.
"""

import ast
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..atomicity import Unparsed, parse_python
from .sandbox import Program, Sandbox

_HERE = Path(__file__).parent
SOURCE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Exam:
    """How many of the ``expected`` tests passed, and ``why`` the first failure happened."""

    passed: int
    expected: int
    why: str = ""

    @property
    def green(self) -> bool:
        """Whether all tests existed, ran and passed."""
        return 0 < self.expected == self.passed


def run_hidden_tests(sandbox: Sandbox, code: str, tests: str, entry: str = "") -> Exam:
    """Run ``tests`` on ``code``; ``entry`` is the function that the tests call by its own name.

    Tests are functions ``test_*``, methods of test cases, or one ``check(candidate)``. Raises ValueError if there are
    none, which is an error of the test set.
    """
    expected = count_tests(tests)
    if not expected:
        raise ValueError("the hidden tests have no test_* function, no test case and no check(candidate)")
    code_bytes = code.encode(errors="replace")
    if len(code_bytes) > SOURCE_BYTES_MAX:
        return Exam(0, expected, f"the code has more than {SOURCE_BYTES_MAX:,} bytes")
    token = secrets.token_hex(16)
    requests_read, requests_write = os.pipe()
    answers_read, answers_write = os.pipe()
    words = [sandbox.python, "-I", "-S"]
    candidate = Program(
        [*words, "/in/run.py", str(requests_read), str(answers_write)],
        {"run.py": inside("inside_candidate"), "candidate.py": code_bytes},
        (requests_read, answers_write),
    )
    tester = Program(
        [*words, "/in/run.py", "hidden", str(requests_write), str(answers_read), token, entry],
        {"run.py": inside("inside_tests"), "tests.py": tests.encode()},
        (requests_write, answers_read),
    )
    ended, of_candidate = sandbox.run(tester, candidate)
    if of_candidate.how == "output":
        return Exam(0, expected, "the code printed too much")
    if ended.how != "exited":
        return Exam(0, expected, f"no result: {ended.how}")
    return read_result(ended.output, token, expected)


def count_tests(tests: str) -> int:
    """Return how many tests a source has, without running it; 0 if it does not parse."""
    try:
        tree = parse_python(tests)
    except Unparsed:
        return 0
    count = 0
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count += node.name.startswith("test_") or node.name == "check"
        elif isinstance(node, ast.ClassDef) and any("TestCase" in ast.unparse(base) for base in node.bases):
            count += sum(isinstance(item, ast.FunctionDef) and item.name.startswith("test") for item in node.body)
    return count


def read_result(output: bytes, token: str, expected: int) -> Exam:
    """Return the result in the last line of an output; without the token of this run, no test counts as passed."""
    lines = output.decode(errors="replace").splitlines()
    try:
        result = json.loads(lines[-1])
        if result["token"] != token:
            raise ValueError("another run's token")
        passed, failed = int(result["passed"]), [str(why) for why in result["failed"]]
    except (ValueError, LookupError, TypeError):
        return Exam(0, expected, "the tests gave no result")
    if passed != expected and not failed:
        return Exam(passed, expected, f"{passed} of {expected} tests ran")
    return Exam(min(passed, expected), expected, failed[0] if failed else "")


def inside(name: str) -> bytes:
    """Return the source of a program that runs in the sandbox."""
    return (_HERE / f"{name}.py").read_bytes()


# Tests that come with a component run in the same sandbox as the component, which could deceive them. It cannot end
# early, print a success, or delete or skip tests: the tests are counted in their source before, and each passes only
# when its call has returned. To rule out deceit, use hidden tests.
_RESULT_BYTES_MAX = 16_384


def run_stage_tests(sandbox: Sandbox, files: Mapping[str, str], test_file: str) -> Exam:
    """Run the tests of one of ``files`` (sources by path), with all files in the same folder."""
    expected = count_tests(files[test_file])
    if not expected:
        return Exam(0, 0, f"{test_file} has no test")
    token = secrets.token_hex(16)
    answer_read, answer_write = os.pipe()
    token_read, token_write = os.pipe()
    os.write(token_write, token.encode())
    os.close(token_write)
    os.set_blocking(answer_read, False)
    files_in = {f"code/{path}": text.encode(errors="replace") for path, text in files.items()}
    words = [sandbox.python, "-I", "-S", "/in/run.py", "stage", str(answer_write), str(token_read), test_file]
    try:
        program = Program(words, {"run.py": inside("inside_tests"), **files_in}, (answer_write, token_read))
        (ended,) = sandbox.run(program)
        try:
            answer = os.read(answer_read, _RESULT_BYTES_MAX)
        except BlockingIOError:
            answer = b""
    finally:
        os.close(answer_read)
    if ended.how != "exited":
        return Exam(0, expected, f"no result: {ended.how}")
    return read_result(answer, token, expected)
