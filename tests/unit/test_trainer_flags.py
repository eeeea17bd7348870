"""The command lines that people brought along are understood, each as they meant it."""

import json
from pathlib import Path

import pytest

from jobs.payload.trainers.tuning.options import read_options

# Options of train_ds.py, and what they mean here: bits, rank, rows at a time, batches a step.
LINES = {
    "--use-4bit --use-lora": (4, 16, 4, 8),
    "--use-lora": (16, 16, 4, 8),
    "--use-4bit --use-lora --batch-size 1 --gradient-accumulation-steps 8": (4, 16, 1, 8),
    "--use-4bit --use-lora --batch-size 2 --gradient-accumulation-steps 4": (4, 16, 2, 4),
    "--use-lora --batch-size 2 --gradient-accumulation-steps 2": (16, 16, 2, 2),
    "--batch-size 4 --gradient-accumulation-steps 1": (16, 0, 4, 1),
    "--no-deepspeed": (16, 0, 4, 8),
    "--use-4bit": (4, 16, 4, 8),
    "--batch-size 1": (16, 0, 1, 8),
    "--gradient-accumulation-steps 8": (16, 0, 4, 8),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_understood(line: str) -> None:
    options = read_options(["--model", "m", *line.split()])
    assert (options.bits, options.lora, options.batch, options.accumulate) == LINES[line]
    assert options.zero == 0


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ({"stage": 1}, (1, False)),
        ({"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}, (2, True)),
        (
            {
                "stage": 3,
                "stage3_prefetch_bucket_size": 5e8,
                "stage3_param_persistence_threshold": 1e6,
                "stage3_max_live_parameters": 1e9,
                "stage3_max_reuse_distance": 1e9,
            },
            (3, False),
        ),
    ],
    ids=["stage 1", "offloaded", "stage 3"],
)
def test_a_ds_config_is_understood(zero: dict[str, object], expected: tuple[int, bool], tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": zero}))
    options = read_options(["--model", "m", "--deepspeed", str(path)])
    assert (options.zero, options.offload) == expected
    kept = {name: value for name, value in zero.items() if name != "stage"}
    assert options.zero_more == kept, "all that it says beside the stage reaches DeepSpeed"


def test_deepspeeds_launcher_is_refused_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """It starts each process with an option of its own."""
    with pytest.raises(SystemExit):
        read_options(["--local_rank=0", "--model", "m", "--use-4bit", "--use-lora"])
    assert "start this program without a launcher" in " ".join(capsys.readouterr().err.split())
