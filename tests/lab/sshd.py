"""A real sshd on a free port of this machine, with keys of its own, run by the user whose folder it opens.

As root that is a second user, whom .ci/services.sh makes; otherwise it is the user who tests.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.patience import until
from tests.lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND_USER = "uff-target"
_SSHD = "/usr/sbin/sshd"  # it begins itself anew for each connection, by its whole path


def _missing() -> str:
    """Return what is not there that the tests of ssh need; "" for nothing."""
    if not (shutil.which("ssh") and shutil.which("rsync") and Path(_SSHD).exists()):
        return "no sshd and rsync (Debian: openssh-server, rsync)"
    if os.geteuid() == 0 and SECOND_USER not in {user.pw_name for user in pwd.getpwall()}:
        return f"no second user (.ci/services.sh makes it: useradd -m -s /bin/bash {SECOND_USER})"
    if os.geteuid() == 0:
        place = Path(tempfile.gettempdir()).resolve()
        closed = [folder for folder in (place, *place.parents) if not folder.stat().st_mode & stat.S_IXOTH]
        if closed:
            return f"{closed[0]} is closed to the second user (set TMPDIR to a folder that is not)"
    return ""


@dataclass(frozen=True)
class SshServer:
    """A server that runs. ``folder`` is where its user may write; ``options`` lead a target there."""

    folder: Path
    user: str
    options: dict[str, str]
    process: subprocess.Popen[bytes]


@contextmanager
def ssh_server() -> Iterator[SshServer]:
    """Run a server until the body ends. Skips where something that it needs is missing."""
    if why := _missing():
        pytest.skip(why)
    user = SECOND_USER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    root = Path(tempfile.mkdtemp(prefix="uff-sshd-", dir=tempfile.gettempdir()))
    root.chmod(0o711)
    keys, home = root / "keys", root / "served"
    keys.mkdir(mode=0o711)
    home.mkdir()
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
    shutil.copyfile(keys / "mine.pub", keys / "authorized")
    port = free_port()
    config = keys / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {keys}/host\nPidFile none\n"
        f"AuthorizedKeysFile {keys}/authorized\nUsePAM no\nPasswordAuthentication no\nStrictModes no\n"
    )
    (keys / "known_hosts").write_text(f"[127.0.0.1]:{port} {(keys / 'host.pub').read_text()}")
    become = []
    if os.geteuid() == 0:
        for path in (home, keys / "host"):
            shutil.chown(path, user)
        entry = pwd.getpwnam(user)
        become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
    with (root / "sshd.log").open("wb") as log:
        process = subprocess.Popen([*become, _SSHD, "-D", "-e", "-f", str(config)], stderr=log, stdout=log, cwd="/")
    try:
        until(lambda: _answers(port) or process.poll() is not None, "sshd")
        options = {
            "host": f"{user}@127.0.0.1",
            "port": str(port),
            "path": str(home / "models"),
            "ssh_config": "/dev/null",
            "known_hosts": str(keys / "known_hosts"),
            "identity": str(keys / "mine"),
        }
        yield SshServer(home, user, options, process)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(root, ignore_errors=True)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
