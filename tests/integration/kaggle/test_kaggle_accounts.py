"""Pools of two Kaggle accounts are refused: by the check, at a start, at a reload, and at the first answer."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from config.errors import ConfigError
from platforms.base import Misconfigured, QuotaReading
from scheduler.app import App, load_app, require_one_account
from scheduler.cli import main as entry
from scheduler.daemon import reloaded
from scheduler.service.quota.audit import read_books
from scheduler.store import lease, limits
from scheduler.store.engine import open_database
from tests.integration.kaggle.conftest import Account
from tests.lab.kaggle import PublishingPlace, PublishingServer

_POOL = """
[[pools]]
name = "{name}"
platform = "kaggle"
session_cap = "12h"
enabled = {enabled}
options = {{ emulator = "{address}", credentials = "{key}", pause_milliseconds = "0" }}
"""


@pytest.fixture
def bob(account: Account) -> Iterator[Account]:
    """A second account with a server of its own."""
    place = PublishingPlace(
        account.folder / "bob", account.place.clock, "Bob", "canary-5ecret-0f-b0b", account.place.rules
    )
    with PublishingServer(place) as server:
        yield Account(account.folder, place, server, account.clock, account.store)


@pytest.fixture
def app_of(account: Account, tmp_path: Path) -> Callable[..., App]:
    """Return the app of settings with the named pools, each of an account and a file with its credentials."""

    def make(*pools: tuple[str, Account, Path], enabled: str = "true") -> App:
        text = 'state_dir = "state"\n[artifacts]\nkind = "directory"\nroot = "store"\n'
        text += "[clock]\n" + "".join(f"{key} = {value}\n" for key, value in account.clock.payload_clock().items())
        for name, owner, key in pools:
            text += _POOL.format(name=name, address=owner.server.address, key=key, enabled=enabled)
            enabled = "true"
        (tmp_path / "settings.toml").write_text(text)
        app = load_app(tmp_path / "settings.toml", {})
        app.settings.state_dir.mkdir(exist_ok=True)
        return app

    return make


def legacy(account: Account) -> Path:
    return _file(account, "json", json.dumps({"username": account.place.owner, "key": account.place.key}))


def token(account: Account, suffix: str = "token") -> Path:
    return _file(account, suffix, account.place.key)


def _file(account: Account, suffix: str, text: str) -> Path:
    path = account.folder / f"{account.place.owner}.{suffix}"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def test_two_accounts_are_refused_by_the_check_and_at_a_start(
    account: Account, bob: Account, app_of: Callable[..., App], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app_of(("one", account, legacy(account)), ("two", bob, legacy(bob)))
    for words in (["config", "check"], ["daemon"]):
        assert entry.main(["--config", str(tmp_path / "settings.toml"), *words]) == 3
        told = capsys.readouterr().err
        assert "pools.two: its credentials belong to the kaggle account Bob, those of the pool one to alice" in told
        assert "give all these pools credentials of one account, or set enabled = false" in told
    assert not account.server.requests
    assert not bob.server.requests


def test_a_pool_that_is_not_enabled_and_a_second_pool_of_one_account_are_fine(
    account: Account, bob: Account, app_of: Callable[..., App]
) -> None:
    require_one_account(
        app_of(
            ("off", bob, legacy(bob)),
            ("one", account, legacy(account)),
            ("two", account, token(account)),
            ("three", account, token(account, "other")),
            enabled="false",
        ).settings
    )


def test_new_settings_with_a_second_account_are_not_taken_over(
    account: Account, bob: Account, app_of: Callable[..., App]
) -> None:
    old = app_of(("one", account, legacy(account)))
    with closing(open_database(old.settings.database_url, create=True)) as database:
        vars(old)["database"] = database
        with pytest.raises(ConfigError, match=r"pools\.two: its credentials belong to the kaggle account Bob"):
            reloaded(old, lambda: app_of(("one", account, legacy(account)), ("two", bob, legacy(bob))))


def test_of_tokens_the_first_answer_tells_and_the_next_start_refuses(
    account: Account, bob: Account, app_of: Callable[..., App]
) -> None:
    """Of a token nobody knows the account before Kaggle is asked; nothing is launched without that answer."""
    app = app_of(("one", account, token(account)), ("two", bob, token(bob)))
    require_one_account(app.settings)
    one, two = app.platform("one"), app.platform("two")
    assert [type(reading) for reading in one.read_quota(account.now())] == [QuotaReading]
    why = "this pool is of the account Bob, and the pool one is of the account alice"
    for call in (
        lambda: two.read_quota(bob.now()),
        lambda: two.launch(bob.request("uff-ufm-0001", "finish"), bob.now()),
        lambda: app.platform("two").read_quota(bob.now()),
    ):
        with pytest.raises(Misconfigured, match=why):
            call()
    assert bob.place.sessions() == []
    with pytest.raises(ConfigError, match=r"pools\.two: .* account Bob, those of the pool one to alice"):
        require_one_account(app.settings)
    for path in app.settings.state_dir.rglob("account.json"):
        assert account.place.key not in path.read_text()
        assert bob.place.key not in path.read_text()


def test_a_token_that_was_replaced_is_asked_for_again(
    account: Account, bob: Account, app_of: Callable[..., App]
) -> None:
    """What is kept belongs to one token: whoever corrects the credentials need not clean up."""
    app = app_of(("one", account, token(account)), ("two", bob, token(bob)))
    app.platform("one").read_quota(account.now())
    with pytest.raises(Misconfigured):
        app.platform("two").read_quota(bob.now())
    app = app_of(("one", account, token(account)), ("two", account, token(account, "other")))
    require_one_account(app.settings)
    assert app.platform("two").read_quota(account.now())
    require_one_account(app.settings)


def test_a_damaged_note_of_the_account_is_written_again(account: Account, app_of: Callable[..., App]) -> None:
    app = app_of(("one", account, token(account)))
    app.platform("one").read_quota(account.now())
    (note,) = app.settings.state_dir.rglob("account.json")
    for text in ("{", "[]", '{"username": 1, "credential": ""}', ""):
        note.write_text(text)
        require_one_account(app.settings)
        app.platform("one").read_quota(account.now())
        assert json.loads(note.read_text())["username"] == "alice"


def test_the_daemon_closes_a_pool_of_a_second_account(
    account: Account, bob: Account, app_of: Callable[..., App]
) -> None:
    app = app_of(("one", account, token(account)), ("two", bob, token(bob)))
    with closing(open_database(app.settings.database_url, create=True)) as database:
        vars(app)["database"] = database
        held = lease.acquire(database, "tests", 1_000)
        assert held is not None
        ports = app.ports(structlog.get_logger(), held.epoch)
        assert read_books(ports, ["one"]) == {"one"}
        assert read_books(ports, ["two"]) == set()
        with database.read() as tx:
            closed = limits.closures(tx)
        assert set(closed) == {"two"}
        assert "the pool one is of the account alice" in str(closed["two"])
