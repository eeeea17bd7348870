"""A real Slurm on this machine: munged, a controller and two node daemons on loopback, with four pretended GPUs each.

Debian's packages slurmctld, slurmd, slurm-client and munge, which .ci/services.sh installs. It needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scheduler.clock import real_now
from tests.lab.patience import until
from tests.lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = ("n1", "n2")
_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scontrol", "scancel")
_CONFIG = """\
ClusterName=uff
AuthInfo=socket={root}/munge.socket
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdSpoolDir={root}/spool/%n
SlurmdPidFile={root}/slurmd-%n.pid
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
KillWait=5
MinJobAge=300
MaxJobCount=20000
GresTypes=gpu
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
DebugFlags=NO_CONF_HASH
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={root}/jobcomp.txt
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=16000 Gres=gpu:h100:4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=16000 Gres=gpu:h100:4
PartitionName=gpu Nodes=n1,n2 Default=YES MaxTime=24:00:00
"""


def missing() -> str:
    """Return what is not there that a Slurm of the tests needs; "" for nothing."""
    gone = [name for name in _PROGRAMS if not shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")]
    if gone:
        return f"no {', '.join(gone)} (Debian: slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "Slurm's daemons are started by root alone"


class SlurmLab:
    """The cluster. Its clients find it through the variable SLURM_CONF, which is ``conf``."""

    missing = staticmethod(missing)

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        root.chmod(0o755)
        for name in ("state", "spool/n1", "spool/n2", "dev"):
            (root / name).mkdir(parents=True)
        for number in range(4):
            os.mknod(root / "dev" / f"gpu{number}", 0o020666, os.makedev(1, 3))
        self.host = socket.gethostname().split(".")[0]
        self._settings = _CONFIG.format(root=root, host=self.host, ports=[free_port() for _ in range(3)])
        self._generation = 0
        gpus = "".join(f"NodeName={node} Name=gpu Type=h100 File={root}/dev/gpu[0-3]\n" for node in NODES)
        (root / "gres.conf").write_text(gpus)

    def environment(self) -> dict[str, str]:
        """Return what programs need to reach this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/usr/bin"}

    def start(self) -> None:
        """Start everything and wait until both nodes are idle."""
        self._start_munged()
        self.start_controller(keep_state=False)
        for node in NODES:
            self.start_node(node)
        until(lambda: self.say("sinfo", "-h", "-o", "%t").split() in (["idle"], ["idle", "idle"]), "two idle nodes")

    def start_controller(self, *, keep_state: bool = True, off_seconds: int = 0) -> None:
        """Start the controller, with what it remembers or with nothing, and wait until it answers.

        Its clock may be off by some seconds. It gives no number twice: to a node that still runs a forgotten job of
        it, that would be the same job.
        """
        self._generation += 1
        self.conf.write_text(f"{self._settings}FirstJobId={1_000 * self._generation}\n")
        self._start("slurmctld", "-D", *(() if keep_state else ("-c",)), become=_clock_off(off_seconds))
        until(lambda: "UP" in self.say("scontrol", "ping"), "the controller")

    def saved(self) -> None:
        """Wait until the controller has written down what has happened so far; it does so every five seconds."""
        state, now = self.root / "state" / "job_state", real_now()
        self.say("sbatch", "--hold", "--output=/dev/null", "--wrap=true")  # something to write down
        until(lambda: state.exists() and state.stat().st_mtime > now, "the controller's state")

    def kill_controller(self, *, forget: bool = False) -> None:
        """End the controller without warning; with ``forget``, its state as well."""
        self._end("slurmctld", signal.SIGKILL)
        if forget:
            shutil.rmtree(self.root / "state")
            (self.root / "state").mkdir()

    def start_node(self, node: str) -> None:
        """Start the daemon of one node."""
        self._start("slurmd", "-D", "-N", node, name=node)

    def kill_node(self, node: str) -> None:
        """End the daemon of one node without warning; its jobs run on."""
        self._end(node, signal.SIGKILL)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Have the controller give no answer while the body runs."""
        self._daemons["slurmctld"].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._daemons["slurmctld"].send_signal(signal.SIGCONT)

    def say(self, *words: str) -> str:
        """Run a client and return what it prints, "" when it fails or has no answer from a controller that is busy."""
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                words, env=self.environment(), capture_output=True, text=True, timeout=30, check=False
            )
            return done.stdout if done.returncode == 0 else ""
        return ""

    def jobs(self, below: Path) -> list[tuple[str, str]]:
        """Return the names and states of the jobs that work below a folder and that the controller remembers."""
        told = self.say("squeue", "-h", "-t", "all", "-o", "%Z %j %T").splitlines()
        return sorted((name, state) for where, name, state in map(str.split, told) if where.startswith(f"{below}/"))

    def books(self) -> dict[str, tuple[int, int]]:
        """Return the first and last second of each job that is over, by its name, as Slurm's accounting has them."""
        found = {}
        for line in (self.root / "jobcomp.txt").read_text().splitlines():
            told = dict(word.split("=", 1) for word in line.split() if "=" in word)
            first, last = (datetime.fromisoformat(told[name]).astimezone(UTC) for name in ("StartTime", "EndTime"))
            found[told["Name"]] = (int(first.timestamp()), int(last.timestamp()))
        return found

    def clear(self) -> None:
        """End all jobs and wait until none is left, nor a process of one that the controller forgot."""
        if jobs := self.say("squeue", "-h", "-o", "%A").split():
            self.say("scancel", "--signal=KILL", "--full", *jobs)
            self.say("scancel", *jobs)
        until(lambda: not self.say("squeue", "-h").strip(), "the end of all jobs")
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self._left(), "the end of what jobs started")

    def _left(self) -> list[int]:
        """Return the processes of jobs on these nodes, and of what watches over them."""
        conf, found = f"SLURM_CONF={self.conf}".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (path / "environ").read_bytes().split(b"\0")
                step = (path / "cmdline").read_bytes().startswith(b"slurmstepd")
                if conf in variables and (step or any(one.startswith(b"SLURM_JOB_ID=") for one in variables)):
                    found.append(int(path.name))
        return found

    def stop(self) -> None:
        """End everything."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.clear()
        for name in [*NODES, "slurmctld", "munged"]:
            self._end(name, signal.SIGTERM)

    def _start_munged(self) -> None:
        key = self.root / "munge"
        key.mkdir(mode=0o700)
        (key / "key").write_bytes(os.urandom(128))
        (key / "key").chmod(0o600)
        for path in (key, key / "key"):
            shutil.chown(path, "munge", "munge")
        words = [f"--{name}={key / name}" for name in ("pid-file", "log-file", "seed-file")]
        words += [f"--key-file={key / 'key'}", f"--socket={self.root}/munge.socket", "--foreground", "--force"]
        self.root.chmod(0o777)  # for the socket and its lock
        self._start("munged", *words, become=["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"])
        until((self.root / "munge.socket").exists, "munged")
        self.root.chmod(0o755)

    def _start(self, program: str, *words: str, name: str = "", become: list[str] | None = None) -> None:
        path = shutil.which(program, path=self.environment()["PATH"])
        with (self.root / f"{name or program}.out").open("ab") as log:
            self._daemons[name or program] = subprocess.Popen(
                [*(become or []), str(path), *words], env=self.environment(), stdout=log, stderr=log, cwd="/"
            )

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._daemons.pop(name, None)
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def slurm_lab(kind: type[SlurmLab] = SlurmLab) -> Iterator[SlurmLab]:
    """Run a cluster until the body ends. Skips, and says so, where something that it needs is missing."""
    if why := kind.missing():
        pytest.skip(why)
    root = Path(tempfile.mkdtemp(prefix="uff-slurm-"))
    lab = kind(root)
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
        shutil.rmtree(root, ignore_errors=True)


def _clock_off(seconds: int) -> list[str]:
    """Return the words before a program's that put its clock off. Skips, and says so, without libfaketime."""
    if not seconds:
        return []
    library = max(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), default=None)
    if library is None:
        pytest.skip("no libfaketime (Debian: libfaketime)")
    return ["env", f"LD_PRELOAD={library}", f"FAKETIME={seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
