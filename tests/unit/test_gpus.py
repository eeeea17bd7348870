"""What nvidia-smi says of a lane's own GPUs reaches its heartbeats, and nothing else of the machine does."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from jobs.lane_report import GpuUse
from jobs.payload.lane.meter import LaneMeter
from jobs.payload.lane.prepare import GpuWatch

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
    GpuWatch(meter, [0, 1], 0).sample()
    assert meter.telemetry["gpu_busy"] == pytest.approx(0.6)
    assert meter.gpu_memory_bytes == 2048 << 20


def test_the_memory_that_a_command_names_itself_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: LaneMeter
) -> None:
    tool(tmp_path, monkeypatch, "echo '0, 80, 1024'")
    meter.feed({"step": 1, "gpu_memory_bytes": 5}, 0.0)
    GpuWatch(meter, [0], 0).sample()
    assert meter.gpu_memory_bytes == 5


def test_power_is_added_and_throttling_is_a_share_of_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: LaneMeter
) -> None:
    """Idle clocks, those that a user set and the usual limit of power (0x7) do not count; heat and brakes do."""
    watch = GpuWatch(meter, [0, 1], 0)
    for reasons, throttled in (("0x7", 0.0), ("0x8", 0.5), ("0x3", 1 / 3), ("0x0000000000000020", 0.5)):
        tool(
            tmp_path,
            monkeypatch,
            f"echo '0, 80, 1024, 70.25, 0x0'; echo '1, 40, 2048, 60, {reasons}'; echo '2, 9, 9, 9, 0x8'",
        )
        watch.sample()
        assert meter.telemetry["gpu_watts"] == 130.25
        assert meter.telemetry["gpu_throttled"] == pytest.approx(throttled)


@pytest.mark.parametrize(
    "words", ["echo '0, [N/A], [Not Supported], N/A, [Unknown Error]'", "echo '0'", "echo ''", "true"]
)
def test_what_a_card_does_not_report_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: LaneMeter, words: str
) -> None:
    tool(tmp_path, monkeypatch, words)
    GpuWatch(meter, [0], 0).sample()
    assert (set(meter.telemetry.values()), meter.gpu_memory_bytes) == ({None}, None)


def test_a_card_without_power_reports_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: LaneMeter
) -> None:
    tool(tmp_path, monkeypatch, "echo '0, 41, 1024, [N/A], [N/A]'")
    GpuWatch(meter, [0], 0).sample()
    known = {name: value for name, value in meter.telemetry.items() if value is not None}
    assert (known, meter.gpu_memory_bytes) == ({"gpu_busy": 0.41}, 1 << 30)


@pytest.mark.parametrize(
    ("known", "throttled"), [("clocks_event_reasons", 1.0), ("clocks_throttle_reasons", 1.0), ("nothing", None)]
)
def test_a_driver_is_asked_only_for_fields_that_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: LaneMeter, known: str, throttled: float | None
) -> None:
    words = f"""case "$1" in
    *{known}*) echo '0, 80, 1024, 70, 0x8' ;;
    *_reasons*) echo 'Field is not a valid field to query.'; exit 2 ;;
    *) echo '0, 80, 1024, 70' ;;
    esac"""
    tool(tmp_path, monkeypatch, words)
    watch = GpuWatch(meter, [0], 0)
    for _ in range(2):
        watch.sample()
        assert (meter.telemetry["gpu_watts"], meter.telemetry["gpu_throttled"]) == (70.0, throttled)


@pytest.mark.parametrize("code", [2, 9])
def test_a_driver_that_fails_leaves_the_meter_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: LaneMeter, code: int
) -> None:
    tool(tmp_path, monkeypatch, f"exit {code}")
    with pytest.raises(subprocess.CalledProcessError):
        GpuWatch(meter, [0], 0).sample()
    assert set(meter.telemetry.values()) == {None}


def test_use_in_words() -> None:
    every = GpuUse(gpu_memory_bytes=6 << 30, gpu_busy=0.41, gpu_watts=209.6, gpu_throttled=0.12, vram_gib=15.0)
    assert every.gpu_use == "41 % busy, 6.0 of 15 GiB, 210 W, throttled 12 % of the time"
    assert GpuUse(gpu_memory_bytes=6 << 30, gpu_throttled=0.0).gpu_use == "6.0 GiB"
    assert GpuUse(gpu_busy=0.0, vram_gib=15.0).gpu_use == "0 % busy"
    assert not GpuUse().gpu_use
