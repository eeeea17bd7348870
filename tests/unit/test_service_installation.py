"""What an installation would do, and the units it writes; nothing of this machine is touched."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.host.installation import (
    MAIN,
    SESSION,
    SOCKET,
    WEB,
    CommandRun,
    FileWrite,
    Installation,
    Remove,
    ServiceRefused,
    carry_out,
    install_steps,
    obstacles,
    uninstall_steps,
)
from tests.lab.patience import PATIENCE_SECONDS

MakePlace = Callable[..., Installation]


@pytest.fixture
def place(tmp_path: Path) -> MakePlace:
    """Make the place of an image below a temporary folder, with fields of its own."""

    def make(**fields: Any) -> Installation:
        known: dict[str, Any] = {
            "python": Path("/opt/uff/bin/python"),
            "schedctl": Path("/opt/uff/bin/schedctl"),
            "config": Path("/etc/uff-scheduler/config.toml"),
            "folder": Path("/etc/uff-scheduler"),
            "units": Path("/etc/systemd/system"),
            "state": Path("/var/lib/uff-scheduler"),
            "root": tmp_path,
        }
        return Installation(**{**known, **fields})

    return make


def written(place: Installation, name: str) -> str:
    return place.at(place.units / name).read_text()


@pytest.mark.parametrize("user", [False, True], ids=["system", "user"])
def test_every_name_in_a_unit_is_filled_in(place: MakePlace, user: bool) -> None:
    here = place(user=user, web=True)
    carry_out(install_steps(here, start=True), here)
    for name in (MAIN, WEB, SOCKET, SESSION):
        assert re.search("@[A-Z]+@", written(here, name)) is None
    assert "ExecStart=/opt/uff/bin/schedctl --config /etc/uff-scheduler/config.toml daemon\n" in written(here, MAIN)
    assert "ExecStart=/opt/uff/bin/python -I -m platforms.local.runner\n" in written(here, SESSION)


def test_an_image_is_written_to_and_no_manager_is_called(place: MakePlace) -> None:
    assert [step for step in install_steps(place(), start=True) if isinstance(step, CommandRun)] == []
    assert [step for step in uninstall_steps(place()) if isinstance(step, CommandRun)] == []


def test_the_manager_is_told_in_order_and_the_daemon_started_last(place: MakePlace) -> None:
    steps = install_steps(place(root=Path("/"), folder=Path("/nowhere")), start=True)
    words = [" ".join(step.words[:2]) for step in steps if isinstance(step, CommandRun)]
    assert words == [
        *("systemd-sysusers /etc/sysusers.d/uff-scheduler.conf", "systemd-tmpfiles --create"),
        *("systemctl daemon-reload", "systemctl enable", "systemctl start", "systemctl restart"),
    ]
    assert isinstance(steps[-1], CommandRun)
    kept = install_steps(place(root=Path("/"), folder=Path("/nowhere")), start=False)
    assert not [step for step in kept if isinstance(step, CommandRun) and "restart" in step.words]


def test_settings_that_are_there_stay(place: MakePlace) -> None:
    here = place()
    carry_out(install_steps(here, start=False), here)
    config = here.at(here.config)
    assert 'state_dir = "/var/lib/uff-scheduler"' in config.read_text()
    config.write_text("zone = 'Europe/Berlin'\n")
    carry_out(install_steps(here, start=False), here)
    assert config.read_text() == "zone = 'Europe/Berlin'\n"


def test_credentials_become_lines_of_a_drop_in_and_go_with_their_files(place: MakePlace) -> None:
    here = place(web=True)
    folder = here.at(here.folder / "credentials")
    folder.mkdir(parents=True)
    for name in ("report.smtp.password", "kaggle", "web", "web-actions", "database_url.cred"):
        (folder / name).touch(0o600)
    carry_out(install_steps(here, start=False), here)
    assert written(here, f"{MAIN}.d/credentials.conf").splitlines()[2:] == [
        "LoadCredentialEncrypted=database_url:/etc/uff-scheduler/credentials/database_url.cred",
        "LoadCredential=kaggle:/etc/uff-scheduler/credentials/kaggle",
        "LoadCredential=report.smtp.password:/etc/uff-scheduler/credentials/report.smtp.password",
    ]
    for_page = re.findall("=([a-z_-]+):", written(here, f"{WEB}.d/credentials.conf"))
    assert for_page == ["database_url", "web", "web-actions"]
    shutil.rmtree(folder)
    carry_out(install_steps(here, start=False), here)
    assert not here.at(here.units / f"{MAIN}.d/credentials.conf").exists()


@pytest.mark.parametrize(
    ("name", "mode", "why"), [("kaggle", 0o640, "others may read"), ("a b", 0o600, "not a credential")]
)
def test_a_credential_that_is_open_or_oddly_named_is_refused(place: MakePlace, name: str, mode: int, why: str) -> None:
    here = place()
    folder = here.at(here.folder / "credentials")
    folder.mkdir(parents=True)
    (folder / name).touch()
    (folder / name).chmod(mode)
    with pytest.raises(ServiceRefused, match=why):
        install_steps(here, start=False)


def test_folders_of_the_settings_become_writable_and_missing_ones_are_made(place: MakePlace, tmp_path: Path) -> None:
    here = place(writable=(Path("/data/artifacts"), Path("/data/log")))
    (tmp_path / "data" / "log").mkdir(parents=True)
    carry_out(install_steps(here, start=False), here)
    assert "ReadWritePaths=/data/artifacts /data/log\n" in written(here, MAIN)
    tmpfiles = (tmp_path / "etc/tmpfiles.d/uff-scheduler.conf").read_text()
    assert "d /data/artifacts 0700 uff-scheduler uff-scheduler\n" in tmpfiles
    assert "/data/log" not in tmpfiles


@pytest.mark.parametrize("config", ["/etc/my settings.toml", "/etc/100%.toml", '/etc/"x".toml'])
def test_a_path_that_systemd_would_read_otherwise_is_refused(place: MakePlace, config: str) -> None:
    with pytest.raises(ServiceRefused, match="cannot stand in a unit"):
        install_steps(place(config=Path(config)), start=False)


def test_what_lies_in_a_home_is_an_obstacle(place: MakePlace) -> None:
    found = obstacles(place(root=Path("/"), state=Path("/home/me/state"), python=Path("/home/x/python")))
    assert any("/home/me/state" in obstacle.why for obstacle in found)
    assert any("cannot run /home/x/python" in obstacle.why for obstacle in found)


def test_uninstall_removes_what_install_wrote_but_the_settings(place: MakePlace, tmp_path: Path) -> None:
    here = place(web=True)
    carry_out(install_steps(here, start=False), here)
    steps = uninstall_steps(here)
    carry_out(steps, here)
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["etc/uff-scheduler/config.toml"]
    assert all(isinstance(step, Remove) for step in steps)


def test_a_command_that_fails_is_told_with_what_it_said(place: MakePlace) -> None:
    with pytest.raises(ServiceRefused, match="ls --no-such-option"):
        carry_out([CommandRun(("ls", "--no-such-option"))], place())
    with pytest.raises(ServiceRefused, match="no-such-program"):
        carry_out([CommandRun(("no-such-program",))], place())
    assert isinstance(install_steps(place(), start=False)[0], FileWrite)


@pytest.mark.services("systemd-analyze")
def test_systemd_understands_every_line_and_rates_the_sandbox(place: MakePlace, tmp_path: Path) -> None:
    """Unknown keys and bad values are warnings to it, hence no output at all is what must be."""
    true = shutil.which("true")
    here = place(web=True, schedctl=Path(str(true)), python=Path(str(true)))
    carry_out(install_steps(here, start=False), here)
    units = here.at(here.units)
    names = [str(units / name) for name in (MAIN, WEB, SOCKET, SESSION)]
    checked = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False)
    said = [line for line in checked.stderr.splitlines() if "uff-" in line]
    assert (checked.returncode, said) == (0, [])
    for name, threshold in ((MAIN, 15), (WEB, 15)):
        rate = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={threshold}"]
        rated = subprocess.run([*rate, str(units / name)], capture_output=True, text=True, check=False)
        assert rated.returncode == 0, rated.stdout.splitlines()[-1]


@pytest.mark.services("systemd-analyze")
@pytest.mark.parametrize(("unit", "exposure"), [("uff-scheduler", 1.5), ("uff-web", 1.5), ("uff-local@", 3.1)])
def test_a_unit_is_exposed_no_more_than_the_documents_say(
    repository: Path, tmp_path: Path, unit: str, exposure: float
) -> None:
    text = (repository / "systemd" / f"{unit}.service").read_text(encoding="utf-8")
    file = tmp_path / f"{unit}.service"
    file.write_text(re.sub("@[A-Z]+@", "/usr/bin/true", text), encoding="utf-8")
    command = [
        "systemd-analyze",
        "security",
        "--offline=true",
        "--no-pager",
        f"--threshold={exposure * 10:.0f}",
        str(file),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout.splitlines()[-1:] or done.stderr
