"""Forty ways out of the sandbox, by class: each must fail inside, and ordinary programs must not notice."""

from __future__ import annotations

import ctypes
import json
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from jobs.payload.scorers.sandbox.confine import Confinement, seccomp_filter
from jobs.payload.scorers.sandbox.limits import Limits, SandboxMissing
from jobs.payload.scorers.sandbox.probe import open_sandbox
from jobs.payload.scorers.sandbox.sandbox import Program, Sandbox

# Each is an expression; it escapes when it raises nothing. ``call`` makes a system call by its numbers.
ESCAPES: dict[str, dict[str, str]] = {
    "keys": {
        "read the session keyring": "call((250, 219), 0, -3, 1)",
        "join a keyring": "call((250, 219), 1, None)",
        "add a key to the user's keyring": "call((248, 217), b'user', b'left', b'x', 1, -4)",
        "find a key": "call((249, 218), b'user', b'canary', None, 0)",
        "read /proc/keys": "some(open('/proc/keys').read())",
    },
    "kernel doors": {
        "io_uring": "call((425, 425), 8, buffer(120))",
        "bpf": "call((321, 280), 0, buffer(120), 120)",
        "perf": "call((298, 241), buffer(128), 0, -1, -1, 0)",
        "userfaultfd": "call((323, 282), 1)",
        "a module": "call((175, 105), buffer(8), 8, b'')",
        "kexec": "call((246, 104), 0, 0, None, 0)",
        "the kernel's log": "call((103, 116), 3, buffer(100), 100)",
        "a file handle": "call((304, 265), -100, buffer(16), 0)",
        "fanotify": "call((300, 262), 0, 0)",
        "personality": "call((135, 92), 0x0040000)",
        "landlock": "call((444, 444), None, 0, 1)",
    },
    "namespaces and mounts": {
        "a user namespace": "call((272, 97), 0x10000000)",
        "a namespace by clone": "call((56, 220), 0x10000000 | 17, None, None, None, None)",
        "a namespace by clone3": "call((435, 435), buffer(88, 0x10000000), 88)",
        "another's namespace": "call((308, 268), os.open('/proc/self/ns/net', 0), 0)",
        "mount": "call((165, 40), b'none', b'/box', b'tmpfs', 0, b'')",
        "a new mount": "call((430, 430), b'tmpfs', 0)",
        "a tree of mounts": "call((428, 428), -100, b'/', 1)",
        "unmount": "call((166, 39), b'/usr', 2)",
        "pivot": "call((155, 41), b'/box', b'/box')",
        "chroot": "os.chroot('/box')",
    },
    "other processes": {
        "trace": "call((101, 117), 16, 1, 0, 0)",
        "read the memory of another": "call((310, 270), 1, buffer(16), 1, buffer(16), 1, 0)",
        "a descriptor of another": "call((438, 438), call((434, 434), 1, 0), 0, 0)",
        "the environment of init": "some(open('/proc/1/environ', 'rb').read().count(b'=') > 1)",
        "the root of init": "some(set(os.listdir('/proc/1/root')) - set(os.listdir('/')))",
        "signals to the outside": "only_own()",
    },
    "memory that nobody counts": {
        "a file in memory": "os.memfd_create('x')",
        "a secret file in memory": "call((447, 447), 0)",
        "shared memory of System V": "call((29, 194), 0, 1 << 28, 0o1600)",
        "a queue of messages": "call((240, 180), b'/q', 66, 0o600, None)",
        "a file beside": "open('/dev/shm/x', 'w')",
    },
    "devices and network": {
        "a netlink socket": "socket.socket(16, 3, 0)",
        "a crypto socket": "socket.socket(38, 5, 0)",
        "a packet socket": "socket.socket(17, 3, 0)",
        "a vsock": "socket.socket(40, 1, 0)",
        "a device": "os.mknod('/box/d', 0o60600, os.makedev(8, 0))",
        "typing into a terminal": "fcntl.ioctl(1, 0x5412, b'x')",
        "the outside": "socket.create_connection(('192.0.2.1', 80), 1)",
        "a setting of the kernel": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    },
}
_HEAD = """
import ctypes, fcntl, json, os, socket, sys
machine = ("x86_64", "aarch64").index(os.uname().machine)
kernel = ctypes.CDLL(None, use_errno=True)
def call(numbers, *words):
    found = kernel.syscall(numbers[machine], *words)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
def buffer(size, first=0):
    return ctypes.create_string_buffer(first.to_bytes(8, sys.byteorder), size)
def some(found):
    if not found:
        raise OSError("nothing is seen")
def only_own():
    if all(int(name) < 100 for name in os.listdir("/proc") if name.isdigit()):
        raise OSError("no process of the outside is seen")
escaped = []
"""
_TAIL = "print(json.dumps(escaped), flush=True)\nos._exit(0)\n"
ORDINARY = """
import asyncio, concurrent.futures, multiprocessing, os, pathlib, socket, sqlite3, subprocess, sys, tempfile, threading
async def double(number):
    await asyncio.sleep(0)
    return 2 * number
thread = threading.Thread(target=print, args=("thread",))
thread.start(); thread.join()
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "a.txt")
    path.write_text("text")
    path.rename(path.with_name("b.txt"))
    assert [p.name for p in pathlib.Path(folder).iterdir()] == ["b.txt"]
assert sqlite3.connect(":memory:").execute("select 1 + 1").fetchone() == (2,)
assert asyncio.run(double(4)) == 8
assert subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True, text=True).stdout == "7\\n"
left, right = socket.socketpair()
left.send(b"x"); assert right.recv(1) == b"x"
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    assert sum(pool.map(abs, range(-9, 0))) == 45
process = multiprocessing.get_context("fork").Process(target=os._exit, args=(5,))
process.start(); process.join()
assert process.exitcode == 5
print("all well")
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox as the scorers have it."""
    try:
        opened = open_sandbox(Limits(wall_seconds=20.0))
    except SandboxMissing as missing:
        pytest.skip(f"no sandbox on this machine: {missing}")
    yield opened
    opened.close()


def run(sandbox: Sandbox, code: str) -> str:
    (ended,) = sandbox.run(Program([sandbox.python, "-I", "-S", "/in/run.py"], {"run.py": code.encode()}))
    return ended.output.decode()


def test_there_are_forty() -> None:
    assert sum(map(len, ESCAPES.values())) >= 40


@pytest.mark.parametrize("kind", ESCAPES)
def test_no_way_out_is_open(sandbox: Sandbox, kind: str) -> None:
    attempts = "".join(
        f"try:\n    {code}\nexcept (OSError, ValueError):\n    pass\nelse:\n    escaped.append({name!r})\n"
        for name, code in ESCAPES[kind].items()
    )
    assert json.loads(run(sandbox, _HEAD + attempts + _TAIL)) == []


def test_ordinary_programs_run(sandbox: Sandbox) -> None:
    assert run(sandbox, ORDINARY).splitlines()[-1] == "all well"


def test_a_key_of_the_host_is_neither_read_nor_left_behind(sandbox: Sandbox) -> None:
    """The host's session keyring holds a key; the process before bubblewrap no longer possesses it."""
    kernel = ctypes.CDLL(None, use_errno=True)
    add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
    if kernel.syscall(keyctl, 0, -3, 1) < 0:
        pytest.skip("this kernel gives this process no session keyring")
    key = kernel.syscall(add_key, b"user", b"uff-test-canary", b"secret", 6, -3)
    assert key > 0
    try:
        code = (
            f"import ctypes; print(ctypes.CDLL(None).syscall({keyctl}, 11, {key}, ctypes.create_string_buffer(9), 9))"
        )
        words = sandbox.command([sandbox.python, "-I", "-S", "-c", code], {}, 0)
        until_bwrap = [*words[len(sandbox.confinement.words) : words.index("setpriv")], sandbox.python, "-c", code]
        assert subprocess.run(until_bwrap, capture_output=True, text=True, check=True).stdout == "-1\n"
        assert run(sandbox, code) == "-1\n"
    finally:
        kernel.syscall(keyctl, 9, key, -3)  # unlink


TAKES = {
    "many processes": "import os, signal\nfor _ in range(8):\n    if os.fork() == 0:\n"
    "        held = bytearray(60 << 20)\n        signal.pause()\nsignal.pause()",
    "many files": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'w').close()\n    n += 1",
}


@pytest.mark.parametrize("kind", TAKES)
def test_memory_is_bounded_where_there_is_no_control_group(sandbox: Sandbox, kind: str) -> None:
    bare = replace(sandbox, confinement=Confinement("rlimits"), limits=replace(sandbox.limits, total_bytes=200 << 20))
    program = Program([bare.python, "-I", "-S", "/in/run.py"], {"run.py": TAKES[kind].encode()})
    (ended,) = bare.run(program)
    assert ended.how == "memory"
    assert run(bare, ORDINARY).splitlines()[-1] == "all well"


def test_a_machine_without_a_list_is_refused() -> None:
    with pytest.raises(SandboxMissing, match="no list of system calls is known for riscv64"):
        seccomp_filter("riscv64")
    assert len(seccomp_filter("aarch64")) % 8 == len(seccomp_filter("x86_64")) % 8 == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_the_numbers_are_the_kernels() -> None:
    """Of this machine's own table: each allowed name has the number that its headers give it."""
    from jobs.payload.scorers.sandbox import confine

    place = 1 + ("x86_64", "aarch64").index(platform.machine())
    words = ["cc", "-E", "-dM", "-include", "asm/unistd.h", "-"]
    text = subprocess.run(words, input="", capture_output=True, text=True, check=True).stdout
    known = {name: number for line in text.splitlines() if "__NR_" in line for name, number in [line.split()[1:3]]}
    for entry in confine._ALLOWED.split():
        words = entry.split(":")
        if len(words) > place:
            assert known[f"__NR_{words[0]}"] == words[place], words[0]
