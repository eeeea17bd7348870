"""A new version that does not answer: the one before serves again, and nobody claims otherwise."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platforms.targets.base import DeployOutcome, TargetError
from tests.lab.releases import WEIGHTS, make_release

if TYPE_CHECKING:
    from platforms.targets.base import Release
    from tests.integration.targets.conftest import Served


def runs(served: Served, release: Release) -> bool:
    return served.running == (release.folder / WEIGHTS).read_bytes()


def test_a_failing_health_check_brings_the_old_version_back(served: Served, tmp_path: Path) -> None:
    good, bad = make_release(tmp_path, 1), make_release(tmp_path, 2, b"bad")
    target = served.target()
    target.deploy(good)
    done = target.deploy(bad)
    assert (done.outcome, done.version) == (DeployOutcome.RETURNED, 1)
    assert "the health check of version 2 failed with 1" in done.detail
    assert runs(served, good)
    assert (target.read("ufm").version, target.read("ufm").proven) == (1, True)
    assert {path.name for path in (served.folder / "releases").iterdir()} == {"1"}


def test_a_restart_that_fails_for_the_new_version_brings_the_old_one_back(served: Served, tmp_path: Path) -> None:
    good, bad = make_release(tmp_path, 1), make_release(tmp_path, 2)
    target = served.target(restart=f"[ $VERSION = 1 ] || {{ echo no memory; exit 3; }}; {served.restart}")
    target.deploy(good)
    done = target.deploy(bad)
    assert done.outcome is DeployOutcome.RETURNED
    assert "the restart of version 2 failed with 3: no memory" in done.detail
    assert runs(served, good)


def test_a_health_check_that_hangs_counts_once_and_the_old_version_serves(served: Served, tmp_path: Path) -> None:
    """It would hang for the old version as well: then the restart's word is taken."""
    good, new = make_release(tmp_path, 1), make_release(tmp_path, 2)
    served.target().deploy(good)
    done = served.target(health="tail -f /dev/null", health_time="1s").deploy(new)
    assert (done.outcome, done.version) == (DeployOutcome.RETURNED, 1)
    assert "the health check of version 2 took too long" in done.detail
    assert runs(served, good)


def test_a_check_of_its_own_judges_the_return(served: Served, tmp_path: Path) -> None:
    good, new = make_release(tmp_path, 1), make_release(tmp_path, 2)
    served.target().deploy(good)
    done = served.target(health="tail -f /dev/null", health_time="1s", return_health="exit 7").deploy(new)
    assert done.outcome is DeployOutcome.DOWN
    assert "version 2 took too long" in done.detail
    assert "the health check of version 1 failed with 7" in done.detail


def test_where_neither_answers_nobody_says_that_one_serves_until_one_does(served: Served, tmp_path: Path) -> None:
    good, new = make_release(tmp_path, 1), make_release(tmp_path, 2)
    served.target().deploy(good)
    done = served.target(health="exit 1").deploy(new)
    assert (done.outcome, done.version) == (DeployOutcome.DOWN, None)
    assert served.target().read("ufm").proven is False
    assert served.target().deploy(good).outcome is DeployOutcome.SERVING
    assert runs(served, good)
    assert served.target().read("ufm").proven


def test_a_first_version_that_fails_leaves_nothing_pointed_at(served: Served, tmp_path: Path) -> None:
    done = served.target().deploy(make_release(tmp_path, 1, b"bad"))
    assert done.outcome is DeployOutcome.DOWN
    assert "there is no version before it" in done.detail
    assert not (served.folder / "current").is_symlink()
    assert served.target().read("ufm").version is None
    assert served.target().deploy(make_release(tmp_path, 2)).outcome is DeployOutcome.SERVING


def test_a_service_that_stays_keeps_neither_lock_nor_connection(served: Served, tmp_path: Path) -> None:
    """A restart command may start the server itself, which then has all that was open."""
    target = served.target(restart=f"{served.restart}; sleep 600 & echo $! > {served.root}/pid")
    target.deploy(make_release(tmp_path, 1))
    first = int((served.root / "pid").read_text())
    assert target.deploy(make_release(tmp_path, 2)).outcome is DeployOutcome.SERVING
    second = int((served.root / "pid").read_text())
    for pid in (first, second):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_going_back_restarts_and_asks_too(served: Served, tmp_path: Path) -> None:
    good, worse = make_release(tmp_path, 1), make_release(tmp_path, 2)
    target = served.target()
    target.deploy(good)
    target.deploy(worse)
    assert target.go_back("ufm", 2).outcome is DeployOutcome.SERVING
    assert runs(served, good)


@pytest.mark.parametrize("odd", ["file", "folder"])
def test_what_stands_where_the_link_should_is_left_alone(served: Served, tmp_path: Path, odd: str) -> None:
    served.folder.parent.mkdir(mode=0o777, exist_ok=True)
    served.folder.mkdir()
    for path in (served.folder.parent, served.folder):
        path.chmod(0o777)
    (served.folder / "current").mkdir() if odd == "folder" else (served.folder / "current").write_text("mine")
    with pytest.raises(TargetError, match="no link of ours"):
        served.target().deploy(make_release(tmp_path, 1))
    assert not (served.folder / "current").is_symlink()
