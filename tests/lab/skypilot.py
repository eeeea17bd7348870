"""A real SkyPilot without a cloud: its API server drives our own Slurm (tests/lab/slurm.py) through an sshd of its own.

It needs root, Debian's Slurm and sshd, and SkyPilot 0.14 with its extra ``slurm`` and ``uv`` in an environment of its
own, which the variable UFF_SKYPILOT names; `make test-nightly` makes one (.ci/apart.sh).
One at a time on a machine, since its queue listens on a port that cannot be chosen: the next waits for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.patience import until
from tests.lab.ports import free_port
from tests.lab.slurm import NODES, SlurmLab, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

_SSHD = "/usr/sbin/sshd"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# SkyPilot would fetch uv and a Python from the web into each cluster's home; this one uses what is here.
_UV = """\
#!/bin/sh
for word; do
    shift
    [ "$word" = 3.10 ] && word={python}
    set -- "$@" "$word"
done
export UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR={cache} UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1 SSL_CERT_FILE={certificates}
exec {uv} "$@"
"""


class _Slurm(SlurmLab):
    """A cluster whose nodes' names resolve, for its daemons and their jobs alone: SkyPilot looks its nodes up."""

    def _start(self, program: str, *words: str, name: str = "", become: list[str] | None = None) -> None:
        if program == "slurmd":
            become = in_hosts(self.root)
        super()._start(program, *words, name=name, become=become)


def in_hosts(root: Path) -> list[str]:
    """Return the words by which a program sees a hosts file of its own."""
    hosts = root / "hosts"
    hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {' '.join(NODES)}\n")
    script = f'mount --bind {shlex.quote(str(hosts))} /etc/hosts && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


@dataclass(frozen=True)
class SkyLab:
    """SkyPilot's server at ``address``, over a Slurm that it knows as ``lab``."""

    address: str
    slurm: SlurmLab
    root: Path

    def options(self, owner: str) -> dict[str, str]:
        """Return the options of a pool that is driven by this server."""
        return {
            "address": self.address,
            "infra": "slurm/lab",
            "accelerator": "H100",
            "cpus": "1+",
            "python": sys.executable,
            "owner": owner,
            "poll_seconds": "0",
            "call_seconds": "200",
            "autodown_minutes": "1",
        }

    def prepare(self, key: str, owner: str, *, works: bool = True) -> None:
        """Put what SkyPilot would fetch from the web where the home of a session's cluster will be."""
        home = self.root / "clusters" / ".sky_clusters" / f"uff-{owner}-{key}-{owner}"
        place = home / ".local" / "bin"
        place.mkdir(parents=True, exist_ok=True)
        found = shutil.which("uv", path=f"{os.environ['UFF_SKYPILOT']}/bin")
        text = _UV.format(
            python=sys.base_prefix + "/bin/python3",
            cache=self.root / "cache",
            uv=found,
            certificates=os.environ.get("SSL_CERT_FILE", _CERTIFICATES),
        )
        (place / "uv").write_text(text if works else "#!/bin/sh\nexit 1\n")
        (place / "uv").chmod(0o755)


def _missing() -> str:
    place = Path(os.environ.get("UFF_SKYPILOT", "/nowhere"), "bin")
    if not (place / "sky").exists() or not (place / "uv").exists():
        return "no SkyPilot (`make test-nightly` installs it; or UFF_SKYPILOT names an environment with it and uv)"
    if sys.version_info >= (3, 12):
        return "SkyPilot's clusters take no Python above 3.11"
    return missing() or ("" if Path(_SSHD).exists() else "no sshd (Debian: openssh-server)")


@contextmanager
def sky_lab() -> Iterator[SkyLab]:
    """Run all of it until the body ends. Skips, and says so, where something that it needs is missing."""
    if why := _missing():
        pytest.skip(why)
    with Path(tempfile.gettempdir(), "uff-sky.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield from _alone()


def _alone() -> Iterator[SkyLab]:
    root = Path(tempfile.mkdtemp(prefix="uff-sky-"))
    root.chmod(0o755)
    (root / "slurm").mkdir()
    slurm = _Slurm(root / "slurm")
    ends = []
    try:
        slurm.start()
        port, api_port = free_port(), free_port()
        ends.append(_sshd(root, slurm, port))
        ends.append(_server(root, api_port))
        address = f"http://127.0.0.1:{api_port}"
        until(lambda: _answers(address), "SkyPilot's server")
        said = _sky("check", "slurm", address=address, root=root)
        assert "Slurm: enabled" in said, said
        yield SkyLab(address, slurm, root)
    finally:
        for process in reversed(ends):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        slurm.stop()
        for pid in _left(root):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(root, ignore_errors=True)


def _left(root: Path) -> list[int]:
    """Return the processes that have this server's home, or work for its clusters."""
    marks, found = (f"HOME={root}/".encode(), f"SLURM_CONF={root}/".encode()), []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (path / "environ").read_bytes().split(b"\0")
            if any(one.startswith(marks) for one in variables):
                found.append(int(path.name))
    return found


def _sshd(root: Path, slurm: SlurmLab, port: int) -> subprocess.Popen[bytes]:
    keys = root / "keys"
    keys.mkdir(mode=0o700)
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
    (keys / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {keys}/host\nPidFile none\nPermitRootLogin prohibit-password\n"
        f"AuthorizedKeysFile {keys}/mine.pub\nUsePAM no\nPasswordAuthentication no\nStrictModes no\n"
        f"SetEnv SLURM_CONF={slurm.conf}\nMaxStartups 100\nMaxSessions 100\nSubsystem sftp internal-sftp\n"
    )
    home = root / "home"
    (home / ".slurm").mkdir(parents=True)
    (home / ".slurm" / "config").write_text(
        f"Host lab\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {keys}/mine\n"
    )
    catalogue = home / ".sky" / "catalogs" / "v8" / "common"  # else it is fetched from the web
    catalogue.mkdir(parents=True)
    (catalogue / "accelerators.csv").write_text("AcceleratorName,Clouds\nH100,slurm\n")
    (catalogue / "metadata.csv").write_text("GPU,MemoryGB,Manufacturer\nH100,80GB,NVIDIA\n")
    settings = {"lab": {"workdir": f"{root}/clusters", "pricing": {"accelerators": {"H100": 2.5}}}}
    (home / ".sky" / "config.yaml").write_text(json.dumps({"slurm": {"cluster_configs": settings}}))
    (root / "clusters").mkdir()
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # an sshd that root starts must find it
    with (root / "sshd.log").open("wb") as log:
        return subprocess.Popen(
            [_SSHD, "-D", "-e", "-f", str(keys / "sshd_config")],
            stderr=log, stdout=log, cwd="/", start_new_session=True,
        )  # fmt: skip


def _server(root: Path, port: int) -> subprocess.Popen[bytes]:
    place = Path(os.environ["UFF_SKYPILOT"], "bin")
    own = {
        "HOME": str(root / "home"),
        "PATH": f"{place}:{os.environ['PATH']}:/usr/sbin",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "IS_SKYPILOT_SERVER": "true",
    }
    with (root / "server.log").open("wb") as log:
        return subprocess.Popen(
            [place / "python", "-u", "-m", "sky.server.server", "--host=127.0.0.1", f"--port={port}"],
            env={**os.environ, **own}, stderr=log, stdout=log, cwd=root, start_new_session=True,
        )  # fmt: skip


def _sky(*words: str, address: str, root: Path) -> str:
    """Run SkyPilot's own client."""
    own = {
        "HOME": str(root / "home"),
        "SKYPILOT_API_SERVER_ENDPOINT": address,
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    done = subprocess.run(
        [Path(os.environ["UFF_SKYPILOT"], "bin", "sky"), *words],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/api/health", timeout=5) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)
    except OSError:
        return False
