"""An answer without its word is no answer: of each call every body with one fault, against what is true."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from platforms.base import PlatformError, Refused, SessionState, Unreachable
from tests.lab.faults import Fault
from tests.lab.night import share
from tests.lab.twists import BODIES, twists

Account = Any
KEY = "uff-ufm-0001"
READS = (
    "GetKernelSessionStatus",
    "GetKernel",
    "ListKernels",
    "ListKernelSessionOutput",
    "GetAcceleratorQuotaStatistics",
)
ENOUGH = 40  # of the faults of one call in one situation; which, is drawn


@pytest.fixture
def waiting(account_at: Callable[..., Account]) -> Account:
    """An account whose kernels wait for ever, so that a test can say what is true of them."""
    return account_at(scale=60.0, queue_seconds=10**9, gpu_sessions_max=10**6)


def bundle(account: Account) -> str:
    """A payload that is never run."""
    folder = Path(account.folder) / "bundle" / "payload"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.py").write_text("raise SystemExit\n")
    return str(folder.parent)


def twisted(account: Account, call: str, do: Callable[[], object]) -> Iterator[bytes]:
    """Let ``do`` meet each faulty body of a call; yields between, for what is to be true of each."""
    told: list[Mapping[str, Any]] = []

    def listen(name: str, answer: Mapping[str, Any]) -> None:
        if name == call:
            told.append(answer)

    account.place.faults.twist = listen
    with suppress(PlatformError):
        do()
    bodies = list(twists(told[0])) if told else list(BODIES)
    for body in random.Random(call).sample(bodies, min(share(ENOUGH), len(bodies))):
        account.place.faults.twist = lambda name, _answer, body=body: body if name == call else None
        yield body
    account.place.faults.twist = lambda _call, _answer: None


def found(platform: Any, now: int) -> Any:
    return platform.find([KEY], now).get(KEY)


def outcome(ask: Callable[[], Any]) -> str:
    """Return the state that was told, or what its not being told means."""
    try:
        seen = ask()
    except Refused as error:
        return "refused for good" if error.permanent else "refused for now"
    except Unreachable:
        return "unknown"
    return "left out" if seen is None else str(seen.state)


def make_run(account: Account) -> Any:
    """Have the only kernel run since now."""
    (session,) = account.place.sessions()
    with session.changed:
        session.status, session.started_at = "RUNNING", account.clock.now()
    return session


@pytest.mark.parametrize("call", READS)
def test_a_session_that_runs_is_never_said_to_do_anything_else(waiting: Account, call: str) -> None:
    account = waiting
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    session = make_run(account)
    records = Path(account.folder) / "state" / "launches"
    before = {path.name: path.read_bytes() for path in records.glob("*.json")}
    answered = 0
    for body in twisted(account, call, lambda: account.adapter().find([KEY], account.now())):
        for name, data in before.items():  # the state when the fault came
            (records / name).write_bytes(data)
        try:
            seen = account.adapter(tries="1").find([KEY], account.now())
            list(account.adapter(tries="1").read_quota(account.now()))
        except Unreachable:
            continue
        answered += 1
        assert seen[KEY].state is SessionState.RUNNING, body
        assert seen[KEY].started <= session.started_at, body
    assert answered or call in {"GetKernelSessionStatus", "GetAcceleratorQuotaStatistics"}


@pytest.mark.parametrize(
    "call", ["GetKernelSessionStatus", "GetKernel", "ListKernels", "GetAcceleratorQuotaStatistics"]
)
def test_a_push_that_never_arrived_is_never_accepted(waiting: Account, call: str) -> None:
    account = waiting
    account.place.faults.add("SaveKernel", Fault.EMPTY)
    with pytest.raises(Unreachable):
        account.adapter().launch(account.request(KEY, "wait"), account.now())
    for body in twisted(account, call, lambda: account.adapter().find([KEY], account.now())):
        with suppress(Unreachable):
            assert account.adapter(tries="1").find([KEY], account.now()) == {}, body
    # What was said meanwhile has left nothing behind: the proof of its absence counts.
    assert account.adapter().find([KEY], account.now() + 10**7)[KEY].state is SessionState.ABSENT
    assert account.place.sessions() == []


@pytest.mark.parametrize("call", ["GetKernelSessionStatus", "GetKernel", "ListKernels"])
def test_a_session_of_lost_records_is_never_taken_for_somebody_elses(waiting: Account, call: str) -> None:
    account = waiting
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    make_run(account)
    for number, body in enumerate(twisted(account, call, lambda: account.adapter("first").find([KEY], account.now()))):
        platform = account.adapter(f"lost-{number}", tries="1")
        for ask in (
            partial(platform.launch, account.request(KEY, "wait"), account.now()),
            partial(found, platform, account.now()),
        ):
            assert outcome(ask) in {"running", "refused for now", "unknown"}, body
        assert len(account.place.sessions()) == 1, body


@pytest.mark.parametrize("call", ["SaveKernel", "CreateDataset", "GetDatasetStatus", "StartBlobUpload", "GetKernel"])
def test_a_launch_is_refused_only_when_nothing_runs(waiting: Account, call: str) -> None:
    account = waiting
    number = 0

    def launch(tries: str = "2") -> Any:
        nonlocal number
        number += 1
        key = f"uff-ufm-{number:04d}"
        request = account.request(key, "wait", environment={"N": str(number)})
        return account.adapter(tries=tries, ready_seconds="0").launch(request, account.now())

    for body in twisted(account, call, launch):
        before = len(account.place.sessions())
        told = outcome(lambda: launch("1"))
        lives = [session.live for session in account.place.sessions()[before:]]
        may_be: dict[str, list[list[bool]]] = {
            "queued": [[True]],
            "ended": [[False]],
            "refused for now": [[]],
            "unknown": [[], [True]],
        }
        assert lives in may_be[told], (body, told)


def test_whatever_is_asked_nothing_but_an_error_of_the_port_comes_back(waiting: Account) -> None:
    """All calls of an adapter, each against all bodies that are none, at every call of Kaggle's at once."""
    account = waiting
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    make_run(account)
    for body in BODIES:
        account.place.faults.twist = lambda _call, _answer, body=body: body
        platform = account.adapter(tries="1", idle_milliseconds="20")
        now = account.now()
        asks: list[Callable[[], Any]] = [
            partial(platform.find, [], now),
            partial(platform.read_quota, now),
            partial(platform.orphans, [], now),
            partial(platform.sweep, [KEY], now),
            partial(platform.stop, KEY, now, force=True),
            partial(platform.collect, KEY, account.store, now),
        ]
        for ask in asks:
            with suppress(Unreachable):
                assert not ask(), body
    account.place.faults.twist = lambda _call, _answer: None
    (session,) = account.place.sessions()
    assert session.live or session.status == "CANCEL_ACKNOWLEDGED"
