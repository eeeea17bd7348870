"""What nvidia-smi says of a lane's own GPUs reaches its heartbeats, and nothing else of the machine does."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from jobs.payload.lane.meter import LaneMeter
from jobs.payload.lane.prepare import GpuWatch
from jobs.size import gpu_use

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def meter() -> LaneMeter:
    return LaneMeter(1.0, 1.0)


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Put a driver's tool in front that prints ``words``."""
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{words}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_mean_of_the_lanes_own_gpus_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: LaneMeter
) -> None:
    tool(tmp_path, monkeypatch, "echo '0, 80, 1024'; echo '1, 40, 2048'; echo '2, 100, 9000'")
    GpuWatch(meter, [0, 1], 0).look()
    assert meter.telemetry["gpu_busy"] == pytest.approx(0.6)
    assert meter.gpu_memory_bytes == 2048 << 20


def test_the_memory_that_a_command_names_itself_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: LaneMeter
) -> None:
    tool(tmp_path, monkeypatch, "echo '0, 80, 1024'")
    meter.feed({"step": 1, "gpu_memory_bytes": 5}, 0.0)
    GpuWatch(meter, [0], 0).look()
    assert meter.gpu_memory_bytes == 5


@pytest.mark.parametrize("words", ["exit 9", "echo '0, [N/A], 1024'", "echo '0, 80'"])
def test_what_a_driver_cannot_say_leaves_the_meter_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: LaneMeter, words: str
) -> None:
    tool(tmp_path, monkeypatch, words)
    with pytest.raises((subprocess.SubprocessError, ValueError)):
        GpuWatch(meter, [0], 0).look()
    assert meter.telemetry["gpu_busy"] is None


def test_use_in_words() -> None:
    assert gpu_use(6 << 30, 0.41) == "6.0 GiB, 41 % busy"
    assert gpu_use(None, 0.0) == "0 % busy"
    assert gpu_use(None, None) == ""
