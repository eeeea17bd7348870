"""Run a command on each node of a session, as one program: signals reach all nodes, and if one node fails, all end.

``nodes.py all LAUNCHER [WORD ...] -- COMMAND [WORD ...]`` runs beside the agent. LAUNCHER (srun) starts
``nodes.py one FOLDER COMMAND [WORD ...]`` on each node. That sets the variables for ranks.py and torchrun. srun sends
signals to every process of a node, helpers included, and ends all of them at SIGTERM. Requests of the agent therefore
go to the standard input of srun, which copies it to all nodes. It needs the standard library only.
"""

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_STOPS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = {b"save": signal.SIGUSR1, b"stop": signal.SIGTERM}  # by line of the standard input
_POLLS, _POLL_SECONDS = 40, 0.5  # after these 20 s the platform has reported a lost node
_RELAY_SECONDS = 0.5
_SHELL_SIGNAL_BASE = 128
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def start_all(launcher: Sequence[str], command: Sequence[str]) -> int:
    """Run the command on all nodes to its end; return 0 or the exit status of the first node that failed."""
    folder = Path.cwd().parent / "nodes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    progress = os.environ.get("SCHED_PROGRESS")
    far = Path(progress) if progress and not os.environ["SCHED_NODES_NEAR"] else None
    stopped, over = threading.Event(), threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, *_STOPS})  # no signal before the launcher runs
    words = [*launcher, sys.executable, str(Path(__file__).resolve()), "one", str(folder), *command]
    read_end, write_end = os.pipe()  # the write end stays open as long as this process lives
    started = subprocess.Popen(words, stdin=read_end, preexec_fn=_unblock)  # noqa: PLW1509 - this process has one thread
    os.close(read_end)

    def forward(number: int, _frame: object) -> None:
        if number in _STOPS:
            stopped.set()
        with suppress(BrokenPipeError):
            os.write(write_end, b"stop\n" if number in _STOPS else b"save\n")

    for number in (signal.SIGUSR1, *_STOPS):
        signal.signal(number, forward)
    _unblock()
    relay = threading.Thread(target=_relay, args=(folder / "progress", far, over)) if far else None
    if relay:
        relay.start()
    code = started.wait()
    over.set()
    if relay:
        relay.join()
    for _ in range(_POLLS):
        ends = sorted(folder.glob("ended-*"), key=lambda path: path.stat().st_mtime_ns)
        failed = [status for path in ends if (status := int(path.read_text()))]
        if failed or len(ends) == int(os.environ["SCHED_NODES"]):
            return failed[0] if failed else 0
        # A node has not reported the end of its command. If it is lost, the platform ends the session.
        if stopped.wait(_POLL_SECONDS):
            break
    if code:
        print("nodes: a node ended without reporting an exit status, so all end", file=sys.stderr)
    return code if code >= 0 else _SHELL_SIGNAL_BASE - code


def _relay(source: Path, sink: Path, over: threading.Event) -> None:
    """Copy the progress lines that rank 0 writes to a file on another node to the agent's pipe."""
    position, last = 0, False
    while not last:
        last = over.wait(_RELAY_SECONDS)
        with suppress(FileNotFoundError), source.open("rb") as stream:
            stream.seek(position)
            whole = stream.read().rpartition(b"\n")[0]
            for line in whole.split(b"\n") if whole else ():
                with sink.open("ab", buffering=0) as pipe:
                    pipe.write(line + b"\n")
            position += len(whole) + 1 if whole else 0


def start_one(folder: Path, command: Sequence[str]) -> int:
    """Run the command on this node; write its exit status to ``folder`` and return it."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)  # a platform that ends a node signals the command too
    node = int(os.environ[os.environ["SCHED_NODE_VARIABLE"]])
    environment = node_environment(node, folder, os.environ)
    started = subprocess.Popen(
        list(command),
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=functools.partial(_as_usual, os.getpid()),  # noqa: PLW1509
    )
    threading.Thread(target=_listen, args=(started,), daemon=True).start()
    code = started.wait()
    code = code if code >= 0 else _SHELL_SIGNAL_BASE - code
    (folder / f".ended-{node}").write_text(str(code))
    (folder / f".ended-{node}").rename(folder / f"ended-{node}")
    return code


def _listen(started: subprocess.Popen[bytes]) -> None:
    """Send the requested signals to the command; kill its process group when standard input ends."""
    line = b""
    while piece := os.read(0, 4096):
        *lines, line = (line + piece).split(b"\n")
        for each in lines:
            if each in _SIGNALS:
                started.send_signal(_SIGNALS[each])
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)


def _as_usual(parent: int) -> None:
    """Run in the new process: let it end with its parent, and restore the default handlers."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent was killed before prctl took effect
        os.kill(os.getpid(), signal.SIGKILL)
    for number in _STOPS:
        signal.signal(number, signal.SIG_DFL)


def node_environment(node: int, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command on a node, with the node's own devices."""
    nodes = int(environ["SCHED_NODES"])
    devices = [int(index) for index in environ["SCHED_NODE_DEVICES"].split(";")[node].split(",")]
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if environ.get("SLURM_STEP_GPUS") else []
    mine = [visible[index] if index < len(visible) else str(index) for index in devices]
    environment = {**environ, "SCHED_NODE": str(node), "CUDA_VISIBLE_DEVICES": ",".join(mine)}
    if node:
        environment["SCHED_PROGRESS"] = ""  # only rank 0 reports, and it is on the first node
    elif not environ["SCHED_NODES_NEAR"] and environ.get("SCHED_PROGRESS"):
        environment["SCHED_PROGRESS"] = str(folder / "progress")
    if nodes > 1:
        # Defaults of torchrun's command line.
        environment |= {
            "PET_NNODES": str(nodes), "PET_NODE_RANK": str(node), "PET_NPROC_PER_NODE": str(len(mine)),
            "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": environ["SCHED_RENDEZVOUS"],
            "PET_RDZV_ID": environ.get("SCHED_RUN_ID", "session"),
        }  # fmt: skip
    return environment


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, *_STOPS})


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["all", *words] if "--" in words:
            cut = words.index("--")
            sys.exit(start_all(words[:cut], words[cut + 1 :]))
        case ["one", where, *words] if words:
            sys.exit(start_one(Path(where), words))
    raise SystemExit("nodes: usage: nodes.py all LAUNCHER [WORD ...] -- COMMAND [WORD ...]")
