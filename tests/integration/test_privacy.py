"""Nobody else reads the books: what the daemon and the commands make is closed, whatever the mask."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.errors import ConfigError
from config.layers import exposed_secrets, read_layers
from platforms.artifacts.directory import DirectoryStore
from scheduler.host.doctor import check_privacy
from scheduler.store.backup import backup, restore
from scheduler.store.engine import Database, upgrade
from scheduler.store.errors import DatabaseCorrupt
from scheduler.store.lease import FileLock


@pytest.fixture(autouse=True)
def _open_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_database_log_lock_and_backup_are_the_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    file = state / "scheduler.db"
    upgrade(f"sqlite:///{file}")
    database = Database(f"sqlite:///{file}")
    with FileLock(state / "daemon.lock"), database.write() as tx:
        tx.exec_driver_sql("INSERT OR REPLACE INTO due (name, at) VALUES ('probe', 0)")
        made = {path.name: rights(path) for path in state.iterdir()}
    assert set(made) == {"scheduler.db", "scheduler.db-wal", "scheduler.db-shm", "daemon.lock"}
    assert set(made.values()) == {0o600}
    assert rights(state) == 0o700
    backup(database, tmp_path / "copy.db")
    assert rights(tmp_path / "copy.db") == 0o600
    database.close()
    (tmp_path / "copy.db").chmod(0o644)
    restore(tmp_path / "copy.db", file)
    assert rights(file) == 0o600


def test_what_was_open_before_is_told_with_the_command_that_closes_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    upgrade(f"sqlite:///{state / 'scheduler.db'}")
    assert check_privacy(state, state / "scheduler.db").grade == "ok"
    state.chmod(0o755)
    assert check_privacy(state, state / "scheduler.db").remedy == f"Close them: chmod go= {state}"
    (state / "scheduler.db").chmod(0o644)
    assert str(state / "scheduler.db") in check_privacy(state, state / "scheduler.db").found
    state.chmod(0o700)
    assert check_privacy(state, state / "scheduler.db").grade == "ok"


def test_a_wrong_file_to_restore_is_blamed_and_not_the_database(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader, this is no database. " * 100)
    with pytest.raises(DatabaseCorrupt, match="not a backup of ours") as refused:
        restore(tmp_path / "letter.txt", tmp_path / "scheduler.db")
    assert "db restore" not in str(refused.value)
    assert "db verify" not in str(refused.value)


def test_settings_that_everybody_may_change_are_refused_and_readable_secrets_are_told(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[[webhooks]]\naddress = "https://example.org"\nsecret = "canary"\n')
    file.chmod(0o600)
    assert exposed_secrets(read_layers(file, {})) == []
    file.chmod(0o644)
    (problem,) = exposed_secrets(read_layers(file, {}))
    assert (problem.key, problem.remedy) == ("webhooks.secret", f"run: chmod 600 {file}")
    assert "canary" not in str(problem)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    checked = check_privacy(state, None, [problem])
    assert (checked.grade, checked.remedy) == ("warning", f"run: chmod 600 {file}")
    file.write_text('[[pools]]\nname = "kaggle"\noptions = { secrets = "dataset", credentials = "/x/kaggle.json" }\n')
    assert exposed_secrets(read_layers(file, {})) == [], "these name a way and a file"
    file.chmod(0o646)
    with pytest.raises(ConfigError, match=r"everybody on this machine may change it, .*run: chmod o-w"):
        read_layers(file, {})


def written_by_owner(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('state_dir = "/x"\n')
    file.chmod(0o600)
    file.parent.chmod(0o700)


def test_settings_in_a_folder_where_everybody_may_exchange_them_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "open" / "own" / "config.toml"
    written_by_owner(file)
    named = tmp_path / "link.toml"
    named.symlink_to(file)
    for way in (file, named):
        with pytest.raises(ConfigError, match=f"run: chmod o-w {tmp_path / 'open'}$"):
            read_layers(way, {})
    (tmp_path / "open").chmod(0o1777)  # as /tmp, where nobody may take away what is another's
    assert read_layers(named, {}).values["state_dir"] == "/x"


@pytest.mark.parametrize("middle", ["link.toml", "folder"])
def test_links_of_settings_that_everybody_may_exchange_are_refused(tmp_path: Path, middle: str) -> None:
    """The folder is on the way from one link to the next: neither the first name lies in it nor the file."""
    written_by_owner(tmp_path / "own" / "config.toml")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    target = tmp_path / "own" / ("config.toml" if middle == "link.toml" else "")
    (tmp_path / "open" / middle).symlink_to(target)
    named = tmp_path / "named"
    named.symlink_to(Path("open") / middle)
    with pytest.raises(ConfigError, match=f"run: chmod o-w {tmp_path / 'open'}$"):
        read_layers(named if middle == "link.toml" else named / "config.toml", {})
    (tmp_path / "open").chmod(0o755)
    assert read_layers(named if middle == "link.toml" else named / "config.toml", {}).values["state_dir"] == "/x"


def test_settings_that_another_user_put_into_a_shared_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    file = shared / "theirs" / "config.toml"
    written_by_owner(file)
    shared.chmod(0o1777)
    assert read_layers(file, {}).values["state_dir"] == "/x"
    lstat = Path.lstat

    def of_another(path: Path) -> os.stat_result:
        found = list(lstat(path))
        found[4] = 4_242 if path.is_relative_to(shared / "theirs") else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", of_another)
    with pytest.raises(ConfigError, match=r"user 4242 put .*/shared/theirs there.*folder of your own"):
        read_layers(file, {})


def test_the_artifact_folder_is_closed_to_others(tmp_path: Path) -> None:
    DirectoryStore(tmp_path / "artifacts")
    assert (tmp_path / "artifacts").stat().st_mode & 0o777 == 0o750
