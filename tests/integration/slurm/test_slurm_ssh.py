"""The same through ssh: one connection, no unknown host, and a broken way that ends nothing."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from platforms.base import Misconfigured, SessionState, Unreachable
from scheduler.clock import real_now
from tests.lab.patience import until
from tests.lab.sshd import SshServer, ssh_server

World = Any  # see conftest.py


@pytest.fixture
def far(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, SshServer]]:
    """The pool's cluster behind an sshd; jobs run as its user."""
    # Not in TMPDIR: ssh puts its sockets elsewhere where the path is long.
    with ssh_server() as server, TemporaryDirectory(prefix="uff-run-", dir="/tmp") as run:
        monkeypatch.setenv("XDG_RUNTIME_DIR", run)
        world.options = {name: text for name, text in server.options.items() if name != "path"}
        world.options |= {"folder": str(server.folder / "pool"), "python": "/usr/bin/python3"}
        yield world, server
        for socket in (Path(run) / f"uff-ssh-{os.geteuid()}").iterdir():
            subprocess.run(
                ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "any"], check=False, capture_output=True
            )


def test_a_session_behind_ssh_runs_and_survives_a_broken_way(far: tuple[World, SshServer]) -> None:
    world, server = far
    running = world.running("one")
    sockets = list((Path(os.environ["XDG_RUNTIME_DIR"]) / f"uff-ssh-{os.geteuid()}").iterdir())
    assert len(sockets) == 1  # one connection for all
    subprocess.run(["ssh", "-o", f"ControlPath={sockets[0]}", "-O", "exit", "any"], check=False, capture_output=True)
    server.process.terminate()
    server.process.wait()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: world.find("one"),
        lambda: world.launch("two"),
        lambda: world.adapter().stop("one", int(real_now()), force=True),
    )
    for call in calls:
        with pytest.raises(Unreachable):
            call()
    until(lambda: world.lab.say("squeue", "-h", "-o", "%i %T").split() == [running.remote_id, "RUNNING"], "its job")


def test_a_host_with_another_key_is_not_trusted(far: tuple[World, SshServer], tmp_path: Path) -> None:
    world, server = far
    known = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    known.write_text(f"[127.0.0.1]:{server.options['port']} {(tmp_path / 'other.pub').read_text()}")
    world.options["known_hosts"] = str(known)
    with pytest.raises(Misconfigured, match="not the known one"):
        world.launch("one")


def test_it_is_asked_to_leave_and_its_folder_is_removed(far: tuple[World, SshServer]) -> None:
    world, server = far
    world.running("one")
    world.adapter().stop("one", int(real_now()), force=False)
    world.until("one", SessionState.ENDED)
    assert world.output("one").endswith("saved\n")
    assert list(world.adapter().sweep(["one"], int(real_now()))) == ["one"]
    assert not (server.folder / "pool" / "one").exists()
