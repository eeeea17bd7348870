"""Ways out of the sandbox, by class: each must fail inside, and ordinary programs must not notice."""

from __future__ import annotations

import ctypes
import json
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from jobs.payload.scorers.sandbox.confine import Confinement, SandboxLimits, SandboxMissing, seccomp_filter
from jobs.payload.scorers.sandbox.sandbox import Program, Sandbox, open_sandbox

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
        "a first process without limits": "some(resource.prlimit(1, 6) > resource.getrlimit(6))",
        "more files for the first process": "some(resource.prlimit(1, 7) > resource.getrlimit(7))",
    },
    "memory that nobody counts": {
        "a file in memory": "os.memfd_create('x')",
        "a secret file in memory": "call((447, 447), 0)",
        "shared memory of System V": "call((29, 194), 0, 1 << 28, 0o1600)",
        "a queue of messages": "call((240, 180), b'/q', 66, 0o600, None)",
        "a file beside": "open('/dev/shm/x', 'w')",
        "a large buffer of a socket": "some(larger(socket.socketpair()[0]))",
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
    "modules of the kernel": {
        "a protocol": "socket.socket(2, 1, 262)",
        "a protocol of datagrams": "socket.socket(2, 2, 136)",
        "a protocol in the upper half": "call((41, 198), 2, 1, 262 | 1 << 32)",
        "a pair of another family": "reached(lambda: call((53, 199), 16, 3, 0, buffer(8)), errno.EAFNOSUPPORT)",
        "a line discipline": "fcntl.ioctl(os.open('/dev/ptmx', 2), 0x5423, bytes(4))",
        "a request of a file system": "fcntl.ioctl(os.open('/usr', 0), 0x80086601, bytes(8))",
        "a request of a namespace": "fcntl.ioctl(os.open('/proc/self/ns/user', 0), 0xB701)",
    },
    "the machine's files and its crash handler": {
        "who runs its programs": "call((254, 27), call((294, 26), 0), b'/usr/bin', 0xFFF)",
        "who changes its folders": "fcntl.fcntl(os.open('/usr/bin', 0), 1026, 1)",
        "a lease": "reached(lambda: fcntl.fcntl(os.open('/usr/bin/env', 0), 1024, 0), errno.EPERM)",
        "a core": "some(resource.getrlimit(resource.RLIMIT_CORE) != (1, 1))",
    },
    "other tables of calls": {
        "numbers of x32": "call((0x40000000 | 250, 0x40000000 | 219), 0, -3, 1)",
        "numbers with an upper half": "call((250 | 1 << 32, 219 | 1 << 32), 0, -3, 1)",
        "a flag in the upper half": "call((56, 220), 0x10000000 | 17 | 1 << 32, None, None, None, None)",
    },
    "rights": {
        "a priority": "os.setpriority(0, 0, -5)",
        "real time": "os.sched_setscheduler(0, 1, os.sched_param(1))",
        "safety from the kernel's killer": "os.write(os.open('/proc/self/oom_score_adj', 1), b'-1000')",
        "a map of users": "os.write(os.open('/proc/self/uid_map', 1), b'0 0 1')",
        "more files": "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
        "a capability to come": "some(int(status('CapBnd'), 16) | int(status('CapEff'), 16))",
        "programs of root": "some(status('NoNewPrivs') != '1')",
        "the program that runs": "open('/proc/self/exe', 'r+b')",
        "the first process' program": "open('/proc/1/exe', 'r+b')",
    },
}
_HEAD = """
import ctypes, errno, fcntl, json, os, resource, socket, sys
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
def reached(act, refusal):
    try:
        act()
    except OSError as error:
        some(error.errno != refusal)
def larger(end):
    before = end.getsockopt(1, 7)
    end.setsockopt(1, 7, 1 << 30)
    return end.getsockopt(1, 7) > before
def status(name):
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith(name))
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
left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20); left.setblocking(False); left.setblocking(True)
assert not os.isatty(1) and os.isatty(os.openpty()[0]) and os.set_inheritable(left.fileno(), True) is None
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
        opened = open_sandbox(SandboxLimits(wall_seconds=20.0))
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
    "sockets": "import os, signal, socket\nheld = []\nfor _ in range(40):\n    if os.fork() == 0:\n        break\n"
    "while len(held) < 60:\n    held.append(socket.socketpair())\n"
    "    held[-1][0].setblocking(False)\n    held[-1][0].send(bytes(100_000))\nsignal.pause()",
    "connections": "import signal, socket\nserver = socket.create_server(('127.0.0.1', 0))\nheld = [server]\n"
    "for _ in range(60):\n    end = socket.create_connection(server.getsockname())\n    end.setblocking(False)\n"
    "    held += [end, server.accept()[0]]\n    try:\n        while True:\n            end.send(bytes(1 << 16))\n"
    "    except BlockingIOError:\n        pass\nsignal.pause()",
    "many files": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'w').close()\n    n += 1",
}


@pytest.mark.parametrize("kind", TAKES)
def test_memory_is_bounded_where_there_is_no_control_group(sandbox: Sandbox, kind: str) -> None:
    bare = replace(sandbox, confinement=Confinement("rlimits"), limits=replace(sandbox.limits, total_bytes=200 << 20))
    program = Program([bare.python, "-I", "-S", "/in/run.py"], {"run.py": TAKES[kind].encode()})
    (ended,) = bare.run(program)
    assert ended.how == "memory"
    assert run(bare, ORDINARY).splitlines()[-1] == "all well"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only this machine has a second table")
def test_who_calls_by_the_numbers_of_another_machine_is_ended(sandbox: Sandbox) -> None:
    call = "b814000000cd80c3"  # mov eax, 20; int 0x80; ret
    code = f"import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex({call!r}))\n"
    code += "print('ready', flush=True)\n"
    code += "print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))(), flush=True)"
    (ended,) = sandbox.run(Program([sandbox.python, "-I", "-S", "-c", code]))
    assert (ended.how, ended.output) == ("killed", b"ready\n")


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
