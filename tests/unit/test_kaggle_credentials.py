"""Where credentials may come from, and what is said when they are wrong."""

import json
from pathlib import Path

import pytest

from platforms.base import Misconfigured
from platforms.kaggle.api.account import open_account
from platforms.kaggle.settings import read_credentials, read_settings

TOKEN = "canary-token-1234567890"
LEGACY = json.dumps({"username": "alice", "key": "canary-key-1234567890"})


def private(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_named_file_comes_first_then_the_service_manager_then_the_environment(tmp_path: Path) -> None:
    named = private(tmp_path / "named", "first-token\n")
    private(tmp_path / "handed" / "kaggle", "second-token", mode=0o440)
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path / "handed"), "KAGGLE_API_TOKEN": "third-token"}
    assert read_credentials(str(named), environ).token == "first-token"
    assert read_credentials("", environ).token == "second-token"
    assert read_credentials("", {"KAGGLE_API_TOKEN": "third-token"}).token == "third-token"


def test_a_token_variable_may_name_a_file(tmp_path: Path) -> None:
    path = private(tmp_path / "token", TOKEN)
    assert read_credentials("", {"KAGGLE_API_TOKEN": str(path)}).token == TOKEN


@pytest.mark.parametrize("folder", ["HOME", "KAGGLE_CONFIG_DIR"])
def test_the_clients_own_file_is_used_last(tmp_path: Path, folder: str) -> None:
    private(tmp_path / (".kaggle/kaggle.json" if folder == "HOME" else "kaggle.json"), LEGACY)
    found = read_credentials("", {"HOME": str(tmp_path / "nobody"), folder: str(tmp_path)})
    assert (found.username, found.key) == ("alice", "canary-key-1234567890")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "kaggle.json", LEGACY, mode)
    with pytest.raises(Misconfigured, match=rf"others may read .*Run: chmod 600 {path}"):
        read_credentials(str(path), {})


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "no credentials found"),
        ({"KAGGLE_API_TOKEN": TOKEN, "KAGGLE_USERNAME": "alice"}, "are set together"),
        ({"KAGGLE_USERNAME": "alice"}, "only one of username and key"),
        ({"KAGGLE_KEY": "canary-key-1234567890"}, "only one of username and key"),
        ({"KAGGLE_API_TOKEN": "two words"}, "has spaces in it"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(tmp_path: Path, environ: dict[str, str], says: str) -> None:
    with pytest.raises(Misconfigured, match=says) as refused:
        read_credentials("", {"HOME": str(tmp_path), **environ})
    assert "canary" not in str(refused.value)
    assert "See docs/kaggle.md" in str(refused.value) or "unset one" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "empty"), ("{", "no JSON object"), ('{"username": "alice"}', "no JSON object"), ("a b", "spaces")],
)
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Misconfigured, match=rf"{tmp_path}/odd .*{says}"):
        read_credentials(str(private(tmp_path / "odd", text)), {})
    with pytest.raises(Misconfigured, match="cannot be read"):
        read_credentials(str(tmp_path / "missing"), {})


def test_an_environment_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "MOON")
    with pytest.raises(Misconfigured, match=r"KAGGLE_API_ENVIRONMENT.*MOON"):
        open_account(read_settings({}), {"KAGGLE_API_TOKEN": TOKEN})


def test_credentials_do_not_show_themselves() -> None:
    shown = repr(read_credentials("", {"KAGGLE_API_TOKEN": TOKEN}))
    shown += repr(read_credentials("", {"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "canary-key-1234567890"}))
    assert "canary" not in shown
