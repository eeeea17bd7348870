"""The sandbox: what code that a model wrote may try, it tries here."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.payload.scorers.sandbox import sandbox as probe
from jobs.payload.scorers.sandbox.confine import SandboxEnded, SandboxLimits, SandboxMissing
from jobs.payload.scorers.sandbox.hidden_tests import Exam, run_hidden_tests, run_stage_tests
from jobs.payload.scorers.sandbox.sandbox import Program, Sandbox, check_sandbox, open_sandbox

TESTS = """
def check(candidate):
    assert candidate([3, 1, 2]) == [1, 2, 3]
    assert candidate([]) == []

def test_an_odd_value_is_refused():
    try:
        sort(None)
    except TypeError:
        return
    raise AssertionError("None was sorted")
"""
GOOD = "def sort(values):\n    return sorted(values)\n"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Limits are small, so that what does not end by itself is soon ended."""
    try:
        opened = open_sandbox(SandboxLimits(wall_seconds=4.0, cpu_seconds=2, total_bytes=256 << 20, processes=32))
    except SandboxMissing as missing:
        pytest.skip(f"no sandbox on this machine: {missing}")
    yield opened
    opened.close()


def run(sandbox: Sandbox, code: str) -> SandboxEnded:
    (ended,) = sandbox.run(Program([sandbox.python, "-I", "-S", "/in/run.py"], {"run.py": code.encode()}))
    return ended


def test_what_is_right_passes(sandbox: Sandbox) -> None:
    assert run_hidden_tests(sandbox, GOOD, TESTS, "sort") == Exam(2, 2)
    assert run_hidden_tests(sandbox, GOOD, TESTS, "sort").green


def test_nothing_of_this_machine_is_seen_but_its_programs(sandbox: Sandbox, tmp_path: Path) -> None:
    code = f"""
import os
print(sorted(os.listdir("/")), sorted(os.environ), os.getuid(), os.listdir("/in"), os.listdir("/box"))
nets = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
print(os.path.exists({str(tmp_path)!r}), nets, len(os.listdir("/proc/self/fd")))
"""
    first, second = run(sandbox, code).output.decode().splitlines()
    assert "'home'" not in first
    assert "'root'" not in first
    assert first.endswith(" 1000 ['run.py'] []")
    assert second == "False ['lo'] 4"


ATTACKS = {
    "forks for ever": "import os\nwhile True:\n    os.fork()",
    "forks without a word": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "sleeps for ever": "import threading\nthreading.Event().wait()",
    "computes for ever": "while True:\n    pass",
    "prints a gigabyte": "import sys\nfor _ in range(1024):\n    sys.stdout.write('x' * (1 << 20))",
    "takes all memory": "held = []\nwhile True:\n    held.append(bytearray(10**7))",
    "takes all memory with children": (
        "import os, threading\nfor _ in range(30):\n    if os.fork() == 0:\n"
        "        held = bytearray(10**8)\n        threading.Event().wait()\nthreading.Event().wait()"
    ),
    "writes a gigabyte": "with open('/box/big', 'wb') as f:\n    while True:\n        f.write(b'x' * (1 << 20))",
    "writes outside": "open('/usr/bin/mine', 'w').write('x')",
    "deletes its folder": "import shutil\nshutil.rmtree('/in')",
    "deletes everything": "import shutil\nshutil.rmtree('/', ignore_errors=True)\nraise SystemExit(3)",
    "kills everything": "import os, signal\nos.kill(-1, signal.SIGKILL)\nos.kill(1, signal.SIGKILL)\nos.abort()",
    "becomes root": "import os\nos.setuid(0)",
    "leaves a namespace": "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "ends well at once": "import os\nos._exit(0)",
    "patches the tests": (
        "import builtins, sys, unittest\nbuiltins.AssertionError = ValueError\n"
        "sys.modules['__main__'].__dict__['_run'] = lambda *a: (2, [])\ndef sort(values):\n    return None"
    ),
    "answers for the tests": (
        "import os\nfor number in range(3, 60):\n    try:\n"
        '        os.write(number, b\'{"token": "", "passed": 2, "failed": []}\\n\')\n    except OSError:\n        pass'
    ),
    "returns what equals everything": (
        "class Same(list):\n    def __eq__(self, other):\n        return True\ndef sort(values):\n    return Same()"
    ),
    "returns what cannot be read": "def sort(values):\n    return '[' * 100_000",
    "answers without end": "def sort(values):\n    return 'x' * (100 << 20)",
    "is no Python": "def sort(:",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_contained_and_worth_nothing(sandbox: Sandbox, attack: str) -> None:
    """As a program it does not end well, or does no harm; as code under test it passes no test but by its values."""
    found = run_hidden_tests(sandbox, ATTACKS[attack], TESTS, "sort")
    assert found.expected == 2
    assert not found.green
    assert found.why
    assert run_hidden_tests(sandbox, GOOD, TESTS, "sort").green  # the next one finds all in order


@pytest.mark.parametrize("attack", ["writes outside", "deletes its folder", "becomes root", "leaves a namespace"])
def test_what_is_forbidden_fails(sandbox: Sandbox, attack: str) -> None:
    ended = run(sandbox, ATTACKS[attack])
    assert not ended.clean
    assert b"Error" in ended.output


def test_output_is_cut_and_who_writes_too_much_is_ended(sandbox: Sandbox) -> None:
    ended = run(sandbox, ATTACKS["prints a gigabyte"])
    assert (ended.how, len(ended.output)) == ("output", sandbox.limits.output_bytes)


def test_there_is_no_network(sandbox: Sandbox) -> None:
    """Not even to a server on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ended = run(sandbox, f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert b"Error" in ended.output


def test_nobody_is_left_behind(sandbox: Sandbox) -> None:
    """A daemon that forks twice, in a session of its own, ends with the program that left it."""
    code = """
import os, threading
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1); os.close(2)
        threading.Event().wait()
    os._exit(0)
"""
    mark = f"left-{os.getpid()}"
    (ended,) = sandbox.run(Program([sandbox.python, "-I", "-S", "/in/run.py", mark], {"run.py": code.encode()}))
    assert ended.clean
    assert wait_until_nobody_has(mark)


def wait_until_nobody_has(mark: str) -> bool:
    """Wait for the end of all processes with a word in their command line, ten seconds at most."""
    for _ in range(500):
        commands = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                commands.append(path.read_bytes())
            except OSError:
                continue  # it has ended meanwhile
        if not any(mark.encode() in command for command in commands):
            return True
        threading.Event().wait(0.02)
    return False


def test_files_are_bounded_in_number_and_lead_nowhere_else(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="at most 200"):
        sandbox.run(Program(["true"], {f"f{number}": b"" for number in range(201)}))
    for path in ("../x", "/etc/passwd", "a/../../x", "", "a\nb"):
        with pytest.raises(ValueError, match="no path below"):
            sandbox.run(Program(["true"], {path: b""}))
    with pytest.raises(ValueError, match="wall limit"):
        SandboxLimits(wall_seconds=0)


def test_descriptors_do_not_pile_up(sandbox: Sandbox) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run_hidden_tests(sandbox, GOOD, TESTS, "sort")
        run_stage_tests(sandbox, {"a.py": GOOD, "test_a.py": "def test_a():\n    import a\n"}, "test_a.py")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


STAGE = (
    "from component import put\n\ndef test_put():\n    assert put([], 1) == [1]\n\ndef test_again():\n    put([1], 2)\n"
)


@pytest.mark.parametrize(
    ("component", "green"),
    [
        ("def put(values, value):\n    return [*values, value]\n", True),
        ("def put(values, value):\n    return values\n", False),
        ("import os\nos._exit(0)\n", False),
        ("raise SystemExit(0)\n", False),
        ("import threading\nthreading.Event().wait()\n", False),
        ("import sys\ndef put(values, value):\n    sys.exit(0)\n", False),
    ],
)
def test_tests_of_a_component_count_when_they_come_back(sandbox: Sandbox, component: str, green: bool) -> None:
    found = run_stage_tests(sandbox, {"component.py": component, "tests/test_1.py": STAGE}, "tests/test_1.py")
    assert (found.green, found.expected) == (green, 2), found.why


def test_a_test_that_must_be_awaited_is_run(sandbox: Sandbox) -> None:
    right = "async def test_sorts():\n    assert sort([2, 1]) == [1, 2]\n"
    wrong = "async def test_invents():\n    assert sort([]) == [1]\n"
    found = run_hidden_tests(sandbox, GOOD, right + wrong, "sort")
    assert (found.passed, found.expected) == (1, 2)


def test_hidden_tests_that_test_nothing_are_the_sets_mistake(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="have no test"):
        run_hidden_tests(sandbox, GOOD, "print('fine')")


def test_without_bubblewrap_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxMissing, match="there is no bwrap; install the package bubblewrap"):
        check_sandbox()


def test_a_sandbox_that_does_not_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sandbox: Sandbox
) -> None:
    """A bwrap that runs the program without namespaces and limits: the probe sees files that it must not see."""
    pretended = tmp_path / "bwrap"
    pretended.write_text('#!/bin/bash\nwhile [ "$1" != sh ]; do shift; done\nshift\nexec "$@"\n')
    pretended.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert shutil.which("bwrap") == str(pretended)
    monkeypatch.setattr(probe, "free_uid", lambda: None)
    with pytest.raises(SandboxMissing, match="does not hold"):
        check_sandbox()


def test_what_holds_the_code_is_told(sandbox: Sandbox) -> None:
    assert sandbox.text.startswith("bubblewrap, seccomp, memory ")
    assert check_sandbox().startswith("bubblewrap, seccomp, memory ")
