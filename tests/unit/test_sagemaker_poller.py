"""AWS is not asked more often than there is news to expect, and is left in peace when it says so."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from platforms.base import Observed, SessionState, Unreachable
from platforms.sagemaker.adapter import Look, Poller
from platforms.sagemaker.answers import Throttled

FAR = 1_000_000


class Account:
    """Jobs by name; counts how often each is asked about."""

    def __init__(self) -> None:
        self.states: dict[str, SessionState] = {}
        self.asked: list[tuple[str, int]] = []
        self.throttled = False
        self.ends_by = FAR

    def look_at(self, now: int) -> Callable[[str], Look | None]:
        """What a poller looks through."""

        def look(key: str) -> Look | None:
            self.asked.append((key, now))
            if self.throttled:
                raise Throttled("sagemaker", "find", "Rate exceeded")
            state = self.states.get(key)
            return None if state is None else Look(Observed(key, state, f"arn-{key}"), self.ends_by)

        return look


def asked_over(account: Account, poller: Poller, key: str, begin: int, end: int, every: int = 1) -> list[int]:
    """Ask the poller for a key from ``begin`` to ``end``; return when AWS was asked."""
    account.asked.clear()
    for now in range(begin, end, every):
        poller.find([key], now, account.look_at(now))
    return [at for _, at in account.asked]


@pytest.mark.parametrize(
    ("state", "ends_by", "least", "most"),
    [
        (SessionState.RUNNING, FAR, 24, 36),
        (SessionState.QUEUED, FAR, 48, 72),
        (SessionState.RUNNING, 4_000, 8, 12),
        (SessionState.ENDED, FAR, 1, 1),
    ],
)
def test_a_job_is_looked_at_as_often_as_its_state_asks_for(
    state: SessionState, ends_by: int, least: int, most: int
) -> None:
    account, poller = Account(), Poller(30)
    account.states["a"], account.ends_by = state, ends_by
    at = asked_over(account, poller, "a", 3_700, 4_000)
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert pauses
    assert all(least <= pause <= most for pause in pauses), pauses
    assert most == 1 or len(set(pauses)) > 1, "no rhythm is kept"


def test_jobs_launched_together_are_not_looked_at_together() -> None:
    account, poller = Account(), Poller(30)
    keys = [f"uff-lm-{number}" for number in range(20)]
    account.states = dict.fromkeys(keys, SessionState.RUNNING)
    poller.find(keys, 0, account.look_at(0))
    account.asked.clear()
    for now in range(1, 60):
        assert set(poller.find(keys, now, account.look_at(now))) == set(keys), "what was seen is passed on meanwhile"
    first = dict(reversed(account.asked))
    assert len(set(first.values())) > 5


def test_a_throttled_account_is_left_in_peace_twice_as_long_each_time() -> None:
    account, poller = Account(), Poller(30)
    account.states["a"] = SessionState.RUNNING
    poller.find(["a"], 0, account.look_at(0))
    account.throttled = True
    asked = []
    for now in range(40, 2_000):
        account.asked.clear()
        with pytest.raises(Unreachable):
            poller.find(["a"], now, account.look_at(now))
        asked += [at for _, at in account.asked]
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[:6] == [30, 60, 120, 240, 300, 300]
    account.throttled = False
    again = asked[-1] + 300
    assert poller.find(["a"], again, account.look_at(again))["a"].state is SessionState.RUNNING
    account.throttled = True
    with pytest.raises(Unreachable):
        poller.find(["a"], again + 40, account.look_at(again + 40))
    account.throttled = False
    assert poller.find(["a"], again + 70, account.look_at(again + 70)), "after good answers it begins anew"


def test_what_was_done_to_a_job_is_seen_at_once() -> None:
    account, poller = Account(), Poller(30)
    account.states["a"] = SessionState.RUNNING
    poller.find(["a"], 0, account.look_at(0))
    account.states["a"] = SessionState.ENDED
    poller.forget("a")
    assert poller.find(["a"], 1, account.look_at(1))["a"].state is SessionState.ENDED
    assert poller.find(["b"], 2, account.look_at(2)) == {}
