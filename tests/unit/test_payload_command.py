"""How a lane's command is started, and what of its reports is heard."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs.payload.lane.command import CommandProgress, Relay, Spec, TrainingCommand, training_command
from jobs.payload.lane.prepare import Prepared
from jobs.payload.log import hidden
from jobs.payload.store.publish import Restored
from tests.lab.launch_file import LANE, launch_in

if TYPE_CHECKING:
    from collections.abc import Iterator

KIT = str(Path(__file__).resolve().parents[2] / "jobs/payload/trainers")
NOTHING = Prepared((), "", {}, Restored(None, ()), "", None, {})


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that was given a path for programs and none for modules."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin")


def started(
    folder: Path, *lanes: dict[str, Any], prepared: Prepared = NOTHING, resume: bool = False, **changes: Any
) -> Spec:
    launch = launch_in(folder, lanes=[{**LANE, **lane} for lane in lanes], **changes)
    return training_command(launch, launch.lanes[0], prepared, resume=resume)


def relayed(data: bytes) -> tuple[bytes, str]:
    """Return what a relay copied of a stream, and the end that it remembers."""
    source, sink = os.pipe(), os.memfd_create("sink")
    relay = Relay(source[0], sink, "")
    for start in range(0, len(data), 1 << 12):
        os.write(source[1], data[start : start + (1 << 12)])
        assert relay.copy() != 0
    os.close(source[1])
    assert relay.copy() == 0
    relay.drain()
    os.close(source[0])
    try:
        return os.pread(sink, 1 << 20, 0), relay.tail
    finally:
        os.close(sink)


def test_a_line_without_end_is_copied_in_parts_and_none_of_it_is_lost() -> None:
    line = b"".join(b"%06d." % number for number in range(20_000))
    copied, tail = relayed(line)
    assert copied.replace(b"\n", b"") == line
    assert copied.count(b"\n") == 2
    assert tail.replace("\n", "") == line.decode()[-3_999:], "the last cut is among these 4,000 bytes"


@pytest.mark.parametrize("before", range(65_530, 65_540))
def test_a_secret_where_a_line_is_cut_is_hidden(before: int) -> None:
    hidden.know(["canary-of-a-line"])
    try:
        copied, _ = relayed(b"x" * before + b"canary-of-a-line" + b"y" * 70_000)
    finally:
        hidden.know([])
    assert b"canary" not in copied
    assert copied.replace(b"\n", b"") == b"x" * before + b"[secret]" + b"y" * 70_000


def test_a_program_that_is_not_there_leaves_no_guard(tmp_path: Path) -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    with pytest.raises(OSError, match="nothing"):
        TrainingCommand(Spec(["/nothing"], {}, tmp_path, ""))
    assert children() == before


def test_a_command_is_told_what_it_works_on(tmp_path: Path) -> None:
    lane = {"devices": [1, 3], "environment": {"LR": "0.1"}, "command": ["{python}", "{payload}/trainers/charlm.py"]}
    prepared = NOTHING._replace(data="/data", inputs={"SCHED_INPUT_BASE": "/base"}, secrets={"HF_TOKEN": "hf"})
    spec = started(tmp_path, lane, prepared=prepared, deadline=1_000)
    own = tmp_path / "work/lane-0"
    assert spec == Spec([sys.executable, f"{KIT}/charlm.py"], spec.environment, own / "command", "")
    assert spec.environment == {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "1,3",
        "LR": "0.1",
        "SCHED_INPUT_BASE": "/base",
        "HF_TOKEN": "hf",
        "SCHED_RUN_ID": "uff-ufm-0007",
        "SCHED_JOB": "ufm",
        "SCHED_SEED": "1",
        "SCHED_RESUME_DIR": "",
        "SCHED_CHECKPOINT_DIR": str(own / "checkpoints"),
        "SCHED_DATA_DIR": "/data",
        "SCHED_TARGET_STEP": "1200",
        "SCHED_SECONDS_LEFT": "0",  # long past
        "SCHED_PROGRESS": str(own / "progress"),
        "PYTHONPATH": KIT,
        "PYTHONUNBUFFERED": "1",
    }


def test_lines_of_a_command_are_unbuffered_unless_its_job_sets_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "")  # the platform's
    assert started(tmp_path, {}).environment["PYTHONUNBUFFERED"] == "1"
    own = started(tmp_path, {"environment": {"PYTHONUNBUFFERED": ""}}).environment
    assert own["PYTHONUNBUFFERED"] == ""


def test_a_parent_that_is_not_there_is_no_empty_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHED_INPUT_PARENT", "/of/another/session")
    assert "SCHED_INPUT_PARENT" not in started(tmp_path, {}).environment
    told = started(tmp_path, {}, prepared=NOTHING._replace(parent="/parent")).environment
    assert told["SCHED_INPUT_PARENT"] == "/parent"


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{input:base}", "/data/the base"),
        ("--data={input:base}/texts:{input:more_2}", "--data=/data/the base/texts:/more"),
        ("$SCHED_INPUT_BASE/texts", "/data/the base/texts"),
        ("${SCHED_INPUT_MORE_2}x", "/morex"),
        ("cat '$SCHED_INPUT_BASE'/*", "cat '/data/the base'/*"),
        ("$SCHED_INPUT_MODEL", "/parent"),
        # What names no input of this session is somebody else's: a shell's, a format string's.
        (
            "{input:other} $SCHED_INPUT_OTHER ${SCHED_INPUT_OTHER:-x}",
            "{input:other} $SCHED_INPUT_OTHER ${SCHED_INPUT_OTHER:-x}",
        ),
        ("$SCHED_INPUT_BASES $HOME $SCHED_JOB {step:d}", "$SCHED_INPUT_BASES $HOME $SCHED_JOB {step:d}"),
        ("$SCHED_INPUT_PARENT", "/parent"),
    ],
)
def test_a_script_that_is_not_changed_is_told_where_its_inputs_are(tmp_path: Path, word: str, filled: str) -> None:
    inputs = {"SCHED_INPUT_BASE": "/data/the base", "SCHED_INPUT_MORE_2": "/more"}
    prepared = NOTHING._replace(inputs=inputs, parent="/parent")
    assert started(tmp_path, {"command": ["run", word], "whole": True}, prepared=prepared).words == ["run", filled]


def test_a_command_that_goes_on_is_told_from_where_and_how_long(tmp_path: Path) -> None:
    told = started(tmp_path, {}, {"index": 1, "job": "ulm"}, resume=True)
    assert told.environment["SCHED_RESUME_DIR"] == str(tmp_path / "work/lane-0/resume")
    assert 0 < int(told.environment["SCHED_SECONDS_LEFT"]) < 2_000_000_000
    assert told.prefix == "ufm| ", "two jobs write one log"


def test_a_command_with_packages_of_its_own_finds_their_programs_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    packages = NOTHING._replace(environment=Path("/packages"))
    spec = started(tmp_path, {"command": ["{python}", "-m", "mine"]}, prepared=packages)
    assert spec.words == ["/packages/bin/python", "-m", "mine"]
    assert spec.environment["VIRTUAL_ENV"] == "/packages"
    assert spec.environment["PATH"] == "/packages/bin:/usr/bin"
    assert spec.environment["PYTHONPATH"] == f"/mine:{KIT}"
    monkeypatch.delenv("PATH")
    assert started(tmp_path, {}, prepared=packages).environment["PATH"] == f"/packages/bin:{os.defpath}"


@pytest.mark.parametrize(
    ("parent", "given", "model"), [("/parent", {}, "/parent"), ("/parent", {"SCHED_INPUT_MODEL": "/m"}, "/m")]
)
def test_a_command_that_knows_nothing_of_sessions_leaves_its_output(
    tmp_path: Path, parent: str, given: dict[str, str], model: str
) -> None:
    told = started(tmp_path, {"whole": True}, prepared=NOTHING._replace(parent=parent, inputs=given)).environment
    output = tmp_path / "work/lane-0/command/output"
    assert (told["SCHED_INPUT_MODEL"], told["SCHED_INPUT_PARENT"]) == (model, parent)
    assert (told["SCHED_OUTPUT_DIR"], told["SCHED_CHECKPOINT_DIR"]) == (str(output), str(output / "checkpoints"))
    assert (told["SCHED_TARGET_STEP"], told["SCHED_PROGRESS"]) == ("", "")
    assert "SCHED_INPUT_MODEL" not in started(tmp_path, {}, prepared=NOTHING._replace(parent=parent)).environment


def test_a_command_of_several_nodes_is_started_on_each(tmp_path: Path) -> None:
    nodes = {"launcher": ["srun", "-N2"], "variable": "NODE", "devices": [[0, 1], [2]], "address": "a", "port": 7}
    spec = started(tmp_path, {"nodes": {**nodes, "near": True}})
    assert spec.words == [sys.executable, f"{KIT}/nodes.py", "all", "srun", "-N2", "--", "true"]
    told = {
        "SCHED_NODES": "2",
        "SCHED_NODE_VARIABLE": "NODE",
        "SCHED_NODE_DEVICES": "0,1;2",
        "SCHED_RENDEZVOUS": "a:7",
        "SCHED_NODES_NEAR": "1",
    }
    assert told.items() <= spec.environment.items()


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[tuple[CommandProgress, int]]:
    """What the agent reads, and the end that the command writes to."""
    progress = CommandProgress(tmp_path / "progress")
    sink = os.open(progress.path, os.O_WRONLY | os.O_NONBLOCK)
    yield progress, sink
    os.close(sink)
    os.close(progress.source)


def test_a_report_may_come_in_pieces_and_among_other_words(fifo: tuple[CommandProgress, int]) -> None:
    progress, sink = fifo
    assert [*progress.lines()] == []
    os.write(sink, b'{"step": 1}\n{"st')
    assert [*progress.lines()] == [{"step": 1}]
    os.write(sink, b'ep": 2}\nnonsense\n[3]\n{"step": 4}\n')
    assert [*progress.lines()] == [{"step": 2}, {"step": 4}]


@pytest.mark.parametrize(("more", "heard"), [(0, True), (1, False)])
def test_a_line_is_heard_up_to_64_kib_and_none_longer_is_kept(
    fifo: tuple[CommandProgress, int], *, more: int, heard: bool
) -> None:
    progress, sink = fifo
    start = b'{"step": 5, "note": "'
    half = (1 << 15) - len(start)
    for piece in (start + b"x" * half, b"x" * ((1 << 15) + more), b'"}\n'):
        assert [*progress.lines()] == []
        os.write(sink, piece)
    assert [entry["step"] for entry in progress.lines()] == ([5] if heard else [])
    os.write(sink, json.dumps({"step": 6}).encode() + b"\n")
    assert [entry["step"] for entry in progress.lines()] == [6]
