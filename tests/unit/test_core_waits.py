"""How long is waited after trouble, and when a person must look first."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.core.blame import STALLED_CLASSES, fingerprint, hold_reason, rest_seconds, retry_delay
from scheduler.core.reconcile import LaneEnd
from scheduler.core.run import WRONG_DEVICE, Lane, Outcome


@given(st.text(max_size=9), st.integers(1, 50), st.integers(1, 1_000), st.integers(1, 10**6))
@example("a job", 5, 100, 10**6)  # far from the cap
def test_a_retry_waits_twice_as_long_each_time_up_to_a_cap_give_or_take_a_quarter(
    name: str, failures: int, base: int, cap: int
) -> None:
    plain = min(cap, base * 2 ** (failures - 1))
    found = retry_delay(name, failures, base, cap)
    assert found == retry_delay(name, failures, base, cap)
    assert max(1, 0.75 * plain - 1) <= found <= max(1, 1.25 * plain + 1)


def test_retries_of_many_jobs_are_spread_over_all_of_it() -> None:
    found = sorted(retry_delay(f"job-{number}", 1, 1_000, 9_000) for number in range(200))
    assert 750 <= found[0] < 770
    assert 1_230 < found[-1] <= 1_250
    assert 950 < found[100] < 1_050


def test_a_retry_waits_a_second_at_least() -> None:
    assert {retry_delay(f"job-{number}", 1, 1, 10) for number in range(20)} == {1}


@pytest.mark.parametrize("failures", [0, -1])
def test_without_a_failure_nothing_is_waited_for(failures: int) -> None:
    with pytest.raises(ValueError, match="at least one failure"):
        retry_delay("a", failures, 10, 100)


@pytest.mark.parametrize(
    ("before", "now", "rests"),
    [
        (None, 1_000, 60),
        ((1_000, 200), 1_199, 200),  # on its way all the same
        ((1_000, 200), 1_200, 400),  # back at the first try
        ((1_000, 200), 1_600, 400),
        ((1_000, 200), 1_601, 60),  # after good times
        ((1_000, 600), 1_600, 1_000),
        ((1_000, 499), 1_499, 998),
    ],
)
def test_a_place_rests_twice_as_long_when_trouble_is_back_soon(
    before: tuple[int, int] | None, now: int, rests: int
) -> None:
    assert rest_seconds(before, now, 60, 1_000) == rests


def ended(outcome: Outcome, error: str | None = "code", message: str = "ValueError: 7") -> Lane:
    return Lane(0, "job", 1, (0,), None, outcome, None, error, message)


def asked(failures: int, *earlier: Lane, error: str = "code", message: str = "ValueError: 8", same: int = 2) -> str:
    return hold_reason(LaneEnd(0, "job", Outcome.FAILED, None, error, message), failures, earlier, same)


FAILED, YIELDED, LOST = (ended(outcome) for outcome in (Outcome.FAILED, Outcome.YIELDED, Outcome.LOST))
OTHER = ended(Outcome.FAILED, message="KeyError: 'x'")
POOLS = ended(Outcome.FAILED, WRONG_DEVICE, "a P100")
STORES = ended(Outcome.FAILED, "store", "no store")
STALLED = ended(Outcome.FAILED, "stalled", "no step for an hour")


@pytest.mark.parametrize(
    ("failures", "earlier", "same", "alike"),
    [
        (2, [FAILED], 2, 2),
        (3, [FAILED, FAILED], 3, 3),
        (3, [FAILED, FAILED], 2, 3),
        (2, [YIELDED, FAILED], 2, 2),
        (2, [POOLS, FAILED], 2, 2),  # its pool's fault was never counted
        (3, [STORES, FAILED], 2, 2),
        (3, [LOST, FAILED], 2, 2),
    ],
)
def test_the_same_error_so_often_in_a_row_waits_for_a_person(
    failures: int, earlier: list[Lane], same: int, alike: int
) -> None:
    assert asked(failures, *earlier, same=same).startswith(f"{alike} sessions in a row ended in the same error (code)")


@pytest.mark.parametrize(
    ("failures", "earlier", "same"),
    [
        (1, [], 2),
        (1, [FAILED], 2),  # it has made progress since
        (2, [FAILED], 3),
        (2, [FAILED], 0),
        (2, [OTHER], 2),
        (3, [OTHER, FAILED], 2),
        (2, [ended(Outcome.FINISHED), FAILED], 2),
        (2, [STORES, FAILED], 2),
        (2, [LOST, FAILED], 2),
    ],
)
def test_another_error_progress_or_a_good_end_between_does_not(failures: int, earlier: list[Lane], same: int) -> None:
    assert asked(failures, *earlier, same=same) == ""


@pytest.mark.parametrize("error", [*STALLED_CLASSES])
def test_stalls_twice_without_progress_wait_whatever_came_between(error: str) -> None:
    assert asked(1, error=error, same=0) == ""
    assert asked(1, STALLED, error=error, same=0) == ""
    assert asked(2, STALLED, error=error, same=0).startswith("2 sessions in a row made no progress")
    assert asked(3, OTHER, STALLED, error=error, same=0).startswith("2 sessions in a row made no progress")
    assert STALLED_CLASSES[error] in asked(2, STALLED, error=error)


def test_what_is_said_is_the_end_of_the_message_on_one_line() -> None:
    said = asked(2, ended(Outcome.FAILED, message="b" * 300), message="a\n" + "b" * 300)
    assert said.endswith(f": {'b' * 200}")
    assert "\n" not in said


@pytest.mark.parametrize("error", ["device", WRONG_DEVICE, "store", "network"])
def test_what_others_did_is_never_the_jobs(error: str) -> None:
    assert asked(9, ended(Outcome.FAILED, error, "no"), error=error, message="no") == ""


def test_errors_are_the_same_by_their_class_and_last_line_without_numbers() -> None:
    assert fingerprint("code", "Traceback\n  at 0x7f3a\nError:  step 12 \n\n") == ("code", "error: step #")
    assert fingerprint("code", "ERROR at 0xAB: step 13") == fingerprint("code", "x\nerror at 12: step 9")
    assert fingerprint(None, " \n") == ("", "")
