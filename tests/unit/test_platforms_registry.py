"""The table of platforms and the settings it hands on."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from platforms.base import Misconfigured
from platforms.local.adapter import LocalPlatform
from platforms.registry import PlatformContext, all_names, load


def context(folder: Path) -> PlatformContext:
    return PlatformContext(folder / "state", sys.executable, folder / "bundle")


def test_known_platforms_load(tmp_path: Path) -> None:
    assert set(all_names()) >= {"local", "manual"}
    assert isinstance(load("local", {}, context(tmp_path)), LocalPlatform)


def test_an_unknown_platform_is_named_beside_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"moonbase.*kaggle, .*local"):
        load("moonbase", {}, context(tmp_path))


@pytest.mark.parametrize(
    ("platform", "settings", "says"),
    [
        ("local", {"log_byte": "5"}, "unknown setting log_byte.*log_bytes"),
        ("local", {"log_bytes": "-5"}, "log_bytes = '-5'"),
        ("local", {"nice": "very"}, "nice = 'very'"),
        ("local", {"devices": "0,0"}, "devices = '0,0'"),
        ("local", {"devices": "gpu0"}, "devices = 'gpu0'"),
        ("kaggle", {"checkpoints": "hourly"}, "checkpoints = 'hourly' is none of auto, relay, direct"),
        ("kaggle", {"call_seconds": "soon"}, "call_seconds = 'soon'"),
        ("skypilot", {"acelerator": "H100"}, "unknown setting acelerator.*accelerator"),
        ("skypilot", {"autodown_minutes": "0"}, "nothing would end a forgotten cluster"),
        ("skypilot", {"max_hourly_cost": "$3"}, "max_hourly_cost = '.3' is not usable"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, platform: str, settings: dict[str, str], says: str) -> None:
    with pytest.raises(Misconfigured, match=says):
        load(platform, settings, context(tmp_path))


def test_only_a_platform_that_can_gives_each_session_its_own_devices(tmp_path: Path) -> None:
    counted = replace(context(tmp_path), device_counts=(1, 2))
    assert load("slurm", {"gres": "gpu:h100"}, counted).capabilities.device_counts
    with pytest.raises(Misconfigured, match="device_counts without gres"):
        load("slurm", {}, counted)
    with pytest.raises(Misconfigured, match="device_counts with sessions of several nodes"):
        load("slurm", {"gres": "gpu:h100", "nodes": "2"}, replace(counted, devices_per_session=2))
    with pytest.raises(Misconfigured, match="cannot ask for a number of devices"):
        load("local", {}, counted)


def test_a_state_folder_that_cannot_be_made_needs_a_person(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    with pytest.raises(Misconfigured, match="state folder"):
        load("local", {}, context(tmp_path))


def test_the_registry_loads_no_adapter_before_it_is_asked_for() -> None:
    script = "import sys, platforms.registry; print([name for name in sys.modules if name.startswith('platforms.')])"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "['platforms.base', 'platforms.plugin', 'platforms.registry']"


def test_the_keeper_loads_nothing_that_would_delay_the_agent(repository: Path) -> None:
    script = (
        "import sys; before = set(sys.modules); sys.path.append(sys.argv[1]); import platforms.local.keeper;"
        "print(*sorted(set(sys.modules) - before))"
    )
    words = [sys.executable, "-I", "-S", "-c", script, str(repository)]
    loaded = set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
    assert loaded & {"typing", "json", "re", "signal", "subprocess", "pathlib", "dataclasses", "enum"} == set()
