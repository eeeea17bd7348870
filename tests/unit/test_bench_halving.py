"""The benchmark of successive halving: what it promises on its twenty problems."""

import pytest

from benchmarks import bench_halving


def test_halving_finds_the_best_of_a_grid_in_a_third_of_its_hours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench_halving"])
    monkeypatch.setattr(bench_halving, "_DRAWS", 2)
    assert bench_halving.main() == 0
    assert "above_budget 0" in capsys.readouterr().out
