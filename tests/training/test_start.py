"""Before the first step: what is told of it, and how torch is set."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import torch

from jobs.payload.trainers.trainer_kit import NO_CORPUS, Training
from jobs.payload.trainers.tuning import session
from jobs.payload.trainers.tuning.errors import TrainingRefused
from jobs.payload.trainers.tuning.options import read_options
from jobs.payload.trainers.tuning.start import Start
from tests.lab.desk import Desk


def test_a_session_tells_once_where_the_seconds_to_its_first_step_went(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk", "--lora", "4", target=3)
    run = desk.run()
    assert run.codes == [0], run.said
    told = re.findall(r"the first step ended after [\d.]+ s \((.*)\)", run.said)
    assert [re.sub(r" [\d.]+", "", parts) for parts in told] == ["libraries, rows, weights, step"]


def test_the_same_bits_do_not_cost_the_filling_of_memory(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    """Torch fills what it was asked for with NaN by default where it is deterministic."""

    def no_card(*_: object) -> None:
        raise TrainingRefused("far enough")

    monkeypatch.setattr(session, "find_card", no_card)
    monkeypatch.setenv("SCHED_CHECKPOINT_DIR", str(tmp_path))
    options = read_options(["--model", str(model), "--deterministic"])
    try:
        with pytest.raises(TrainingRefused, match="far enough"):
            session.train(options, Training(), 0, NO_CORPUS, Start())
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.empty(100_000).isnan().all(), "as it would be if all of it were filled"
    finally:
        torch.use_deterministic_algorithms(mode=False)
