"""Launches: what refusals mean, and that no accident ever starts a session twice or leaves one behind unseen."""

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from platforms.base import Misconfigured, Observed, PlatformError, Refused, SessionState, Unreachable
from platforms.kaggle.api.wire import Wire
from platforms.kaggle.session.observer import LaunchRecords
from tests.lab.faults import Fault
from tests.lab.night import one_in
from tests.lab.patience import until_state

Account = Any
SAVE = "kernels.KernelsApiService/SaveKernel"
KEY = "uff-ufm-0001"
FAR = 10_000_000  # scheduled seconds after which no push of ours can still arrive


class Died(BaseException):
    """Stands for a daemon that is killed: nothing may catch it and go on."""


def sessions(account: Account) -> int:
    return len(account.place.sessions())


def test_two_sessions_are_allowed_and_the_third_waits(account: Account) -> None:
    for number in (1, 2):
        account.adapter().launch(account.request(f"uff-ufm-000{number}", "wait"), account.now())
    with pytest.raises(Refused, match="session count of 2") as refused:
        account.adapter().launch(account.request("uff-ufm-0003", "wait"), account.now())
    assert (refused.value.permanent, refused.value.wait_until) == (False, None)
    assert account.adapter().find(["uff-ufm-0003"], account.now()) == {}


def test_without_quota_the_pool_waits_for_the_refresh(account_at: Callable[..., Account]) -> None:
    account = account_at(unannounced_extra_seconds=108_000)
    with pytest.raises(Refused, match=r"weekly GPU quota of 30\.00 hours") as refused:
        account.adapter().launch(account.request(KEY, "wait"), account.now())
    (books,) = account.adapter().read_quota(account.now())
    assert refused.value.wait_until == books.end
    assert books.end > account.now()
    assert (books.used_seconds, books.limit_seconds) == (108_000, 108_000)


def test_an_unknown_refusal_needs_a_person(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(account.server.table, SAVE, lambda _body: {"error": "Notebook not found"})
    with pytest.raises(Refused, match="Notebook not found") as refused:
        account.adapter().launch(account.request(KEY, "wait"), account.now())
    assert refused.value.permanent


@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.DROP])
def test_a_kernel_of_a_refused_push_is_remembered_until_it_is_deleted(
    account_at: Callable[..., Account], fault: Fault
) -> None:
    account = account_at(refused_leaves_kernel=True, unannounced_extra_seconds=108_000)
    account.place.faults.always["DeleteKernel"] = fault
    with pytest.raises(Refused, match="weekly GPU quota"):
        account.adapter().launch(account.request(KEY, "wait"), account.now())
    assert KEY in account.place.kernels
    assert account.adapter().find([KEY], account.now())[KEY].state is SessionState.ABSENT
    account.place.faults.always.clear()
    assert account.adapter().sweep([KEY], account.now()) == [KEY]
    assert KEY not in account.place.kernels
    assert account.adapter().find([KEY], account.now()) == {}


def test_a_launch_that_does_not_fit_into_a_source_is_refused_before_it_is_sent(account: Account) -> None:
    environment = {"NOTE": random.Random(1).randbytes(1_800_000).hex()}  # cannot be packed much
    with pytest.raises(Refused, match="the limit is 900000") as refused:
        account.adapter().launch(account.request(KEY, "wait", environment=environment), account.now())
    assert refused.value.permanent
    assert "SaveKernel" not in [call for call, _ in account.server.requests]


def test_a_kernel_that_somebody_else_gave_that_name_is_left_alone(account: Account) -> None:
    body = {"slug": f"alice/{KEY}", "newTitle": KEY.replace("-", " "), "text": "print('mine')"}
    account.place.push({**body, "kernelExecutionType": "QUICK_SAVE"})
    with pytest.raises(Refused, match="a kernel uff-ufm-0001 that we did not push") as refused:
        account.adapter().launch(account.request(KEY, "finish"), account.now())
    assert refused.value.permanent
    assert len(account.place.kernels[KEY].versions) == 1


def test_a_session_without_its_inputs_is_ended_at_once_and_paid(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kaggle runs it all the same: it must not train from nothing."""
    monkeypatch.setattr(account.place.storage, "attach", lambda source, target: False)
    ended = account.adapter().launch(account.request(KEY, "finish"), account.now())
    assert (ended.state, ended.ended) == (SessionState.ENDED, ended.started)
    assert "inputs not attached: alice/uff-code-" in ended.detail
    assert [session.live for session in account.place.sessions()] == [False]


def test_a_kernel_that_lands_under_another_name_is_ended(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = account.place.push
    elsewhere = {"newTitle": "somewhere else"}
    monkeypatch.setitem(account.server.table, SAVE, lambda body: honest({**body, **elsewhere}))
    ended = account.adapter().launch(account.request(KEY, "wait"), account.now())
    assert "became somewhere-else version 1" in ended.detail
    assert [session.live for session in account.place.sessions()] == [False]


def test_wrong_credentials_need_a_person_and_nothing_is_claimed(account: Account) -> None:
    account.place.key = "another key"
    platform = account.adapter()
    calls: list[Callable[[], Any]] = [
        lambda: platform.launch(account.request(KEY, "wait"), account.now()),
        lambda: platform.find([KEY], account.now()),
        lambda: platform.read_quota(account.now()),
    ]
    for call in calls:
        with pytest.raises(Misconfigured, match=r"credentials from .*kaggle\.json are refused"):
            call()


@pytest.mark.parametrize("fault", [Fault.DROP_AFTER_COMMIT, Fault.ERROR_AFTER_COMMIT])
def test_a_push_whose_answer_is_lost_is_found_again(account: Account, fault: Fault) -> None:
    account.place.faults.add("SaveKernel", fault)
    with pytest.raises(Unreachable):
        account.adapter().launch(account.request(KEY, "finish"), account.now())
    assert account.adapter().launch(account.request(KEY, "finish"), account.now()).key == KEY
    account.settle(KEY)
    assert account.result(KEY)["outcome"] == "finished"
    assert sessions(account) == 1


@pytest.mark.parametrize(
    "fault", [Fault.DROP, Fault.SERVER_ERROR, Fault.THROTTLED, Fault.THROTTLED_PAGE, Fault.PAGE, Fault.HANG]
)
def test_a_push_that_never_arrived_is_proved_absent_and_not_repeated(account: Account, fault: Fault) -> None:
    account.place.faults.add("SaveKernel", fault)
    platform = account.adapter(push_seconds="1")
    with pytest.raises(Unreachable):
        platform.launch(account.request(KEY, "finish"), account.now())
    assert platform.find([KEY], account.now()) == {}
    with pytest.raises(Unreachable, match="does not show it yet"):
        platform.launch(account.request(KEY, "finish"), account.now())
    assert platform.find([KEY], account.now() + FAR)[KEY].state == SessionState.ABSENT
    assert platform.launch(account.request(KEY, "finish"), account.now()).state == SessionState.ABSENT
    assert sessions(account) == 0


def test_a_launch_is_found_by_its_name_when_our_records_are_lost(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "finish"), account.now())
    account.until(KEY, SessionState.ENDED)
    restored = account.adapter("another-state")
    assert restored.find([KEY], account.now())[KEY].state == SessionState.ENDED
    assert restored.launch(account.request(KEY, "finish"), account.now()).state == SessionState.ENDED
    assert sessions(account) == 1
    restored.collect(KEY, account.store, account.now())
    assert account.result(KEY)["outcome"] == "finished"


def test_a_read_waits_as_long_as_it_is_asked_to(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    platform = account.adapter(pause_milliseconds="200")
    monkeypatch.setattr(platform._client.patience, "wait", waits.append)
    account.place.faults.add("GetAcceleratorQuotaStatistics", Fault.THROTTLED_LATER, Fault.THROTTLED)
    assert platform.read_quota(account.now())
    assert waits == [1.0, 0.4]


def test_errors_for_hours_cost_no_session(account: Account) -> None:
    """As in June 2026: nothing is claimed meanwhile, and afterwards the end, its time and its result are there."""
    account.adapter().launch(account.request(KEY, "finish"), account.now())
    account.until(KEY, SessionState.RUNNING)
    account.place.faults.always["*"] = Fault.SERVER_ERROR
    (session,) = account.place.sessions()
    session.join()
    for hours in range(1, 72):
        with pytest.raises(Unreachable):
            account.adapter(tries="1").find([KEY], account.now() + hours * 3_600)
    account.place.faults.always.clear()
    ended = account.adapter().find([KEY], account.now() + 72 * 3_600)[KEY]
    assert ended.ended - ended.started == pytest.approx(session.ended_at - session.started_at, abs=120)
    account.adapter().collect(KEY, account.store, account.now())
    assert account.result(KEY)["outcome"] == "finished"


def test_a_denial_that_passes_ends_no_session(account: Account) -> None:
    """One report has Kaggle deny a running kernel for a moment; only one that stays away is gone."""
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    running = account.until(KEY, SessionState.RUNNING)
    kernel = account.place.kernels.pop(KEY)
    assert account.adapter().find([KEY], account.now()) == {}
    account.place.kernels[KEY] = kernel
    assert account.adapter().find([KEY], account.now()) == {KEY: running}
    account.place.delete("alice", KEY)
    assert account.adapter().find([KEY], account.now()) == {}
    ended = account.adapter().find([KEY], account.now() + 400)[KEY]
    assert (ended.state, ended.detail) == (SessionState.ENDED, "deleted")


def test_killed_at_any_step_a_launch_never_starts_twice(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon dies before or after each call and each write of a launch; the next one must come to the truth."""
    key = ""
    for moment in itertools.count(step=min(one_in(), 3)):
        key, before = f"uff-ufm-1{moment:03d}", sessions(account)
        prefix = f"uff{moment}"  # datasets of its own, so that they are made anew
        request = account.request(key, "finish")
        with monkeypatch.context() as patch:
            _die_at(patch, moment)
            with suppress(Died):
                account.adapter(dataset_prefix=prefix).launch(request, account.now())
                break
        with suppress(Unreachable):  # an intent that Kaggle does not show: only time can tell
            account.adapter(dataset_prefix=prefix).launch(request, account.now())
        found = _resolve(account, key)
        assert sessions(account) - before == (found.state == SessionState.ENDED)
    assert moment > 14
    account.until(key, SessionState.ENDED)


def _resolve(account: Account, key: str) -> Observed:
    def find() -> Observed:
        found: Observed | None = account.adapter().find([key], account.now()).get(key)
        if found is None:
            found = account.adapter().find([key], account.now() + FAR)[key]
        return found

    return until_state(find, SessionState.ENDED, SessionState.ABSENT)


def _die_at(patch: pytest.MonkeyPatch, moment: int) -> None:
    """Let the process die before (even) or after (odd) its step ``moment // 2``."""
    steps = itertools.count()

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            number = next(steps)
            if moment == 2 * number:
                raise Died
            try:
                return work(*arguments, **options)
            finally:
                if moment == 2 * number + 1:
                    raise Died

        return step

    patch.setattr(Wire, "call", dying(Wire.call))
    patch.setattr(Wire, "put", dying(Wire.put))
    patch.setattr(LaunchRecords, "write", dying(LaunchRecords.write))


def test_no_secret_leaves_through_files_sources_or_errors(account: Account) -> None:
    """The key is in the requests' header only: not in records, kernel sources, bodies, logs or messages."""
    secret = account.place.key
    told = []
    for fault in (Fault.SERVER_ERROR, Fault.THROTTLED_PAGE, Fault.PAGE, Fault.DROP, Fault.FORBIDDEN):
        account.place.faults.add("SaveKernel", fault)
        try:
            account.adapter().launch(account.request(f"uff-{fault.name.lower().replace('_', '-')}", "wait"), 0)
        except PlatformError as error:
            told += [str(error), repr(error), repr(error.__cause__), repr(error.__context__)]
    account.adapter().launch(account.request(KEY, "finish"), account.now())
    account.settle(KEY)
    files = [path for path in account.folder.rglob("*") if path.is_file() and path.name != "kaggle.json"]
    assert len(files) > 10
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert secret not in repr(account.server.requests)
    assert secret not in account.output(KEY)
    assert secret not in "".join(told)
    assert secret not in repr(account.adapter().__dict__)
