"""A/B tests: what a catalogue says of them, and how runs become evidence."""

import random
from pathlib import Path
from typing import Any

import pytest

from jobs.catalogue import arm_of, read_catalogue
from jobs.problem import ProblemsFound
from jobs.scores import Score, Scores
from scheduler.service.requests.ab_tests import compare_arms

GOOD = """
[[ab]]
name = "lr"
models = ["ufm", "uff-main"]
change = { environment = { LR = "1e-4" } }
seeds = [1, 2, 3]
target_step = 1000
on = "wednesday"
zone = "Europe/Berlin"
"""


def read(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "models.toml"
    path.write_text(text)
    return read_catalogue([path]).ab


def test_a_test_is_read_and_its_jobs_are_known_by_their_names(tmp_path: Path) -> None:
    (test,) = read(tmp_path, GOOD)
    assert (test.weekday, test.zone, test.seeds) == (2, "Europe/Berlin", (1, 2, 3))
    assert test.job("uff-main", "b", 3) == "uff-main-lr-b3"
    assert arm_of("uff-main-lr-b3", "lr") == ("uff-main", "b", 3)
    assert arm_of("uff-main-lr-b3", "decay") is arm_of("uff-main", "lr") is None


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('name = "lr"', 'name = "learning-rate"', "1 to 12 characters of a-z"),
        ('name = "lr"\n', "", "is missing"),
        ("[1, 2, 3]", "[1, 2]", "3 seeds or more"),
        ("[1, 2, 3]", "[1, 1, 2]", "each once"),
        ("[1, 2, 3]", "3", "3 seeds or more"),
        ('"wednesday"', '"someday"', "a day of the week"),
        ('"wednesday"', '"wenesday"', "did you mean wednesday"),
        ('"Europe/Berlin"', '"Mars/Base"', "no such time zone"),
        ('"Europe/Berlin"', '"../../etc/passwd"', "no such time zone"),
        ('{ environment = { LR = "1e-4" } }', "{}", "a table of what is changed"),
        ('{ environment = { LR = "1e-4" } }', "{ gates = [] }", "judges both arms"),
        ('["ufm", "uff-main"]', '["ufm", "ufm"]', "each once"),
        ("target_step = 1000", "target_step = 0", "1 to"),
        ("target_step", "target_steps", "did you mean target_step"),
        ("[[ab]]", "[ab]", "a list of tables"),
        ("[[ab]]", GOOD + "[[ab]]", "stands above"),
    ],
)
def test_what_cannot_be_a_test_is_refused(tmp_path: Path, before: str, after: str, why: str) -> None:
    with pytest.raises(ProblemsFound, match="ab") as caught:
        read(tmp_path, GOOD.replace(before, after, 1))
    assert why in str(caught.value)


def scores(of: dict[str, float]) -> Scores:
    """Scores of items by name."""
    items = {name: Score(name, name, value) for name, value in of.items()}
    return Scores("m", "c" * 64, "t" * 64, "s" * 64, {"pass@1": items})


def runs(seeds: int, luck: float, gain: float, generator: random.Random) -> dict[str, tuple[Scores, Scores]]:
    """Both arms of ``seeds`` runs on 200 items; each run is as good as its seed makes it, by ``luck`` either way."""

    def arm(mean: float) -> Scores:
        share = min(1.0, max(0.0, generator.gauss(mean, luck)))
        return scores({f"i{number}": float(generator.random() < share) for number in range(200)})

    return {f"ufm, seed {seed}": (arm(0.5), arm(0.5 + gain)) for seed in range(seeds)}


def test_three_seeds_show_nothing_and_say_how_many_would() -> None:
    generator = random.Random(7)
    (found,) = compare_arms(runs(3, 0.01, 0.3, generator), {})
    assert (found.outcome, found.clusters, found.items) == ("not_enough_items", 3, 600)
    assert "needs at least 5" in found.reason
    (found,) = compare_arms(runs(6, 0.01, 0.3, generator), {})
    assert found.outcome == "passed"
    (found,) = compare_arms(runs(6, 0.01, 0.3, generator), {"pass@1": "low"})
    assert found.outcome == "failed", "less is better"


def test_equal_approaches_are_called_better_no_more_often_than_said_however_lucky_seeds_are() -> None:
    """Of 200 comparisons one in twenty may err. Items taken for independent would err in a third of them."""
    generator = random.Random(11)
    wrong = sum(compare_arms(runs(8, 0.1, 0.0, generator), {})[0].outcome == "passed" for _ in range(200))
    assert wrong <= 20


def test_metrics_that_not_all_runs_have_are_left_out() -> None:
    one, other = scores({"a": 1.0}), scores({"b": 1.0})
    assert compare_arms({"x": (one, other)}, {}) == []
    assert compare_arms({}, {}) == []
