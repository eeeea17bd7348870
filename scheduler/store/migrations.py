"""Migrations: bring an older or an empty database to the newest schema, in one transaction.

New tables and columns are created from their declaration in ``schema.py``. A revision has a step of its own only if
rows, triggers or required columns change. The revision of a database is in its table ``alembic_version``, whose name
is kept from older versions.
"""

import json

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from scheduler.store.schema import REVISIONS, complete, key, metadata, optional, required


def migrate(tx: sa.Connection, revision: str | None) -> None:
    """Bring a database from ``revision`` (None: it is empty) to the newest revision."""
    op = Operations(MigrationContext.configure(tx, opts={"target_metadata": complete()}))
    _add_declared(op, tx)
    if revision is None:
        _create(op)
    else:
        for result, step in STEPS.items():
            if result > revision:
                step(op)
    op.execute(f"UPDATE alembic_version SET version_num = '{REVISIONS[-1]}'")  # noqa: S608 - our own number


def _add_declared(op: Operations, tx: sa.Connection) -> None:
    """Create missing tables and add missing columns.

    A required column needs a value in existing rows, so the step of its revision adds it.
    """
    stored = sa.inspect(tx)
    for table in metadata.sorted_tables if stored.has_table("jobs") else ():
        names = {column["name"] for column in stored.get_columns(table.name)} if stored.has_table(table.name) else ()
        for column in table.columns if names else ():
            if column.nullable and column.name not in names:
                op.add_column(table.name, sa.Column(column.name, column.type))
    metadata.create_all(tx)


def _create(op: Operations) -> None:
    """Create the triggers of all revisions and the first rows, in a new database."""
    if not _is_sqlite(op):
        op.execute(
            "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation'; END $$"
        )
    _append_only(op, "events", "ledger", "verdicts")
    _retention(op)
    op.execute("INSERT INTO lease (id, holder, epoch, until) VALUES (1, '', 0, 0)")
    op.create_table("alembic_version", *key(sa.String(32), "version_num"))
    op.execute("INSERT INTO alembic_version (version_num) VALUES ('')")


def _append_only(op: Operations, *tables: str) -> None:
    """Create triggers that make the database refuse to change or delete rows of these tables."""
    for table in tables:
        if _is_sqlite(op):
            for change in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )
        else:
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )


def _is_sqlite(op: Operations) -> bool:
    return op.get_context().dialect.name == "sqlite"


def _retention(op: Operations) -> None:
    """Allow deletion of old events only, and refuse statements that bypass the triggers of append-only tables."""
    op.execute("INSERT INTO pruned (name, up_to) VALUES ('events', 0)")
    (_guard_sqlite if _is_sqlite(op) else _guard_postgresql)(op)


def _guard_sqlite(op: Operations) -> None:
    """Create triggers for SQLite, also before INSERT: INSERT OR REPLACE deletes a row without a DELETE trigger."""
    op.execute("DROP TRIGGER events_no_delete")
    op.execute(
        "CREATE TRIGGER events_no_delete BEFORE DELETE ON events "
        "WHEN OLD.id > coalesce((SELECT up_to FROM pruned WHERE name = 'events'), 0) "
        "BEGIN SELECT RAISE(ABORT, 'events is append-only'); END"
    )
    _refuse_twice(op, "events", "id = NEW.id")
    _refuse_twice(op, "ledger", _SETTLED_TWICE)


def _refuse_twice(op: Operations, table: str, clash: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "  # noqa: S608 - our own words
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {clash}) "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: there is such a row already'); END"
    )


# A run may have several holds, but only one settlement; on PostgreSQL only unique indexes ensure that.
_SETTLED_TWICE = "id = NEW.id OR (run = NEW.run AND kind IN ('spend', 'release') AND NEW.kind IN ('spend', 'release'))"


def _guard_postgresql(op: Operations) -> None:
    """Create triggers for PostgreSQL that refuse TRUNCATE of events, and DELETE of each row that is not pruned."""
    op.execute("DROP TRIGGER events_append_only ON events")
    op.execute(
        "CREATE TRIGGER events_append_only BEFORE UPDATE OR TRUNCATE ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    op.execute(
        "CREATE FUNCTION refuse_early_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF OLD.id > coalesce((SELECT up_to FROM pruned WHERE name = TG_TABLE_NAME), 0) THEN "
        "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation'; "
        "END IF; RETURN OLD; END $$"
    )
    op.execute(
        "CREATE TRIGGER events_no_early_delete BEFORE DELETE ON events "
        "FOR EACH ROW EXECUTE FUNCTION refuse_early_delete()"
    )


# Older rates get the values of a job without measurements: no delay, and relative errors of 0.3.
_KEPT = "job, pool, steps_per_second, sigma, samples, setup_seconds, checkpoint_seconds, at"


def _spreads(op: Operations) -> None:
    """Add the delay of session starts, and the relative errors of set-up and checkpoint times."""
    op.execute("CREATE TABLE rates_before AS SELECT * FROM rates")
    op.drop_table("rates")
    metadata.tables["rates"].create(op.get_bind())
    op.execute(
        f"INSERT INTO rates ({_KEPT}, delay_seconds, setup_sigma, checkpoint_sigma) "  # noqa: S608 - our own words
        f"SELECT {_KEPT}, 0, 0.3, 0.3 FROM rates_before"
    )
    op.drop_table("rates_before")


def _code(op: Operations) -> None:
    """Add the table of code folders, with the time at which unneeded code is deleted."""
    digest, delete_at, going = key(sa.Text(), "digest"), optional(sa.BigInteger(), "delete_at"), sa.Boolean()
    op.create_table("codes", *digest, *delete_at, *required(going, "going"))


def _trees(op: Operations) -> None:
    """Move the rows of ``codes`` to ``trees``, a table for several kinds of folders in the artifact store."""
    op.execute("INSERT INTO trees (digest, delete_at, going, kind) SELECT digest, delete_at, going, 'code' FROM codes")
    op.drop_table("codes")


_CONDITIONS = {  # opening event: closing events, as they were when this revision was released
    "need.raised": ("need.settled",),
    "pool.silent": ("pool.answers",),
    "session.offered": ("session.taken",),
    "run.poisoned": ("run.mended",),
    "job.poisoned": ("job.mended",),
    "daemon.reload_refused": ("daemon.started", "daemon.reloaded"),
}
_UNPLANNABLE = "planning fails with it"
_WHOSE = sa.text(
    "SELECT kind, by, data FROM events WHERE subject = :pool AND kind IN ('pool.closed', 'pool.quota_denied')"
    " ORDER BY id DESC LIMIT 2"
)


def _causes(op: Operations) -> None:
    """Add the cause of each closure, and create the rows of conditions from the events that open and close them."""
    tx, closures = op.get_bind(), metadata.tables["closures"]
    rows = [row._asdict() for row in tx.execute(sa.text("SELECT pool, until, why, at FROM closures"))]
    op.drop_table("closures")
    closures.create(tx)
    if rows:
        op.bulk_insert(closures, [{**row, "cause": _cause(tx, row["pool"], row["why"])} for row in rows])
    if conditions := _conditions(tx):
        op.bulk_insert(metadata.tables["conditions"], conditions)


def _cause(tx: sa.Connection, pool: str, why: str) -> str:
    """Return the cause of a closure from the text that older versions wrote; ``person`` if a person closed the pool."""
    newest = list(tx.execute(_WHOSE, {"pool": pool}))
    by = next((row.by for row in newest if row.kind == "pool.closed"), "")
    if by == "the scheduler":
        return "planning"
    if by != "daemon":
        return "person"
    if why.startswith("quota unreadable"):
        return "quota_refused" if why.startswith("quota unreadable, waits for a person") else "quota_unreadable"
    if why.startswith("waits for a person"):
        return "credentials"
    if why.startswith("wrong accelerator"):
        return "wrong_device"
    denied = any(row.kind == "pool.quota_denied" and json.loads(row.data).get("why") == why for row in newest)
    return "quota_denied" if denied else "refused"


def _conditions(tx: sa.Connection) -> list[dict[str, object]]:
    opens = {closing: kind for kind, closings in _CONDITIONS.items() for closing in closings}
    about = sa.text("SELECT kind, subject, at, data FROM events WHERE kind IN :kinds ORDER BY id").bindparams(
        sa.bindparam("kinds", [*_CONDITIONS, *opens], expanding=True)
    )
    rows: dict[tuple[str, str, str], dict[str, object]] = {}
    for row in tx.execute(about):
        data = json.loads(row.data)
        kind, what = opens.get(row.kind, row.kind), str(data.get("what", ""))
        key = (kind, row.subject, what)
        if row.kind in _CONDITIONS:
            since, why = int(data.get("since", row.at)), str(data.get("why", ""))
            values = {"state": "open", "since": since, "why": why}
            rows[key] = {"kind": kind, "subject": row.subject, "what": what, **values}
        elif key in rows:
            rows[key]["state"] = "closed"
    for row in tx.execute(sa.text("SELECT name, state_detail FROM jobs WHERE state = 'held'")):
        held = json.loads(row.state_detail)
        if held.get("by") == "the scheduler" and str(held.get("why")).startswith(_UNPLANNABLE):
            key = ("job.poisoned", row.name, "")
            values = {"state": "open", "since": int(held["since"]), "why": str(held["why"])}
            rows[key] = {"kind": "job.poisoned", "subject": row.name, "what": "", **values}
    return list(rows.values())


def _moved_holds(op: Operations) -> None:
    """Allow several holds of a run, because the hold moves while its session waits in its platform's queue."""
    op.drop_index("uq_ledger_run_hold", table_name="ledger")
    if _is_sqlite(op):
        op.execute("DROP TRIGGER ledger_no_replace")
        _refuse_twice(op, "ledger", _SETTLED_TWICE)


STEPS = {
    "0002": _retention,
    "0004": _spreads,
    "0006": _code,
    "0008": _trees,
    "0010": lambda op: _append_only(op, "verdicts"),
    "0012": _causes,
    "0013": _moved_holds,
}
"""The steps by revision, oldest first. A released step never changes."""
