"""Facts about Kaggle that a session contradicts, as the adapter reports them with its end."""

from collections.abc import Callable
from typing import Any

import pytest

from platforms.base import SessionState
from tests.lab.faults import Fault
from tests.lab.patience import until

Account = Any
KEY = "uff-ufm-0001"


def test_a_session_that_agrees_with_every_fact_contradicts_none(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "finish"), account.now())
    assert account.until(KEY, SessionState.ENDED).contradicts == {}


def test_a_session_that_is_cut_before_its_time_limit_contradicts_the_session_cap(
    account_at: Callable[..., Account],
) -> None:
    account = account_at(240.0, session_cap_seconds=1_200)
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    shown = account.until(KEY, SessionState.ENDED).contradicts
    assert set(shown) == {"session_cap_seconds"}
    assert shown["session_cap_seconds"].startswith("Kaggle's time limit ended it after ")


def test_a_session_that_is_cut_at_its_own_time_limit_contradicts_nothing(account_at: Callable[..., Account]) -> None:
    account = account_at(240.0)
    request = account.request(KEY, "wait", seconds=900, command=["sleep", "1000"])
    request.launch["deadline"] = account.now() + 7_200  # as if the payload did not see its deadline
    account.adapter().launch(request, account.now())
    ended = account.until(KEY, SessionState.ENDED)
    assert "exceeded the maximum" in ended.detail
    assert ended.contradicts == {}


def test_a_session_that_fails_early_contradicts_nothing(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    account.until(KEY, SessionState.RUNNING)
    account.place.sessions()[0].cut("ERROR", "Your notebook failed")
    assert account.until(KEY, SessionState.ENDED).contradicts == {}


def test_a_log_that_is_cut_contradicts_the_log_limit(account_at: Callable[..., Account]) -> None:
    account = account_at(log_bytes_max=2_000)
    account.adapter().launch(account.request(KEY, "finish", command=["{python}", "-c", PRINTS]), account.now())
    ended = account.until(KEY, SessionState.ENDED)
    assert ended.detail == "complete"
    assert ended.contradicts == {"log-limit": "its log ends after 0.1 MB"}


PRINTS = "print('x' * 99_999)"


@pytest.mark.parametrize("how", ["was refused", "did not end it"])
def test_a_cancel_that_does_not_work_contradicts_the_way_to_stop(
    account: Account, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "was refused":
        account.place.faults.always["CancelKernelSession"] = Fault.FORBIDDEN
    else:
        monkeypatch.setattr(account.place, "cancel", lambda session_id: {})
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    account.until_said(KEY, "resumed from")
    began = account.now()
    for later in (0, 121):
        account.adapter().stop(KEY, began + later, force=True)
    shown = account.until(KEY, SessionState.ENDED).contradicts
    assert shown == {"stop-session": f"a cancel by its session id {how}"}


def test_a_kernel_that_is_deleted_without_a_cancel_contradicts_nothing(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    account.until_said(KEY, "resumed from")
    account.adapter(force_stop="delete").stop(KEY, account.now(), force=True)
    until(lambda: not account.place.sessions() or not account.place.sessions()[0].live, "the end")
    assert account.until(KEY, SessionState.ENDED).contradicts == {}
