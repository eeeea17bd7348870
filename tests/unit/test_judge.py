"""Verdicts: what passes, what is refused, and what this test set could not have told."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from jobs.scores import Score, Scores
from jobs.spec import QualityGate
from scheduler.judge.gates import judge

BETTER = QualityGate("pass", "better")
GUARD = QualityGate("pass", "no_harm")


def scored(values: Sequence[float], per_cluster: int = 1, metric: str = "pass") -> Scores:
    """Scores of items in order, so many to a cluster."""
    named = {
        f"i{place:04d}": Score(f"i{place:04d}", f"c{place // per_cluster:04d}", float(value), f"answer {place}")
        for place, value in enumerate(values)
    }
    return Scores("ufm", "1" * 64, "2" * 64, "3" * 64, {metric: named})


def ones(passed: int, of: int) -> list[int]:
    return [1] * passed + [0] * (of - passed)


@pytest.mark.parametrize(
    ("gate", "values", "verdict", "unclear"),
    [
        (QualityGate("pass", "threshold", minimum=0.95), ones(19, 20), "accepted", ""),
        (QualityGate("pass", "threshold", minimum=0.95), ones(18, 20), "rejected", ""),
        (QualityGate("pass", "threshold", minimum=1.0), ones(20, 20), "accepted", ""),
        (QualityGate("pass", "threshold", minimum=1.0), ones(19, 20), "rejected", ""),
        (QualityGate("pass", "threshold", maximum=0.05), ones(1, 20), "accepted", ""),
        (QualityGate("pass", "threshold", minimum=0.95, by="lower"), ones(58, 58), "inconclusive", "not_enough_items"),
        (QualityGate("pass", "threshold", minimum=0.95, by="lower"), ones(59, 59), "accepted", ""),
        (QualityGate("pass", "threshold", minimum=0.95, by="lower"), ones(99, 100), "accepted", ""),
        (QualityGate("pass", "threshold", minimum=0.95, by="lower"), ones(98, 100), "inconclusive", "not_enough_items"),
        (QualityGate("pass", "threshold", minimum=0.95, by="lower"), ones(90, 100), "rejected", ""),
        (QualityGate("pass", "threshold", maximum=0.05, by="lower"), ones(0, 59), "accepted", ""),
        (QualityGate("pass", "threshold", maximum=0.05, by="lower"), ones(1, 100), "accepted", ""),
        (QualityGate("pass", "threshold", maximum=0.05, by="lower"), ones(2, 100), "inconclusive", "not_enough_items"),
        (QualityGate("pass", "threshold", maximum=4.0, by="lower"), [3.0] * 10, "inconclusive", "not_enough_items"),
        (QualityGate("pass", "threshold", maximum=4.0, by="lower"), [2.0, 3.0] * 10, "accepted", ""),
    ],
)
def test_a_threshold_asks_the_version_alone(gate: QualityGate, values: list[float], verdict: str, unclear: str) -> None:
    found = judge([gate], scored(values), None)
    assert (found.verdict, found.unclear) == (verdict, unclear), found.reason


def test_sixty_items_in_ten_clusters_are_not_sixty() -> None:
    """All passed, but ten independent ones show no 95 %."""
    gate = QualityGate("pass", "threshold", minimum=0.95, by="lower")
    found = judge([gate], scored(ones(60, 60), per_cluster=6), None)
    assert (found.verdict, found.unclear) == ("inconclusive", "not_enough_items")
    assert found.findings[0].low == pytest.approx(0.05 ** (1 / 10))


@pytest.mark.parametrize(
    ("leak", "held_out", "verdict"),
    [("", False, "rejected"), ("", True, "accepted"), ("refuse", True, "rejected"), ("report", False, "accepted")],
)
def test_what_was_seen_of_a_set_refuses_unless_the_corpus_itself_held_it_out(
    leak: Any, held_out: bool, verdict: str
) -> None:
    """A corpus keeps near duplicates of these apart itself; its rehearsed week was refused for what code shares."""
    gate = QualityGate("pass", "threshold", minimum=0.5, leak=leak)
    leaks = {"share": 0.06, "sentences": ["ufm@1 saw 5 of 78 items"], "held_out": held_out}
    assert judge([gate], scored(ones(6, 10)), None, leaks).verdict == verdict


def test_a_set_of_which_all_was_seen_has_no_mean_without_leaks() -> None:
    gate = QualityGate("pass", "threshold", minimum=0.5, leak="report")
    scores = scored(ones(6, 10))
    leaks = {"share": 1.0, "sentences": [], "leaked": sorted(scores.by_metric["pass"])}
    found = judge([gate], scores, None, leaks).leaks
    assert found == {
        "share": 1.0,
        "sentences": ["pass is 0.6 over 10 items, all of which were seen"],
        "means": {"pass": {"all": 0.6, "unseen": None}},
    }


def test_the_first_version_is_asked_thresholds_only() -> None:
    gates = [QualityGate("pass", "threshold", minimum=0.5), BETTER, GUARD]
    found = judge(gates, scored(ones(6, 10)), None)
    assert found.verdict == "accepted"
    assert [finding.outcome for finding in found.findings] == ["passed", "not_asked", "not_asked"]
    assert "no promoted version" in found.reason


@pytest.mark.parametrize(
    ("gained", "lost", "verdict", "unclear"),
    [
        (5, 0, "accepted", ""),
        (4, 0, "inconclusive", "not_enough_items"),  # one in sixteen, whatever the other items say
        (10, 2, "accepted", ""),
        (10, 4, "inconclusive", "not_enough_items"),
        (3, 3, "rejected", ""),
        (0, 0, "rejected", ""),
    ],
)
def test_single_items_are_decided_by_the_exact_test(gained: int, lost: int, verdict: str, unclear: str) -> None:
    before = ones(lost, gained + lost) + [1] * 50
    new = [1 - value for value in before[: gained + lost]] + [1] * 50
    found = judge([BETTER], scored(new), scored(before))
    assert (found.verdict, found.unclear) == (verdict, unclear), found.reason
    assert found.findings[0].test == "McNemar"


def test_clustered_items_are_decided_by_their_clusters() -> None:
    """Twelve wins in three clusters are three wins."""
    found = judge([BETTER], scored([1] * 12, per_cluster=4), scored([0] * 12, per_cluster=4))
    assert (found.verdict, found.unclear) == ("inconclusive", "not_enough_items")
    assert (found.findings[0].test, found.findings[0].p_value) == ("sign-flip", 0.125)
    assert found.findings[0].clusters == 3


def test_four_clusters_that_differ_show_nothing_whatever_their_number() -> None:
    """Even a set that would have shown the margin."""
    before, new = [0] * 400, [1] * 8 + [0] * 392
    found = judge([QualityGate("pass", "better", margin=0.5)], scored(new, 2), scored(before, 2))
    assert (found.verdict, found.unclear) == ("inconclusive", "not_enough_items")
    assert "differs in 4 of 200 clusters; a result needs at least 5" in found.reason


def test_reasons_say_which_way_a_version_went() -> None:
    same, worse = scored(ones(5, 9)), scored(ones(4, 9))
    assert judge([BETTER], same, same).reason == "pass is not better: the same"
    assert judge([BETTER], worse, same).reason == "pass is not better: worse by 0.1111"
    gate = QualityGate("pass", "not_worse", margin=0.9)
    assert "better by 0.1111" in judge([gate], same, worse).findings[0].reason


def test_a_difference_worth_knowing_that_the_set_would_have_shown_ends_in_a_refusal() -> None:
    """A gain that may be chance is refused where the set would have shown the margin, and unclear elsewhere."""
    before, new = [0, 1] * 300, [0, 1] * 300
    new[0:8:2], new[9:13:2] = [1, 1, 1, 1], [0, 0]
    said = {
        margin: judge([QualityGate("pass", "better", margin=margin)], scored(new), scored(before)).verdict
        for margin in (0.1, 0.001)
    }
    assert said == {0.1: "rejected", 0.001: "inconclusive"}


def test_a_loss_is_better_when_it_is_lower() -> None:
    generator = random.Random(1)
    before = [3 + generator.gauss(0, 0.3) for _ in range(60)]
    new = [value - 0.1 + generator.gauss(0, 0.1) for value in before]
    found = judge([QualityGate("loss", "better", aim="low")], scored(new, 3, "loss"), scored(before, 3, "loss"))
    finding = found.findings[0]
    assert found.verdict == "accepted"
    assert finding.gain is not None
    assert finding.gain > 0.05
    assert finding.low is not None
    assert finding.high is not None
    assert 0 < finding.low < finding.gain < finding.high


def test_guards_refuse_harm_and_share_their_five_percent() -> None:
    """Six losses and none gained are harm for one guard (p 0.016) and not for the worst of six."""
    worse, same = scored([0] * 6 + [1] * 50), scored([1] * 56)
    assert judge([GUARD], worse, same).verdict == "rejected"
    names = [f"m{number}" for number in range(6)]
    metrics = {name: (worse if name == "m0" else same).by_metric["pass"] for name in names}
    new = Scores("ufm", "1" * 64, "2" * 64, "3" * 64, metrics)
    before = Scores("ufm", "1" * 64, "2" * 64, "3" * 64, dict.fromkeys(names, same.by_metric["pass"]))
    assert judge([QualityGate(name, "no_harm") for name in names], new, before).verdict == "accepted"


def test_a_guard_that_could_not_have_seen_harm_is_unclear() -> None:
    generator = random.Random(3)
    before = [float(generator.random() < 0.5) for _ in range(40)]
    new = [float(generator.random() < 0.5) for _ in range(40)]
    found = judge([QualityGate("pass", "no_harm", margin=0.03)], scored(new), scored(before))
    assert (found.verdict, found.unclear) == ("inconclusive", "harm_unclear")
    few = judge([GUARD], scored([0, 1, 1]), scored([1, 1, 1]))
    assert (few.verdict, few.unclear) == ("inconclusive", "harm_unclear")
    assert judge([GUARD], scored([1, 1, 1]), scored([1, 1, 1])).verdict == "accepted"


def test_not_worse_is_shown_by_items_alone() -> None:
    """An equal version passes a margin of ten points on a thousand items, and is unclear on thirty."""
    gate = QualityGate("pass", "not_worse", margin=0.1)
    swapped = {count: ([1, 0] * (count // 10) + [1] * (count - count // 5)) for count in (1_000, 30)}
    turned = {count: ([0, 1] * (count // 10) + [1] * (count - count // 5)) for count in (1_000, 30)}
    said = {count: judge([gate], scored(swapped[count]), scored(turned[count])).verdict for count in swapped}
    assert said == {1_000: "accepted", 30: "inconclusive"}
    assert judge([gate], scored(ones(400, 1_000)), scored(ones(600, 1_000))).verdict == "rejected"


def test_a_rejected_version_shows_the_items_that_it_lost() -> None:
    found = judge([GUARD], scored([0] * 8 + [1] * 40), scored([1] * 48))
    examples = found.findings[0].examples
    assert [example.item for example in examples] == ["i0000", "i0001", "i0002", "i0003", "i0004"]
    assert (examples[0].value, examples[0].before, examples[0].text) == (0.0, 1.0, "answer 0")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"test_set": "9" * 64}, "another test set"),
        ({"scorer": "9" * 64}, "another scorer"),
        ({"model": "ucm"}, "scores of ufm"),
    ],
)
def test_what_cannot_be_compared_is_an_error_and_never_a_pass(changed: dict[str, Any], why: str) -> None:
    found = judge([QualityGate("pass", "threshold", minimum=0.1)], scored([1] * 9), replace(scored([1] * 9), **changed))
    assert found.verdict == "error"
    assert why in found.reason


def test_a_missing_metric_other_items_or_no_gate_are_errors() -> None:
    one = scored([1] * 9)
    assert judge([QualityGate("loss", "threshold", minimum=0.1)], one, None).verdict == "error"
    assert judge([GUARD], one, scored([1] * 8)).verdict == "error"
    assert judge([], one, None).verdict == "error"


@pytest.mark.parametrize(
    ("table", "alone", "verdict"),
    [
        (((95, 5), (5, 95)), True, "accepted"),  # kappa 0.9 over 200 labels
        (((80, 20), (20, 80)), True, "error"),  # 0.6, but its lower bound is below
        (((45, 1), (1, 45)), True, "error"),  # too few labels
        (((80, 20), (20, 80)), False, "accepted"),  # with another gate beside it
    ],
)
def test_a_judging_model_stands_alone_only_when_it_agrees_with_people(
    table: tuple[tuple[int, ...], ...], alone: bool, verdict: str
) -> None:
    values = scored([1] * 30, metric="judge").by_metric["judge"]
    metrics = {"judge": values} | ({} if alone else {"pass": values})
    scores = Scores("ufm", "1" * 64, "2" * 64, "3" * 64, metrics, {"judge": table})
    gates = [QualityGate(metric, "threshold", minimum=0.9) for metric in metrics]
    assert judge(gates, scores, None).verdict == verdict


def test_a_judgement_is_plain_data_and_always_the_same() -> None:
    generator = random.Random(5)
    before = [float(generator.random() < 0.6) for _ in range(200)]
    new = [float(generator.random() < 0.65) for _ in range(200)]
    first, second = (judge([BETTER, GUARD], scored(new, 4), scored(before, 4)).document() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert first["findings"][0]["gate"] == {"metric": "pass", "kind": "better"}
