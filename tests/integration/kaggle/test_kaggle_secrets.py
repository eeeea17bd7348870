"""Secrets on Kaggle: off unless chosen, then one private dataset for each session, which goes with it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platforms.base import Refused, SessionState, Unreachable
from platforms.kaggle.adapter import KagglePlatform
from tests.lab.canary import NAME, files_that_tell, new_canary, proves_redaction, run_canary, told_in
from tests.lab.faults import Fault
from tests.lab.patience import until

Account = Any

KEY = "uff-ufm-0001"
TELLS = "import os; print('has', len(os.environ.get('CANARY_TOKEN', '')), flush=True)"


def secrets_there(account: Account) -> list[str]:
    """The datasets with secrets that the account has."""
    return [
        slug for slug, dataset in account.place.storage.datasets.items() if "-secret-" in slug and not dataset.deleted
    ]


def test_a_session_has_its_secret_and_nothing_that_stays_tells_it(account: Account, tmp_path: Path) -> None:
    value = new_canary()
    options = {
        "emulator": account.server.address,
        "credentials": str(account.folder / "kaggle.json"),
        "idle_milliseconds": "100",
        "pause_milliseconds": "0",
        "secrets": "dataset",
        "internet": "off",
    }
    pool = {"name": "kaggle", "platform": "kaggle", "session_cap": "12h", "stop_margin": "2m", "options": options}
    settings = {
        "artifacts": {"kind": "directory", "root": str(tmp_path / "store")},
        "daemon": {"cycle": "1m", "heartbeat": "30s", "grace": "2m"},
        "clock": account.clock.payload_clock(),
        "pools": [pool],
    }
    said = run_canary(tmp_path, settings, value)
    proves_redaction(account.output("uff-leaky-0001") or said, value)
    assert told_in(said.encode(), value) == []
    assert secrets_there(account) == []
    assert [call for call, _ in account.server.requests if call == "DeleteDataset"], "it was there"
    assert files_that_tell(tmp_path, value, but=[tmp_path / "daemon" / "credentials" / NAME]) == []


def request(account: Account, key: str = KEY, **lane: Any) -> Any:
    """A session of a job with a secret."""
    made = account.request(key, "", command=["{python}", "-c", TELLS], secrets=[NAME], **lane)
    return replace(made, secrets={NAME: "canary_0123456789"})


def test_its_dataset_is_there_for_as_long_as_the_session_and_gone_when_it_is_refused(
    account: Account, account_at: Callable[..., Account]
) -> None:
    adapter = account.adapter(secrets="dataset")
    adapter.launch(request(account), account.now())
    assert len(secrets_there(account)) == 1
    account.until(KEY, SessionState.ENDED)
    assert "has 17" in account.output(KEY)
    assert secrets_there(account) == []
    other = account_at(gpu_sessions_max=0)
    with pytest.raises(Refused):
        other.adapter(secrets="dataset").launch(request(other), other.now())
    assert other.place.storage.datasets
    assert secrets_there(other) == []


def test_what_a_daemon_left_that_was_killed_before_the_push_is_deleted_by_the_next_one(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed: nothing of what the dying adapter would do on its way out is done."""

    class Killed(BaseException):
        pass

    def dies(*_: Any, **__: Any) -> None:
        raise Killed

    dying = account.adapter(secrets="dataset")
    monkeypatch.setattr(KagglePlatform, "_push", dies)
    monkeypatch.setattr(KagglePlatform, "_delete_secrets", lambda _: None)
    with pytest.raises(Killed):
        dying.launch(request(account), account.now())
    assert len(secrets_there(account)) == 1
    monkeypatch.undo()
    for path in (account.folder / "state" / "launches").glob("*.json"):
        path.unlink()  # it died before it wrote down what it was about to push
    account.adapter(secrets="dataset").find([], account.now())
    assert secrets_there(account) == []


def test_a_launch_that_may_have_begun_keeps_its_secrets_until_it_is_over(account: Account) -> None:
    account.place.faults.add("SaveKernel", Fault.DROP_AFTER_COMMIT)
    with pytest.raises(Unreachable):
        account.adapter(secrets="dataset").launch(request(account), account.now())
    assert len(secrets_there(account)) == 1
    account.until(KEY, SessionState.ENDED)
    assert "has 17" in account.output(KEY)
    until(lambda: not secrets_there(account), "the dataset to be deleted")


def test_what_is_not_attached_by_hand_ends_the_session_with_that_reason(account: Account) -> None:
    asked = replace(request(account), secrets={})
    account.adapter(secrets="account").launch(asked, account.now())
    account.settle(KEY)
    result = account.result(KEY)
    assert (result["outcome"], result["error_class"]) == ("failed", "secret")
    assert NAME in result["why"]
    said = json.dumps(account.place.version("alice", KEY, "v1")[1].session.lines)
    assert f"the secret {NAME} is not attached to this notebook" in said
