"""Start a command once on each node of a session, as one program: signals reach all nodes, and when one dies, all end.

``nodes.py all LAUNCHER [WORD ...] -- COMMAND [WORD ...]`` runs beside the agent. LAUNCHER, as srun, starts
``nodes.py one FOLDER COMMAND [WORD ...]`` on each node, which tells the command what ranks.py and torchrun need to find
the others. srun passes signals on to every process of a node, helpers too, which may die of them, and ends all at
SIGTERM. So what the agent asks for goes there through its standard input, which it copies to all nodes. The standard
library is all it needs.
"""

from __future__ import annotations

import ctypes
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
_SIGNALS = {b"save": signal.SIGUSR1, b"stop": signal.SIGTERM}  # what a line of the standard input stands for
_LOOKS, _LOOK_SECONDS = 40, 0.5  # in so long the platform has told that a node is gone
_RELAY_SECONDS = 0.5
_SHELL_SIGNAL_BASE = 128
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def start_all(launcher: Sequence[str], command: Sequence[str]) -> int:
    """Run the command on all nodes to its end; return its exit status, that of the first node that failed."""
    folder = Path.cwd().parent / "nodes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    progress = os.environ.get("SCHED_PROGRESS")
    far = Path(progress) if progress and not os.environ["SCHED_NODES_NEAR"] else None
    stopped, over = threading.Event(), threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, *_STOPS})  # until there is somebody to tell
    words = [*launcher, sys.executable, str(Path(__file__).resolve()), "one", str(folder), *command]
    there, write_end = os.pipe()  # it stays open as long as we live
    started = subprocess.Popen(words, stdin=there, preexec_fn=_unblock)  # noqa: PLW1509 - this process has one thread
    os.close(there)

    def ask(number: int, _frame: object) -> None:
        if number in _STOPS:
            stopped.set()
        with suppress(BrokenPipeError):
            os.write(write_end, b"stop\n" if number in _STOPS else b"save\n")

    for number in (signal.SIGUSR1, *_STOPS):
        signal.signal(number, ask)
    _unblock()
    relay = threading.Thread(target=_relay, args=(folder / "progress", far, over)) if far else None
    if relay:
        relay.start()
    code = started.wait()
    over.set()
    if relay:
        relay.join()
    for _ in range(_LOOKS):
        ends = sorted(folder.glob("ended-*"), key=lambda path: path.stat().st_mtime_ns)
        failed = [status for path in ends if (status := int(path.read_text()))]
        if failed or len(ends) == int(os.environ["SCHED_NODES"]):
            return failed[0] if failed else 0
        # A node has not told yet how its command ended. If it is gone, its platform ends the session: we are stopped.
        if stopped.wait(_LOOK_SECONDS):
            break
    if code:
        print("nodes: a node ended without a word, so all end", file=sys.stderr)
    return code if code >= 0 else _SHELL_SIGNAL_BASE - code


def _relay(source: Path, sink: Path, over: threading.Event) -> None:
    """Bring what the first process reports on another node, into a file, to the agent's pipe."""
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
    """Run the command on this node; return its exit status, which is left in ``folder`` as well."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)  # a platform that ends all of a node tells the command too
    node = int(os.environ[os.environ["SCHED_NODE_VARIABLE"]])
    environment = told_to(node, folder, os.environ)
    started = subprocess.Popen(
        list(command),
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_as_usual,  # noqa: PLW1509
    )
    threading.Thread(target=_listen, args=(started,), daemon=True).start()
    code = started.wait()
    code = code if code >= 0 else _SHELL_SIGNAL_BASE - code
    (folder / f".ended-{node}").write_text(str(code))
    (folder / f".ended-{node}").rename(folder / f"ended-{node}")
    return code


def _listen(started: subprocess.Popen[bytes]) -> None:
    """Pass on to the command what is asked of it; end it when its supervisor is gone."""
    line = b""
    while piece := os.read(0, 4096):
        *lines, line = (line + piece).split(b"\n")
        for each in lines:
            if each in _SIGNALS:
                started.send_signal(_SIGNALS[each])
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)


def _as_usual() -> None:
    """Run in the new process: it ends with us, and hears again what we ignore."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    for number in _STOPS:
        signal.signal(number, signal.SIG_DFL)


def told_to(node: int, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command on a node, of those that its lane has."""
    nodes = int(environ["SCHED_NODES"])
    devices = [int(index) for index in environ["SCHED_NODE_DEVICES"].split(";")[node].split(",")]
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if environ.get("SLURM_STEP_GPUS") else []
    mine = [visible[index] if index < len(visible) else str(index) for index in devices]
    environment = {**environ, "SCHED_NODE": str(node), "CUDA_VISIBLE_DEVICES": ",".join(mine)}
    if node:
        environment["SCHED_PROGRESS"] = ""  # the first process reports, and it is on the first node
    elif not environ["SCHED_NODES_NEAR"] and environ.get("SCHED_PROGRESS"):
        environment["SCHED_PROGRESS"] = str(folder / "progress")
    if nodes > 1:
        # What torchrun takes where its command line says nothing.
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
