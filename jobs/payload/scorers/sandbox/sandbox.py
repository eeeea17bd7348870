"""Run programs in a sandbox of bubblewrap: without network, with listed files only, as another user, in limited time.

Files are passed as bytes through descriptors, never as a folder of this machine, so that no links are followed and no
permissions matter. The output is cut to a limit, and is not trusted.
"""

import contextlib
import os
import pwd
import resource
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path, PurePosixPath

from ...clock import stopwatch
from . import confine

_READ_BYTES = 65_536
_FIRST_UID = 60_000
_REAP_SECONDS = 10
_COUNT_SECONDS = 0.1
# Variables for the tools outside the sandbox and for systemd; the program inside gets none of them.
_PASSED = ("PATH", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
_INSIDE_UID = "1000"
# This process joins an empty session keyring of the kernel, and becomes the command. If the kernel has no keys, or a
# container forbids them (ENOSYS, EPERM), none can leak. It sets PATH only, since code inside can read the environment.
_WITHOUT_KEYS = """
import ctypes, errno, os, sys
kernel = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
if kernel.syscall(number, 1, None) < 0 and ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
    sys.exit("no session keyring: " + os.strerror(ctypes.get_errno()))
os.execvpe(sys.argv[1], sys.argv[1:], {"PATH": os.environ["PATH"]})
"""
_TMP = "/tmp"  # noqa: S108 - the folder inside the sandbox, which is not shared


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run: its command, its files by path below ``/in``, and in ``keeps`` the descriptors to inherit."""

    words: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    keeps: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox that has passed a probe; see :func:`open_sandbox`.

    ``python`` is the interpreter inside; ``drop_to`` is the user id that root changes to, None if we are not root.
    ``has_proc``: whether ``/proc`` is inside; the kernel refuses to mount it where a container covers parts of it.
    """

    python: str
    drop_to: int | None
    confinement: confine.Confinement
    limits: confine.SandboxLimits = field(default_factory=confine.SandboxLimits)
    has_proc: bool = True

    @property
    def text(self) -> str:
        """A short description of the mechanisms, recorded beside the results."""
        bounded = {"scope": "memory in a systemd scope", "cgroup": "memory in a control group"}
        return f"bubblewrap, seccomp, {bounded.get(self.confinement.kind, 'memory counted ten times a second')}"

    def close(self) -> None:
        """Remove the control groups of the sandbox."""
        self.confinement.leave()

    def run(self, *programs: Program) -> list[confine.SandboxEnded]:
        """Run programs in parallel until all have ended, or one exceeds a limit; return how each ended.

        The descriptors ``keeps`` of a program are closed here after its start, so that a pipe ends with the programs.
        """
        started: list[_Started] = []
        kept = [list(program.keeps) for program in programs]
        deadline = stopwatch() + self.limits.wall_seconds
        try:
            for program in programs:
                started.append(self._start(program))
                for number in kept.pop(0):
                    os.close(number)
            _watch(started, deadline, self.limits, counted=self.confinement.kind == "rlimits")
        finally:
            for process in started:
                process.end()
            for number in chain.from_iterable(kept):  # of programs that could not be started
                os.close(number)
        return [process.ended() for process in started]

    def command(self, words: Sequence[str], files: Mapping[str, int], calls: int) -> list[str]:
        """Return the command line; ``files``, by path below /in, and ``calls``, the seccomp filter, are descriptors."""
        limits = self.limits
        # A core limit of one byte: no core is written, and no handler of the machine starts, as it would with limit 0.
        # If the hard limit is 0, as in the service, only root could raise it.
        core = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
        bounds = (
            f"--nproc={limits.processes} --as={limits.process_bytes} --fsize={limits.file_bytes} --core={core}"
            f" --cpu={limits.cpu_seconds}:{limits.cpu_seconds + 1} --nofile={limits.open_files}"
        )
        user = str(self.drop_to)
        dropped = [] if self.drop_to is None else ["--reuid", user, "--regid", user, "--clear-groups"]
        return [
            *self.confinement.words,
            *(sys.executable, "-I", "-S", "-c", _WITHOUT_KEYS),
            *("setpriv", *dropped, "--no-new-privs", "--"),
            *("bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"),
            *("--seccomp", str(calls)),
            *("--clearenv", "--hostname", "sandbox", "--uid", _INSIDE_UID, "--gid", _INSIDE_UID, "--cap-drop", "ALL"),
            *_system(self.python),
            *(("--proc", "/proc") if self.has_proc else ()),
            *("--dev", "/dev"),
            *("--size", str(limits.file_bytes), "--tmpfs", _TMP, "--size", str(limits.file_bytes), "--tmpfs", "/box"),
            *_options_of(files),
            # These come last, so that only the two folders above are writable.
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/box"),
            *("--setenv", "PATH", "/usr/bin", "--setenv", "HOME", _TMP, "--setenv", "LANG", "C.UTF-8", "--"),
            # Code inside can write the memory of its first process, bubblewrap, which therefore gets the same limits.
            *("/bin/sh", "-c", f'prlimit --pid 1 {bounds} && exec prlimit {bounds} -- "$@"', "sh"),
            *words,
        ]

    def _start(self, program: Program) -> "_Started":
        _check(program.files)
        with contextlib.ExitStack() as opened:
            files = {path: _in_memory(content, opened) for path, content in program.files.items()}
            calls = _in_memory(confine.seccomp_filter(), opened)
            process = subprocess.Popen(
                self.command(program.words, files, calls),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(*files.values(), calls, *program.keeps),
                start_new_session=True,
                env={name: os.environ[name] for name in _PASSED if name in os.environ},
                cwd="/",
            )
        return _Started(process)


def _in_memory(content: bytes, opened: contextlib.ExitStack) -> int:
    """Return the descriptor of a file in memory with ``content``; ``opened`` closes it."""
    number = os.memfd_create("given", 0)
    opened.callback(os.close, number)
    with open(number, "wb", closefd=False) as stream:
        stream.write(content)
    os.lseek(number, 0, os.SEEK_SET)
    return number


class _Started:
    """A running program, with its output so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
        self.process = process
        self.stream = process.stdout
        self.output = bytearray()
        self.how: confine.How | None = None

    def read(self, most: int) -> bool:
        """Read the available output; return False at its end, or if it is longer than ``most`` bytes."""
        piece = os.read(self.stream.fileno(), _READ_BYTES)
        self.output += piece[: most - len(self.output)]
        if len(piece) and len(self.output) >= most:
            self.how = "output"
        return bool(piece) and self.how is None

    def exceeds_memory(self, limits: confine.SandboxLimits) -> bool:
        """Return whether the program uses more memory, or more files in memory, than its limits."""
        pid = self.process.pid
        files = max(files_of(pid, folder) for folder in (_TMP, "/box"))
        if memory_bytes(pid) > limits.total_bytes or files > limits.files:
            self.how = "memory"
        return self.how == "memory"

    def end(self) -> None:
        """Kill all processes of the program, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_REAP_SECONDS)
        self.stream.close()

    def ended(self) -> confine.SandboxEnded:
        """Return how the program ended."""
        status = self.process.returncode
        # A signal inside the sandbox gives the status 128 + its number, as in a shell.
        how: confine.How = self.how or ("exited" if 0 <= status < 128 else "killed")
        return confine.SandboxEnded(how, status, bytes(self.output))


def _watch(started: Sequence[_Started], deadline: float, limits: confine.SandboxLimits, *, counted: bool) -> None:
    """Read all outputs until all programs have ended or one exceeds a limit; ``counted``: also count their memory."""
    with selectors.DefaultSelector() as waiting:
        for program in started:
            waiting.register(program.stream, selectors.EVENT_READ, program)
        while waiting.get_map():
            left = deadline - stopwatch()
            if counted and any(program.exceeds_memory(limits) for program in started):
                return
            for key, _ in waiting.select(min(left, _COUNT_SECONDS) if counted else left) if left > 0 else ():
                if not key.data.read(limits.output_bytes):
                    waiting.unregister(key.fileobj)
                if key.data.how:
                    return
            if left <= 0:
                break
    for program in started:
        try:
            program.process.wait(max(0.0, deadline - stopwatch()))
        except subprocess.TimeoutExpired:
            program.how = "timeout"


def interpreters() -> list[str]:
    """Return the interpreters that may run inside, the system's first, because every user can read it."""
    own = str(Path(sys.executable).resolve())
    return [path for path in dict.fromkeys(["/usr/bin/python3", own]) if Path(path).exists()]


def free_uid() -> int | None:
    """Return a user id without an account, to which root can change; None if we are not root."""
    if os.geteuid():
        return None
    used = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(_FIRST_UID, _FIRST_UID + len(used) + 1) if uid not in used)


def check_tools() -> None:
    """Raise SandboxMissing if a program is missing that the sandbox needs."""
    packages = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}
    for program, package in packages.items():
        if shutil.which(program) is None:
            raise confine.SandboxMissing(
                f"there is no {program}", f"install the package {package} (Debian: apt-get install {package})"
            )


def _system(python: str) -> list[str]:
    """Return the options that show the system's programs and the interpreter's folder inside, read-only."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib64", "bin"):
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", f"usr/{name}", f"/{name}"]
        elif path.is_dir():
            words += ["--ro-bind", f"/{name}", f"/{name}"]
    for path in (Path("/etc/ld.so.cache"), Path("/etc/alternatives")):
        words += ["--ro-bind-try", str(path), str(path)]
    if not python.startswith("/usr/"):
        prefix = str(Path(python).parents[1])
        words += ["--ro-bind", prefix, prefix]
    return words


def _options_of(files: Mapping[str, int]) -> list[str]:
    words = ["--dir", "/in"]
    for path, number in files.items():
        words += ["--perms", "0444", "--file", str(number), f"/in/{path}"]
    return words


def _check(files: Mapping[str, bytes]) -> None:
    """Raise ValueError for too many or too large files, and for paths that lead outside of ``/in``."""
    if len(files) > confine.FILES_MAX or sum(map(len, files.values())) > confine.FILE_BYTES_MAX:
        most = f"{confine.FILES_MAX}, of {confine.FILE_BYTES_MAX >> 20} MiB together"
        raise ValueError(f"{len(files)} files: a program gets at most {most}")
    for path in files:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or not path.isprintable() or len(path) > 200:
            raise ValueError(f"{path!r} is no path below the folder of the given files")


# The memory that a sandbox uses; it is summed here if no control group limits it.
_PROC = Path("/proc")
_SOCKET_BYTES = 2 * 212_992  # net.core.wmem_default and rmem_default
_COUNTED = ("Pss_Anon:", "Pss_Shmem:")  # memory without a file; each process counts its part of shared pages


def memory_bytes(root: int) -> int:
    """Return the bytes of memory of a process and its descendants; a process that ends meanwhile does not count."""
    inside = _inside(root)
    return sum(_memory_of(pid) for pid in _family(root)) + (_held_by_sockets(inside / "net") if inside else 0)


def files_of(root: int, folder: str) -> int:
    """Return the number of files in a ``folder`` of the sandbox; 0 before the sandbox exists and after its end."""
    inside = _inside(root)
    with contextlib.suppress(OSError):
        if inside is not None:
            state = os.statvfs(inside / f"root{folder}")
            return state.f_files - state.f_ffree
    return 0


def _inside(root: int) -> Path | None:
    """Return the folder in /proc of a process inside the sandbox; None if there is none."""
    for pid in reversed(_family(root)):
        with contextlib.suppress(OSError):
            if not (_PROC / str(pid) / "root/").samefile("/"):
                return _PROC / str(pid)
    return None


def _family(root: int) -> list[int]:
    """Return a process and its descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(") ")[2].split()[1]), []).append(int(entry.name))
    family = [root]
    for pid in family:  # the list grows during the loop
        family += children.get(pid, [])
    return family


def _memory_of(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(_COUNTED))


def _held_by_sockets(net: Path) -> int:
    """Return an upper bound of the bytes in all sockets of a network: their buffers, and the queues of TCP."""
    try:
        count = int(net.joinpath("sockstat").read_text().split()[2])
        rows = [row.split() for name in ("tcp", "tcp6") for row in net.joinpath(name).read_text().splitlines()[1:]]
    except OSError:
        return 0
    return count * _SOCKET_BYTES + sum(int(queue, 16) for row in rows for queue in row[4].split(":"))


# Before any other program runs in a sandbox, a probe checks that the sandbox prevents what it must prevent.
_PROBE_LIMITS = confine.SandboxLimits(wall_seconds=15.0, cpu_seconds=5, processes=16)
# Each attempt must fail inside; the probe prints the attempts that succeeded.
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
_FOR_BWRAP = "allow user namespaces for bwrap: on Ubuntu 24.04 an AppArmor profile for /usr/bin/bwrap with userns"
_ALLOW_NAMESPACES = "allow user namespaces: sysctl user.max_user_namespaces must not be 0"
_REMEDIES = {  # by a part of bubblewrap's message
    "uid map": _FOR_BWRAP,
    "RTM_NEWADDR": _FOR_BWRAP,
    "ENOSPC": _ALLOW_NAMESPACES,
    "No space left": _ALLOW_NAMESPACES,
    "not permitted": "in a container, allow user namespaces: its seccomp profile forbids unshare",
}


def open_sandbox(limits: confine.SandboxLimits | None = None) -> Sandbox:
    """Return a sandbox with ``limits`` that has passed the probe; the caller closes it. Raises SandboxMissing."""
    limits = limits or confine.SandboxLimits()
    check_tools()
    confinement = confine.confine(limits)
    try:
        sandbox = _probed(Sandbox("", free_uid(), confinement, _PROBE_LIMITS))
    except BaseException:
        confinement.leave()
        raise
    return replace(sandbox, limits=limits)


def check_sandbox() -> str:
    """Return a short description of this machine's sandbox for ``doctor``. Raises SandboxMissing."""
    sandbox = open_sandbox()
    sandbox.close()
    return sandbox.text


def _probed(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox with the first interpreter that runs inside and passes the probe. Raises SandboxMissing."""
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
        raise confine.SandboxMissing(
            f"the sandbox does not hold: {' '.join(words[1:]) or 'it said nothing'}",
            "tested code would not be contained; look at the versions of bubblewrap and of the kernel",
        )
    text = output.decode(errors="replace").strip()
    remedy = next(
        (cure for sign, cure in _REMEDIES.items() if sign in text), "try: bwrap --unshare-all --ro-bind / / true"
    )
    raise confine.SandboxMissing(f"bubblewrap cannot make a sandbox here: {text[-300:] or 'it said nothing'}", remedy)
