"""Known secrets: every place that may hold one is looked into, and every form of its value is replaced."""

import base64
import html
import json
import os
from dataclasses import fields
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.known_secrets import KnownSecrets, secrets_of_file
from config.secret import is_secret
from jobs.payload.redact import LENGTH_MIN, MARK, Redactor
from platforms.kaggle.settings import KaggleSettings
from platforms.sagemaker.settings import SageMakerSettings
from platforms.skypilot.settings import SkyPilotSettings
from platforms.slurm.settings import SlurmSettings

CANARY = 'canary/7f3&"a b+é'


@pytest.mark.parametrize(
    "settings",
    [
        {"report": {"smtp": {"password": CANARY}}},
        {"report": {"slack": {"bot_token": CANARY}}},
        {"report": {"apprise": {"token_urls": ["mailto://x", CANARY]}}},
        {"pools": [{"name": "k", "options": {"secret_key": CANARY}}]},
        {"artifacts": {"options": {"endpoint": f"https://me:{quote(CANARY, safe='')}@store"}}},
        {"database_url": f"host=db password='{CANARY}'"},
    ],
)
def test_settings_are_looked_into_at_any_depth(settings: dict[str, object]) -> None:
    assert "canary" not in KnownSecrets(settings, {})(f"said {CANARY}!")


@pytest.mark.parametrize(
    "settings",
    [
        {"pools": [{"name": "k", "options": {"secrets": "dataset"}}]},
        {"pools": [{"name": "k", "options": {"secrets": "account"}}]},
        {"pools": [{"name": "a", "options": {"secrets": "ssm:/uff/"}}]},
        {"pools": [{"name": "a", "options": {"secrets": "secretsmanager:uff/"}}]},
        {"pools": [{"name": "s", "options": {"token_file": "/etc/uff/slurm.token"}}]},
        {"corpus": [{"token_env": "HUB_OF_OURS"}]},
        {"jobs": [{"secrets": ["HUB_OF_OURS", "WANDB"]}]},
    ],
)
def test_settings_that_name_the_way_of_a_secret_stay_readable(settings: dict[str, object]) -> None:
    line = "dataset account ssm:/uff/ secretsmanager:uff/ /etc/uff/slurm.token HUB_OF_OURS WANDB"
    assert KnownSecrets(settings, {})(line) == line


def test_no_platform_has_an_option_that_is_a_secret_and_none_of_its_words_is_replaced() -> None:
    """A new option whose name sounds like a secret must be decided on: it names a way or a file, or it is one."""
    declared = (KaggleSettings, SageMakerSettings, SkyPilotSettings, SlurmSettings)
    options = {field.name for settings in declared for field in fields(settings) if is_secret(field.name)}
    assert options == {"credentials", "secrets", "token_file"}
    known = KnownSecrets({"pools": [{"options": {name: f"word-of-{name}" for name in options}}]}, {})
    assert known(" ".join(f"word-of-{name}" for name in sorted(options))).count(MARK) == 0


def test_the_token_in_a_token_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "slurm.token"
    file.write_text("canary7f3canary\n", encoding="utf-8")
    known = KnownSecrets({"pools": [{"options": {"token_file": str(file)}}]}, {})
    assert known(f"{file}: canary7f3canary") == f"{file}: {MARK}"


@pytest.mark.parametrize(
    ("address", "stays"),
    [
        ("https://hooks.slack.com/services/T00000000/B11111111/canary7f3canary", "hooks.slack.com/services"),
        ("tgram://123456789:canary7f3canary/chats", "chats"),
        ("ntfys://canary7f3canary@ntfy.example.org", "ntfy.example.org"),
    ],
)
def test_of_an_address_that_is_a_secret_the_token_is_one_and_the_host_is_not(address: str, stays: str) -> None:
    known = KnownSecrets({"report": {"apprise": {"token_urls": [address]}}}, {})
    assert known(f"at {stays}: no route with canary7f3canary") == f"at {stays}: no route with {MARK}"


@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "KAGGLE_KEY", "HF_TOKEN", "PGPASSWORD"]
)
def test_the_environment_is_looked_into(name: str) -> None:
    assert KnownSecrets({}, {name: "canary-of-env"})("x canary-of-env y") == f"x {MARK} y"


def test_words_of_the_environment_that_are_no_secret_stay() -> None:
    environ = {
        "TOKENIZERS_PARALLELISM": "nothing",
        "AWS_SHARED_CREDENTIALS_FILE": "/etc/file",
        "SSH_AUTH_SOCK": "/run/s",
    }
    assert KnownSecrets({}, environ)("nothing /etc/file /run/s") == "nothing /etc/file /run/s"


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        (json.dumps({"username": "somebody", "key": "canary-pass"}, indent=1), "somebody"),
        (
            "[default]\naws_access_key_id = canary-pass\naws_secret_access_key=canary-pass\nregion = eu-west-1\n",
            "eu-west-1",
        ),
        ("db.example.org:5432:jobs:somebody:canary-pass\n# a remark\n", "somebody"),
        ("canary-pass\n", "somebody"),
        ("canary-pass==\n", "somebody"),
        ("postgresql://somebody:canary-pass@db/x", "somebody"),
    ],
)
def test_files_of_credentials_are_read_in_their_own_forms(tmp_path: Path, text: str, stays: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(text)
    told = Redactor(secrets_of_file(file))(f"{stays} and canary-pass")
    assert told == f"{stays} and {MARK}"


def test_every_usual_place_is_read(tmp_path: Path) -> None:
    places = {
        ".kaggle/access_token": "canary-one",
        ".kaggle/kaggle.json": '{"username": "me", "key": "canary-two"}',
        ".aws/credentials": "[default]\naws_secret_access_key = canary-three\n",
        ".pgpass": "*:*:*:*:canary-four\n",
        "handed/web": "canary-five",
        "handed/kaggle": "canary-six",
        "named/token": "canary-seven",
        "named/aws": "[default]\naws_session_token = canary-eight\n",
        "named/reader": "canary-nine",
    }
    for name, text in places.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environ = {
        "HOME": str(tmp_path),
        "CREDENTIALS_DIRECTORY": str(tmp_path / "handed"),
        "KAGGLE_API_TOKEN": str(tmp_path / "named" / "token"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "named" / "aws"),
    }
    known = KnownSecrets({"web": {"bearer_file": str(tmp_path / "named" / "reader")}}, environ)
    said = " ".join(f"canary-{n}" for n in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine"))
    assert known(said) == " ".join([MARK] * 9)


def test_a_token_that_replaces_another_is_known_at_once_and_the_old_one_stays_hidden(tmp_path: Path) -> None:
    file = tmp_path / "reader"
    known = KnownSecrets({"web": {"bearer_file": str(file)}}, {})
    file.write_text("canary-old")
    assert known("canary-old canary-new") == f"{MARK} canary-new"
    file.write_text("canary-newer")
    assert known("canary-old canary-newer") == f"{MARK} {MARK}"


def test_nothing_that_stands_in_place_of_a_file_holds_the_reader_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "none"):
        assert secrets_of_file(tmp_path / name) == set()


@pytest.mark.parametrize(
    "form",
    [
        quote(CANARY, safe=""),
        quote(CANARY, safe="").lower(),
        json.dumps(CANARY),
        html.escape(CANARY),
        repr(CANARY),
        CANARY.encode().hex(),
        base64.b64encode(f"user:{CANARY}".encode()).decode(),
    ],
)
def test_encoded_forms_are_replaced(form: str) -> None:
    assert MARK in Redactor([CANARY])(f"header {form} end")


@given(secret=st.text("abcdef0123456789", min_size=8, max_size=40), data=st.data())
def test_a_text_that_was_cut_within_a_secret_shows_no_part_of_it(secret: str, data: st.DataObject) -> None:
    text = f"refused for the token {secret} of ours"
    keep = data.draw(st.integers(0, len(text)))
    redact = Redactor([secret])
    for cut in (text[:keep], f"{text[:keep]}...", f'"{text[:keep]}"', text[-keep:], f"...{text[-keep:]}"):
        told = redact(cut)
        pieces = (secret[at : at + LENGTH_MIN] for at in range(len(secret) - LENGTH_MIN + 1))
        assert not any(piece in told.replace(MARK, " ") for piece in pieces)
