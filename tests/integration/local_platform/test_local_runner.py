"""Sessions in units of their own, and what happens where nobody starts any."""

import os
import signal
import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

from platforms.base import Refused, SessionState
from platforms.local.spawn import RUNNER_VARIABLE

Machine = Any  # see conftest.py


def close_first(listener: socket.socket) -> None:
    """Answer the first caller by hanging up; without a listener there is none."""
    with suppress(OSError):
        listener.accept()[0].close()


@pytest.mark.parametrize("spawned_by", ["unit"], indirect=True)
def test_a_unit_that_is_stopped_lets_the_agent_leave_and_tells_how(machine: Machine) -> None:
    """The service manager sends SIGTERM to every process of the unit; the keeper stays for the agent's last word."""
    machine.launch()
    machine.until_ready()
    os.kill(machine.claim()["keeper"], signal.SIGTERM)
    with suppress(ProcessLookupError):  # its keeper may have been faster
        os.kill(machine.claim()["agent"], signal.SIGTERM)
    assert machine.until_ended().detail == "killed by signal 15"


@pytest.mark.parametrize(
    ("answer", "expected"), [("nobody", "systemctl start uff-local.socket"), ("closes", "did not claim")]
)
@pytest.mark.parametrize("spawned_by", ["child"], indirect=True)
def test_without_a_service_manager_at_the_socket_nothing_starts(
    machine: Machine, answer: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(machine.folder / "runner.sock")
    monkeypatch.setenv(RUNNER_VARIABLE, address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        if answer == "closes":
            listener.listen()
        server = threading.Thread(target=close_first, args=(listener,), daemon=answer == "nobody")
        server.start()
        with pytest.raises(Refused, match=expected):
            machine.launch()
        server.join()
    assert machine.find().state == SessionState.ABSENT
