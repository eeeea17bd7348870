"""`schedctl queue add` killed while it packs and uploads: no job is half there, nothing is sent twice or damaged."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.payload.store.transport import DirectoryTransport
from jobs.payload.store.tree import LISTING, code_prefix, fetch_tree, unpack
from jobs.spec import JobSpec
from platforms.artifacts.directory import DirectoryStore
from scheduler.store import jobs
from scheduler.store.engine import open_database
from tests.lab.night import share

SETTINGS = """
state_dir = "{folder}/state"
[artifacts]
kind = "directory"
root = "{folder}/store"
[[pools]]
name = "desk"
platform = "local"
"""
PIECE = 1_000
# The real command; it is killed at the moment named, or tells how many there are: its calls that touch files.
COMMAND = f"""
import os, signal, sys
moments, last = [0], int(sys.argv.pop(1))
from jobs.inputs import folder
from jobs.payload.store import tree
folder.PIECE_BYTES = tree.PIECE_BYTES = {PIECE}
import scheduler.cli.main

def heard(event, _):
    if event in {{"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "sqlite3.connect"}}:
        moments[0] += 1
        if moments[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(heard)
try:
    scheduler.cli.main.run()
finally:
    print(moments[0], file=sys.stderr)
"""


class Desk:
    """A user's folder, and a database and a store of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "settings.toml").write_text(SETTINGS.format(folder=folder))
        for name, files in {"mine": 3, "data": 12}.items():
            (folder / name).mkdir()
            for number in range(files):
                (folder / name / f"file-{number}").write_bytes(random.Random(number).randbytes(700))
        (folder / "state").mkdir()
        open_database(f"sqlite:///{folder}/state/scheduler.db", create=True).close()
        self.store = DirectoryStore(folder / "store")

    def add(self, moment: int = 0) -> subprocess.CompletedProcess[str]:
        """Type the command, to be killed at a moment (0: never)."""
        words = ("queue", "add", "--name", "lm", "--command", "/bin/true", "--target-step", "10")
        given = ("--code", str(self.folder / "mine"), "--input", f"data={self.folder}/data")
        options = ("--config", str(self.folder / "settings.toml"))
        kept = {name: text for name, text in os.environ.items() if not name.startswith("SCHEDCTL_")}
        return subprocess.run(
            [sys.executable, "-c", COMMAND, str(moment), *options, *words, *given],
            env={**kept, "TMPDIR": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def objects(self) -> dict[str, int]:
        """What the store holds, and when each was written."""
        root = self.folder / "store"
        return {key: (root / key).stat().st_mtime_ns for key in self.store.keys("")}

    def job(self) -> JobSpec | None:
        """The job, if it is there."""
        with open_database(f"sqlite:///{self.folder}/state/scheduler.db").read() as tx:
            record = jobs.find(tx, "lm")
            return record.spec if record else None

    def check(self, spec: JobSpec, place: Path) -> None:
        """All that the job names can be fetched, and is what the user has."""
        assert spec.code is not None
        fetched = place / "code"
        fetched.mkdir(parents=True)
        for name in (LISTING, "content.gz"):
            self.store.fetch(f"{code_prefix(spec.code.digest)}/{name}", fetched / name)
        (place / "mine").mkdir()
        unpack(fetched, spec.code.digest, place / "mine")
        fetch_tree(DirectoryTransport(self.folder / "store"), f"input/{spec.inputs[0].digest}", place / "data")
        for name in ("mine", "data"):
            for path in (self.folder / name).iterdir():
                assert (place / name / path.name).read_bytes() == path.read_bytes()


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Moments of the command that touch the store or come after it began to pack, a handful of them."""
    told = Desk(tmp_path_factory.mktemp("whole") / "desk").add()
    assert told.returncode == 0, told.stderr
    whole = int(told.stderr.split()[-1])
    assert whole > 60, told.stderr
    return random.Random(14).sample(range(whole // 4, whole), 10)


@pytest.mark.parametrize("number", range(share(10)))
def test_a_command_killed_while_it_packs_and_uploads(
    tmp_path: Path, moments: list[int], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.payload.store.tree.PIECE_BYTES", PIECE)
    desk = Desk(tmp_path / "desk")
    assert desk.add(moments[number]).returncode == -signal.SIGKILL
    left, found = desk.objects(), desk.job()
    if found is not None:
        desk.check(found, tmp_path / "killed")
    again = desk.add()
    assert (again.returncode == 0) == (found is None), again.stderr
    after = desk.objects()
    assert {key: after[key] for key in left} == left, "what was there is not written again"
    spec = desk.job()
    assert spec is not None
    desk.check(spec, tmp_path / "whole")
    for key in after:
        folder, _, name = key.rpartition("/")
        if name == LISTING and folder.startswith("input/"):
            listed = json.loads(desk.store.read(key))["pieces"]
            assert sorted(path for path in after if path.startswith(folder)) == sorted(
                [key, *(f"{folder}/{piece}" for piece in set(listed))]
            )
