"""A service of one's own, under the user's systemd: no root, a filter on system calls, sessions in their own units."""

from pathlib import Path
from typing import Any

import pytest

Machine = Any  # see conftest.py
SCHEDCTL = "/opt/uff-scheduler/bin/schedctl"


@pytest.mark.nightly
def test_a_person_without_root_has_a_service_of_their_own(machine: Machine) -> None:
    machine.run("useradd", "--create-home", "person")
    number = machine.run("id", "--user", "person").strip()
    machine.run("systemctl", "start", f"user@{number}.service")
    runtime = f"/run/user/{number}"

    def own(*words: str, code: int = 0) -> str:
        said: str = machine.run(
            "env", f"XDG_RUNTIME_DIR={runtime}", "HOME=/home/person", *words, user="person", code=code
        )
        return said

    own(SCHEDCTL, "service", "install", "--user")
    machine.until(lambda: "waiting" in own(SCHEDCTL, "service", "status", "--user"), "a daemon of one's own")
    assert own(SCHEDCTL, "prompt") == "0 running, 0 waiting\n"
    pid = own("systemctl", "--user", "show", "uff-scheduler.service", "--property=MainPID", "--value").strip()
    assert machine.run("ps", "-o", "user=", "-p", pid).strip() == "person"
    # From inside the machine, where the number is valid: seccomp filters are in force, and no new privileges.
    told = dict(line.split(":", 1) for line in machine.run("cat", f"/proc/{pid}/status").splitlines())
    assert (told["Seccomp"].strip(), told["NoNewPrivs"].strip()) == ("2", "1")
    assert (machine.root / "home/person/.local/state/uff-scheduler/scheduler.db").exists()
    (runner,) = machine.run("find", runtime, "-name", "uff-local.sock").split()
    assert machine.run("stat", "--format=%a %U", runner).split() == ["600", "person"]
    own("systemctl", "--user", "reload", "uff-scheduler.service")
    machine.until(lambda: "settings reloaded" in own(SCHEDCTL, *_config("status")), "a reload")
    own(SCHEDCTL, "service", "uninstall", "--user")
    assert "missing" in own(SCHEDCTL, "service", "status", "--user")
    machine.run("systemctl", "stop", f"user@{number}.service")


def _config(*words: str) -> tuple[str, ...]:
    return ("--config", str(Path("/home/person/.config/uff-scheduler/config.toml")), *words)
