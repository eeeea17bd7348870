"""A machine with a real systemd: this one's files under an overlay, booted in a container, the project installed in it.

The overlay's upper layer lives in memory, so nothing that happens inside reaches this machine. Needs root.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.lab.patience import until

PREFIX = Path("/opt/uff-scheduler")
CONFIG = Path("/etc/uff-scheduler/config.toml")
SETTINGS = """
state_dir = "/var/lib/uff-scheduler"
models = []

[daemon]
cycle = "1s"
heartbeat = "2s"

[report.slack]
channel = "#training"

[corpus]
sources = ["/opt/text"]

[[pools]]
name = "desk"
platform = "local"
session_min = "1m"
setup = "10s"
start_delay = "10s"
"""
# A test must not be held up by a machine that hangs.
_SECONDS = 60


@dataclass
class Machine:
    """A booted container; ``pid`` is its first process."""

    root: Path
    pid: int

    def run(self, *words: str | Path, user: str = "root", code: int = 0, **options: Any) -> str:
        """Run a command inside and return its output; its exit code must be ``code``."""
        inside = ["nsenter", "--target", str(self.pid), "--all", "--root", "--wd"]
        who = [] if user == "root" else ["runuser", "-u", user, "--"]
        done = subprocess.run(
            [*inside, *who, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            **{"stdin": subprocess.DEVNULL, **options},
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return str(done.stdout) + str(done.stderr)

    def schedctl(self, *words: str, user: str = "uff-scheduler", code: int = 0) -> str:
        """Run our program as the service's user."""
        return self.run(PREFIX / "bin" / "schedctl", *words, user=user, code=code)

    def write(self, path: str | Path, text: str, mode: int = 0o644) -> None:
        """Write a file inside."""
        there = self.root / str(path).lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text)
        there.chmod(mode)

    def show(self, name: str, unit: str = "uff-scheduler.service") -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", unit, f"--property={name}", "--value").strip()

    def journal(self, unit: str = "uff-scheduler.service") -> str:
        """Return what a unit has said."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)

    def until(self, look: Callable[[], object], what: str) -> None:
        """Wait for something to come true."""
        until(look, f"{what}\n{self.journal()[-3000:]}", _SECONDS)

    def until_working(self) -> int:
        """Wait until the daemon has finished a cycle since it (re)started; return its pid."""
        self.until(lambda: "waiting" in self.show("StatusText") and self.show("ActiveState") == "active", "a daemon")
        return int(self.show("MainPID"))

    def restart(self) -> int:
        """Restart the daemon, whatever became of it; return its pid."""
        self.run("systemctl", "reset-failed")
        self.run("systemctl", "restart", "uff-scheduler.service")
        return self.until_working()

    def install_wheel(self, wheel: Path) -> None:
        """Install a wheel into the environment of the machine, as a user would with pip."""
        shutil.copy(wheel, self.root / "opt" / wheel.name)
        pip = (PREFIX / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps")
        self.run(
            *pip, "--ignore-installed", "--no-warn-script-location", "--root-user-action=ignore", f"/opt/{wheel.name}"
        )

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return the queue by name."""
        listed = json.loads(self.schedctl("queue", "list", "--json"))["jobs"]
        return {job["name"]: job for job in listed}


def build_wheel(repository: Path, folder: Path) -> Path:
    """Build our wheel, without a network."""
    (wheel,) = WheelBuilder(str(repository)).build(directory=str(folder), versions=["standard"])
    return Path(wheel)


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="session")
def machine(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted machine with our wheel in /opt/uff-scheduler, no service installed yet."""
    if os.geteuid() != 0:
        pytest.skip("only root can boot a container with systemd in it")
    if shutil.which("systemd-nspawn") is None or not Path("/usr/lib/systemd/systemd").exists():
        pytest.skip("systemd-nspawn is not installed (Debian: systemd-container)")
    # Not below /tmp: the container mounts its own over that.
    folder = tmp_path_factory.mktemp("machine")
    memory, root = folder / "memory", folder / "memory" / "root"
    memory.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", "size=2g", "uff-test-machine", memory)
        for name in ("upper", "work", "root"):
            (memory / name).mkdir()
        layers = f"lowerdir=/,upperdir={memory / 'upper'},workdir={memory / 'work'}"
        _mount("-t", "overlay", "overlay", "-o", layers, root)
    except subprocess.CalledProcessError as error:
        subprocess.run(["umount", "--quiet", memory], check=False)
        pytest.skip(f"no overlay can be mounted here: {error.stderr.decode().strip()}")
    nspawn = None
    try:
        nspawn, pid = _boot(root, folder / "console")
        found = Machine(root, pid)
        _prepare(found, build_wheel(repository, tmp_path_factory.mktemp("wheel")))
        yield found
    finally:
        if nspawn is not None:
            nspawn.send_signal(signal.SIGTERM)  # nspawn asks the machine to power off
            try:
                nspawn.wait(30)
            except subprocess.TimeoutExpired:
                nspawn.kill()
                nspawn.wait()
        subprocess.run(["umount", "--recursive", memory], check=True)


def _boot(root: Path, console: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Boot; return nspawn's process and the first process inside."""
    binds = [f"--bind-ro={sysconfig.get_path('purelib')}:/opt/dependencies"]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        binds.append(f"--bind-ro={sys.base_prefix}:/opt/python")
    for name in ("dependencies", "python", "text"):
        (root / "opt" / name).mkdir(parents=True, exist_ok=True)
    masked = [f"systemd.mask={unit}.service" for unit in ("systemd-networkd-wait-online", "NetworkManager-wait-online")]
    with console.open("wb") as log:
        nspawn = subprocess.Popen(
            [
                *(
                    "systemd-nspawn",
                    "--directory",
                    str(root),
                    "--boot",
                    "--register=no",
                    "--keep-unit",
                    "--console=pipe",
                ),
                *("--private-network", "--machine=uff-test", "--hostname=uff-test", "--link-journal=no", *binds),
                *("systemd.unit=basic.target", *masked),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def booted() -> int | None:
        if nspawn.poll() is not None:
            pytest.skip(f"no machine boots here: {console.read_text(errors='replace')[-500:]}")
        # Its first child is there for a moment only; the one that stays is the machine's first process.
        for pid in Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children").read_text().split():
            ask = ["nsenter", "--target", pid, "--all", "--root", "--wd", "systemctl", "is-system-running"]
            said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
            if said in {"running", "degraded"}:
                return int(pid)
        return None

    try:
        return nspawn, until(booted, "a booted machine")
    except BaseException:
        nspawn.kill()
        nspawn.wait()
        raise


def _prepare(machine: Machine, wheel: Path) -> None:
    """Make the environment of a user: a virtual one in /opt, our wheel in it; dependencies are borrowed from here."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python = Path("/opt/python/bin") / version
    if Path(sys.base_prefix).is_relative_to("/usr"):
        python = Path(sys.base_prefix) / "bin" / version
    else:
        machine.write("/etc/ld.so.conf.d/uff-test.conf", "/opt/python/lib\n")
        machine.run("ldconfig")
    machine.run(python, "-m", "venv", "--without-pip", PREFIX)
    machine.write(PREFIX / "lib" / version / "site-packages" / "dependencies.pth", "/opt/dependencies\n")
    machine.write("/opt/text/book.txt", "It was a dark and stormy night; the rain fell in torrents.\n" * 200)
    machine.install_wheel(wheel)


@pytest.fixture(scope="session")
def installed(machine: Machine) -> Machine:
    """The machine with the service installed and running."""
    machine.write(CONFIG, SETTINGS)
    machine.run(PREFIX / "bin" / "schedctl", "service", "install")
    machine.until_working()
    return machine
