"""What goes wrong for users: one clear message, the documented exit code, never a traceback."""

import io
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli import main as entry
from scheduler.cli.shell.exits import Exit
from scheduler.store import lease
from scheduler.store.engine import Database
from tests.lab.patience import PATIENCE_SECONDS

Schedctl = Callable[..., Any]
KEY = "uff-uff-main-0001"


def refuses(typed: Any, code: Exit, *words: str) -> None:
    """Check an error: its code, nothing on standard output, the words, and no traceback."""
    assert typed.code == code, typed
    assert typed.out == ""
    assert "Traceback" not in typed.err
    assert [word for word in words if word not in typed.err] == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("queue show ufn", Exit.NOT_FOUND, "Did you mean ufm"),
        ("queue hold nobody", Exit.NOT_FOUND, "schedctl queue list"),
        ("plan explain ufn", Exit.NOT_FOUND, "Did you mean ufm"),
        ("runs show uff-uff-main-0002", Exit.NOT_FOUND, f"Did you mean {KEY}"),
        ("runs logs nothing", Exit.NOT_FOUND, "See: schedctl runs list"),
        ("runs stop nothing", Exit.NOT_FOUND, "See: schedctl runs list"),
        ("runs list --pool kagle", Exit.NOT_FOUND, "Did you mean kaggle"),
        ("runs list --job ufn", Exit.NOT_FOUND, "Did you mean ufm"),
        ("pools open kagle", Exit.NOT_FOUND, "Did you mean kaggle"),
        ("pools close kagle", Exit.NOT_FOUND, "Did you mean kaggle"),
        ("checkpoints list ufn", Exit.NOT_FOUND, "Did you mean ufm"),
        ("checkpoints verify ufn", Exit.NOT_FOUND, "Did you mean ufm"),
        ("checkpoints verify jobs/ulm/manifests/x.json", Exit.NOT_FOUND, "Did you mean jobs/ulm/manifests/0"),
        ("checkpoints pin jobs/ulm", Exit.NOT_FOUND, "schedctl checkpoints list"),
        ("checkpoints pull ufn copy", Exit.NOT_FOUND, "Did you mean ufm"),
        ("checkpoints pull ucm copy", Exit.REFUSED, "no good checkpoint yet"),
        ("checkpoints pull ulm copy --step 7", Exit.REFUSED, "but at 500"),
        ("queue release ufm", Exit.REFUSED, "cannot release ufm: it is active"),
        ("queue hold urm", Exit.REFUSED, "it is held. See: schedctl queue show urm"),
        ("queue cancel ulm", Exit.REFUSED, "it is done"),
        ("runs stop uff-ulm-0001", Exit.REFUSED, "it has ended, finished"),
        (f"runs logs {KEY} --lane 2", Exit.REFUSED, "no lane 2, only 0, 1"),
        ("queue add --name ufm --command x --target-step 1", Exit.REFUSED, "a job of this name exists"),
        ("queue lst", Exit.USAGE, "Did you mean 'list'? See: schedctl queue --help"),
        ("quue list", Exit.USAGE, "Did you mean 'queue'?"),
        ("queue list --sate held", Exit.USAGE, "--state"),
        ("queue list --state running", Exit.USAGE, "Use one of queued, active"),
        ("queue list extra", Exit.USAGE, 'has no use for the argument "extra"'),
        ("queue show", Exit.USAGE, "needs JOB: Name of the job. See: schedctl queue show --help"),
        ("queue move ucm 0", Exit.USAGE, "See: schedctl queue move --help"),
        ("queue priority ucm nan", Exit.USAGE, "is not in the range 0.001 to 1,000,000"),
        ("queue priority ucm 0", Exit.USAGE, "is not in the range 0.001 to 1,000,000"),
        ("queue add", Exit.USAGE, "Give a FILE, --models, or --name"),
        ("queue add --models --name x", Exit.USAGE, "--models stands alone"),
        ("queue add --name x --command 'y --target-step 1", Exit.USAGE, "Quote it as in a shell"),
        ("pools close kaggle --for soon", Exit.USAGE, "a duration is written like"),
        ("pools close kaggle --for=-2h", Exit.USAGE, "cannot be negative"),
        ("queue add missing.toml", Exit.CONFIG, "there is no such file"),
        ("queue add --name x --command y", Exit.CONFIG, "target_step: is missing"),
        ("queue add --name X! --command y --target-step 1", Exit.CONFIG, "this is no usable name"),
        ("queue add --name x --command y --target-step 1 --priority=-3", Exit.CONFIG, "out of range"),
        ("queue add --name x --command y --target-step 1 --deadline soon", Exit.CONFIG, "2026-12-01T09:00:00Z"),
    ],
)
def test_a_mistake_gets_its_exit_code_and_one_message(
    words: str, code: Exit, message: str, world: Database, schedctl: Schedctl
) -> None:
    typed = schedctl(*words.split())
    refuses(typed, code, message)
    assert len(typed.err.splitlines()) == 1


def test_with_json_the_error_is_an_object_on_standard_error(world: Database, schedctl: Schedctl) -> None:
    error = schedctl("queue", "show", "ufn", "--json").error
    assert set(error) == {"exit_code", "kind", "message", "remedy", "problems"}
    assert error["exit_code"] == Exit.NOT_FOUND
    assert error["kind"] == "UnknownJob"
    assert "Did you mean ufm" in error["remedy"]


def test_with_json_the_problems_of_a_file_are_fields(world: Database, home: Path, schedctl: Schedctl) -> None:
    (home / "job.toml").write_text('name = "x"\nrole = "boss"\ncommand = "train"\n')
    error = schedctl("--json", "queue", "add", str(home / "job.toml")).error
    assert error["exit_code"] == Exit.CONFIG
    keys = [problem["key"] for problem in error["problems"]]
    assert keys == ["role", "command", "target_step", "steps_per_hour"]
    assert all(set(found) == {"file", "line", "key", "value", "why", "remedy"} for found in error["problems"])


def test_a_usage_error_is_json_too(world: Database, schedctl: Schedctl) -> None:
    assert schedctl("queue", "lst", "--json").error["exit_code"] == Exit.USAGE
    assert schedctl("--json", "queue", "lst").error["exit_code"] == Exit.USAGE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('zone = "Europe/Berlim"', "there is no such time zone; did you mean Europe/Berlin"),
        ("zone = Berlin", "is not TOML"),
        ('stat_dir = "x"', "did you mean state_dir?"),
        ('[daemon]\ncycle = "-3h"', "cannot be negative"),
        ('[[pools]]\nname = "a"\nplatform = "local"\nsession_cap = "0h"', "session_cap"),
    ],
)
def test_bad_settings_say_file_key_and_remedy(settings: str, message: str, home: Path, schedctl: Schedctl) -> None:
    (home / "config.toml").write_text(settings)
    refuses(schedctl("quota"), Exit.CONFIG, "config.toml", message)


def test_bad_settings_stop_the_fast_listing_as_well(home: Path, schedctl: Schedctl) -> None:
    (home / "config.toml").write_text('zone = "Europe/Berlim"')
    refuses(schedctl("queue", "list"), Exit.CONFIG, "did you mean Europe/Berlin")


def test_settings_that_are_not_there_are_named(home: Path, schedctl: Schedctl) -> None:
    refuses(schedctl("--config", str(home / "none.toml"), "queue", "list"), Exit.CONFIG, "there is no such file")


@pytest.mark.parametrize("words", ["queue list", "queue show ufm", "quota", "runs list", "plan show", "db verify"])
def test_a_missing_database_says_how_to_make_it(words: str, home: Path, schedctl: Schedctl) -> None:
    refuses(schedctl(*words.split()), Exit.DATABASE, "there is no such file", "schedctl init")


@pytest.mark.parametrize("words", ["queue list", "queue show ufm", "daemon"])
@pytest.mark.parametrize(("revision", "message"), [("9999", "database is newer"), (None, "database is older")])
def test_a_database_of_another_version_says_which_way(
    words: str, revision: str | None, message: str, world: Database, home: Path, schedctl: Schedctl
) -> None:
    world.close()
    with sqlite3.connect(home / "state" / "scheduler.db") as connection:
        if revision is None:
            connection.execute("DELETE FROM alembic_version")
            connection.execute("PRAGMA foreign_keys = OFF")
            tables = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'alembic_version'"
            )
            for (table,) in tables.fetchall():
                if not table.startswith("sqlite_"):
                    connection.execute(f"DROP TABLE {table}")
        else:
            connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.close()
    refuses(schedctl(*words.split()), Exit.DATABASE, message)


def test_a_damaged_database_is_called_damaged(world: Database, home: Path, schedctl: Schedctl) -> None:
    world.close()
    (home / "state" / "scheduler.db").write_bytes(b"SQLite format 3\0" + b"nonsense" * 600)
    for words in ("queue list", "queue hold ufm"):
        refuses(schedctl(*words.split()), Exit.DATABASE, "damaged")


@pytest.mark.services
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights for a moment")
@pytest.mark.skipif(
    any(not folder.stat().st_mode & 0o001 for folder in Path(__file__).parents),
    reason="nobody else may read this work tree, so nobody else can run what is tested",
)
def test_a_database_that_may_not_be_written_says_so(
    world: Database, home: Path, schedctl: Schedctl, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world.close()
    assert schedctl("queue", "hold", "ucm").code == Exit.OK  # everything is imported now
    for file in (home / "state").glob("*.db*"):
        file.chmod(0o644)  # somebody else may read it, which is not so by itself
    base = tmp_path_factory.getbasetemp()
    above = list(base.parents)[: [folder.name.startswith("pytest-of-") for folder in base.parents].index(True) + 1]
    for folder in (home / "state", home, base, *above):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        typed = schedctl("queue", "release", "ucm")
    finally:
        os.seteuid(0)
    refuses(typed, Exit.DATABASE, "database is read-only", "Check the owner and the mode")


def test_a_second_daemon_is_refused(world: Database, home: Path, schedctl: Schedctl) -> None:
    with lease.FileLock(home / "state" / "daemon.lock"):
        refuses(schedctl("daemon"), Exit.LEADERSHIP, "already running")


def test_a_store_that_is_gone_is_a_matter_of_the_platform(world: Database, home: Path, schedctl: Schedctl) -> None:
    artifacts = home / "state" / "artifacts"
    artifacts.rename(home / "elsewhere")
    artifacts.write_text("no folder")
    refuses(schedctl("checkpoints", "pull", "ulm", str(home / "copy")), Exit.PLATFORM, "artifact store")
    assert not (home / "copy").exists()


def test_damage_found_by_verify_has_its_own_code(world: Database, home: Path, schedctl: Schedctl) -> None:
    blobs = sorted((home / "state" / "artifacts" / "jobs" / "ulm" / "blobs").iterdir())
    data = bytearray(blobs[0].read_bytes())
    data[0] ^= 1
    blobs[0].chmod(0o644)
    blobs[0].write_bytes(data)
    typed = schedctl("checkpoints", "verify", "ulm")
    assert typed.code == Exit.VIOLATIONS
    assert "is damaged: its sha256 is" in typed.out
    assert schedctl("checkpoints", "pull", "ulm", str(home / "copy")).code == Exit.REFUSED
    assert not (home / "copy").exists()


def test_a_full_folder_is_never_pulled_over(world: Database, home: Path, schedctl: Schedctl) -> None:
    (home / "copy").mkdir()
    (home / "copy" / "mine").write_text("precious")
    refuses(schedctl("checkpoints", "pull", "ulm", str(home / "copy")), Exit.REFUSED, "Name another folder")
    assert (home / "copy" / "mine").read_text() == "precious"


def test_an_unexpected_error_is_short_and_says_how_to_see_more(
    home: Path, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("scheduler.cli.commands.queue_list.list_queue", broken)
    refuses(schedctl("queue", "list"), Exit.BUG, "unexpected ZeroDivisionError", "--debug")
    assert "Traceback" in schedctl("queue", "list", "--debug").err


def test_ctrl_c_is_quiet(world: Database, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scheduler.cli.commands.queue_list.list_queue", interrupted)
    monkeypatch.setattr("scheduler.cli.commands.queue_show.job_json", interrupted)
    for words in (["queue", "list"], ["queue", "show", "uff-main"]):
        typed = schedctl(*words)
        assert (typed.code, typed.out, typed.err) == (Exit.INTERRUPTED, "", "")


def test_a_reader_that_goes_away_is_no_error(world: Database) -> None:
    """`schedctl ... | head -1` must not complain; standard output is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-c", "from scheduler.cli.main import run; run()", "queue", "list", "--json"]
    done = subprocess.run(
        program, stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (Exit.BROKEN_PIPE, "")


def test_a_name_the_terminal_cannot_show_is_replaced(world: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", ascii_only)
    monkeypatch.setattr("sys.argv", ["schedctl", "queue", "hold", "ucm", "--why", "größer"])
    with pytest.raises(SystemExit, match="0"):
        entry.run()
    monkeypatch.setattr("sys.argv", ["schedctl", "queue", "list"])
    with pytest.raises(SystemExit, match="0"):
        entry.run()
    written = ascii_only.buffer
    assert isinstance(written, io.BytesIO)
    assert b"by tester: gr??er" in written.getvalue()
