"""What fitted in short memory: known to whoever trains the same on the same card, and to nobody else."""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.payload.trainers.tuning.fingerprint import fingerprint, place
from jobs.payload.trainers.tuning.memory import facts_of, keep, recall
from jobs.payload.trainers.tuning.options import read_options

T4: Any = SimpleNamespace(name="Tesla T4", precision="fp16", compiles=True)
L4: Any = SimpleNamespace(name="NVIDIA L4", precision="bf16", compiles=True)
SHORT = ("--rows-at-once", "1", "--gradient-checkpointing", "half")


def asked(cache: Path, *words: str) -> argparse.Namespace:
    return read_options(["--model", "m", "--lora", "16", "--cache", str(cache), *words])


def after(options: argparse.Namespace, card: Any = T4, model: str = "digest", **known: Any) -> tuple[Any, ...]:
    """What a training begins with, which was told of a checkpoint or a parent."""
    recall(options, facts_of(options, model, card, 1), known.get("before"), known.get("parent"))
    return options.rows_at_once, options.gradient_checkpointing, options.optimizer, options.length, options.changed


def kept(cache: Path, *words: str, card: Any = T4) -> None:
    """Let a training keep what fitted."""
    options = asked(cache, *words)
    keep(options, facts_of(options, "digest", card, 1), options.rows_at_once or options.batch)


def told(*words: str, card: Any = T4) -> Any:
    """A checkpoint's fingerprint."""
    options = asked(Path(), *words)
    digests = {"model": "digest", "tokenizer": "t", "data": "d"}
    at = place(options, card, 1, options.rows_at_once or options.batch)
    return fingerprint(options, digests, {"seed": 1, "target step": 9}, at)


def test_the_next_job_of_the_machine_begins_with_what_fitted(tmp_path: Path) -> None:
    kept(tmp_path, *SHORT)
    assert after(asked(tmp_path)) == (1, "half", "adamw", 1024, {})
    assert after(asked(tmp_path, "--gradient-checkpointing")) == (1, True, "adamw", 1024, {}), "all is more than half"
    nothing: tuple[Any, ...] = (None, False, "adamw", 1024, {})
    assert after(asked(tmp_path), card=L4) == nothing
    assert after(asked(tmp_path), model="another") == nothing
    assert after(asked(tmp_path / "elsewhere")) == nothing
    assert after(asked(tmp_path, "--length", "512"))[0] is None, "shorter rows may fit as they are"
    assert after(asked(tmp_path, "--use-4bit"))[0] is None


def test_memory_that_was_never_short_is_not_remembered(tmp_path: Path) -> None:
    kept(tmp_path)
    assert not any(tmp_path.iterdir())


def test_what_makes_another_training_of_it_is_taken_only_by_those_who_may(tmp_path: Path) -> None:
    kept(tmp_path, *SHORT, "--optimizer", "adamw8bit", "--changed", "optimizer=adamw")
    assert after(asked(tmp_path))[2:] == ("adamw", 1024, {})
    assert after(asked(tmp_path, "--may-change", "length"))[2] == "adamw"
    assert after(asked(tmp_path, "--may-change", "optimizer,length"))[2:] == ("adamw8bit", 1024, {"optimizer": "adamw"})


def test_a_checkpoint_tells_its_own_job_and_those_that_begin_with_it(tmp_path: Path) -> None:
    short = told(*SHORT)
    for known in ({"before": short}, {"parent": short}):
        assert after(asked(tmp_path), **known)[:2] == (1, "half")
        assert after(asked(tmp_path), card=L4, **known)[:2] == (None, False), "another card has other room"
    changed = told(*SHORT, "--length", "512", "--changed", "length=1024")
    assert after(asked(tmp_path), card=L4, before=changed)[3:] == (512, {"length": 1024}), "on every card"
    assert after(asked(tmp_path), card=L4, parent=changed)[3:] == (1024, {}), "a child is asked anew"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 9, "rows at once": 1, "changed": {}}'])
def test_a_file_that_cannot_be_read_tells_nothing(text: str, tmp_path: Path) -> None:
    kept(tmp_path, *SHORT)
    (path,) = (tmp_path / "fits").iterdir()
    path.write_text(text)
    assert after(asked(tmp_path))[0] is None


def test_where_nothing_can_be_written_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fits").write_text("a file where a folder is wanted")
    kept(tmp_path, *SHORT)
    assert "cannot be saved for the next job" in capsys.readouterr().err
