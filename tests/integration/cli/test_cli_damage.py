"""A database whose rows hold what nobody wrote: every command says which row and what to do next."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scheduler.clock import real_now
from scheduler.store.engine import Database, open_database
from scheduler.store.schema import metadata
from scheduler.store.verify import verify
from tests.integration.cli.conftest import Schedctl
from tests.lab.night import one_in

COMMANDS = (
    ("status",),
    ("queue", "list"),
    ("--json", "queue", "list"),
    ("queue", "show", "ufm"),
    ("report", "weekly"),
    ("runs", "list"),
    ("runs", "show", "uff-uff-main-0001"),
    ("checkpoints", "list"),
    ("plan", "show"),
    ("quota",),
    ("pools",),
)
_BROKEN = {
    "not UTF-8": b"\xff\xfe\x80",
    "a blob": b"\x00\x01",
    "broken JSON": '{"at": ',
    "JSON of another kind": "[1, 2]",
    "another object": '{"unknown": 1}',
    "a number for a text": 7,
    "a text for a number": "many",
    "a huge number": 2**63 - 1,
    "an infinite number": 1e999,
    "nothing": None,
    "an unknown word": "asleep",
}
_OF_MODELS = (
    "INSERT INTO models VALUES ('ulm', 1)",
    (
        "INSERT INTO model_versions "
        "SELECT 'ulm', 1, key, 'ab', 500, NULL, NULL, NULL, NULL, job, NULL, key, 'accepted', '', 9 "
        "FROM checkpoints WHERE job = 'ulm'"
    ),
    "INSERT INTO evaluations VALUES (1, 'ulm', 1, 'ulm', 'cd', 'ef', 'scored', 1790000000, 1790000009, '')",
    "INSERT INTO verdicts VALUES (1, 'ulm', 1, 1, 'ab', 'cd', 'accepted', '{\"findings\": []}', 1790000009)",
    "INSERT INTO overrules VALUES (1, 'ulm', 1, 'rejected', 'accepted', 'me', 'why', 1790000009)",
    "INSERT INTO promotions VALUES (1, 'ulm', 'promote', 1, NULL, 'me', 'why', 1790000009)",
    "INSERT INTO deployments VALUES (1, 'ulm', 1, 'here', 'serving', 'me', 'why', '{}', 1790000000, 1790000009, NULL)",
)
_APART = 2 if one_in() == 1 else 8
TABLES = [table.name for table in metadata.sorted_tables if table.name != "pruned"]


@pytest.fixture
def whole(world: Database, home: Path) -> bytes:
    """The bytes of a database that holds at least one row in every table."""
    with world.write() as tx:
        for statement in (
            "INSERT INTO discards VALUES ('jobs/ulm/blobs/0', 'ulm', 'why', 1, 2)",
            "INSERT INTO watched VALUES ('uff-ulm-0001', 1800000000, NULL, NULL)",
            "INSERT INTO limits VALUES ('kaggle', 'GPU hours of the week', 1790000000, 1790000009, 7, 1790000000, 'x')",
            "INSERT INTO closures VALUES ('desk', NULL, 'shut', 1790000000, 'person')",
            "INSERT INTO generations VALUES ('ufm', 1, 1, 1790000000, 'uff-main', 7, 'jobs/main/7', '[]')",
            "INSERT INTO series (job, attempt, step, at, loss) VALUES ('ufm', 1, 10, 1790000000, 2.0)",
            *_OF_MODELS,
            "INSERT INTO due VALUES ('cycle', 1790000000)",
            "INSERT INTO outbox VALUES (1, 'report', 'w', 'email', '{}', 1, 0, 1, NULL, '')",
        ):
            tx.exec_driver_sql(statement)
    world.close()
    with closing(sqlite3.connect(home / "state/scheduler.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (home / "state/scheduler.db").read_bytes()


def damaged(home: Path, whole: bytes, table: str, column: str, value: object) -> bool:
    """Put a value into a column of a fresh copy, past every rule; return False where SQLite makes it a sound one."""
    path = home / "state/scheduler.db"
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF")
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{trigger}"')
        first = f'(SELECT rowid FROM "{table}" ORDER BY rowid LIMIT 1)'  # noqa: S608 - names of our schema
        as_text = "CAST(? AS TEXT)" if value == _BROKEN["not UTF-8"] else "?"
        try:
            change = f'UPDATE "{table}" SET "{column}" = {as_text} WHERE rowid = {first}'  # noqa: S608 - as above
            connection.execute(change, (value,))
        except sqlite3.IntegrityError:
            connection.rollback()
            return False
        connection.commit()
    return True


_READER = {
    "jobs": ("queue", "list"),
    "runs": ("runs", "list"),
    "lanes": ("runs", "list"),
    "ledger": ("quota",),
    "events": ("report", "weekly"),
    "checkpoints": ("checkpoints", "list"),
    "plans": ("plan", "show"),
    "rates": ("queue", "show", "ufm"),
    "generations": ("queue", "show", "ufm"),
    "series": ("queue", "show", "ufm"),
    **dict.fromkeys(("evaluations", "verdicts", "overrules"), ("models", "show", "ulm")),
    **dict.fromkeys(("model_versions", "promotions", "deployments"), ("models", "list")),
    "limits": ("quota",),
    "closures": ("pools",),
}


def test_a_limit_that_was_seen_at_no_time_of_a_calendar_is_told_as_damage(
    schedctl: Schedctl, whole: bytes, home: Path
) -> None:
    assert damaged(home, whole, "limits", "at", _BROKEN["a huge number"])
    answer = schedctl("quota")
    assert answer.code == 4, answer.err
    assert "table limits" in answer.err
    assert "column at: 9223372036854775807 is not a time in the years 1 to 9999" in answer.err


@pytest.mark.parametrize("table", TABLES)
def test_no_command_says_unexpected_whatever_a_row_holds(
    schedctl: Schedctl, whole: bytes, home: Path, table: str
) -> None:
    tried = caught = 0
    for place, column in enumerate(metadata.tables[table].columns):
        # Each column meets an eighth of the kinds, and each kind an eighth of the columns; in the night more of them.
        for what, value in list(_BROKEN.items())[place % _APART :: _APART]:
            if not damaged(home, whole, table, column.name, value):
                continue
            with closing(open_database(f"sqlite:///{home}/state/scheduler.db")) as opened:
                found = opened.damage()
                told = verify(opened)
            if found:
                assert all(str(one) in told for one in found), (column.name, what, told)
            tried += 1
            for words in {COMMANDS[tried % len(COMMANDS)], _READER.get(table, COMMANDS[0])}:
                answer = schedctl(*words)
                where = (table, column.name, what, words, answer.err)
                assert "unexpected" not in answer.err, where
                assert answer.code in {0, 4, 5}, where
                if answer.code == 4:
                    caught += 1
                    assert "db verify" in answer.err, where
                    assert "db restore" in answer.err, where
                    assert any(
                        f"table {one.table}, row " in answer.err and one.column in answer.err for one in found
                    ), where
    assert tried
    few = {"trees", "discards", "watched", "due", "lease", "models", "outbox", "events", "conditions"}
    assert caught or table in few


@pytest.mark.parametrize("damage", ["a format of the future", "names that are not UTF-8"])
def test_every_command_calls_a_schema_that_cannot_be_read_damage(
    schedctl: Schedctl, whole: bytes, home: Path, damage: str
) -> None:
    at, block = (47, b"\5") if damage == "a format of the future" else (whole.index(b"CREATE TABLE jobs"), b"\xed" * 16)
    assert damaged(home, whole, "jobs", "role", "manager")
    (home / "state/scheduler.db").write_bytes(whole[:at] + block + whole[at + len(block) :])
    for words in (*COMMANDS, ("db", "verify")):
        answer = schedctl(*words)
        assert answer.code in {4, 9} if words == ("db", "verify") else answer.code == 4, (words, answer.err)
        assert "db restore" in answer.err + answer.out, (words, answer.err)


def test_verify_lists_every_damaged_row_and_not_the_first_alone(schedctl: Schedctl, whole: bytes, home: Path) -> None:
    damaged(home, whole, "jobs", "spec", "{")
    with closing(sqlite3.connect(home / "state/scheduler.db")) as connection:
        connection.execute("UPDATE jobs SET state_detail = CAST(x'ff' AS TEXT) WHERE name = 'ulm'")
        connection.execute("UPDATE rates SET sigma = 'wide'")
        connection.commit()
    found = schedctl("db", "verify")
    assert found.code == 9
    assert "table jobs, row ulm, column state_detail: not UTF-8 at byte 0" in found.out
    assert "table jobs, row uff-main, column spec: cannot be read: " in found.out
    assert "table rates, row ufm/kaggle, column sigma: wide is not a number" in found.out


def test_the_daemon_ends_with_4_and_names_the_row(schedctl: Schedctl, whole: bytes, home: Path) -> None:
    # What it does not need in its first cycle it meets in a later one, so its clock runs.
    settings = (home / "config.toml").read_text()
    running = settings.replace("origin = 1.5e9\nscale = 1e-9", f"origin = {real_now()}\nscale = 1.0")
    (home / "config.toml").write_text(f'{running}\n[daemon]\ncycle = "1s"\nhousekeeping = "1s"\n')
    for table, column, value in (
        ("jobs", "spec", "{"),
        ("runs", "state_detail", "[]"),
        ("checkpoints", "manifest", b"\xff\xfe\x80"),
        ("plans", "body", '{"a": 1}'),
        ("lanes", "devices", '"x"'),
    ):
        damaged(home, whole, table, column, value)
        found = schedctl("daemon")
        assert found.code == 4, found.err
        assert f"table {table}, row " in found.err
        assert "launch" not in found.out


def test_an_error_of_our_own_stays_one(database: Database) -> None:
    with pytest.raises(KeyError, match="ours"), database.read():
        raise KeyError("ours")
    assert database.damage() == []
