"""Whole lives of sessions under faults drawn at random: one session for each launch, and one end."""

import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from platforms.base import LaunchRequest, PlatformError, Refused, SessionState, Unreachable
from platforms.wrap import Guarded
from tests.lab.faults import Fault
from tests.lab.night import share

Account = Any
SCHEDULES = 100
SIDE_BY_SIDE = 4
SLACK_SECONDS = 3_600  # scheduled, one real second: from a kernel's last word to the end of its process, if all is busy
FAULTS = [fault for fault in Fault if fault not in {Fault.HANG, Fault.THROTTLED_LATER}]  # those take their time
FAR = 10_000_000
LOOKS_MAX = 1_500
LOOKS_SOON = 100  # after them what cannot be found is looked for as if much later: then it never was
PLENTY_SECONDS = 10**8  # of GPU time in a week: more than all sessions take, and no more than books can tell

# Stands in for the payload, which takes a second to load: says hello and leaves, or stays.
AGENT = """
import json, signal, sys
launch = json.load(open(sys.argv[1]))
print("hello from", launch["run"], flush=True)
if launch["lasting"]:
    signal.pause()
"""


def request(account: Account, bundle: Path, key: str, *, lasting: bool) -> LaunchRequest:
    launch = {"format": 1, "run": key, "lasting": lasting, "lanes": []}
    return LaunchRequest(key, "pool", 1, account.now() + 40_000, launch, str(bundle), {})


def test_under_any_faults_a_launch_runs_at_most_once_and_its_end_stands(
    account_at: Callable[..., Account], tmp_path: Path
) -> None:
    """A hundred schedules in the night. The time told never begins after Kaggle's meter, and never ends before it."""
    bundle = tmp_path / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    accounts = [account_at(scale=3600.0, gpu_seconds_per_week=PLENTY_SECONDS) for _ in range(SIDE_BY_SIDE)]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        fates = [
            fate
            for done in [
                threads.submit(_live_all, account, bundle, range(first, share(SCHEDULES), SIDE_BY_SIDE))
                for first, account in enumerate(accounts)
            ]
            for fate in done.result()
        ]
    # Faults and lives of every kind were met.
    assert set(fates) == {"refused", "absent", "ended", "ended by force"}


def _live_all(account: Account, bundle: Path, seeds: Iterable[int]) -> list[str]:
    return [_live_one(account, bundle, seed) for seed in seeds]


def _live_one(account: Account, bundle: Path, seed: int) -> str:
    draw = random.Random(seed)
    key = f"uff-fault-{seed:04d}"
    chance = draw.choice([0.1, 0.3, 0.6])
    before = account.place.sessions()
    account.place.faults.draw = lambda call: draw.choice(FAULTS) if draw.random() < chance else None
    refused = _launch(account, request(account, bundle, key, lasting=seed % 3 == 0))
    # Of those that would leave by themselves half are let: how far they come before they are stopped depends on load.
    stop_from = LOOKS_MAX if seed % 3 == 1 else draw.randrange(1, 30)
    end = None if refused else _live_to_the_end(account, key, stop_from)
    account.place.faults.draw = lambda call: None
    mine = [session for session in account.place.sessions() if session not in before]
    if end is None or end.state == SessionState.ABSENT:
        assert mine == [], f"seed {seed}"
        return "refused" if end is None else "absent"
    assert account.adapter().find([key], account.now() + FAR) == {key: end}, f"seed {seed}"
    (session,) = mine
    assert not session.live
    assert end.started <= end.ended
    if session.started_at is not None:
        assert end.started <= session.started_at, f"seed {seed}"
        assert end.ended >= int(session.ended_at) - SLACK_SECONDS, f"seed {seed}"
    return "ended by force" if session.status == "CANCEL_ACKNOWLEDGED" else "ended"


def _launch(account: Account, wanted: LaunchRequest) -> bool:
    """Launch as the daemon does: once; return whether it was refused, so that nothing runs."""
    try:
        account.adapter(tries="2").launch(wanted, account.now())
    except Refused:
        return True
    except Unreachable:
        return False
    return False


def _live_to_the_end(account: Account, key: str, stop_from: int) -> Any:
    for look in range(LOOKS_MAX):
        now = account.now() + (FAR if look > LOOKS_SOON else 0)
        platform = account.adapter(tries="2", idle_milliseconds="20")
        try:
            seen = platform.find([key], now).get(key)
            if seen is not None and seen.state in {SessionState.ENDED, SessionState.ABSENT}:
                return seen
            if seen is not None and look >= stop_from:
                platform.stop(key, now, force=True)
        except PlatformError:
            pass
        account.patience.wait(0.005)
    pytest.fail(f"{key} was never seen to end")


@pytest.mark.parametrize("tries", [1, 3])
def test_a_failing_find_is_as_many_calls_as_the_pool_allows_and_no_more(account: Account, tries: int) -> None:
    """Reads are repeated in one place: two of them, each with tries of its own, made nine calls of three."""
    calls: list[str] = []

    def fail(call: str) -> Fault:
        calls.append(call)
        return Fault.SERVER_ERROR

    platform = Guarded(
        account.adapter(tries=str(tries)), "kaggle", stopwatch=lambda: 0.0, note=lambda event, fields: None
    )
    account.place.faults.draw = fail
    with pytest.raises(Unreachable):
        platform.find(["uff-ufm-0001"], account.now())
    assert len(calls) == tries
    assert len(set(calls)) == 1
