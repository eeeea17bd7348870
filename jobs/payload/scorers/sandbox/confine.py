"""Limits of the sandbox: control groups for the memory of all processes together, and a list of system calls.

The control group is a scope of systemd if possible, or else a group of our own if we are root. Without a control group
each process has limits of its own, and their total memory is counted while they run.
"""

import errno
import os
import platform
import shutil
import struct
import subprocess
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Limits of a run, and how it ended.
How = Literal["exited", "killed", "timeout", "output", "memory"]
FILES_MAX = 200
FILE_BYTES_MAX = 16 << 20  # of all input files of one program together


class SandboxMissing(RuntimeError):
    """There is no sandbox on this machine, so no code is run: the reason and a remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")
        self.why = why
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of a run: wall seconds, processes, output; and of each process: CPU seconds, address space, file size.

    ``total_bytes`` limits the memory of all processes together, with files in memory. Without a control group this is
    counted ten times a second, and so are the files of each tmpfs, whose limit is ``files``.
    """

    wall_seconds: float = 10.0
    cpu_seconds: int = 5
    process_bytes: int = 512 << 20
    total_bytes: int = 1 << 30
    processes: int = 64
    file_bytes: int = 64 << 20
    files: int = 50_000
    open_files: int = 128
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        """Refuse a run without a time limit."""
        if not 0 < self.wall_seconds <= 3_600:
            raise ValueError(f"a run of {self.wall_seconds} s: the wall limit is above 0 and at most an hour")


@dataclass(frozen=True, slots=True)
class SandboxEnded:
    """How a program ended: with ``status``, by a signal, or because it exceeded a limit of time, output or memory."""

    how: How
    status: int
    output: bytes

    @property
    def clean(self) -> bool:
        """Whether the program exited with status 0; this does not prove that its tests passed."""
        return self.how == "exited" and self.status == 0


_TREE = Path("/sys/fs/cgroup")
_TRY_SECONDS = 10
_LEAVE_TRIES, _LEAVE_SECONDS = 100, 0.02


@dataclass(frozen=True, slots=True)
class Confinement:
    """The words before a command that apply a limit to the command, and the control groups to remove afterwards.

    ``kind`` is ``scope``, ``cgroup`` or ``rlimits``; ``rlimits`` limits each process, and their sum is counted.
    """

    kind: str
    words: tuple[str, ...] = ()
    groups: tuple[Path, ...] = ()

    def leave(self) -> None:
        """Remove the groups once their killed processes have ended; a group that stays busy is not removed."""
        for group in self.groups:
            for _ in range(_LEAVE_TRIES):
                try:
                    group.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # processes that were killed are still ending
                    threading.Event().wait(_LEAVE_SECONDS)
                else:
                    break


def confine(limits: SandboxLimits) -> Confinement:
    """Return the best confinement that this machine allows."""
    return _scope(limits) or _own_group(limits) or Confinement("rlimits")


def _scope(limits: SandboxLimits) -> Confinement | None:
    if shutil.which("systemd-run") is None:
        return None
    words = ["systemd-run", "--scope", "--quiet", "--collect", *(["--user"] if os.geteuid() else [])]
    for figure in (f"MemoryMax={limits.total_bytes}", "MemorySwapMax=0", f"TasksMax={2 * limits.processes}"):
        words += ["-p", figure]
    words.append("--")
    return Confinement("scope", tuple(words)) if _works([*words, "true"]) else None


def _own_group(limits: SandboxLimits) -> Confinement | None:
    if os.geteuid():
        return None
    name = f"uff-sandbox-{uuid.uuid4().hex[:12]}"
    groups = _one_tree(name, limits) or _tree_each(name, limits)
    if groups is None:
        return None
    # The shell enters the groups and becomes the command, so that no part of the command runs outside.
    enter = "".join(f"echo $$ >{group}/cgroup.procs && " for group in groups)
    confinement = Confinement("cgroup", ("sh", "-c", f'{enter}exec "$@"', "sh"), groups)
    if _works([*confinement.words, "true"]):
        return confinement
    confinement.leave()
    return None


def _one_tree(name: str, limits: SandboxLimits) -> tuple[Path, ...] | None:
    try:
        if not {"memory", "pids"} <= set((_TREE / "cgroup.subtree_control").read_text().split()):
            return None
    except OSError:
        return None
    figures = {"memory.max": limits.total_bytes, "memory.swap.max": 0, "pids.max": 2 * limits.processes}
    return _make_groups({_TREE / name: figures})


def _tree_each(name: str, limits: SandboxLimits) -> tuple[Path, ...] | None:
    figures = {
        _TREE / "memory" / name: {
            "memory.limit_in_bytes": limits.total_bytes,
            "memory.kmem.tcp.limit_in_bytes": limits.total_bytes,  # buffers of TCP count separately
        },
        _TREE / "pids" / name: {"pids.max": 2 * limits.processes},
    }
    return _make_groups(figures) if all(group.parent.is_dir() for group in figures) else None


def _make_groups(figures: dict[Path, dict[str, int]]) -> tuple[Path, ...] | None:
    groups: list[Path] = []
    try:
        for group, limits in figures.items():
            group.mkdir()
            groups.append(group)
            for file, value in limits.items():
                if (group / file).exists():  # without swap accounting one file is missing
                    (group / file).write_text(str(value))
    except OSError:
        Confinement("cgroup", (), tuple(groups)).leave()
        return None
    return tuple(groups)


def _works(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=_TRY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


# The system calls that code in the sandbox may make, as a filter for the kernel. All others fail with ENOSYS, such
# as those of keys (keyctl, add_key), io_uring, bpf, perf, userfaultfd, mounts, namespaces, tracing and files in memory
# (memfd_create), and all calls of later kernels. The numbers are from asm/unistd_64.h and asm-generic/unistd.h.
# An entry has a name, its number on x86_64 and its number on aarch64, which is missing if aarch64 lacks the call.
_ALLOWED = """
read:0:63 write:1:64 open:2 close:3:57 stat:4 fstat:5:80 lstat:6 poll:7 lseek:8:62 mmap:9:222 mprotect:10:226
munmap:11:215 brk:12:214 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 pread64:17:67 pwrite64:18:68
readv:19:65 writev:20:66 access:21 pipe:22 select:23 sched_yield:24:124 mremap:25:216 msync:26:227 mincore:27:232
madvise:28:233 dup:32:23 dup2:33 pause:34 nanosleep:35:101 getitimer:36:102 alarm:37 setitimer:38:103 getpid:39:172
sendfile:40:71 connect:42:203 accept:43:202 sendto:44:206 recvfrom:45:207 sendmsg:46:211 recvmsg:47:212 shutdown:48:210
bind:49:200 listen:50:201 getsockname:51:204 getpeername:52:205 getsockopt:55:209 fork:57 vfork:58
execve:59:221 exit:60:93 wait4:61:260 kill:62:129 uname:63:160 flock:73:32 fsync:74:82 fdatasync:75:83 truncate:76:45
ftruncate:77:46 getdents:78 getcwd:79:17 chdir:80:49 fchdir:81:50 rename:82 mkdir:83 rmdir:84 creat:85 link:86 unlink:87
symlink:88 readlink:89 chmod:90 fchmod:91:52 chown:92 fchown:93:55 lchown:94 umask:95:166 gettimeofday:96:169
getrlimit:97:163 getrusage:98:165 sysinfo:99:179 times:100:153 getuid:102:174 getgid:104:176 setuid:105:146
setgid:106:144 geteuid:107:175 getegid:108:177 setpgid:109:154 getppid:110:173 getpgrp:111 setsid:112:157
setreuid:113:145 setregid:114:143 getgroups:115:158 setresuid:117:147 getresuid:118:148 setresgid:119:149
getresgid:120:150 getpgid:121:155 getsid:124:156 capget:125:90 rt_sigpending:127:136 rt_sigtimedwait:128:137
rt_sigqueueinfo:129:138 rt_sigsuspend:130:133 sigaltstack:131:132 utime:132 statfs:137:43 fstatfs:138:44
getpriority:140:141 setpriority:141:140 sched_setparam:142:118 sched_getparam:143:121 sched_setscheduler:144:119
sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_rr_get_interval:148:127
mlock:149:228 munlock:150:229 mlockall:151:230 munlockall:152:231 prctl:157:167 arch_prctl:158 setrlimit:160:164
gettid:186:178 readahead:187:213 getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10 listxattr:194:11 llistxattr:195:12
flistxattr:196:13 tkill:200:130 time:201 futex:202:98 sched_setaffinity:203:122 sched_getaffinity:204:123
epoll_create:213 getdents64:217:61 set_tid_address:218:96 restart_syscall:219:128 fadvise64:221:223 timer_create:222:107
timer_settime:223:110 timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 clock_gettime:228:113
clock_getres:229:114 clock_nanosleep:230:115 exit_group:231:94 epoll_wait:232 epoll_ctl:233:21 tgkill:234:131 utimes:235
waitid:247:95 openat:257:56 mkdirat:258:34 fchownat:260:54 futimesat:261 newfstatat:262:79 unlinkat:263:35
renameat:264:38 linkat:265:37 symlinkat:266:36 readlinkat:267:78 fchmodat:268:53 faccessat:269:48 pselect6:270:72
ppoll:271:73 set_robust_list:273:99 get_robust_list:274:100 splice:275:76 tee:276:77 sync_file_range:277:84
utimensat:280:88 epoll_pwait:281:22 signalfd:282 timerfd_create:283:85 eventfd:284 fallocate:285:47
timerfd_settime:286:86 timerfd_gettime:287:87 accept4:288:242 signalfd4:289:74 eventfd2:290:19 epoll_create1:291:20
dup3:292:24 pipe2:293:59 preadv:295:69 pwritev:296:70 rt_tgsigqueueinfo:297:240 recvmmsg:299:243 prlimit64:302:261
sendmmsg:307:269 getcpu:309:168 renameat2:316:276 getrandom:318:278 execveat:322:281 membarrier:324:283 mlock2:325:284
copy_file_range:326:285 preadv2:327:286 pwritev2:328:287 pkey_mprotect:329:288 pkey_alloc:330:289 pkey_free:331:290
statx:332:291 rseq:334:293 close_range:436:436 openat2:437:437 faccessat2:439:439 epoll_pwait2:441:441
futex_waitv:449:449
"""
# Calls whose argument decides: clone, fcntl, ioctl, setsockopt, socket, socketpair.
_CONDITIONAL = {"x86_64": (56, 72, 16, 54, 41, 53), "aarch64": (220, 25, 29, 208, 198, 199)}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # calls of the x32 ABI, which has another table
_NAMESPACES = 0x7E020000  # all flags CLONE_NEW* of clone
_HOST_FILE_COMMANDS = (1024, 1026)  # F_SETLEASE blocks another process that opens a file, F_NOTIFY reports it
# Commands of ioctl. For terminals: settings, size, group and pair, but neither input nor line disciplines. For all
# files: FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC. Other commands reach drivers and file systems.
_IOCTLS = (*range(0x5401, 0x540C), *range(0x540E, 0x5412), 0x5413, 0x5414, 0x541B, 0x5421, 0x5422, 0x5425, 0x5429)
_IOCTLS += (0x5441, 0x5450, 0x5451, 0x5452, 0x80045430, 0x40045431)
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_SOL_SOCKET, _BUFFERS = 1, (7, 8)  # SO_SNDBUF, SO_RCVBUF
_LAST_PROTOCOL = 17  # UDP; a request for a later protocol (SCTP, MPTCP) may load a kernel module
_LOAD, _EQUALS, _AT_LEAST, _ABOVE, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32  # in struct seccomp_data; low halves of arguments
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NO_SUCH_CALL, _NOT_PERMITTED = _REFUSE | errno.ENOSYS, _REFUSE | errno.EPERM


def seccomp_filter(machine: str = "") -> bytes:
    """Return the filter in the form of bubblewrap's ``--seccomp``. Raises SandboxMissing for an unknown ``machine``.

    A call that is not allowed fails with ENOSYS, so that the C library falls back to an older one (clone for clone3).
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURE:
        raise SandboxMissing(
            f"no list of system calls is known for {machine}", "run evaluations on a machine with x86_64 or aarch64"
        )
    clone, fcntl, ioctl, setsockopt, *sockets = _CONDITIONAL[machine]
    sizes = [_step(_LOAD, _THIRD), *_any_of(_BUFFERS)]
    of_buffer = [_step(_EQUALS, _SOL_SOCKET, 0, len(sizes)), *sizes]
    families = [_step(_LOAD, _FIRST), *_any_of(_FAMILIES)]
    of_socket = [_step(_ABOVE, _LAST_PROTOCOL, len(families), 0), *families]
    program = [
        _step(_LOAD, _ARCH),
        _step(_EQUALS, _ARCHITECTURE[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32, 0, 1),
        _step(_RETURN, _NO_SUCH_CALL),
        *_conditional(clone, _FIRST, [_step(_HAS_BITS, _NAMESPACES, 1, 0)], matched=_NOT_PERMITTED, other=_ALLOW),
        *_conditional(fcntl, _SECOND, _any_of(_HOST_FILE_COMMANDS), matched=_NOT_PERMITTED, other=_ALLOW),
        *_conditional(ioctl, _SECOND, _any_of(_IOCTLS), matched=_ALLOW, other=_REFUSE | errno.ENOTTY),
    ]
    # Setting the size of buffers does nothing and reports success, since memory is counted by their usual size.
    program += _conditional(setsockopt, _SECOND, of_buffer, matched=_REFUSE, other=_ALLOW)
    for call in sockets:
        program += _conditional(call, _THIRD, of_socket, matched=_ALLOW, other=_REFUSE | errno.EAFNOSUPPORT)
    for first, last in _ranges(machine):
        program += [_step(_AT_LEAST, first, 0, 2), _step(_ABOVE, last, 1, 0), _step(_RETURN, _ALLOW)]
    return b"".join([*program, _step(_RETURN, _NO_SUCH_CALL)])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction (struct sock_filter); jumps are numbers of instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _any_of(values: tuple[int, ...]) -> list[bytes]:
    return [_step(_EQUALS, value, len(values) - place, 0) for place, value in enumerate(values)]


def _conditional(call: int, offset: int, tests: list[bytes], *, matched: int, other: int) -> list[bytes]:
    """Return the steps for a call whose argument at ``offset`` decides: ``matched`` if a test holds, or ``other``."""
    return [
        _step(_EQUALS, call, 0, len(tests) + 3),
        _step(_LOAD, offset),
        *tests,
        _step(_RETURN, other),
        _step(_RETURN, matched),
    ]


def _ranges(machine: str) -> list[tuple[int, int]]:
    """Return the allowed numbers as ranges, both ends included, in order."""
    place = 1 + list(_ARCHITECTURE).index(machine)
    entries = [entry.split(":") for entry in _ALLOWED.split()]
    ranges: list[tuple[int, int]] = []
    for number in sorted(int(entry[place]) for entry in entries if len(entry) > place):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
