"""Secrets handed over as files, one for each setting."""

from pathlib import Path

import pytest

from config.describe import describe
from config.errors import ConfigError
from config.known_secrets import KnownSecrets
from config.load import load
from config.paths import load_paths

CANARY = "canary-9f3b-never-shown"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config.toml").write_text('state_dir = "state"\nmodels = []\n')
    (tmp_path / "credentials").mkdir(mode=0o700)
    return {"SCHEDCTL_CONFIG": str(tmp_path / "config.toml"), "CREDENTIALS_DIRECTORY": str(tmp_path / "credentials")}


def put(environ: dict[str, str], name: str, text: str = f"{CANARY}\n", mode: int = 0o600) -> Path:
    file = Path(environ["CREDENTIALS_DIRECTORY"]) / name
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_credential_named_as_a_setting_is_that_setting(environ: dict[str, str]) -> None:
    put(environ, "report.smtp.password")
    put(environ, "report.slack.bot_token", "xoxb-secret-word")
    put(environ, "database_url", "postgresql+psycopg://me:pass-word@db/x")
    settings = load(None, {**environ, "SCHEDCTL_REPORT__SLACK__CHANNEL": "#training"})
    assert settings.report.smtp.password.get_secret_value() == CANARY
    assert settings.report.slack.bot_token.get_secret_value() == "xoxb-secret-word"
    assert load_paths(None, environ).database_url == settings.database_url == "postgresql+psycopg://me:pass-word@db/x"
    assert settings.origin("report.smtp.password") == "credential report.smtp.password"


def test_the_environment_wins_over_a_credential_and_a_credential_over_the_file(environ: dict[str, str]) -> None:
    Path(environ["SCHEDCTL_CONFIG"]).write_text('models = []\n[report.smtp]\npassword = "of the file"\n')
    put(environ, "report.smtp.password")
    assert load(None, environ).report.smtp.password.get_secret_value() == CANARY
    stronger = {**environ, "SCHEDCTL_REPORT__SMTP__PASSWORD": "of the shell"}
    assert load(None, stronger).report.smtp.password.get_secret_value() == "of the shell"


def test_a_credential_is_shown_nowhere_and_known_to_the_redactor(environ: dict[str, str]) -> None:
    put(environ, "report.smtp.password")
    settings = load(None, environ)
    assert KnownSecrets(settings, {})(f"said {CANARY}") == "said [secret]"
    assert CANARY not in str(describe(settings)) + repr(settings) + settings.model_dump_json()


def test_files_of_other_names_belong_to_others(environ: dict[str, str]) -> None:
    for name in ("kaggle", "aws", "web", "kaggle.json"):
        put(environ, name, "{}")
    assert load(None, environ).report.smtp.password.get_secret_value() == ""


@pytest.mark.parametrize(
    ("name", "text", "mode", "why"),
    [
        ("report.smtp.password", CANARY, 0o640, "others may read"),
        ("report.smtp.password", CANARY, 0o604, "others may read"),
        ("report.smtp.password", "", 0o600, "one line"),
        ("report.smtp.password", f"{CANARY}\nmore\n", 0o600, "one line"),
        ("report.smpt.password", CANARY, 0o600, "there is no such key"),
    ],
    ids=["group", "world", "empty", "lines", "misspelt"],
)
def test_a_credential_that_cannot_be_used_is_named_and_not_shown(
    environ: dict[str, str], name: str, text: str, mode: int, why: str
) -> None:
    put(environ, name, text, mode)
    with pytest.raises(ConfigError, match=why) as caught:
        load(None, environ)
    assert name.partition(".")[0] in str(caught.value)
    assert CANARY not in str(caught.value)


def test_a_folder_that_is_not_there_is_said(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="CREDENTIALS_DIRECTORY"):
        load(None, {**environ, "CREDENTIALS_DIRECTORY": "/nowhere"})


def test_a_credential_of_the_service_manager_shows_the_right_of_one_user_as_that_of_a_group(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to root, is mode 0440 because of an access list, and no group may read it."""
    file = put(environ, "report.smtp.password", mode=0o440)
    owner = file.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    assert load(None, environ).report.smtp.password.get_secret_value() == CANARY
