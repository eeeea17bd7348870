"""What `schedctl init` finds on a machine, and the settings that it writes of it."""

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from config.load import load
from scheduler.cli.commands.init import settings_of
from scheduler.host.belongings import Belongings, Gpu, gpus_of, look

H100, T4 = Gpu("NVIDIA H100 80GB HBM3", 79.5), Gpu("Tesla T4", 15.0)


def test_what_nvidia_smi_says_is_read_and_what_cannot_be_is_passed_over() -> None:
    said = "NVIDIA H100 80GB HBM3, 81559\nTesla T4, 15360\nno comma\n, 12\nGPU, many\nGPU, 99999999999\n\x1b[1m, 5\n"
    assert gpus_of(said) == (H100, T4)
    assert gpus_of("") == ()


def test_a_machine_is_looked_at_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!{sys.executable}\nprint('Tesla T4, 15360')\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / ".kaggle").mkdir()
    (tmp_path / ".kaggle" / "kaggle.json").write_text("{}")
    found = look({}, tmp_path, Path("/usr/share/zoneinfo/Europe/Berlin"))
    assert found == Belongings((T4,), str(tmp_path / ".kaggle" / "kaggle.json"), "", "Europe/Berlin", "")
    environ = {"KAGGLE_API_TOKEN": "x", "AWS_ACCESS_KEY_ID": "y"}
    told = look(environ, tmp_path, tmp_path)
    assert (told.kaggle, told.aws, told.zone) == ("KAGGLE_API_TOKEN", "AWS_ACCESS_KEY_ID", "UTC")


@pytest.mark.parametrize(
    ("found", "pools"),
    [
        (Belongings((), "", "", "UTC", ""), {"local": 1}),
        (
            Belongings((H100, H100, T4), "a file", "a file", "Europe/Berlin", "a@example.org"),
            {
                "local": 2,
                "local2": 1,
                "kaggle": 2,
            },
        ),
    ],
)
def test_the_settings_that_are_written_load(tmp_path: Path, found: Belongings, pools: dict[str, int]) -> None:
    file = tmp_path / "config.toml"
    file.write_text(settings_of(found, demo=False))
    settings = load(file, {})
    assert {pool.name: pool.devices_per_session for pool in settings.pools} == pools
    assert (settings.zone, settings.models, settings.corpus.sources) == (found.zone, (), ())
    file.write_text(settings_of(found, demo=True))
    assert load(file, {}).corpus.sources == ("stdlib",)
    file.write_text(settings_of(found, demo=False))
    if found.gpus:
        assert [pool.vram_gib for pool in settings.pools][:2] == [79.5, 15.0]
        assert tomllib.loads(file.read_text())["pools"][1]["options"] == {"devices": "2"}
        assert "a@example.org" in file.read_text()


def test_pools_of_a_cluster_are_commented_out_and_load_once_the_marks_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinfo = tmp_path / "sinfo"
    rows = (
        "gpu*|mixed|3|1-00:00:00|gpu:h100:4|none",
        'gpu*|drained|1|1-00:00:00|gpu:h100:4|a "bad" fan [[pools]]',
        "short|idle|2|90:00|gpu:8|none",
        "debug|idle|1|30:00|gpu:8|none",
        "cpu|idle|9|infinite|(null)|none",
    )
    sinfo.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(rows) + "\nEND\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = replace(look({}, tmp_path, tmp_path), mail="")
    assert [(nodes.partition, nodes.count) for nodes in found.slurm] == [
        ("gpu", 3),
        ("gpu", 1),
        ("short", 2),
        ("debug", 1),
        ("cpu", 9),
    ]
    file = tmp_path / "config.toml"
    text = settings_of(found, demo=False)
    file.write_text(text)
    assert [pool.platform for pool in load(file, {}).pools] == ["local"] * len(load(file, {}).pools)
    used = [
        line.removeprefix("# ") if re.match(r"# (\[\[pools\]\]$|[a-z_]+ = )", line) else line
        for line in text.splitlines()
    ]
    file.write_text("\n".join(used))
    pools = [pool for pool in load(file, {}).pools if pool.platform == "slurm"]
    assert [(pool.name, pool.devices_per_session, dict(pool.options)) for pool in pools] == [
        ("slurm", 4, {"partition": "gpu", "gres": "gpu:h100"}),
        ("slurm2", 8, {"partition": "short", "gres": "gpu"}),
        ("slurm3", 1, {"partition": "cpu"}),
    ]
    sinfo.write_text("#!/bin/sh\nexit 1\n")
    assert look({}, tmp_path, tmp_path).slurm == ()
