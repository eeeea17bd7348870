"""Whether there is a sandbox here: it is tried by what it must stop, before anything else is run in it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from .confine import confine
from .limits import SandboxLimits, SandboxMissing
from .sandbox import Program, Sandbox, check_tools, free_uid, interpreters

_PROBE_LIMITS = SandboxLimits(wall_seconds=15.0, cpu_seconds=5, processes=16)
# Each line must fail inside; what it prints is the list of those that did not.
_PROBE = """
import ctypes, os, socket
held = []
def tried(name, act):
    try:
        act()
    except (OSError, MemoryError):
        return
    held.append(name)
def network():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 80))  # needs a route, sends nothing
def call(*words):
    if ctypes.CDLL(None).syscall(*words) < 0:
        raise OSError
keyctl = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
def forks():
    for _ in range(64):
        if os.fork() == 0:
            os.close(other)
            os.read(block, 1)
            os._exit(0)
block, other = os.pipe()
tried("network", network)
tried("processes", forks)
tried("root", lambda: open("/in/more", "w"))
tried("devices", lambda: os.mknod("/box/device", 0o60600, os.makedev(8, 0)))
tried("namespaces", lambda: call({"x86_64": 272, "aarch64": 97}[os.uname().machine], 0x10000000))
tried("keys of the session", lambda: call(keyctl, 0, -3, 1))
tried("files in memory", lambda: os.memfd_create("file"))
tried("io_uring", lambda: call(425, 1, ctypes.create_string_buffer(120)))
tried("root user", lambda: os.setuid(0))
tried("shared memory", lambda: open("/dev/shm/more", "w"))
for folder in ("/home", "/root", "/var", "/sys"):
    tried(folder, lambda: os.listdir(folder))
print("probe", os.getuid(), ",".join(held) or "none", flush=True)
os._exit(0)
"""
_REMEDIES = (
    ("uid map", "allow user namespaces for bwrap: on Ubuntu 24.04 an AppArmor profile for /usr/bin/bwrap with userns"),
    (
        "RTM_NEWADDR",
        "allow user namespaces for bwrap: on Ubuntu 24.04 an AppArmor profile for /usr/bin/bwrap with userns",
    ),
    ("ENOSPC", "allow user namespaces: sysctl user.max_user_namespaces must not be 0"),
    ("No space left", "allow user namespaces: sysctl user.max_user_namespaces must not be 0"),
    ("not permitted", "in a container, allow user namespaces: its seccomp profile forbids unshare"),
)


def open_sandbox(limits: SandboxLimits | None = None) -> Sandbox:
    """Return a sandbox of ``limits`` that has held what it must hold; close it when done. Raises SandboxMissing."""
    limits = limits or SandboxLimits()
    check_tools()
    confinement = confine(limits)
    try:
        held = _held(Sandbox("", free_uid(), confinement, _PROBE_LIMITS))
    except BaseException:
        confinement.leave()
        raise
    return replace(held, limits=limits)


def check_sandbox() -> str:
    """Return in a few words what holds tested code on this machine. Raises SandboxMissing; what doctor calls."""
    sandbox = open_sandbox()
    sandbox.close()
    return sandbox.text


def _held(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox with the first interpreter that runs inside, when it holds. Raises SandboxMissing."""
    output = b""
    for has_proc, python in product((True, False), interpreters()):
        tried = replace(sandbox, python=python, has_proc=has_proc)
        (ended,) = tried.run(Program([python, "-I", "-S", "-c", _PROBE]))
        output = ended.output
        words = "".join(output.decode(errors="replace").strip().splitlines()[-1:]).split()
        if words[:1] != ["probe"]:
            continue
        if ended.clean and words[1:] == ["1000", "none"]:
            return tried
        raise SandboxMissing(
            f"the sandbox does not hold: {' '.join(words[1:]) or 'it said nothing'}",
            "tested code would not be contained; look at the versions of bubblewrap and of the kernel",
        )
    text = output.decode(errors="replace").strip()
    remedy = next((cure for sign, cure in _REMEDIES if sign in text), "try: bwrap --unshare-all --ro-bind / / true")
    raise SandboxMissing(f"bubblewrap cannot make a sandbox here: {text[-300:] or 'it said nothing'}", remedy)
