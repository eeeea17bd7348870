"""slurmrestd beside the cluster of the lab: by a Unix socket and by HTTP on loopback, with tokens that Slurm makes.

Debian's packages slurmrestd and slurm-wlm-jwt-plugin, which .ci/services.sh installs. It needs root.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import socketserver
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.patience import until
from tests.lab.ports import free_port
from tests.lab.slurm import SlurmLab, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKENS = """\
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={root}/jwt.key
"""


class RestLab(SlurmLab):
    """A cluster that answers HTTP as well. ``socket`` and ``address`` are where, ``token_file`` has a token of root."""

    @staticmethod
    def missing() -> str:
        """Return what is not there that this cluster needs; "" for nothing."""
        there = shutil.which("slurmrestd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        plugin = any(Path("/usr/lib").glob("*/slurm-wlm/auth_jwt.so"))
        return missing() or ("" if there and plugin else "no slurmrestd (Debian: slurmrestd slurm-wlm-jwt-plugin)")

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._settings += _TOKENS.format(root=root)
        key = root / "jwt.key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        (root / "rest").mkdir()
        shutil.chown(root / "rest", "nobody", "nogroup")
        self.socket = root / "rest" / "socket"
        self.token_file = root / "token"

    def start(self) -> None:
        """Start everything, and make a token."""
        super().start()
        self.make_token()
        self.start_rest()

    def token(self, user: str = "root", seconds: int = 90_000) -> str:
        """Return a token of a user."""
        told = self.say("scontrol", "token", f"lifespan={seconds}", f"username={user}")
        return told.strip().partition("=")[2]

    def make_token(self, seconds: int = 90_000) -> None:
        """Write a token of root."""
        self.token_file.write_text(self.token(seconds=seconds))
        self.token_file.chmod(0o600)

    def start_rest(self) -> None:
        """Start slurmrestd, which refuses to run as root, and wait until it listens."""
        self.socket.unlink(missing_ok=True)
        words = ["-a", "rest_auth/jwt", "-s", "openapi/v0.0.38", f"unix:{self.socket}", f"127.0.0.1:{self.port}"]
        become = ["env", "SLURM_JWT=daemon", "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        self._start("slurmrestd", *words, become=become)
        until(self.socket.exists, "slurmrestd")

    def options(self, *, http: bool = False) -> dict[str, str]:
        """Return the options of a pool that asks it."""
        where = self.address if http else f"unix:{self.socket}"
        return {"slurmrestd": where, "token_file": str(self.token_file)}

    def kill_rest(self) -> None:
        """End slurmrestd without warning."""
        self._end("slurmrestd", signal.SIGKILL)

    def stop(self) -> None:
        """End everything."""
        self._end("slurmrestd", signal.SIGTERM)
        super().stop()


class LossyWay(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A socket in front of slurmrestd's. ``loses`` of a submission its "request", its "answer" or nothing ("")."""

    daemon_threads = True
    loses = ""

    def __init__(self, path: Path, behind: Path) -> None:
        self.behind = str(behind)
        super().__init__(str(path), _Call)


class _Call(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Pass one request and its answer on, or not."""
        way = self.server
        assert isinstance(way, LossyWay)
        head = b""
        while not head.endswith(b"\r\n\r\n") and (line := self.rfile.readline()):
            head += line
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = self.rfile.read(int(length[1])) if length else b""
        submits = b"/job/submit" in head.partition(b"\r\n")[0]
        if submits and way.loses == "request":
            return
        with socket.socket(socket.AF_UNIX) as behind:
            behind.connect(way.behind)
            behind.sendall(head + body)
            answer = b""
            while piece := behind.recv(1 << 16):
                answer += piece
        if not (submits and way.loses == "answer"):
            self.wfile.write(answer)


@contextmanager
def lossy_way(path: Path, behind: Path) -> Iterator[LossyWay]:
    """Serve such a socket until the body ends."""
    with LossyWay(path, behind) as way:
        thread = threading.Thread(target=way.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield way
        finally:
            way.shutdown()
            thread.join()
            path.unlink()
