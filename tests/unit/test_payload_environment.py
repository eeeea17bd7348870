"""A lane's own packages: what the store holds of them, and the environment that is made of nothing but the image's."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from jobs.environment.tool import here
from jobs.payload.lane.environment import build
from jobs.payload.lane.failure import Failure
from jobs.payload.lane.launch import Packages
from jobs.payload.store.lock import Lock, Pin, canonical, encode_lock
from jobs.payload.store.transport import DirectoryTransport
from tests.lab.launch_file import launch_in

if TYPE_CHECKING:
    from pathlib import Path

OLD = "3.9-x86_64-manylinux_2_28"


class Desk:
    """A store with a lock that demands nothing, for this Python and an old one, and a session that wants it."""

    def __init__(self, folder: Path, **versions: str) -> None:
        self.store = DirectoryTransport(folder / "store")
        pins = tuple(Pin(name, version, ("0" * 64,)) for name, version in versions.items())
        data = encode_lock(Lock((), exact=False, targets={here().name: pins, OLD: ()}))
        self.lock = f"lock/{hashlib.sha256(data).hexdigest()}"
        self.store.put(f"{self.lock}/lock.json", data)
        self.launch = launch_in(folder)

    def build(self, target: str = here().name, wheels: str = "") -> Path:
        """Build what the session wants."""
        return build(self.launch, self.launch.lanes[0], Packages(self.lock, target, wheels), self.store)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (OLD, r'locked for Python 3\.9, but the image has .*set image_python = "3'),
        (f"{here().python}-sparc-manylinux_2_28", "has no packages for .*sparc.*: schedctl queue update JOB"),
    ],
)
def test_a_lock_for_another_place_says_what_to_do(desk: Desk, target: str, why: str) -> None:
    with pytest.raises(Failure, match=why) as caught:
        desk.build(target)
    assert caught.value.error_class == "environment"


def test_a_lock_that_is_damaged_or_gone_is_the_stores_failure(desk: Desk) -> None:
    desk.store.put(f"{desk.lock}/lock.json", b"{}")
    with pytest.raises(Failure, match=r"the lock .* cannot be used: .*digest") as damaged:
        desk.build()
    desk.lock = "lock/none"
    with pytest.raises(Failure, match="the packages of the lane cannot be put in place") as gone:
        desk.build()
    assert (damaged.value.error_class, gone.value.error_class) == ("store", "store")


def test_an_environment_is_built_once_and_lives_on_with_each_use(desk: Desk) -> None:
    made = desk.build()
    mark = made / "whole.json"
    os.utime(mark, (1, 1))
    inode = mark.stat().st_ino
    assert desk.build() == made
    assert mark.stat().st_ino == inode
    assert mark.stat().st_mtime > 1, "a sweep sees that it was used"


def test_an_environment_sees_the_packages_of_the_image(desk: Desk) -> None:
    python = desk.build() / "bin" / "python"
    asked = subprocess.run([python, "-I", "-c", "import pytest"], capture_output=True, check=False)
    assert asked.returncode == 0, asked.stderr


def test_whoever_builds_waits_for_others_at_the_same_place(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions that find nothing share its lock; only one of them may build at a time."""
    monkeypatch.setattr("jobs.payload.lane.environment._digest", lambda *_: "name")
    made = desk.launch.cache / "environments" / "name"
    made.parent.mkdir(parents=True)
    others = [os.open(made.with_name("name.lock"), os.O_RDWR | os.O_CREAT, 0o600)]
    lock = fcntl.flock
    lock(others[0], fcntl.LOCK_SH)

    def note(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_EX:
            assert not made.exists()
            with pytest.raises(BlockingIOError):
                lock(descriptor, how | fcntl.LOCK_NB)
            os.close(others.pop())
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", note)
    assert desk.build() == made
    assert others == []


def test_what_the_tool_says_is_why_there_is_no_environment(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Failure("environment", "nothing fits")

    monkeypatch.setattr("jobs.payload.lane.environment.venv.EnvBuilder.create", refuse)
    with pytest.raises(Failure, match="nothing fits") as caught:
        desk.build()
    assert caught.value.error_class == "environment"
    assert [path.name for path in (desk.launch.cache / "environments").iterdir() if path.is_dir()] == []


def test_without_rules_for_versions_what_differs_from_the_image_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image without pip has nothing that reads conditions: versions are compared as they are written."""
    wanted: list[str] = []
    monkeypatch.setattr("jobs.payload.lane.environment.rules", lambda: None)
    monkeypatch.setattr(
        "jobs.payload.lane.environment.install", lambda _tool, _python, listed, _why: wanted.append(listed.read_text())
    )
    Desk(tmp_path, pytest=metadata.version("pytest"), hypothesis="0.1", absent="2.0").build()
    (listed,) = wanted
    assert [line.split("==")[0] for line in listed.splitlines() if "==" in line] == ["absent", "hypothesis"]


def test_of_many_packages_twelve_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    there = {canonical(found.metadata["Name"]): found.version for found in metadata.distributions()}
    names = sorted(there)[:15]
    Desk(tmp_path, **{name: there[name] for name in names}).build()
    fetched, kept = capfd.readouterr().err.splitlines()
    assert "packages: fetched nothing, 0.0 MiB on disk" in fetched
    assert [words.split()[0] for words in kept.partition(" are used of ")[2].split(", ")] == names[:12]
    assert kept.endswith(" and 3 more")
