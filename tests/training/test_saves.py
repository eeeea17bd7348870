"""Saves that are written while training goes on: the same bytes, whole or not at all, and waited for at the end."""

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import torch

from jobs.payload.trainers.tuning import checkpoint
from jobs.payload.trainers.tuning.checkpoint import Saved, StateSnapshot, free_memory
from tests.lab.desk import Desk, accelerators, digest

LAG = 5  # steps that a slow disk takes
LOOKS = 60_000  # for them


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a save in the background be written only once the training is some steps further."""
    if accelerators():
        pytest.skip("the disk is made slow inside a forked trainer; with an accelerator none is forked")
    write = checkpoint.write

    def slow(folder: Path, *parts: Any) -> None:
        (progress,) = [path for path in folder.parent.parent.glob("progress-*") if path.stat().st_size]
        told = progress.read_text
        wanted = told().count('"step"') + LAG
        looks, patience = LOOKS, threading.Event()
        beside = threading.current_thread() is not threading.main_thread()
        while beside and told().count('"step"') < wanted and looks:
            patience.wait(0.001)
            looks -= 1
        write(folder, *parts)

    monkeypatch.setattr(checkpoint, "write", slow)


@pytest.mark.parametrize(
    "options", [(), ("--lora", "4"), ("--lora", "4", "--optimizer", "adamw8bit")], ids=["full", "lora", "8bit"]
)
def test_training_goes_on_while_a_save_is_written_and_changes_none_of_its_bits(
    make_desk: Callable[..., Desk], slow_disk: None, options: tuple[str, ...]
) -> None:
    always = ("--report-every", "1", "--schedule", "constant", "--background-saves")
    desk = make_desk("desk", *options, *always, "on", target=60)
    run = desk.run(cut=9, sign=signal.SIGUSR1)
    assert run.codes == [0], run.said
    assert 0 < desk.metrics_kept()["saves_blocked"] < 1, "the share that the save before took of the session's time"
    told = desk.told()
    (copied,) = [place for place, line in enumerate(told) if "copied" in line]
    saved = [place for place, line in enumerate(told) if "saved" in line]
    assert len(saved) == 2, "when it was asked to, and at the target"
    steps = [line["step"] for line in told[copied : saved[0]] if "step" in line]
    assert len(steps) >= LAG, "it trained while the save was written"
    step = told[copied]["copied"]
    again = make_desk("again", *options, *always, "off", target=step)
    assert again.run().codes == [0]
    kept = desk.folder / f"checkpoints/step-{step:08d}"
    assert {name: digest(kept / name) for name in again.state()} == again.state()


def test_a_stop_waits_for_the_save_that_is_being_written(make_desk: Callable[..., Desk], slow_disk: None) -> None:
    """Both are kept: the one under way, and what was trained since."""
    desk = make_desk("desk", "--report-every", "1", "--background-saves", "on", target=10_000)
    asked: list[int] = []

    def disturb(process: int, step: int) -> None:
        if step >= 5 and not asked:
            asked.append(step)
            signal.pidfd_send_signal(handle(process), signal.SIGUSR1)
        elif len(asked) == 1 and any("copied" in line for line in desk.told()):
            asked.append(step)
            signal.pidfd_send_signal(handle(process), signal.SIGTERM)

    run = desk.run(disturb=disturb)
    assert run.codes == [0], run.said
    told = [line for line in desk.told() if "saved" in line]
    assert len(told) == 2
    assert [path.name for path in sorted((desk.folder / "checkpoints").iterdir())] == [
        f"step-{line['saved']:08d}" for line in told
    ]


def lying() -> Saved:
    """Two weights that are one, a bias, and the state of both."""
    weight, bias = torch.full((4, 3), 2.0, dtype=torch.bfloat16), torch.ones(3)
    state = {0: {"step": torch.tensor(7.0), "mean": torch.rand(4, 3)}, 1: {"step": torch.tensor(7.0)}}
    return Saved(
        {"embedding": weight, "head": weight, "bias": bias}, {"state": state, "param_groups": [{"betas": (0.9, 0.99)}]}
    )


def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether training had to wait for memory, each time that some was asked for."""
    asked: list[bool] = []
    empty = torch.empty

    def listening(*shape: Any, **more: Any) -> Any:
        asked.append(threading.current_thread() is threading.main_thread())
        return empty(*shape, **more)

    monkeypatch.setattr(torch, "empty", listening)
    return asked


def test_the_first_copy_finds_its_memory_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be given 16 GB by the machine took ten times as long as to fill them."""
    there = lying()
    snapshot = StateSnapshot(lambda: there, "on", first=True)
    asked = asked_for(monkeypatch)
    snapshot.prepare()
    saved, background = snapshot.take(last=False)
    assert asked == [False] * 5, "once each, and what has two names once"
    assert background
    assert saved.weights["embedding"] is saved.weights["head"] is not there.weights["head"]
    torch.testing.assert_close(saved._asdict(), there._asdict(), rtol=0, atol=0)


def test_nothing_is_prepared_that_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_for(monkeypatch)
    for wish, first in (("off", True), ("auto", True), ("on", False)):
        StateSnapshot(lying, wish, first=first).prepare()
    assert not asked


def test_a_stop_does_not_wait_for_memory_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = StateSnapshot(lying, "on", first=True)
    asked, empty = list[Any](), torch.empty

    def slow(*shape: Any, **more: Any) -> Any:
        asked.append(shape)
        assert snapshot._last_save.wait(60), "it was told to stop"
        return empty(*shape, **more)

    monkeypatch.setattr(torch, "empty", slow)
    snapshot.prepare()
    assert not snapshot.take(last=True)[1]
    assert len(asked) <= 1, "of five"


def handle(process: int) -> int:
    """A process by what cannot be given to another."""
    return os.pidfd_open(process)


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 0), (errno.EACCES, 1)])
def test_a_save_that_fails_in_the_background_is_not_lost(
    make_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    """A full disk is told and trained past; what no patience mends ends the training with what was wrong."""
    if accelerators():
        pytest.skip("the disk is made to fail inside a forked trainer; with an accelerator none is forked")
    write = checkpoint.write
    failed: list[Path] = []

    def failing(folder: Path, *parts: Any) -> None:
        if not failed:
            failed.append(folder)
            raise OSError(number, "this disk takes nothing")
        write(folder, *parts)

    monkeypatch.setattr(checkpoint, "write", failing)
    desk = make_desk("desk", "--lora", "4", "--report-every", "1", "--background-saves", "on", target=200)
    run = desk.run(cut=5, sign=signal.SIGUSR1)
    assert run.codes == [code], run.said
    if code:
        assert "this disk takes nothing" in run.said
        assert desk.checkpoint() is None
    else:
        assert ["this disk takes nothing" in line.get("save_failed", "") for line in desk.told()].count(True) == 1
        assert desk.kept("meta.json")["step"] == 200


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 8 << 20),
        ({"memory.max": "max\n"}, 8 << 20),
        ({"memory.max": "5000000", "memory.current": "3000000", "memory.stat": "inactive_file 500000\n"}, 2_500_000),
        (
            {
                "memory/memory.limit_in_bytes": "5000000",
                "memory/memory.usage_in_bytes": "6000000",
                "memory/memory.stat": "total_inactive_file 0\n",
            },
            0,
        ),
    ],
    ids=["machine", "no limit", "container", "full container"],
)
def test_memory_of_a_container_is_not_that_of_its_machine(tmp_path: Path, files: dict[str, str], free: int) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 16384 kB\nMemAvailable:    8192 kB\n")
    for name, content in files.items():
        (tmp_path / "group" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "group" / name).write_text(content)
    assert free_memory(tmp_path, tmp_path / "group") == free
