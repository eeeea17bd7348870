"""Logging: every line is whole, and no secret is in it."""

import base64
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog

from config.known_secrets import KnownSecrets
from config.layers import shipped
from config.load import load
from config.logging import configure
from config.settings import LoggingSettings
from jobs.payload.redact import MARK, Redactor

SECRET = "tr0ub4dor&3/=+ ü"


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Restore the logging settings."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """Where the log goes; the folder does not exist yet."""
    return tmp_path / "new" / "daemon.log"


def as_json(file: Path) -> LoggingSettings:
    return LoggingSettings(format="json", level="info", file=file)


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_our_events_and_those_of_libraries_look_alike(log_file: Path) -> None:
    configure(as_json(log_file))
    structlog.get_logger("daemon").info("launched", run="uff-1", devices=2)
    logging.getLogger("apscheduler.executors").warning("missed by %d s", 7)
    ours, theirs = lines(log_file)
    assert (ours["message"], ours["run"], ours["devices"], ours["level"]) == ("launched", "uff-1", 2, "info")
    assert (theirs["message"], theirs["logger"], theirs["level"]) == (
        "missed by 7 s",
        "apscheduler.executors",
        "warning",
    )
    assert str(ours["timestamp"]).endswith("Z")


def test_chatter_of_libraries_is_left_out(log_file: Path) -> None:
    configure(as_json(log_file))
    logging.getLogger("apscheduler").info("Adding job tentatively")
    structlog.get_logger("daemon").debug("detail")
    assert lines(log_file) == []


def test_a_warning_becomes_a_line(log_file: Path) -> None:
    configure(as_json(log_file))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old interface", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    assert "old interface" in str(lines(log_file)[0]["message"])


@pytest.mark.parametrize("kind", ["json", "console"])
def test_secrets_leave_no_trace_wherever_they_stand(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "log"
    settings = LoggingSettings.model_validate({"format": kind, "level": "info", "file": str(file)})
    configure(settings, Redactor([SECRET]))
    log = structlog.get_logger("daemon")
    log.info("said", text=f"key {SECRET}.", nested={"deep": [SECRET]}, url=f"https://x/?k={quote(SECRET, safe='')}")
    log.info("basic", header=base64.b64encode(f"user:{SECRET}".encode()).decode())
    logging.getLogger("botocore").warning("sent %s", SECRET)
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception("broken")
    text = file.read_text(encoding="utf-8")
    assert text.count(MARK) >= 6
    for form in ("tr0ub4dor", quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode().rstrip("=")):
        assert form not in text


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "user:"])
@pytest.mark.parametrize("after", ["", "z", "zz"])
@pytest.mark.parametrize("alphabet", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_hides_no_secret_whatever_surrounds_it(before: str, after: str, alphabet: object) -> None:
    assert callable(alphabet)
    encoded = alphabet(f"{before}{SECRET}{after}".encode()).decode()
    assert MARK in Redactor([SECRET])(encoded)


def test_short_words_are_not_taken_for_secrets() -> None:
    assert Redactor(["abc", ""])("abc abc") == "abc abc"


def test_a_longer_secret_wins_over_one_inside_it() -> None:
    assert Redactor(["secret", "secret-and-more"])("secret-and-more") == MARK


def test_settings_tell_which_of_their_values_are_secret() -> None:
    pools = [{"name": "k", "platform": "kaggle", "options": {"api_token": "abc123", "region": "eu"}}]
    overrides = {"database_url": "postgresql://me:pa%40ss1@db/x", "pools": pools}
    known = KnownSecrets(load(shipped("rehearsal.toml"), {}, overrides), {})
    assert (
        known("abc123 at postgresql://me:pa%40ss1@db/x as pa@ss1 eu")
        == f"{MARK} at postgresql://me:{MARK}@db/x as {MARK} eu"
    )


def test_text_from_platforms_cannot_steer_a_terminal(tmp_path: Path) -> None:
    file = tmp_path / "log"
    configure(LoggingSettings(format="console", level="info", file=file))
    structlog.get_logger("daemon").info("said", text="\x1b[2J\rfake")
    logging.getLogger("kaggle").warning("\x1b]0;title\x07")
    text = file.read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "\\x1b[2J\\rfake" in text


def test_configuring_again_replaces_what_was_set_up(log_file: Path, tmp_path: Path) -> None:
    configure(as_json(log_file))
    configure(as_json(tmp_path / "second"))
    structlog.get_logger("daemon").info("once")
    assert lines(log_file) == []
    assert len(lines(tmp_path / "second")) == 1
