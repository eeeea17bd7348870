"""Memory that is too small: the same step in smaller parts, by new processes, until nothing is left to try."""

from typing import Any

import pytest

from jobs.payload.trainers import finetune
from jobs.payload.trainers.tuning.memory import CHANGES, STATUS, STATUS_BY_LAYERS, Fit, is_too_small, smaller
from jobs.payload.trainers.tuning.options import read_options


class Processes:
    """Stands in for the launcher: each run ends in the status that is next."""

    def __init__(self, *statuses: int, stop: bool = False) -> None:
        self.statuses, self.stop_requested, self.ran = list(statuses), stop, list[list[str]]()
        self.counts: list[int] = []

    def run(self, words: list[str], count: int, more: Any) -> int:
        """Note what was asked for."""
        self.ran.append(words[words.index("--model") + 2 :])
        self.counts.append(count)
        return self.statuses.pop(0)


def tried(
    monkeypatch: pytest.MonkeyPatch, processes: Processes, devices: int = 1, *more: str
) -> tuple[int, list[list[str]]]:
    monkeypatch.setattr(finetune, "Ranks", lambda: processes)
    monkeypatch.delenv("RANK", raising=False)
    words = ["--model", "m", "--batch", "4", "--accumulate", "2", "--devices", str(devices), *more]
    return finetune.main(words), [words[6:] for words in processes.ran]


def test_rows_are_halved_and_then_activations_computed_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, ran = tried(monkeypatch, Processes(*[STATUS] * 6))
    assert status == 1
    assert ran == [
        [],
        ["--rows-at-once", "2"],
        ["--rows-at-once", "1"],
        ["--rows-at-once", "1", "--gradient-checkpointing", "half"],
        ["--rows-at-once", "1", "--gradient-checkpointing", "all"],
        ["--rows-at-once", "1", "--gradient-checkpointing", "offload"],
    ]
    assert "out of memory" in capsys.readouterr().err.splitlines()[-1], "by which the agent knows the class"


def test_on_several_devices_weights_are_then_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    status, ran = tried(monkeypatch, Processes(*[STATUS] * 6, 0), devices=2)
    assert (status, len(ran)) == (0, 7)
    assert ran[-1] == ["--rows-at-once", "1", "--gradient-checkpointing", "offload", "--shard", "on"]


def test_a_base_in_4_bits_that_does_not_fit_one_device_gets_one_process_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = Processes(STATUS_BY_LAYERS, STATUS, 0)
    status, ran = tried(monkeypatch, processes, 2, "--use-4bit")
    assert (status, processes.counts) == (0, [2, 1, 1])
    assert ran[1:] == [
        ["--use-4bit", "--rows-at-once", "4", "--shard", "on"],
        ["--use-4bit", "--rows-at-once", "2", "--shard", "on"],
    ]


def test_a_base_in_4_bits_is_laid_on_all_devices_by_one_process_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(0)
    tried(monkeypatch, processes, 2, "--use-4bit", "--shard", "on")
    assert processes.counts == [1]


def test_layers_are_laid_on_the_devices_of_one_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCHED_NODES", "2")
    assert tried(monkeypatch, Processes(), 2, "--use-4bit", "--shard", "on") == (2, [])
    assert "devices of one node; omit one of them" in capsys.readouterr().err


def test_what_then_goes_well_went_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, ran = tried(monkeypatch, Processes(STATUS, 0))
    assert (status, ran) == (0, [[], ["--rows-at-once", "2"]])
    assert "out of memory" not in capsys.readouterr().err, "or a later fault would be taken for this one"


@pytest.mark.parametrize(("processes", "status"), [(Processes(1), 1), (Processes(STATUS, stop=True), STATUS)])
def test_a_fault_of_the_users_and_a_wish_to_stop_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, processes: Processes, status: int
) -> None:
    assert tried(monkeypatch, processes) == (status, [[]])


def walk(fit: Fit, **may: Any) -> list[Fit]:
    seen = [fit]
    while (less := smaller(seen[-1], **may)) is not None:
        seen.append(less)
    return seen


def test_every_next_try_needs_less_until_none_is_left() -> None:
    assert walk(Fit(7, checkpointing=False, shared=False)) == [
        Fit(7, False, False),
        Fit(3, False, False),
        Fit(1, False, False),
        Fit(1, "half", False),
        Fit(1, True, False),
        Fit(1, "offload", False),
        Fit(1, "offload", True),
    ]
    assert walk(Fit(1, False, True), by_halves=False) == [Fit(1, False, True), Fit(1, True, True)]


def test_what_makes_another_training_of_it_comes_last_and_only_where_it_may() -> None:
    start = Fit(1, checkpointing="offload", shared=False, length=1_000)
    assert walk(start, shareable=False) == [start]
    assert walk(start, shareable=False, may_change={"optimizer"})[1:] == [start._replace(optimizer="adamw8bit")]
    assert [(fit.optimizer, fit.length) for fit in walk(start, shareable=False, may_change=set(CHANGES))] == [
        ("adamw", 1_000),
        ("adamw8bit", 1_000),
        ("adamw8bit", 500),
    ], "and no row of less than 256 tokens"


def test_a_try_that_changes_the_training_says_so_to_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "find_spec", lambda _: object())
    more = ("--gradient-checkpointing", "offload", "--rows-at-once", "1", "--may-change", "optimizer,length")
    status, ran = tried(monkeypatch, Processes(STATUS, STATUS, 0), 1, *more)
    assert status == 0
    lowered = ["--rows-at-once", "1", "--gradient-checkpointing", "offload"]
    eight = ["--optimizer", "adamw8bit", "--changed", "optimizer=adamw"]
    assert [words[len(more) :] for words in ran] == [
        [],
        [*lowered, *eight],
        [*lowered, *eight, "--length", "512", "--changed", "length=1024"],
    ]


def test_without_bitsandbytes_no_optimizer_in_8_bits_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "find_spec", lambda _: None)
    more = ("--gradient-checkpointing", "offload", "--rows-at-once", "1", "--may-change", "optimizer,length")
    status, ran = tried(monkeypatch, Processes(STATUS, 0), 1, *more)
    assert (status, "--optimizer" in ran[1]) == (0, False)


def test_the_last_word_says_what_might_still_be_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried(monkeypatch, Processes(*[STATUS] * 6))
    assert "(E2): --may-change optimizer,length" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [(("--may-change", "rate"), "'rate' is not one of optimizer, length"),
     (("--may-change", "length", "--stage", "dpo"), "--may-change is for --stage sft")],
)  # fmt: skip
def test_what_may_not_be_changed_is_told(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--model", "m", *words])
    assert told in " ".join(capsys.readouterr().err.split())


def test_which_errors_mean_it() -> None:
    assert is_too_small(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_too_small(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert is_too_small(MemoryError())
    assert not is_too_small(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
