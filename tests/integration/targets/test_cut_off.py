"""Deployments that are killed: at every step of activate.sh, while files are copied, while somebody else is at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platforms.targets.base import DeployOutcome, TargetBusy, TargetError, TargetUnreachable
from platforms.targets.reach import Here
from tests.lab.disk import small_disk
from tests.lab.night import one_in
from tests.lab.patience import PATIENCE_SECONDS, until
from tests.lab.releases import WEIGHTS, make_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from platforms.targets.base import Release
    from tests.integration.targets.conftest import Served
    from tests.lab.sshd import SshServer

_DOES = ["flock", "mkdir", "sha256sum", "readlink", "cat", "rm", "ln", "mv"]
TOOLS = [*_DOES, "sync", "find", "sort", "cut", "chmod", "timeout", "bash"]
# Counts the programs that the script starts, and kills all of it at the count that a file names, before this begins.
SHIM = """#!/bin/bash
n=$(( $(/bin/cat "COUNT" 2>/dev/null || echo 0) + 1 )); echo $n > "COUNT"
[ "$n" = "$(/bin/cat "KILL_AT")" ] && kill -9 0
exec /usr/bin/TOOL "$@"
"""
STEPS_MAX = 200


def whole(served: Served, releases: list[Release]) -> Release:
    """Return the release that is pointed at, every byte of it as it should be."""
    current = served.folder / "current"
    found = next(one for one in releases if str(one.version) == current.readlink().name)
    for name in found.files:
        assert (current / name).read_bytes() == (found.folder / name).read_bytes()
    return found


@pytest.mark.parametrize("then", ["deploy", pytest.param("go back", marks=pytest.mark.nightly)])
def test_a_kill_before_any_step_leaves_one_whole_version_and_is_mended(
    here: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writes: Callable[[str, str], Path],
    then: str,
) -> None:
    one, two = make_release(tmp_path, 1), make_release(tmp_path, 2)
    count, kill_at = tmp_path / "count", tmp_path / "kill-at"
    shim = SHIM.replace("COUNT", str(count)).replace("KILL_AT", str(kill_at))
    (programs,) = {writes(tool, shim.replace("TOOL", tool)) for tool in TOOLS}
    usual = os.environ["PATH"]
    kills = 0
    for step in range(2, STEPS_MAX, one_in()):
        subprocess.run(["rm", "-rf", here.folder], check=True)
        target = here.target()
        monkeypatch.setenv("PATH", usual)
        target.deploy(one)
        count.write_text("0")
        kill_at.write_text(str(step))
        monkeypatch.setenv("PATH", f"{programs}:{usual}")
        killed = False
        try:
            target.deploy(two)
        except TargetUnreachable:
            killed = True
        kills += killed
        monkeypatch.setenv("PATH", usual)
        found = whole(here, [one, two])
        seen = target.read("ufm")
        assert seen.version == found.version
        if seen.proven:
            assert here.running == (found.folder / WEIGHTS).read_bytes()
        wanted = two if then == "deploy" else one
        done = target.deploy(two) if then == "deploy" else target.go_back("ufm", 2)
        assert (done.outcome, done.version) == (DeployOutcome.SERVING, wanted.version)
        assert whole(here, [one, two]) == wanted
        assert here.running == (wanted.folder / WEIGHTS).read_bytes()
        assert target.read("ufm").proven
        if not killed and int(count.read_text()) < step:
            break
    else:
        pytest.fail(f"it has more than {STEPS_MAX} steps")
    assert kills > 20 // one_in()


def test_a_client_that_is_killed_while_it_copies_changes_nothing_visible(there: Served, tmp_path: Path) -> None:
    one = make_release(tmp_path, 1)
    there.target().deploy(one)
    two = make_release(tmp_path, 2, more={"large.npy": array(64 << 20)})
    program = (
        "import sys; from pathlib import Path; from platforms.targets.base import TargetContext; "
        "from platforms.targets.base import open_target; from platforms.targets.release import open_release; "
        "release = open_release('ufm', 2, Path(sys.argv[1])); print('begins', flush=True); "
        "open_target('there', 'ssh', dict(zip(sys.argv[2::2], sys.argv[3::2])), TargetContext(Path, str))"
        ".deploy(release)"
    )
    words = [word for pair in there.options.items() for word in pair]
    command = [sys.executable, "-c", program, str(two.folder), *words]
    client = subprocess.Popen(command, stdout=subprocess.PIPE)
    coming = there.folder / "releases" / f".in-2-{two.digest[:12]}"
    until(lambda: coming.exists() and any(coming.rglob("*large*")), "the copy to begin", every=0.001)
    for pid in children(client.pid):
        os.kill(pid, signal.SIGKILL)
    client.kill()
    client.communicate()
    assert whole(there, [one, two]) == one
    assert there.target().read("ufm").version == 1
    assert there.target().deploy(two).outcome is DeployOutcome.SERVING
    assert whole(there, [one, two]) == two


def test_a_connection_that_breaks_leaves_the_lock_to_who_works_there(there: Served, tmp_path: Path) -> None:
    """The other side goes on alone: whoever comes meanwhile is told so, and finds the work done later."""
    one, two = make_release(tmp_path, 1), make_release(tmp_path, 2)
    there.target().deploy(one)
    go, asked = there.root / "go", there.root / "asked"
    waits = f"touch {asked}; until [ -e {go} ]; do sleep 0.05; done; {there.health}"
    failed: list[BaseException] = []

    def deploy() -> None:
        try:
            there.target(health=waits, health_time="100s").deploy(two)
        except TargetError as error:
            failed.append(error)

    thread = threading.Thread(target=deploy)
    thread.start()
    until(asked.exists, "the health check to begin")
    port = there.options["port"]
    for pid in processes(lambda words: words[0].endswith("ssh") and port in words and "bash -s" in words[-1]):
        os.kill(pid, signal.SIGKILL)
    thread.join()
    assert isinstance(failed[0], TargetUnreachable)
    with pytest.raises(TargetBusy, match="another deployment"):
        there.target().deploy(two)
    assert there.target().read("ufm").proven is False
    go.touch()

    def later() -> bool:
        try:
            return there.target().deploy(two).outcome is DeployOutcome.SERVING
        except TargetBusy:
            return False

    until(later, "the lock to be free")
    assert whole(there, [one, two]) == two
    assert there.target().read("ufm").proven


def test_a_network_that_stands_still_is_given_up(there: Served, tmp_path: Path) -> None:
    one, two = make_release(tmp_path, 1), make_release(tmp_path, 2, more={"large.npy": array(64 << 20)})
    there.target().deploy(one)
    failed: list[BaseException] = []

    def deploy() -> None:
        try:
            there.target(stall_time="2s").deploy(two)
        except TargetError as error:
            failed.append(error)

    thread = threading.Thread(target=deploy)
    thread.start()
    until(
        lambda: [path for path in there.folder.rglob(".in-2-*/**/*") if path.is_file()],
        "a file that is being copied",
        every=0.001,
    )
    stopped = processes(lambda words: words[:2] == ["rsync", "--server"] and words[-1].startswith(str(there.folder)))
    assert stopped, "the copy was over before it could be stopped"
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    thread.join()
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert isinstance(failed[0], TargetUnreachable)
    assert whole(there, [one, two]) == one
    assert there.target().deploy(two).outcome is DeployOutcome.SERVING


# What sshd runs in place of an asked command: an rsync that stands still before it becomes one, all else as asked.
STANDS_STILL = """#!/bin/bash
case "$SSH_ORIGINAL_COMMAND" in
rsync*) echo $$ >FOLDER/stopped.new && mv FOLDER/stopped.new FOLDER/stopped && kill -STOP $$ ;;
esac
eval "exec $SSH_ORIGINAL_COMMAND"
"""


def test_a_copy_that_stands_still_before_its_first_byte_is_given_up(there: Served, tmp_path: Path) -> None:
    """Whatever a copy may take: rsync's own time-out counts from the handshake on."""
    one, two = make_release(tmp_path, 1), make_release(tmp_path, 2)
    there.target().deploy(one)
    keys = Path(there.options["identity"]).parent
    authorized, command = keys / "authorized", keys / "stands-still"
    usual = authorized.read_text()
    command.write_text(STANDS_STILL.replace("FOLDER", str(there.root)))
    command.chmod(0o755)
    authorized.write_text(f'command="{command}" {usual}')
    failed: list[BaseException] = []

    def deploy() -> None:
        try:
            there.target(stall_time="1s", connect_time="5s").deploy(two)
        except TargetError as error:
            failed.append(error)

    thread = threading.Thread(target=deploy, daemon=True)
    thread.start()
    try:
        until((there.root / "stopped").exists, "the copy to stand still")
        thread.join(PATIENCE_SECONDS)  # of the hour that a copy may take
        assert isinstance(failed[0], TargetUnreachable)
    finally:
        with suppress(ProcessLookupError):
            os.kill(int((there.root / "stopped").read_text()), signal.SIGKILL)
    assert whole(there, [one, two]) == one
    authorized.write_text(usual)
    assert there.target().deploy(two).outcome is DeployOutcome.SERVING
    assert whole(there, [one, two]) == two


def test_a_large_copy_may_stand_still_for_as_long_as_both_sides_read_it(
    there: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: Callable[[str, str], Path]
) -> None:
    """That rsync is told so: it would give up while one of them only reads what the other may have already."""
    said = tmp_path / "said"
    programs = writes("rsync", f'#!/bin/bash\necho "$@" >>{said}\n')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    large = make_release(tmp_path, 2)
    with (large.folder / "large.npy").open("wb") as stream:
        stream.truncate(6_000 << 20)
    for release in (make_release(tmp_path, 1), large):
        with pytest.raises(TargetError, match="there is no folder releases"):
            there.target(stall_time="7s").deploy(release)
    assert [line.partition("--timeout=")[2].split()[0] for line in said.read_text().splitlines()] == ["7", "67"]


def test_a_host_with_another_key_is_refused(there: Served, sshd: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    known.write_text(f"[127.0.0.1]:{sshd.options['port']} {other.with_suffix('.pub').read_text()}")
    with pytest.raises(TargetError, match="not the known one") as found:
        there.target(known_hosts=str(known)).deploy(make_release(tmp_path, 1))
    assert "known_hosts" in found.value.remedy
    assert not there.folder.exists()


def test_a_key_that_may_not_enter_is_told(there: Served, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    with pytest.raises(TargetError, match="Permission denied") as found:
        there.target(identity=str(other)).read("ufm")
    assert "public key" in found.value.remedy


def test_a_host_that_is_off_is_no_answer(there: Served, sshd: SshServer) -> None:
    sshd.process.terminate()
    sshd.process.wait()
    with pytest.raises(TargetUnreachable, match="refused"):
        there.target().read("ufm")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 10 MB."""
    with small_disk(tmp_path / "disk", "10m") as folder:
        yield folder


@pytest.mark.parametrize("kind", ["here", "there"])
def test_a_full_disk_is_told_and_the_old_version_serves(
    request: pytest.FixtureRequest, tiny_disk: Path, tmp_path: Path, kind: str
) -> None:
    served: Served = request.getfixturevalue(kind)
    for folder in (tiny_disk, *tiny_disk.parents):
        if folder.name.startswith(("pytest", "popen", tmp_path.name)):
            folder.chmod(0o711 if folder != tiny_disk else 0o777)
    served.options["path"] = str(tiny_disk / "models")
    target = served.target(restart="", health="")
    one, two = make_release(tmp_path, 1), make_release(tmp_path, 2, more={"large.npy": array(12 << 20)})
    target.deploy(one)
    with pytest.raises(TargetError, match=r"full|No space left|could not be written") as found:
        target.deploy(two)
    assert "Make room" in found.value.remedy
    assert (target.read("ufm", deep=True).version, target.read("ufm").proven) == (1, True)
    assert target.deploy(make_release(tmp_path, 3)).outcome is DeployOutcome.SERVING


def array(size: int) -> bytes:
    """Return a NumPy file of so many bytes that no program can make smaller."""
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}"
    head += " " * (63 - (len(head) + 10) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + os.urandom(size)


def processes(wanted: Callable[[list[str]], bool]) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            continue
        if words and wanted(words):
            found.append(int(place.parent.name))
    return found


def children(pid: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(place.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found += [int(place.parent.name), *children(int(place.parent.name))]
    return found


def test_what_lies_there_whole_is_not_sent_again_and_what_was_damaged_is(
    here: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (make_release(tmp_path, number) for number in (1, 2, 3))
    target = here.target()
    for release in (one, two, three):
        target.deploy(release)
    copied: list[str] = []
    copy = Here.copy

    def counted(reach: Here, release: Release, folder: str, timeout_seconds: float) -> None:
        copied.append(folder)
        copy(reach, release, folder, timeout_seconds)

    monkeypatch.setattr(Here, "copy", counted)
    assert target.deploy(two).outcome is DeployOutcome.SERVING
    assert copied == []
    spoilt = here.folder / "releases" / "1" / WEIGHTS
    spoilt.chmod(0o644)
    spoilt.write_bytes(b"spoilt")
    assert target.deploy(one).outcome is DeployOutcome.SERVING
    assert len(copied) == 1
    assert whole(here, [one, two, three]) == one
