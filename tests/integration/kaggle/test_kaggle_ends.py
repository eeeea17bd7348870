"""When a session ended that nobody saw end: never later than Kaggle was asked to let it run."""

from typing import Any

import pytest

from platforms.base import SessionState
from platforms.kaggle.session.observer import Tail

Account = Any
FOUND_LATE = 40_000  # scheduled seconds after the launch


@pytest.fixture
def away(account: Account, monkeypatch: pytest.MonkeyPatch) -> Account:
    """A session of an hour, of which no log will tell the end."""
    monkeypatch.setattr(Tail, "keep", lambda *_: None)
    account.adapter().launch(account.request("uff-ufm-0001", "wait", seconds=3_600), account.now())
    account.until("uff-ufm-0001", SessionState.RUNNING)
    return account


def end(account: Account) -> None:
    """End the session from outside."""
    account.place.sessions()[0].cut("ERROR", "lost")


def found_at(account: Account, now: int) -> Any:
    """Look until the end is believed, by a clock that goes on from ``now``."""
    adapter = account.adapter()
    for more in range(0, 4_000, 400):
        seen = adapter.find(["uff-ufm-0001"], now + more).get("uff-ufm-0001")
        if seen is not None and seen.state is SessionState.ENDED:
            return seen
    raise AssertionError("it never ended")


def test_time_that_nobody_watched_is_not_charged_beyond_the_timeout_we_asked_for(away: Account) -> None:
    end(away)
    seen = found_at(away, away.now() + FOUND_LATE)
    assert seen.ended - seen.started <= 3_600
    assert not seen.told, "the last words of its lanes may tell better"


def test_a_session_that_was_seen_to_overrun_its_timeout_is_charged_until_then(away: Account) -> None:
    (running,) = away.adapter().find(["uff-ufm-0001"], away.now()).values()
    last = running.started + 5_000
    assert away.adapter().find(["uff-ufm-0001"], last)["uff-ufm-0001"].state is SessionState.RUNNING
    end(away)
    assert found_at(away, last + FOUND_LATE).ended == last


def test_an_end_that_the_log_tells_is_told(account: Account) -> None:
    account.adapter().launch(account.request("uff-ufm-0001", "finish"), account.now())
    account.settle("uff-ufm-0001")
    assert found_at(account, account.now() + FOUND_LATE).told
