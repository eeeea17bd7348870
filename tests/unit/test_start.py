"""What passes before a training's first step: libraries left out, bytecode kept, and the seconds that are told."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.payload.trainers.tuning.options import read_options
from jobs.payload.trainers.tuning.start import Start, bytecode_kept, leave_out_libraries, wake_device

LIBRARIES = ("bitsandbytes", "scipy", "sklearn", "torchvision")
UNUSED = ["sklearn", "torchvision"]


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of a process that has loaded none of them yet, given back afterwards."""
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    for name in LIBRARIES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("words", "config", "left_out"),
    [
        (("--lora", "4"), {}, [*LIBRARIES]),
        ((), {}, [*LIBRARIES]),
        (("--use-4bit",), {}, UNUSED),
        (("--optimizer", "adamw8bit"), {}, UNUSED),
        (("--lora", "4"), {"quantization_config": {}}, UNUSED),
        (("--lora", "4"), None, UNUSED),
    ],
    ids=["adapter", "all weights", "4 bits", "8 bits", "a model in 4 bits", "a name"],
)
def test_libraries_that_nothing_uses_are_left_out(
    nothing_loaded: None, tmp_path: Path, words: tuple[str, ...], config: dict[str, object] | None, left_out: list[str]
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    leave_out_libraries(read_options(["--model", str(tmp_path), *words]))
    assert sorted(name for name in LIBRARIES if name in sys.modules) == left_out
    assert all(importlib.util.find_spec(name) is None for name in left_out), "by which libraries look for each other"


def test_what_was_loaded_before_stays(nothing_loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", json)
    leave_out_libraries(read_options(["--model", "m"]))
    assert sys.modules["sklearn"] is json


@pytest.mark.parametrize("ours", [True, False], ids=["our libraries", "somebody else's"])
def test_bytecode_is_kept_where_an_image_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    library, cache = tmp_path / "torch", tmp_path / "cache"
    library.mkdir()
    (library / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: ours and Path(path) == library)  # root may write anywhere
    variables = bytecode_kept(cache)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tmp_path), **variables}
    subprocess.run([sys.executable, "-c", "import torch"], env=environment, check=True)
    kept = [path for path in tmp_path.rglob("*.pyc") if str(library).lstrip("/") in str(path)]
    assert [path.is_relative_to(cache) for path in kept] == [not ours]
    if ours:
        assert bytecode_kept(cache) == variables, "also the next time: some may be missing yet"


def test_a_place_for_bytecode_that_somebody_chose_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    assert bytecode_kept(tmp_path / "cache") == {}


@pytest.mark.parametrize(("rank", "asked"), [(0, ["init", "device 0", "context"]), (1, ["init", "device 1"])])
def test_a_device_is_made_ready_while_libraries_are_read(rank: int, asked: list[str]) -> None:
    told: list[str] = []

    def answer(said: str, *, well: bool = True) -> int:
        told.append(said)
        return 0 if well else 101

    driver = SimpleNamespace(
        cuInit=lambda _flags: answer("init"),
        cuDeviceGet=lambda _device, number: answer(f"device {number}", well=number == 0),
        cuDevicePrimaryCtxRetain=lambda _context, _device: answer("context"),
    )
    wake_device(rank, {"libcuda.so.1": driver}.__getitem__).join()
    assert told == asked, "of a device that is not there torch tells"


def test_without_a_driver_torch_tells_of_it() -> None:
    looked: list[str] = []

    def missing(name: str) -> None:
        looked.append(name)
        raise OSError(f"{name}: cannot open shared object file")

    wake_device(0, missing).join()
    assert looked == ["libcuda.so.1"]


def test_seconds_are_told_by_what_they_went_to() -> None:
    start = Start()
    start.passed("libraries")
    start.passed("step")
    assert start.text() == "0.0 s (libraries 0.0, step 0.0)"
