"""A failure tells how to see it again, and the command it names shows the very same."""

from __future__ import annotations

import pickle
import re
import shlex
import sys

import pytest

from benchmarks import simulate
from tests.lab.simulation.database import Laboratory
from tests.lab.simulation.faults import Fate
from tests.lab.simulation.modes import exhaustive
from tests.lab.simulation.mutants import MUTANTS, hunt
from tests.lab.simulation.simulation import Failure

BROKEN = next(mutant for mutant in MUTANTS if mutant.name == "half spend")


def shown_again(failure: Failure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    program, script, *arguments = shlex.split(failure.replay)
    assert (program, script) == ("python", "benchmarks/simulate.py")
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with BROKEN.alive():
        assert simulate.main() == 1
    return capsys.readouterr().out


def test_a_failure_of_a_seed_can_be_shown_again(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = hunt(laboratory, BROKEN, range(1, 13))
    assert failure is not None
    # Found by a worker, it comes to the process that tells it: a failure that could not travel killed them all.
    assert pickle.loads(pickle.dumps(failure)).report() == failure.report()  # noqa: S301 - made in this very line
    *last, summary, _, replay = failure.report().split("\n")
    assert re.fullmatch(rf"seed {failure.seed}, point {failure.point}: .+", summary)
    assert replay == f"replay: python benchmarks/simulate.py --seed {failure.seed} --weeks 2"
    assert len(last) == 50
    again = shown_again(failure, monkeypatch, capsys)
    assert summary in again
    assert "\n".join(last) in again


def test_a_failure_at_a_point_can_be_shown_again(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with BROKEN.alive():
        failure = exhaustive(laboratory, 0.2, Fate.CRASH, [30]).failures[0]
    assert failure.replay == "python benchmarks/simulate.py --steady --weeks 0.2 --at 30:crash"
    assert str(failure) in shown_again(failure, monkeypatch, capsys)
