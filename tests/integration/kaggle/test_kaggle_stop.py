"""Ends before their time: what a session in relay mode can be told, and each step of the ladder down to force."""

from collections.abc import Callable
from typing import Any

import pytest

from platforms.base import Observed, SessionState, StopChannel, Unreachable
from tests.lab.faults import Fault
from tests.lab.patience import until, until_state

Account = Any
KEY = "uff-ufm-0001"


def until_heeds(account: Account, channel: StopChannel) -> Observed:
    adapter = account.adapter()

    def heeding() -> Observed | None:
        seen = adapter.find([KEY], account.now()).get(KEY)
        return seen if seen is not None and seen.stop_channel is channel else None

    return until_state(heeding, SessionState.RUNNING)


def until_trains(account: Account) -> None:
    account.until_said(KEY, "resumed from")


def calls(account: Account) -> list[str]:
    return [call for call, _ in account.server.requests]


def test_a_relay_session_that_reaches_kaggle_saves_when_it_is_asked_to(account: Account) -> None:
    """By a dataset that appears: what it trained comes home, and it is asked once."""
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    until_heeds(account, StopChannel.PLATFORM)
    until_trains(account)
    for _ in range(3):
        account.adapter().stop(KEY, account.now(), force=False)
    ended = account.settle(KEY)
    assert ended.detail == "complete"
    result = account.result(KEY)
    assert (result["outcome"], result["checkpoint_step"]) == ("yielded", 50)
    assert "CancelKernelSession" not in calls(account)
    signs = [body for call, body in account.server.requests if call == "CreateDataset" and "-stop-" in body["slug"]]
    assert len(signs) == 1
    assert account.adapter().sweep([KEY], account.now() + 8 * 86_400) == [KEY]
    assert all(dataset.deleted for dataset in account.place.storage.datasets.values())


@pytest.mark.parametrize(("rules", "settings"), [({"lets_kernels_in": False}, {}), ({}, {"internet": "off"})])
def test_a_relay_session_that_cannot_be_asked_says_so(
    account_at: Callable[..., Account], rules: dict[str, Any], settings: dict[str, str]
) -> None:
    account = account_at(**rules)
    account.adapter(**settings).launch(account.request(KEY, "wait"), account.now())
    until_trains(account)
    assert until_heeds(account, StopChannel.NONE).stop_channel is StopChannel.NONE
    account.adapter().stop(KEY, account.now(), force=False)
    assert not [slug for slug in account.place.storage.datasets if "-stop-" in slug]
    assert account.place.sessions()[0].live


def test_what_the_pool_cannot_ask_is_known_before_any_session_runs(account: Account) -> None:
    assert not account.adapter(checkpoints="relay", store_kind="directory").capabilities.sees_stop_flag
    assert not account.adapter(store_kind="directory").capabilities.sees_stop_flag
    assert account.adapter(checkpoints="direct", store_kind="directory").capabilities.sees_stop_flag
    assert account.adapter(store_kind="s3").capabilities.sees_stop_flag


def test_what_a_trainer_prints_is_no_word_of_the_sessions(account: Account) -> None:
    """A line that looks like ours would let it choose which session is cancelled."""
    forged = '##uff-scheduler## {"begins": "x", "container": "kaggle-355193088"}'
    command = ["{python}", "-c", f"print({forged!r}, flush=True); import signal; signal.pause()"]
    account.adapter().launch(account.request(KEY, "wait", command=command), account.now())
    account.until(KEY, SessionState.RUNNING)
    until(lambda: "__uff-scheduler__" in account.output(KEY), "__uff-scheduler__ to be printed")
    account.adapter().stop(KEY, account.now(), force=True)
    account.until(KEY, SessionState.ENDED)
    (cancelled,) = [body for call, body in account.server.requests if call == "CancelKernelSession"]
    assert cancelled == {"kernelSessionId": account.place.sessions()[0].terms.session_id}


@pytest.mark.parametrize(
    ("fault", "refusals"), [(Fault.SERVER_ERROR, 1), (Fault.ERROR_AFTER_COMMIT, 1), (Fault.EMPTY, 0)]
)
def test_a_cancel_whose_answer_is_lost_is_made_again_and_then_the_kernel_is_deleted(
    account: Account, fault: Fault, refusals: int
) -> None:
    """The call is never believed: only the next look confirms it. An empty object is what a good one answers, too."""
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    until_trains(account)
    account.place.faults.always["CancelKernelSession"] = fault
    refused = 0
    for look in range(20):
        now = account.now() + look * 200
        try:
            account.adapter().stop(KEY, now, force=True)
        except Exception:  # noqa: BLE001 - whatever the step says, the next look decides
            refused += 1
        account.place.faults.always.pop("CancelKernelSession", None)
        found = account.adapter().find([KEY], now).get(KEY)
        if found is not None and found.state is SessionState.ENDED:
            break
    assert refused == refusals
    assert not account.place.sessions()[0].live
    assert account.until(KEY, SessionState.ENDED).state is SessionState.ENDED


def test_a_session_is_ended_by_force_though_the_books_cannot_be_read(account: Account) -> None:
    """What it costs goes on while nobody can tell what is used."""
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    until_trains(account)
    account.place.faults.always["GetAcceleratorQuotaStatistics"] = Fault.EMPTY
    account.adapter(tries="1").stop(KEY, account.now(), force=True)
    assert account.until(KEY, SessionState.ENDED).state is SessionState.ENDED


def test_a_session_that_ignores_its_cancel_is_deleted_after_a_while_and_its_log_is_kept(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account.place, "cancel", lambda session_id: {})  # taken, and nothing happens
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    until_trains(account)
    began = account.now()
    account.adapter().stop(KEY, began, force=True)
    account.adapter().stop(KEY, began + 119, force=True)
    assert account.place.sessions()[0].live
    account.adapter().stop(KEY, began + 121, force=True)
    assert not account.place.sessions()[0].live
    assert account.until(KEY, SessionState.ENDED).detail == "deleted"
    assert "resumed from nothing" in account.output(KEY)


def test_a_session_that_ended_unseen_is_not_deleted_past_its_deadline(account: Account) -> None:
    """It ended during an outage, one more look fails, and the daemon ends by force what it takes for late."""
    account.adapter().launch(account.request(KEY, "finish"), account.now())
    account.place.sessions()[0].join()
    account.place.faults.add("GetKernelSessionStatus", Fault.SERVER_ERROR)
    adapter = account.adapter(tries="1")
    with pytest.raises(Unreachable):
        adapter.stop(KEY, account.now() + 4_000, force=True)
    for later in (4_060, 4_120, 5_000):
        adapter.stop(KEY, account.now() + later, force=True)
    assert account.settle(KEY).detail == "complete"
    assert account.result(KEY)["outcome"] == "finished"
    assert not {"CancelKernelSession", "DeleteKernel"} & set(calls(account))


@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.THROTTLED, Fault.EMPTY, Fault.DROP])
def test_nothing_is_cancelled_or_deleted_while_no_status_is_read(account: Account, fault: Fault) -> None:
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    until_trains(account)
    account.place.faults.always["GetKernelSessionStatus"] = fault
    for later in (0, 200, 400):
        with pytest.raises(Unreachable):
            account.adapter(tries="1").stop(KEY, account.now() + later, force=True)
    account.place.faults.always.clear()
    assert not {"CancelKernelSession", "DeleteKernel"} & set(calls(account))
    assert account.place.sessions()[0].live


def test_a_session_that_ends_just_before_its_cancel_keeps_what_it_saved(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    until_heeds(account, StopChannel.PLATFORM)
    until_trains(account)
    cancel, shows = account.place.cancel, account.place.shows

    def cancel_late(session_id: int) -> dict[str, Any]:
        account.adapter().stop(KEY, account.now(), force=False)
        account.place.sessions()[0].join()
        account.place.shows = lambda kernel: False  # denied and not listed once is no proof that it was deleted
        return dict(cancel(session_id))

    monkeypatch.setattr(account.place, "cancel", cancel_late)
    began = account.now()
    account.adapter().stop(KEY, began, force=True)
    assert account.adapter().find([KEY], account.now()) == {}
    account.place.shows = shows
    for later in (121, 300):
        account.adapter().stop(KEY, began + later, force=True)
    assert account.settle(KEY).detail == "complete"
    assert account.result(KEY)["checkpoint_step"] == 50
    assert "DeleteKernel" not in calls(account)
