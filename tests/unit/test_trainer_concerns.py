"""What keeps finetune.py from training is found when a job is added, by its command and config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.nouns.pool import Pool, declared
from jobs.spec import Input, JobSpec, Needs
from scheduler.service.requests.concerns import of_trainer

ONE = {"devices_per_session": 1}
FOUR = {"devices_per_session": 4}
CHOICE = {"device_counts": (2, 8), "devices_max": 8}


def concerns(
    *words: str, source: str = "", devices: tuple[int, int] = (1, 1), pool: dict[str, Any] = ONE
) -> list[tuple[str, str, str]]:
    spec = JobSpec(
        name="a",
        role="manager",
        command=("{python}", "{payload}/trainers/finetune.py", *words),
        target_step=9,
        steps_per_hour=1.0,
        needs=Needs(*devices),
        inputs=(Input("base", source, "d" * 64),) if source else (),
    )
    return [*of_trainer(spec, [declared(Pool("p", "local", **pool))])]


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_positions": 1024}, 1024),
        ({"max_seq_len": 2048, "attn_config": {"alibi": True}}, None),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "linear", "factor": 2.0}}, 1024),
        ({"max_position_embeddings": 512, "rope_scaling": {"factor": "two"}}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"factor": 1e999}}, 512),
        ({}, None),
        ([], None),
    ],
)
def test_rows_longer_than_the_model_are_reported(config: Any, most: int | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for named in (("--model", str(tmp_path)), ("--model=input:base",)):
        assert concerns(*named, "--length", str(most or 10**6), source=f"{tmp_path}#config.json") == []
        if most is not None:
            ((word, why, remedy),) = concerns(*named, f"--length={most + 1}", source=str(tmp_path))
            assert (word, f"more than the {most} positions" in why) == ("--length", True)
            assert f"Say --length {most} or less" in why
            assert remedy == "change it in the command"


@pytest.mark.parametrize("written", [b"\xff", b"[" * 10_000, b"{"])
def test_a_model_that_cannot_be_read_here_is_left_to_the_session(written: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(written)
    assert concerns("--model", str(tmp_path), "--length", "9999") == []
    assert concerns("--model", "hf:a/b@main", "--length", "9999") == []
    assert concerns("--model", "input:lost") == []


@pytest.mark.parametrize(
    ("words", "devices", "pool", "said"),
    [
        ("--stage kto --batch 2 --accumulate 1", (1, 2), ONE, ""),
        ("--stage kto --batch 2 --accumulate 1", (1, 2), FOUR, "each of 2 devices would take one"),
        ("--stage kto --batch 2 --accumulate 1 --devices 1", (1, 2), FOUR, ""),
        ("--stage kto --batch 2 --accumulate 4", (2, 8), CHOICE, "each of 8 devices would take one"),
        ("--stage dpo --batch 2 --accumulate 4", (2, 8), CHOICE, ""),
        ("--batch 3 --accumulate 1", (1, 2), FOUR, "cannot be shared by 2 devices"),
        ("--batch 0", (1, 2), FOUR, ""),
        ("--batch many", (1, 2), FOUR, ""),
    ],
)
def test_what_some_number_of_devices_cannot_share_is_reported(
    words: str, devices: tuple[int, int], pool: dict[str, Any], said: str
) -> None:
    found = concerns("--model", "hf:a/b", *words.split(), devices=devices, pool=pool)
    assert [word for word, *_ in found] == ["--batch"] * bool(said)
    assert all(said in why for _, why, _ in found)
