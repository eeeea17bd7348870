"""All weights trained by DeepSpeed's ZeRO: the same training, kept in the same form and moved like any other."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("deepspeed")
from tests.lab.desk import REPOSITORY, Desk, accelerators

ALWAYS = ("--batch", "4", "--report-every", "1")
CLOSE = 1e-3 if accelerators() else 1e-4  # devices sum in other orders


def losses(desk: Desk) -> list[float]:
    """What the newest run told."""
    return [loss for _, loss in desk.losses() if loss is not None]


@pytest.mark.parametrize(
    "options",
    [("--zero", "1"), ("--zero", "2", "--offload"), ("--zero", "3", "--offload"), ("--zero", "3", "--gradient-checkpointing")],
    ids=" ".join,
)
def test_each_stage_learns_the_same_and_is_resumed_with_the_same_bits(
    options: tuple[str, ...], make_desk: Callable[..., Desk]
) -> None:
    alone = make_desk("alone", *ALWAYS)
    whole, broken = (make_desk(name, *options, *ALWAYS) for name in ("whole", "broken"))
    assert alone.run().codes == [0]
    run = whole.run(ranks=2)
    assert run.codes == [0, 0], run.said
    assert losses(whole) == pytest.approx(losses(alone), abs=CLOSE)
    first = broken.run(ranks=2, cut=9, told=1)
    assert first.codes == [0, 0], first.said
    told = losses(broken)
    second = broken.run(ranks=2)
    assert second.codes == [0, 0], second.said
    assert ", E0:" in second.said
    assert told + losses(broken) == losses(whole)
    assert broken.state() == whole.state()
