"""A backup holds what a new machine needs but credentials, replaces nothing, and was restored before it counts."""

import json
import shutil
from pathlib import Path

import pytest

from platforms.artifacts.directory import DirectoryStore
from scheduler.store import checkpoints
from scheduler.store.engine import Database
from tests.integration.cli.conftest import SETTINGS, Schedctl, stored_checkpoint

SECRET = "canary-pa55word-of-the-mail-server"
MAIL = f"""
[report.smtp]  # a comment stays
host = "mail.example.org"
sender = "me@example.org"
recipients = ["me@example.org"]
password = "{SECRET}"
"""


@pytest.fixture
def kept(world: Database, home: Path) -> Database:
    """A world whose settings hold a secret."""
    (home / "config.toml").write_text(SETTINGS + MAIL)
    return world


def contents(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_file_that_is_there_is_replaced_only_by_force(schedctl: Schedctl, world: Database, home: Path) -> None:
    copy = home / "copy.db"
    copy.write_bytes(b"somebody else's")
    refused = schedctl("db", "backup", str(copy))
    assert (refused.code, copy.read_bytes()) == (6, b"somebody else's")
    assert "replace it with --force" in refused.err
    assert schedctl("db", "backup", str(copy), "--force").code == 0
    assert copy.read_bytes().startswith(b"SQLite format 3")
    (home / "link.db").symlink_to(home / "nothing")
    assert schedctl("db", "backup", str(home / "link.db")).code == 6


def test_a_backup_moves_to_another_machine(
    schedctl: Schedctl, kept: Database, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/service.md tells: the settings, the artifacts, the database, and then everything is there."""
    made = schedctl("--json", "backup", str(home / "whole"), "--artifacts").document
    assert made["settings"] == ["config.toml", "models.toml"]
    assert made["checkpoints_verified"] > 0
    queue, saved = (schedctl("--json", *words).document for words in (("queue", "list"), ("checkpoints", "list")))
    new = tmp_path / "new"
    shutil.copytree(home / "whole" / "settings", new)
    shutil.copytree(home / "whole" / "artifacts", new / "state" / "artifacts")
    monkeypatch.setenv("SCHEDCTL_CONFIG", str(new / "config.toml"))
    for words in (("db", "init"), ("db", "restore", str(home / "whole" / "scheduler.db")), ("db", "verify")):
        assert schedctl(*words).code == 0, words
    assert schedctl("--json", "queue", "list").document == queue
    assert schedctl("--json", "checkpoints", "list").document == saved
    assert schedctl("checkpoints", "verify").code == 0


def test_no_secret_is_inside_and_the_rest_of_the_settings_is(schedctl: Schedctl, kept: Database, home: Path) -> None:
    told = schedctl("backup", str(home / "plain"))
    assert told.code == 0, told.err
    assert "Not inside: credentials, variables of the environment, " in told.err
    assert "artifacts (--artifacts)" in told.err
    assert "A restore into a temporary folder was in order." in told.out
    assert contents(home / "plain") == {"backup.json", "scheduler.db", "settings/config.toml", "settings/models.toml"}
    assert not [path for path in (home / "plain").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    text = (home / "plain" / "settings" / "config.toml").read_text()
    assert text == (home / "config.toml").read_text().replace(SECRET, "[secret]")
    assert {path.stat().st_mode & 0o077 for path in (home / "plain" / "settings").iterdir()} == {0}
    assert (home / "plain").stat().st_mode & 0o077 == 0
    note = json.loads((home / "plain" / "backup.json").read_text())
    assert (note["artifacts"], note["checkpoints_verified"]) == (None, 0)


@pytest.mark.parametrize("there", ["a file in it", "a file", "a link"])
def test_what_is_there_is_not_replaced(schedctl: Schedctl, world: Database, home: Path, there: str) -> None:
    target = home / "there"
    if there == "a link":
        target.symlink_to(home / "nothing")
    elif there == "a file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    before = contents(home)
    assert schedctl("backup", str(target)).code == 6
    assert contents(home) == before
    (home / "empty").mkdir()
    assert schedctl("backup", str(home / "empty")).code == 0


def test_a_backup_that_does_not_restore_is_none(
    schedctl: Schedctl, world: Database, home: Path, artifacts: DirectoryStore
) -> None:
    """A damaged checkpoint is found by reading the copy, and no folder is left that looks like a backup."""
    manifest = stored_checkpoint(artifacts, "ulm", 600, 1, "uff-ulm-0001")
    with world.write() as tx:
        checkpoints.record(tx, manifest, 1_790_000_000)
    (component, *_) = manifest.components
    (blob,) = [key for key in artifacts.keys("") if component.sha256 in key]
    artifacts.delete(blob)
    artifacts.create(blob, b"damaged")
    refused = schedctl("backup", str(home / "whole"), "--artifacts")
    assert refused.code == 4
    assert f"the copy of {manifest.key} is damaged" in refused.err
    assert not [path for path in home.iterdir() if "whole" in path.name]
    assert schedctl("backup", str(home / "plain")).code == 0


def test_a_database_that_is_not_in_order_makes_no_backup(schedctl: Schedctl, world: Database, home: Path) -> None:
    with world.write() as tx:
        tx.exec_driver_sql("UPDATE jobs SET done_step = done_step + 7 WHERE name = 'ulm'")
    refused = schedctl("backup", str(home / "whole"))
    assert refused.code == 4
    assert "the restored copy has errors" in refused.err
    assert not (home / "whole").exists()
