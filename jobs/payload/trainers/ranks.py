"""Start one process per device, as one program: all processes get its signals, and if one fails, all end.

``{python} {payload}/trainers/ranks.py train.py --rate 1e-4`` replaces torchrun, which is killed by SIGUSR1, the agent's
signal for "save". Each process gets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun. On
several nodes (SCHED_NODES, SCHED_NODE, SCHED_RENDEZVOUS), each node starts its processes. Standard library only.
"""

import atexit
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from threading import Thread
from typing import IO

_LIST_GPUS = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
_FORWARDED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SHELL_SIGNAL_BASE = 128
_LINE_BYTES_MAX = 1 << 16
_LAST_LINES_SECONDS = 5  # a process left behind by a rank may hold its output open


def devices_visible(environment: Mapping[str, str]) -> int:
    """Return the number of devices: those of CUDA_VISIBLE_DEVICES, else all; 1 if there is none."""
    devices = environment.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        return max(1, len([name for name in devices.split(",") if name.strip()]))
    try:
        answer = subprocess.run(_LIST_GPUS, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 1  # no driver, so no GPU
    return max(1, len(answer.split()))


class NodeRanks:
    """The ranks of this node's processes; all nodes have the same number of processes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.nodes = int(environment.get("SCHED_NODES") or 1)
        self.node = int(environment.get("SCHED_NODE") or 0)
        self._rendezvous = environment.get("SCHED_RENDEZVOUS", "")

    def variables(self, count: int) -> dict[str, str]:
        """Return the environment variables that the ``count`` processes of this node share."""
        variables = {"WORLD_SIZE": str(self.nodes * count), "LOCAL_WORLD_SIZE": str(count)}
        if self.nodes == 1:
            return {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        address, _, port = self._rendezvous.rpartition(":")
        return {**variables, "MASTER_ADDR": address, "MASTER_PORT": port, "GROUP_RANK": str(self.node)}


class Ranks:
    """The processes of one program. Create it in the main thread: it installs signal handlers."""

    def __init__(self) -> None:
        self._processes: dict[int, int] = {}  # ranks by process ID
        self.stop_requested = False
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        # Python restores the default handler at exit, and the agent may send SIGUSR1 until it sees the exit.
        atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)

    def run(self, words: Sequence[str], count: int, more: Mapping[str, str] | None = None) -> int:
        """Run ``count`` processes on this node to their end; return 0 or the exit status of the first that fails.

        A status of 128 + n means signal n. If a process fails, the others are killed: they would wait for it for ever.
        All failures until then are printed, because the first may be a consequence of another.
        """
        place = NodeRanks(os.environ)
        environment = {**os.environ, **(more or {}), **place.variables(count)}
        if place.nodes == 1:  # processes of one machine use its loopback interface
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # no signal before the processes are known
        printers = []
        for rank in range(count):
            started = subprocess.Popen(
                words,
                env={**environment, "RANK": str(place.node * count + rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                preexec_fn=partial(_prepare_child, os.getpid()),  # noqa: PLW1509 - this process has one thread
            )
            self._processes[started.pid] = rank
            started.returncode = 0  # os.waitpid below reaps it: Popen must not
            printers.append(Thread(target=_print_lines, args=(started.stdout,), daemon=True))
        for printer in printers:
            printer.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        result = 0
        while self._processes:
            failed = [(place.node * count + rank, code) for rank, code in self._ended() if code]
            if result or not failed:
                continue
            _, first = failed[0]
            result = first if first > 0 else _SHELL_SIGNAL_BASE - first
            if (ranks := place.nodes * count) > 1:
                failures = ", ".join(f"rank {rank} of {ranks} ended with status {code}" for rank, code in failed)
                print(f"ranks: {failures}, so all end", file=sys.stderr)
            self._signal(signal.SIGKILL)
        for printer in printers:
            printer.join(_LAST_LINES_SECONDS)
        return result

    def _ended(self) -> Iterator[tuple[int, int]]:
        """Wait until a process ends; yield rank and exit code of each that has ended by then."""
        options = 0
        while self._processes:
            pid, status = os.waitpid(-1, options)
            if pid == 0:
                return
            options = os.WNOHANG
            rank = self._processes.pop(pid, None)
            if rank is not None:
                yield rank, os.waitstatus_to_exitcode(status)

    def _forward(self, number: int, _frame: object) -> None:
        self.stop_requested = self.stop_requested or number != signal.SIGUSR1
        self._signal(number)

    def _signal(self, number: int) -> None:
        for pid in list(self._processes):  # not reaped yet, so no ID has been reused
            os.kill(pid, number)


def _print_lines(output: IO[bytes]) -> None:
    """Copy the output of a process in whole lines, so that lines of several processes do not mix."""
    with os.fdopen(os.dup(1), "wb") as printed:
        while line := output.readline(_LINE_BYTES_MAX):
            printed.write(line)
            printed.flush()


def _prepare_child(parent: int) -> None:
    """Run in the new process: let it end with its parent, and ignore SIGUSR1 until it has a handler."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent was killed before prctl took effect
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit("ranks: SCRIPT is missing. Usage: ranks.py SCRIPT [ARGUMENT ...]")
    sys.exit(Ranks().run([sys.executable, *sys.argv[1:]], devices_visible(os.environ)))
