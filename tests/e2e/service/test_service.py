"""The service under a real systemd: installed, killed, hung, stopped, reloaded, upgraded, removed."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

Machine = Any  # see conftest.py
UNIT = "uff-scheduler.service"
CONFIG = "/etc/uff-scheduler/config.toml"
DROP_IN = "/etc/systemd/system/uff-scheduler.service.d/test.conf"
CANARY = "canary-b71c-never-shown"


@pytest.fixture
def settings(installed: Machine) -> Iterator[str]:
    """The settings of the service, put back afterwards."""
    file = installed.root / CONFIG.lstrip("/")
    text: str = file.read_text()
    yield text
    installed.write(CONFIG, text)
    installed.restart()


@pytest.fixture
def drop_in(installed: Machine) -> Any:
    """Changes the unit by a drop-in, as `systemctl edit` does, until the test is over."""

    def change(*lines: str) -> int:
        installed.write(DROP_IN, "\n".join(["[Service]", *lines, ""]))
        installed.run("systemctl", "daemon-reload")
        pid: int = installed.restart()
        return pid

    yield change
    (installed.root / DROP_IN.lstrip("/")).unlink(missing_ok=True)
    installed.run("systemctl", "daemon-reload")
    installed.restart()


def test_install_starts_a_hardened_unit_that_systemd_has_nothing_to_say_about(installed: Machine) -> None:
    assert installed.run("systemctl", "is-enabled", UNIT).strip() == "enabled"
    assert installed.run("systemd-analyze", "verify", UNIT, "uff-local.socket") == ""
    assert "OK" in installed.run("systemd-analyze", "security", "--no-pager", "--threshold=15", UNIT).splitlines()[-1]
    session = ("systemd-analyze", "security", "--no-pager", "--threshold=31", "uff-local@0.service")
    assert "OK" in installed.run(*session).splitlines()[-1]
    assert installed.run("cat", "/run/uff-scheduler/status.line", user="nobody") == "0 running, 0 waiting\n"
    found = json.loads(installed.schedctl("service", "status", "--json"))
    daemon = next(unit for unit in found["units"] if unit["unit"] == UNIT)
    assert (daemon["state"], daemon["enabled"], daemon["status"]) == ("active (running)", True, "0 running, 0 waiting")


@pytest.mark.nightly
def test_installing_again_changes_nothing_but_restarts(installed: Machine) -> None:
    pid = installed.until_working()
    before = sorted((installed.root / "etc/systemd/system").rglob("uff-*"))
    installed.run("/opt/uff-scheduler/bin/schedctl", "service", "install")
    assert installed.until_working() != pid
    assert sorted((installed.root / "etc/systemd/system").rglob("uff-*")) == before


def test_a_killed_daemon_is_back(installed: Machine) -> None:
    pid = installed.until_working()
    installed.run("kill", "-KILL", str(pid))
    installed.until(lambda: installed.show("MainPID") not in {str(pid), "0"}, "another daemon")
    assert installed.until_working() != pid
    assert int(installed.show("NRestarts")) >= 1


@pytest.mark.nightly
def test_a_hung_daemon_is_killed_by_the_watchdog_and_back(installed: Machine, drop_in: Any) -> None:
    pid = drop_in("WatchdogSec=4")
    installed.run("kill", "-STOP", str(pid))
    installed.until(lambda: installed.show("MainPID") not in {str(pid), "0"}, "another daemon")
    assert installed.until_working() != pid
    assert "Watchdog timeout" in installed.journal()


@pytest.mark.nightly
def test_a_stopped_daemon_gave_its_lease_back_and_is_no_failure(installed: Machine) -> None:
    installed.until_working()
    installed.run("systemctl", "stop", UNIT)
    assert (installed.show("ActiveState"), installed.show("Result")) == ("inactive", "success")
    assert not (installed.root / "run/uff-scheduler/status.line").exists()
    checks = {
        c["check"]: c for c in json.loads(installed.schedctl("doctor", "--json", code=9).splitlines()[0])["checks"]
    }
    assert (checks["daemon"]["grade"], checks["service"]["grade"]) == ("warning", "bad")
    installed.restart()


def test_a_reload_takes_new_settings_over(installed: Machine, settings: str) -> None:
    pid = installed.until_working()
    installed.write(CONFIG, settings + '\n[[pools]]\nname = "second"\nplatform = "local"\n')
    installed.run("systemctl", "reload", UNIT)
    installed.until(lambda: "settings reloaded" in installed.schedctl("status"), "new settings")
    assert "second" in installed.schedctl("status")
    assert installed.until_working() == pid


@pytest.mark.nightly
def test_a_reload_of_broken_settings_fails_where_it_was_asked_for(installed: Machine, settings: str) -> None:
    pid = installed.until_working()
    installed.write(CONFIG, settings + "\nsurprise = 1\n")
    installed.run("systemctl", "reload", UNIT, code=1)
    assert "there is no such key" in installed.journal()
    assert installed.until_working() == pid


@pytest.mark.nightly
def test_a_daemon_told_of_broken_settings_keeps_the_old_ones_and_says_so(installed: Machine, settings: str) -> None:
    pid = installed.until_working()
    installed.write(CONFIG, settings.replace('platform = "local"', 'platform = "lokal"'))
    installed.run("systemctl", "kill", "--signal=HUP", "--kill-who=main", UNIT)
    installed.until(lambda: "config.not_reloaded" in installed.journal(), "a refusal")
    installed.write(CONFIG, settings)
    assert "settings not reloaded" in installed.schedctl("status")
    assert installed.until_working() == pid


@pytest.mark.nightly
def test_broken_settings_at_the_start_wait_for_a_person(installed: Machine, settings: str) -> None:
    installed.write(CONFIG, settings + "\nsurprise = 1\n")
    installed.run("systemctl", "restart", UNIT, code=1)
    assert installed.show("ActiveState") == "failed"
    assert "is failed" in installed.schedctl("service", "status", code=9)


@pytest.mark.nightly
def test_credentials_plain_and_encrypted_reach_the_settings_and_nothing_else(installed: Machine, drop_in: Any) -> None:
    folder = "/etc/uff-scheduler/credentials"
    installed.write(f"{folder}/report.smtp.password", f"{CANARY}-plain\n", 0o600)
    installed.run("systemd-creds", "setup")
    installed.write("/opt/token", f"{CANARY}-sealed")
    encrypted = f"{folder}/report.slack.bot_token.cred"
    installed.run("systemd-creds", "encrypt", "--name=report.slack.bot_token", "/opt/token", encrypted)
    installed.run("chmod", "600", encrypted)
    installed.write(f"{folder}/kaggle", f"{CANARY}-kaggle\n", 0o600)
    installed.run("/opt/uff-scheduler/bin/schedctl", "service", "install")
    shown = "/opt/uff-scheduler/bin/schedctl --config /etc/uff-scheduler/config.toml config show report"
    installed.write("/opt/look", f'#!/bin/sh\n{shown}\nwc -c < "$CREDENTIALS_DIRECTORY/kaggle" || true\n', 0o755)
    pid = drop_in("ExecStartPre=/opt/look")
    installed.run("systemctl", "reload", UNIT)
    installed.until(lambda: "config.reloaded" in installed.journal(), "a reload with credentials")
    journal = installed.journal()
    assert "credential report.smtp.password" in journal
    assert "credential report.slack.bot_token" in journal
    assert f"{len(CANARY) + 8}\n" in journal
    state = installed.run("grep", "-rlF", CANARY, "/var/lib/uff-scheduler", "/run/uff-scheduler", "/var/log", code=1)
    assert state == ""
    assert CANARY not in journal + installed.run("cat", f"/proc/{pid}/environ", f"/proc/{pid}/cmdline")
    shutil.rmtree(installed.root / folder.lstrip("/"))
    installed.run("/opt/uff-scheduler/bin/schedctl", "service", "install")
    assert not Path(installed.root / "etc/systemd/system/uff-scheduler.service.d/credentials.conf").exists()


def test_the_daemon_can_write_nothing_but_its_own(installed: Machine) -> None:
    pid = str(installed.until_working())
    enter = ("nsenter", "--target", pid, "--mount", "--setuid=0")
    for place in ("/etc/uff-scheduler", "/opt", "/usr", "/home", "/var/lib"):
        installed.run(*enter, "test", "-w", place, code=1)
    installed.run(*enter, "test", "-w", "/var/lib/uff-scheduler")


@pytest.mark.nightly
def test_an_upgrade_replaces_program_and_units(installed: Machine, repository: Path, tmp_path: Path) -> None:
    pid = installed.until_working()
    newer = tmp_path / "newer"
    shutil.copytree(repository, newer, ignore=shutil.ignore_patterns(".venv", ".git", "out", "tests", "benchmarks"))
    project = newer / "pyproject.toml"
    project.write_text(re.sub(r'(?m)^version = ".*"$', 'version = "9.9.1"', project.read_text()))
    unit = newer / "systemd" / UNIT
    unit.write_text(unit.read_text().replace("WatchdogSec=15min", "WatchdogSec=14min"))
    (wheel,) = WheelBuilder(str(newer)).build(directory=str(tmp_path), versions=["standard"])
    installed.install_wheel(Path(wheel))
    installed.run("/opt/uff-scheduler/bin/schedctl", "service", "install")
    assert "9.9.1" in installed.schedctl("version")
    assert installed.until_working() != pid
    assert installed.show("WatchdogUSec") == "14min"


@pytest.mark.nightly
def test_the_status_page_runs_as_a_service_beside_it(installed: Machine) -> None:
    installed.run("/opt/uff-scheduler/bin/schedctl", "service", "install", "--web")
    installed.until(lambda: installed.show("ActiveState", "uff-web.service") == "active", "the page")
    asked = ("curl", "--silent", "--fail", "--retry", "20", "--retry-connrefused", "--retry-delay", "1")
    assert installed.run(*asked, "http://127.0.0.1:8765/health/live")
    assert "OK" in installed.run("systemd-analyze", "security", "--no-pager", "uff-web.service").splitlines()[-1]
    installed.run("systemctl", "disable", "--now", "uff-web.service")


def test_an_installation_of_ones_own_needs_no_root(installed: Machine) -> None:
    steps = installed.run("/opt/uff-scheduler/bin/schedctl", "service", "install", "--user", "--dry-run", user="nobody")
    assert "systemctl --user restart uff-scheduler.service" in steps


def test_without_root_the_system_is_not_touched(installed: Machine) -> None:
    refused = installed.run("/opt/uff-scheduler/bin/schedctl", "service", "install", user="nobody", code=6)
    assert "only root may write there" in refused


def test_uninstall_leaves_settings_and_state(machine: Machine, installed: Machine) -> None:
    machine.run("/opt/uff-scheduler/bin/schedctl", "service", "uninstall")
    assert machine.show("LoadState") == "not-found"
    assert list((machine.root / "etc/systemd/system").glob("uff-*.s*")) == []
    assert (machine.root / CONFIG.lstrip("/")).exists()
    assert (machine.root / "var/lib/uff-scheduler/scheduler.db").exists()
    assert "missing" in machine.schedctl("service", "status")
    machine.run("/opt/uff-scheduler/bin/schedctl", "service", "install")
    machine.until_working()
