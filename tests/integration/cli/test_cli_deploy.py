"""`schedctl models deploy`, `sync` and `resume`: a version from the store to a folder that serves it, and back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scheduler.cli.shell.exits import Exit
from scheduler.store import deployments, versions
from tests.integration.cli.conftest import NOW
from tests.lab.releases import WEIGHTS, weights
from tests.lab.versions import make_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from platforms.artifacts.directory import DirectoryStore
    from scheduler.store.engine import Database
    from scheduler.store.versions import Version
    from tests.integration.cli.conftest import Schedctl

DEPLOYMENT = {
    *("id", "model", "number", "version", "target", "state", "by", "why", "evidence"),
    *("intended_at", "served_at", "ended_at"),
}
TARGET = """
[[targets]]
name = "griffith"
kind = "directory"
models = ["ufm", "ucm"]
options = {{ path = "{path}", health = "! grep -q bad $FOLDER/{weights}" }}
"""


@pytest.fixture
def served(home: Path) -> Path:
    with (home / "config.toml").open("a") as stream:
        stream.write(TARGET.format(path=home / "served", weights=WEIGHTS))
    return home / "served"


@pytest.fixture
def accepted(database: Database, artifacts: DirectoryStore, served: Path) -> Callable[..., Version]:
    """Make an accepted version with these weights, and put it in force unless told otherwise."""
    return partial(make_version, database, artifacts, NOW)


def serves(served: Path, model: str = "ufm") -> bytes:
    return (served / model / "current" / WEIGHTS).read_bytes()


def test_a_version_is_deployed_shown_and_deployed_again_in_vain(
    schedctl: Schedctl, accepted: Callable[..., Version], served: Path
) -> None:
    accepted(b"one")
    plan = schedctl("models", "deploy", "ufm", "--to", "griffith", "--dry-run", "--json").document
    assert (plan["version"], plan["serves"], sorted(one["name"] for one in plan["files"])) == (
        "ufm@1",
        None,
        ["adapter_config.json", WEIGHTS],
    )
    assert not served.exists()
    done = schedctl("models", "deploy", "ufm", "--to", "griffith", "--reason", "first", "--json")
    assert (done.code, set(done.document["deployment"])) == (0, DEPLOYMENT)
    assert serves(served) == weights(b"one")
    assert "griffith" in schedctl("models", "list").out
    told = schedctl("models", "deploy", "ufm", "--to", "griffith", "--dry-run")
    assert "Nothing would be done" in told.out
    assert schedctl("models", "deploy", "ufm", "--to", "griffith").code == 0


def test_a_version_that_does_not_answer_is_told_with_the_reason_and_the_old_one_serves(
    schedctl: Schedctl, accepted: Callable[..., Version], served: Path, database: Database
) -> None:
    accepted(b"one")
    schedctl("models", "deploy", "ufm", "--to", "griffith")
    accepted(b"bad")
    done = schedctl("models", "deploy", "ufm", "--to", "griffith")
    assert done.code == Exit.PLATFORM
    assert "ufm@2 is not deployed to griffith: the health check of version 2 failed with 1" in done.err
    assert serves(served) == weights(b"one")
    with database.read() as tx:
        assert [one.state for one in deployments.of_model(tx, "ufm")] == ["serving", "returned"]
    assert "deployment stopped" in schedctl("status").out
    assert schedctl("models", "resume", "ufm").code == 0
    assert "deployment stopped" not in schedctl("status").out
    again = schedctl("models", "resume", "ufm")
    assert (again.code, "the deployment of ufm is not paused" in again.err) == (Exit.REFUSED, True)


def test_sync_brings_a_target_to_what_is_in_force_and_then_does_nothing(
    schedctl: Schedctl, accepted: Callable[..., Version], served: Path
) -> None:
    accepted(b"one")
    accepted(b"of ucm", "ucm")
    accepted(b"elsewhere", "uam")
    looked = schedctl("models", "sync", "griffith", "--dry-run")
    assert (looked.code, served.exists()) == (Exit.VIOLATIONS, False)
    assert "nothing is deployed, ufm@1 is promoted" in looked.out
    assert schedctl("models", "sync", "griffith").code == 0
    assert (serves(served), serves(served, "ucm")) == (weights(b"one"), weights(b"of ucm"))
    assert not (served / "uam").exists()
    again = schedctl("models", "sync", "griffith", "--json")
    assert again.code == 0
    assert [(one["model"], one["drift"], one["did"]) for one in again.document["models"]] == [
        ("ucm", "", ""),
        ("ufm", "", ""),
    ]


def test_sync_tells_what_was_changed_there_by_hand(
    schedctl: Schedctl, accepted: Callable[..., Version], served: Path
) -> None:
    accepted(b"one")
    schedctl("models", "sync", "griffith")
    place = (served / "ufm" / "current" / WEIGHTS).resolve()
    place.chmod(0o644)
    place.write_bytes(b"changed")
    found = schedctl("models", "sync", "griffith")
    assert found.code == Exit.VIOLATIONS
    assert "files were changed there" in found.out
    assert WEIGHTS in found.out


def test_sync_finds_a_link_that_a_person_moved(
    schedctl: Schedctl, accepted: Callable[..., Version], served: Path
) -> None:
    accepted(b"one")
    schedctl("models", "sync", "griffith")
    accepted(b"two")
    schedctl("models", "sync", "griffith")
    (served / "ufm" / "current").unlink()
    (served / "ufm" / "current").symlink_to("releases/1")
    told = schedctl("models", "sync", "griffith")
    assert (told.code, "ufm@1 is deployed, ufm@2 is promoted" in told.err) == (0, True)
    assert serves(served) == weights(b"two")


def test_what_cannot_be_deployed_is_refused_with_the_next_command(
    schedctl: Schedctl, accepted: Callable[..., Version], database: Database
) -> None:
    made = accepted(b"one", in_force=False)
    accepted(b"elsewhere", "uam")
    unknown = schedctl("models", "deploy", "ufm@1", "--to", "grifith")
    assert (unknown.code, "Did you mean griffith?" in unknown.err) == (Exit.NOT_FOUND, True)
    other = schedctl("models", "deploy", "uam", "--to", "griffith")
    assert (other.code, "griffith does not serve uam" in other.err) == (Exit.REFUSED, True)
    with database.write() as tx:
        versions.move(tx, made, "overrule_reject", "no", NOW)
    refused = schedctl("models", "deploy", "ufm@1", "--to", "griffith")
    assert (refused.code, "only an accepted version" in refused.err) == (Exit.REFUSED, True)


def test_without_targets_it_is_said_where_they_are_written(schedctl: Schedctl, database: Database, home: Path) -> None:
    found = schedctl("models", "sync", "griffith")
    assert (found.code, "[[targets]]" in found.err) == (Exit.NOT_FOUND, True)


def test_the_doctor_asks_targets_and_tells_what_is_wrong_with_them(
    schedctl: Schedctl, accepted: Callable[..., Version], served: Path, home: Path
) -> None:
    accepted(b"one")
    schedctl("models", "sync", "griffith")
    found = {one["check"]: one for one in schedctl("doctor", "--json").document["checks"]}
    assert (found["target griffith"]["grade"], "1 model served" in found["target griffith"]["found"]) == ("ok", True)
    (served / "ufm" / "proven").write_text("0\n")
    found = {one["check"]: one for one in schedctl("doctor", "--json").document["checks"]}
    assert found["target griffith"]["grade"] == "warning"
    assert found["target griffith"]["remedy"] == "Let it be brought there again: schedctl models sync griffith"
    settings = (home / "config.toml").read_text()
    (home / "config.toml").write_text(settings.replace("health =", "helth ="))
    found = {one["check"]: one for one in schedctl("doctor", "--json").document["checks"]}
    assert (found["target griffith"]["grade"], "unknown setting helth" in found["target griffith"]["found"]) == (
        "bad",
        True,
    )


def test_an_automatic_target_takes_only_what_is_in_force(
    schedctl: Schedctl, accepted: Callable[..., Version], home: Path
) -> None:
    accepted(b"one")
    accepted(b"two", in_force=False)
    settings = (home / "config.toml").read_text()
    (home / "config.toml").write_text(settings.replace('kind = "directory"', 'kind = "directory"\nautomatic = true'))
    refused = schedctl("models", "deploy", "ufm@2", "--to", "griffith")
    assert (refused.code, "schedctl models promote ufm@2" in refused.err) == (Exit.REFUSED, True)
    assert schedctl("models", "deploy", "ufm@1", "--to", "griffith").code == 0


def test_another_version_by_hand_takes_the_place_of_one_that_never_arrived(
    schedctl: Schedctl, accepted: Callable[..., Version], served: Path, database: Database
) -> None:
    one, _ = accepted(b"one"), accepted(b"two")
    with database.write() as tx:
        deployments.intend(tx, one, "griffith", NOW, "daemon")
    assert schedctl("models", "deploy", "ufm@2", "--to", "griffith").code == 0
    with database.read() as tx:
        found = [(row.number, row.state, row.why) for row in deployments.of_model(tx, "ufm")]
    assert found[0] == (1, "failed", "tester deploys ufm@2 in its place")
    assert found[1][:2] == (2, "serving")
    assert serves(served) == weights(b"two")
