"""Which candidates of a sweep train on: the best of each rung, in whatever order they are measured."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.catalogue import job_from_table
from jobs.definition import table_of
from jobs.problem import ProblemsFound
from jobs.spec import Halving
from scheduler.core.halving import Decision, SweepCandidate, decide, rung_of, rungs_of

RULE = Halving("held_out_loss", 3_600, candidates=9, rungs=(100, 300, 900))
VALUES = st.floats(0, 10) | st.sampled_from([nan, inf, None, "fails"])


class Sweep:
    """A sweep in which candidates are measured one after the other; ``at`` is the rung of each."""

    def __init__(self, rule: Halving, values: Sequence[object]) -> None:
        self.rule = rule
        self.values = {f"job-{number:02}": value for number, value in enumerate(values)}
        self.at = dict.fromkeys(self.values, 0)
        self.state = dict.fromkeys(self.values, "trains")
        self.promoted: list[list[str]] = [[] for _ in rule.rungs]

    def candidates(self) -> list[SweepCandidate]:
        """What is known of each."""
        return [
            SweepCandidate(name, self.at[name], self.state[name], None if value == "fails" else value)  # type: ignore[arg-type]
            for name, value in self.values.items()
        ]

    def measure(self, name: str) -> None:
        """Let a candidate reach its rung, or fail, and do what is decided."""
        last = self.at[name] == len(self.rule.rungs) - 1
        self.state[name] = "out" if self.values[name] == "fails" or last else "waits"
        decision = decide(self.rule, self.candidates())
        assert decision == decide(self.rule, self.candidates()[::-1])  # whatever order they are given in
        for one in decision.promoted:
            self.promoted[self.at[one]].append(one)
            self.at[one] += 1
            self.state[one] = "trains"
        for one in decision.dropped:
            self.state[one] = "out"
        measured = sum(at > 0 or self.state[name] != "trains" for name, at in self.at.items())
        assert len(self.promoted[0]) <= measured // self.rule.factor
        for rung, names in enumerate(self.promoted, 1):
            assert len(names) <= self.rule.candidates // self.rule.factor**rung
        assert decide(self.rule, self.candidates()) == Decision()  # one decision says all

    def run(self, draw: list[int]) -> None:
        """Measure everybody, in an order that ``draw`` chooses."""
        while training := sorted(name for name, state in self.state.items() if state == "trains"):
            self.measure(training[(draw.pop() if draw else 0) % len(training)])


@given(st.integers(2, 4), st.integers(2, 30), st.data(), st.lists(st.integers(0, 40), max_size=40))
def test_the_best_of_each_rung_trains_on_in_any_order_and_never_more_than_its_part(
    factor: int, count: int, data: st.DataObject, draw: list[int]
) -> None:
    values = data.draw(st.lists(VALUES, min_size=count, max_size=count))
    rule = Halving("loss", 60, count, rungs_of(1_000, count, factor), factor)
    sweep = Sweep(rule, values)
    sweep.run(draw)
    assert "waits" not in sweep.state.values()  # nobody is forgotten
    size = count
    usable = sorted((value, name) for name, value in sweep.values.items() if isinstance(value, float) and value < inf)
    for names in sweep.promoted[:-1]:
        size //= factor
        assert len(names) == min(size, len(usable))
        assert not usable or usable[0][1] in names


@given(st.lists(VALUES, min_size=9, max_size=9))
def test_those_that_are_measured_together_are_ranked_together(values: list[object]) -> None:
    sweep = Sweep(RULE, values)
    waiting = [
        replace(one, state="out" if sweep.values[one.name] == "fails" else "waits") for one in sweep.candidates()
    ]
    decision = decide(RULE, waiting)
    usable = sorted((value, name) for name, value in sweep.values.items() if isinstance(value, float) and value < inf)
    assert list(decision.promoted) == [name for _, name in usable[:3]]
    assert set(decision.dropped) == {one.name for one in waiting if one.state == "waits"} - set(decision.promoted)


def test_nobody_waits_for_the_slowest_and_the_last_place_stays_free_for_it() -> None:
    values = [0.5, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.1]
    sweep = Sweep(RULE, list(values))
    for number in range(8):
        sweep.measure(f"job-{number:02}")
    assert sweep.promoted[0] == ["job-01", "job-00"]  # ASHA: the third and the sixth brought a place each
    sweep.measure("job-08")
    assert sweep.promoted[0] == ["job-01", "job-00", "job-08"]


def test_equal_metrics_are_ordered_by_name_and_a_high_aim_turns_the_order() -> None:
    assert decide(RULE, _all([0.5] * 9)).promoted == ("job-0", "job-1", "job-2")
    assert decide(replace(RULE, aim="high"), _all([*[0.1] * 6, 0.7, 0.9, 0.8])).promoted == ("job-7", "job-8", "job-6")


def test_one_that_left_the_sweep_takes_no_place_of_a_higher_rung() -> None:
    released = SweepCandidate("job-9", 0, "out")
    passed = [SweepCandidate(f"job-{number}", 1, "waits", number / 10) for number in range(3)]
    others = [SweepCandidate(f"job-{number}", 0, "out") for number in range(3, 8)]
    assert decide(RULE, [released, *others, *passed]) == Decision(("job-0",), ("job-1", "job-2"))


def _all(values: list[float]) -> list[SweepCandidate]:
    return [SweepCandidate(f"job-{number}", 0, "waits", value) for number, value in enumerate(values)]


def test_rungs_end_at_the_target_and_one_at_least_reaches_it() -> None:
    assert rungs_of(900, 9, 3) == (100, 300, 900)
    assert rungs_of(900, 26, 3) == (100, 300, 900)  # the best two reach it: a quarter of the whole grid's steps
    assert rungs_of(900, 81, 3) == (100, 300, 900)
    assert rungs_of(900, 6, 3) == (300, 900)
    assert rungs_of(900, 8, 2) == (112, 225, 450, 900)
    assert rungs_of(900, 2, 3) == (900,)
    assert [rung_of(RULE, step) for step in (100, 300, 900)] == [0, 1, 2]
    assert rung_of(replace(RULE, left_at=0), 900) == 0


TABLE = {"name": "ufm", "command": ["train"], "target_step": 100, "steps_per_hour": 1.0, "sweep": "lr"}
HALVING = {"metric": "acc", "budget": "12h", "candidates": 9, "rungs": [100, 300, 900], "aim": "high"}


def test_the_rule_is_read_and_written() -> None:
    spec = job_from_table({**TABLE, "halving": HALVING}, "here")
    assert spec.halving == Halving("acc", 43_200, 9, (100, 300, 900), aim="high")
    assert job_from_table(table_of(spec), "here") == spec


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"halving": {**HALVING, "rungs": [100]}}, "at least two steps that go up"),
        ({"halving": {**HALVING, "rungs": [300, 100]}}, "at least two steps that go up"),
        ({"halving": {**HALVING, "budget": "0s"}}, "halving.budget"),
        ({"halving": {**HALVING, "factor": 1}}, "halving.factor"),
        ({"halving": HALVING, "target_step": 200}, "it is no rung of halving"),
        ({"halving": HALVING, "sweep": ""}, "sweep"),
        ({"halving": HALVING, "stop": {"metric": "acc", "patience": 3}}, "without stop and evaluation"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(table: dict[str, object], why: str) -> None:
    with pytest.raises(ProblemsFound, match=why.replace(".", r"\.")):
        job_from_table({**TABLE, **table}, "here")
