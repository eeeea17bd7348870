"""`schedctl doctor kaggle`: each thing that can be wrong is named with what to do, and no secret is told."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platforms.base import Checked, PlatformError
from platforms.kaggle import checkup
from tests.lab.faults import Fault
from tests.lab.patience import PATIENCE_SECONDS

Account = Any
Examine = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def examine(account: Account, tmp_path: Path) -> Examine:
    """Runs the doctor in an environment and with options of one's own; returns its exit code and checks."""

    def run(
        environment: dict[str, str] | None = None, options: dict[str, str] | None = None, *words: str
    ) -> tuple[int, dict[str, dict[str, str]]]:
        chosen = {"emulator": account.server.address, "pause_milliseconds": "0", **(options or {})}
        told = ", ".join(f'{name} = "{text}"' for name, text in chosen.items())
        (tmp_path / "settings.toml").write_text(
            f'[[pools]]\nname = "t4"\nplatform = "kaggle"\noptions = {{ {told} }}\n'
        )
        command = [sys.executable, "-m", "scheduler", "--config", str(tmp_path / "settings.toml"), "--json", "doctor"]
        surroundings = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **(environment or {})}
        done = subprocess.run(
            [*command, "kaggle", *words],
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        for secret in ("canary", account.place.key):
            assert secret not in done.stdout + done.stderr
        checks = json.loads(done.stdout)["checks"]
        return done.returncode, {check["check"].removeprefix("t4: "): check for check in checks}

    return run


def private(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


WRONG: dict[str, tuple[dict[str, str], str, int, str]] = {
    "nothing at all": ({}, "", 0, "no credentials found"),
    "a file that is not there": ({}, "missing", 0, "No such file"),
    "a file for all to read": ({}, '{"username": "alice", "key": "canary"}', 0o644, "chmod 600"),
    "an empty file": ({}, "", 0o600, "holds no access token: it is empty"),
    "a file of two words": ({}, "canary canary", 0o600, "holds no access token"),
    "a file of broken JSON": ({}, '{"username": "alice"', 0o600, "holds no JSON object with username and key"),
    "half a key": ({"KAGGLE_USERNAME": "alice"}, "", 0, "only one of username and key"),
    "two kinds at once": (
        {"KAGGLE_API_TOKEN": "canary", "KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "canary"},
        "",
        0,
        "set together",
    ),
    "a key of somebody else": ({"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "canary"}, "", 0, "are refused"),
    "a token that is over": ({"KAGGLE_API_TOKEN": "canary-token"}, "", 0, "not active"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_credentials_are_named(account: Account, tmp_path: Path, case: str) -> None:
    environment, content, mode, says = WRONG[case]
    settings = {"emulator": account.server.address, "pause_milliseconds": "0"}
    if mode:
        settings["credentials"] = private(tmp_path / "key", content, mode)
    elif content == "missing":
        settings["credentials"] = str(tmp_path / "missing")
    environment = {"HOME": str(tmp_path), **environment}
    found = [told(check) for check in checkup.checks(settings, environment, float(account.now()), probe=False).values()]
    assert any(text.startswith("bad") and says in text for text in found), found
    assert not any("canary" in text for text in found)


def told(check: Callable[[], Checked]) -> str:
    try:
        checked = check()
    except PlatformError as error:
        return f"bad {error}"
    return f"{checked.grade} {checked.found} {checked.remedy}"


def test_a_doctor_that_finds_something_wrong_says_so_with_its_exit_code(examine: Examine) -> None:
    code, checks = examine({"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "canary"})
    assert (code, checks["credentials"]["grade"], checks["accelerator"]["grade"]) == (9, "bad", "ok")
    assert "are refused" in checks["credentials"]["found"]


def test_all_is_well(examine: Examine, account: Account) -> None:
    options = {"credentials": str(account.folder / "kaggle.json")}
    code, checks = examine(None, options)
    assert (code, {check["grade"] for check in checks.values()}) == (0, {"ok"}), checks
    assert checks["quota"]["found"] == "30.0 of 30.0 GPU hours are left this week"
    assert checks["credentials"]["found"] == f"alice, by {account.folder / 'kaggle.json'}"
    assert account.place.kernels == {}


def test_a_place_that_does_not_answer_and_a_retired_accelerator_are_told(examine: Examine, account: Account) -> None:
    account.place.faults.always["GetAcceleratorQuotaStatistics"] = Fault.SERVER_ERROR
    options = {"credentials": str(account.folder / "kaggle.json"), "machine_shape": "NvidiaTeslaP100"}
    code, checks = examine(None, options)
    assert code == 9
    assert checks["quota"]["grade"] == "bad"
    assert "HTTP 500" in checks["quota"]["found"]
    assert (checks["accelerator"]["grade"], checks["uploads"]["grade"]) == ("warning", "ok")


@pytest.mark.parametrize(
    ("library", "client", "six", "grade", "says"),
    [
        ("0.1.37", "", "", "ok", "not needed"),
        ("0.1.38", "2.2.5", "1.17", "ok", "2.2.5"),
        ("0.1.37", "2.2.4", "", "warning", "cannot be imported without six"),
        ("0.2.0", "", "", "warning", "not a tested version"),
    ],
)
def test_releases_that_broke_or_were_never_tested_are_told(
    account: Account, monkeypatch: pytest.MonkeyPatch, library: str, client: str, six: str, grade: str, says: str
) -> None:
    installed = {"kagglesdk": library, "kaggle": client, "six": six}
    monkeypatch.setattr(checkup, "_installed", installed.get)
    settings = {"emulator": account.server.address, "credentials": str(account.folder / "kaggle.json")}
    found = checkup.checks(settings, {}, 0.0, probe=False)["library"]()
    assert (found.grade, says in found.found) == (grade, True), found
