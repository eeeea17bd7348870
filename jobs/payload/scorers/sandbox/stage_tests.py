"""Tests that come with a component, in one sandbox: they import it, so that it could deceive them if it wanted to.

What it cannot do is to end early, print a success, delete tests or skip them: the tests are counted in their source
beforehand, and each counts when its call has come back. Where deceit must be ruled out, use hidden tests.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from .hidden_tests import Exam, count_tests, inside, read_result
from .sandbox import Program, Sandbox

_RESULT_BYTES_MAX = 16_384


def run_stage_tests(sandbox: Sandbox, files: Mapping[str, str], test_file: str) -> Exam:
    """Run the tests of one of ``files`` (sources by path) with all of them beside it."""
    expected = count_tests(files[test_file])
    if not expected:
        return Exam(0, 0, f"{test_file} has no test")
    token = secrets.token_hex(16)
    told_read, told_write = os.pipe()
    token_read, token_write = os.pipe()
    os.write(token_write, token.encode())
    os.close(token_write)
    os.set_blocking(told_read, False)
    given = {f"code/{path}": text.encode(errors="replace") for path, text in files.items()}
    words = [sandbox.python, "-I", "-S", "/in/run.py", "stage", str(told_write), str(token_read), test_file]
    try:
        program = Program(words, {"run.py": inside("inside_tests"), **given}, (told_write, token_read))
        (ended,) = sandbox.run(program)
        try:
            said = os.read(told_read, _RESULT_BYTES_MAX)
        except BlockingIOError:
            said = b""
    finally:
        os.close(told_read)
    if ended.how != "exited":
        return Exam(0, expected, f"no result: {ended.how}")
    return read_result(said, token, expected)
