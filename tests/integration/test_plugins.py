"""Platforms that other packages bring: the example is installed, conforms and trains; what is broken is told."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platforms import plugin
from platforms.base import Misconfigured
from platforms.registry import PlatformContext, all_names, checkup, load, secret_way
from tests.lab.patience import PATIENCE_SECONDS, until

CONFIG = """
state_dir = "state"
models = []
[daemon]
cycle = "1s"
heartbeat = "1s"
[[pools]]
name = "desk"
platform = "cores"
session_min = "1m"
options = { cores = "0" }
"""
SCRIPT = """
import os
from trainer_kit import Training

training = Training()
seen = str(os.sched_getaffinity(0))
training.checkpoint(training.target_step, lambda folder: (folder / "cores.txt").write_text(seen), {})
"""


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the examples are installed, as pip does it."""
    folder = tmp_path_factory.mktemp("installed")
    examples = [str(repository / "examples" / name) for name in ("platform", "lightning-jobs")]
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words, *examples]
    subprocess.run(pip, check=True)
    return folder


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a package whose platform ``broken`` is what an address says."""
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin.offered.cache_clear()
    monkeypatch.setattr(plugin, "offered", plugin.offered.__wrapped__)

    def add(name: str, address: str) -> None:
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{plugin.GROUP}]\nbroken = {address}\n")

    return add


@pytest.mark.parametrize("name", ["cores", "lightning"])
def test_each_example_conforms(installed: Path, repository: Path, name: str) -> None:
    """By the command that the documents tell its authors."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/conformance/test_platform.py"]
    run = subprocess.run(
        [sys.executable, *words, "-k", name, "-o", "addopts="],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4_000:]
    assert int(run.stdout.rpartition(" passed")[0].split()[-1]) > 20


def test_the_example_trains_and_doctor_names_it(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {
        **os.environ,
        "HOME": str(tmp_path),
        "PYTHONPATH": str(installed),
        "SCHEDCTL_CONFIG": str(tmp_path / "config.toml"),
    }
    program = str(Path(sys.executable).with_name("schedctl"))

    def schedctl(*words: str) -> Any:
        done = subprocess.run([program, *words, "--json"], cwd=tmp_path, env=environ, capture_output=True, check=False)
        return json.loads(done.stdout or done.stderr)

    schedctl("init")
    checks = {one["check"]: one for one in schedctl("doctor")["checks"]}
    assert checks["plug-in cores"]["found"] == f"uff-cores 1.0, contract {plugin.CONTRACT}"
    schedctl("submit", "train.py", "--name", "mine", "--target-step", "5", "--steps-per-hour", "100", "--probe", "0")
    with (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([program, "daemon"], cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        until(lambda: schedctl("queue", "show", "mine")["job"]["state"] == "done", "the end of the job")
    finally:
        daemon.terminate()
        daemon.wait(timeout=PATIENCE_SECONDS)
    schedctl("checkpoints", "pull", "mine", "home")
    assert (tmp_path / "home/cores.txt").read_text() == "{0}"


BROKEN = {
    "no_such_package:PLUGIN": "ModuleNotFoundError",
    "json:dumps": "not a platforms.plugin.Plugin",
    "json:nothing": "AttributeError",
    "tests.lab.patience:old_plugin": "contract 0, and this is",
}


@pytest.mark.parametrize("address", BROKEN)
def test_a_broken_plugin_says_what_is_wrong_and_stops_nothing_else(
    address: str, offer: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = plugin.Plugin(0, lambda _settings, _context: None)  # type: ignore[arg-type, return-value]  # never called
    monkeypatch.setattr("tests.lab.patience.old_plugin", old, raising=False)
    offer("strange", address)
    context = PlatformContext(tmp_path / "state", sys.executable, tmp_path)
    assert "broken" in all_names()
    with pytest.raises(Misconfigured, match=BROKEN[address]) as told:
        load("broken", {}, context)
    assert told.value.remedy
    with pytest.raises(Misconfigured, match=BROKEN[address]):
        checkup("broken", {}, {}, 0.0, probe=False)
    assert secret_way("broken", {}).kind == "none"
    load("local", {}, context)


def test_two_packages_of_one_platform_are_named(offer: Callable[[str, str], None], tmp_path: Path) -> None:
    offer("one", "json:dumps")
    offer("two", "json:loads")
    with pytest.raises(Misconfigured, match=r"one 1\.0, two 1\.0|two 1\.0, one 1\.0"):
        load("broken", {}, PlatformContext(tmp_path / "state", sys.executable, tmp_path))


def test_nothing_is_looked_for_where_platforms_are_our_own(tmp_path: Path) -> None:
    """To look through all installed packages takes as long as a short command."""
    code = (
        "import sys, platforms.registry as r; from pathlib import Path; "
        "r.load('local', {}, r.PlatformContext(Path(sys.argv[1]), sys.executable, Path())); "
        "print(r.plugin.offered.cache_info().misses)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done.stderr
