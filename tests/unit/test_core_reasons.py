"""Reasons: data that survives JSON, and sentences that tell all of it."""

import json
from dataclasses import replace

import pytest

from scheduler.core import reasons
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, JobState, Queued
from scheduler.core.reasons import (
    AwaitsVerdict,
    BadDefinition,
    BudgetSpent,
    CannotLaunch,
    ConcurrencyFull,
    DeadlineUnreachable,
    DevicesTaken,
    DoesNotFit,
    GateClosed,
    HeldByPerson,
    LeftoverTooShort,
    NoAllowedPool,
    NotItsTurn,
    NotReleased,
    Outbid,
    ParentUnusable,
    PoolClosed,
    Precondition,
    QuotaEmpty,
    Reason,
    SecretMissing,
    from_json,
    show,
)
from scheduler.core.why import NOT_RELEASED, why

AT = 1_795_269_900  # Sat 21 Nov 2026, 14:05 UTC

CASES: list[tuple[Reason, list[str]]] = [
    (HeldByPerson("ann", "lunch"), ["held by ann", "lunch"]),
    (HeldByPerson("ann", ""), ["held by ann"]),
    (BadDefinition("ufm", "weight = 1e+308"), ["weight = 1e+308", "queue edit ufm"]),
    (
        SecretMissing("HF_TOKEN", "kaggle", "the pool gives none", 'Set secrets = "dataset"'),
        ["HF_TOKEN on kaggle", "gives none", "Set secrets"],
    ),
    (ParentUnusable("uff-main", 40, "there is none"), ["uff-main", "step 40", "there is none"]),
    (CannotLaunch(Precondition.INPUTS, "kaggle", AT), ["kaggle", "inputs are not in the artifact store", "14:05"]),
    (NotReleased(AT, "retry delay"), ["retry delay", "14:05"]),
    (GateClosed("uff-main", 0.123, 0.2, AT), ["uff-main", "20%", "12.3%", "14:05"]),
    (GateClosed("uff-main", 0.0, 1.0), ["uff-main", "100%", "0.0%"]),
    (GateClosed("uff-main", 0.0, 0.0051), ["uff-main", "at 1%"]),
    (GateClosed("uff-main", 0.0, 0.005), ["uff-main", "to have its first checkpoint"]),
    (AwaitsVerdict("uff-main", "", ""), ["uff-main", "schedctl models evaluate uff-main"]),
    (
        AwaitsVerdict("uff-main", "uff-main@2", "rejected"),
        ["uff-main@2 is rejected", "schedctl models show uff-main@2"],
    ),
    (NoAllowedPool(("kaggle", "desk")), ["kaggle", "desk"]),
    (DoesNotFit("1 x 24 GiB", "2 x 15 GiB"), ["1 x 24 GiB", "2 x 15 GiB"]),
    (DoesNotFit("1 x 24 GiB", "2 x 15 GiB", "4 bits fit"), ["2 x 15 GiB (4 bits fit)"]),
    (DeadlineUnreachable(AT, 12.34, 5.67), ["14:05", "12.3 h", "5.7 h"]),
    (QuotaEmpty("kaggle", "GPU hours of the week", AT), ["kaggle", "GPU hours of the week", "14:05"]),
    (QuotaEmpty("kaggle", "week", None), ["kaggle", "week"]),
    (PoolClosed("desk", "outside its hours", AT), ["desk", "outside its hours", "14:05"]),
    (PoolClosed("desk", "switched off", None), ["desk", "switched off"]),
    (ConcurrencyFull("kaggle", 2, AT), ["kaggle", "2 sessions", "14:05"]),
    (ConcurrencyFull("kaggle", 2, None), ["kaggle", "2 sessions"]),
    (ConcurrencyFull("desk", 1, AT), ["desk", "one session is busy", "14:05"]),
    (DevicesTaken("h100", 4, 8, AT), ["h100", "fewer than 4", "8 devices", "14:05"]),
    (DevicesTaken("h100", 1, 8, None), ["h100", "all of its 8 devices"]),
    (LeftoverTooShort("kaggle", 660, 2400), ["kaggle", "11 min", "40 min"]),
    (
        Outbid("kaggle", "uff-main", 3.14159, 4.5, planned_pool="desk", planned_start=AT),
        ["kaggle goes to uff-main", "priority 4.5; planned on desk at Sat 21 Nov 14:05 UTC"],
    ),
    (Outbid("kaggle", "uff-main", None, None), ["kaggle", "uff-main"]),
    (
        NotItsTurn("ufm", 0.3, 0.34, planned_start=AT),
        ["ufm goes first", "30 %", "34 % so far; planned Sat 21 Nov 14:05"],
    ),
    (BudgetSpent("lr-a", "lr", 0.25), ["sweep lr", "0.25 device hours", "queue edit lr-a --set halving.budget"]),
    (NotItsTurn("ufm", 0.3, 0.34), ["ufm goes first", "30 %", "34 % so far"]),
    (QuotaEmpty("kaggle", "week", None, unplanned_until=AT), ["kaggle", "cannot be planned before Sat 21 Nov 14:05"]),
]


@pytest.mark.parametrize(("reason", "words"), CASES, ids=lambda value: type(value).__name__)
def test_a_reason_survives_json(reason: Reason, words: list[str]) -> None:
    assert from_json(json.loads(json.dumps(reason.to_json()))) == reason


@pytest.mark.parametrize(("reason", "words"), CASES, ids=lambda value: type(value).__name__)
def test_a_sentence_says_every_figure(reason: Reason, words: list[str]) -> None:
    sentence = reason.sentence()
    assert [word for word in words if word not in sentence] == []
    assert "None" not in sentence
    assert reason.to_json()["sentence"] == sentence


def test_a_price_is_for_programs_alone() -> None:
    reason = Outbid("kaggle", "uff-main", 3.14159, None)
    assert "3.14" not in reason.sentence()
    assert reason.to_json()["price"] == 3.14159


def test_every_kind_of_reason_is_tested_and_has_its_own_code() -> None:
    named = [value for value in vars(reasons).values() if isinstance(value, type) and issubclass(value, Reason)]
    kinds = [kind for kind in named if kind is not Reason]
    assert {type(reason) for reason, _ in CASES} == set(kinds)
    assert len({kind.code for kind in kinds} | {""}) == len(kinds) + 1


def test_instants_are_shown_in_the_reader_s_zone() -> None:
    assert show(AT) == "Sat 21 Nov 14:05 UTC"
    assert show(AT, "Europe/Berlin") == "Sat 21 Nov 15:05 CET"
    assert "15:05 CET" in NotReleased(AT, "waits").sentence("Europe/Berlin")


def test_a_code_of_a_newer_version_is_no_reason() -> None:
    with pytest.raises(KeyError):
        from_json({"code": "weather", "sentence": "it rains"})


def test_reasons_are_values() -> None:
    reason = QuotaEmpty("kaggle", "week", AT)
    assert replace(reason) == reason
    assert hash(replace(reason)) == hash(reason)


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        (0.0, 0.0),
        (-1.0, 0.0),
        (0.5, 0.5),
        (1.0, 1.0),
        (1.001, 1.01),
        (1.0149, 1.02),
        (12.345, 12.4),
        (12.31, 12.4),
        (999.2, 1000.0),
        (123456.0, 124000.0),
        (0.0012301, 0.00124),
    ],
)
def test_a_weight_told_to_people_has_three_digits_and_is_enough(weight: float, told: float) -> None:
    assert reasons.weight_rounded_up(weight) == pytest.approx(told, rel=1e-12)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Active("run-1", 0), "runs as run-1"),
        (Active("run-1", 0, "hold", "anna", "later"), "runs as run-1, hold requested"),
        (Held("anna", "later", 0), "by anna: later"),
        (Held("anna", "", 0), "by anna"),
        (Failed("code", "KeyError", 0), "code: KeyError"),
        (Failed("code", "", 0), "code"),
        (Cancelled("mia", 0), "by mia"),
        (Done(0), ""),
        (Queued(0), ""),
    ],
)
def test_why_a_job_is_where_it_is_is_one_sentence(state: JobState, words: str) -> None:
    assert why(state, None, "UTC", AT) == words


def test_a_job_in_the_queue_tells_what_it_waits_for_also_in_words_of_a_newer_version() -> None:
    assert why(Queued(0), {"code": "held", "by": "anna", "why": "later"}, "UTC", AT) == "held by anna: later"
    assert why(Queued(0), {"code": "moon", "sentence": "the moon is wrong"}, "UTC", AT) == "the moon is wrong"
    assert why(Queued(0), {"code": "moon"}, "UTC", AT) == "moon"


def test_a_pause_that_is_over_is_due_now_and_shows_no_past_instant() -> None:
    assert NotReleased.code == NOT_RELEASED
    waits = NotReleased(AT, "waits after a failure (KeyError: 'text')").to_json()
    assert why(Queued(0), waits, "UTC", AT) == "waits after a failure (KeyError: 'text'); due now"
    assert why(Queued(0), waits, "UTC", AT - 1) == "waits after a failure (KeyError: 'text') until Sat 21 Nov 14:05 UTC"
