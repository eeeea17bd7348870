"""Migrations: each schema revision from the one before, and the newest one in an empty database, in one transaction.

A step never changes once it was released. The table ``alembic_version``, which older versions kept, has the revision.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from scheduler.store.schema import REVISIONS, Serial, complete, key, of_version, one_of, optional, required, rows

_TEXT, _WHOLE = sa.Text(), sa.BigInteger()


def migrate(tx: sa.Connection, revision: str | None) -> None:
    """Bring a database at ``revision``, None for an empty one, to the newest."""
    op = Operations(MigrationContext.configure(tx, opts={"target_metadata": complete()}))
    if revision is None:
        _create(op, tx)
    else:
        for step in STEPS[int(revision) - 1 :]:
            step(op)
    op.execute(f"UPDATE alembic_version SET version_num = '{REVISIONS[-1]}'")  # noqa: S608 - our own number


def _create(op: Operations, tx: sa.Connection) -> None:
    """Create the newest schema in an empty database: the declared tables, and the triggers of all revisions."""
    complete().create_all(tx)
    if not _is_sqlite(op):
        op.execute(
            "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation'; END $$"
        )
    _append_only(op, "events", "ledger", "verdicts")
    _guard(op)
    _guard_moved_holds(op)
    op.execute("INSERT INTO lease (id, holder, epoch, until) VALUES (1, '', 0, 0)")
    op.execute("INSERT INTO pruned (name, up_to) VALUES ('events', 0)")
    op.create_table("alembic_version", *key(sa.String(32), "version_num"))
    op.execute("INSERT INTO alembic_version (version_num) VALUES ('')")


def _append_only(op: Operations, *tables: str) -> None:
    """Create triggers by which the database refuses to change or delete rows of these tables."""
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
    """Add marks of retention and how far events were pruned; close the ways around append-only tables."""
    op.create_table(
        "discards",
        *key(_TEXT, "key"),
        *required(_TEXT, "job", "why"),
        *required(_WHOLE, "marked_at", "delete_at"),
        sa.CheckConstraint("delete_at >= marked_at", name="grace"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
    op.create_index("ix_discards_job", "discards", ["job"])
    op.create_table("pruned", *key(_TEXT, "name"), *required(_WHOLE, "up_to"), one_of("name", "events"))
    op.execute("INSERT INTO pruned (name, up_to) VALUES ('events', 0)")
    _guard(op)


def _guard(op: Operations) -> None:
    """Allow to delete old events, and leave no other way around the triggers of append-only tables."""
    (_guard_sqlite if _is_sqlite(op) else _guard_postgresql)(op)


def _guard_sqlite(op: Operations) -> None:
    """INSERT OR REPLACE deletes a row without firing its trigger, so it is refused before."""
    op.execute("DROP TRIGGER events_no_delete")
    op.execute(
        "CREATE TRIGGER events_no_delete BEFORE DELETE ON events "
        "WHEN OLD.id > coalesce((SELECT up_to FROM pruned WHERE name = 'events'), 0) "
        "BEGIN SELECT RAISE(ABORT, 'events is append-only'); END"
    )
    clashes = {
        "events": "SELECT 1 FROM events WHERE id = NEW.id",
        "ledger": (
            "SELECT 1 FROM ledger WHERE id = NEW.id OR (run = NEW.run AND (kind = 'hold' AND NEW.kind = 'hold' "
            "OR kind IN ('spend', 'release') AND NEW.kind IN ('spend', 'release')))"
        ),
    }
    for table, clash in clashes.items():
        op.execute(
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN EXISTS ({clash}) "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: there is such a row already'); END"
        )


def _guard_postgresql(op: Operations) -> None:
    """TRUNCATE is refused for the whole table, DELETE by the ID of each row."""
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


def _watched(op: Operations) -> None:
    """Add runs that were settled without proof: what their platform shows later is booked."""
    op.create_table(
        "watched",
        *key(_TEXT, "run"),
        *required(_WHOLE, "until"),
        *optional(_WHOLE, "booked_start", "booked_end"),
        sa.CheckConstraint("(booked_start IS NULL) = (booked_end IS NULL)", name="booked"),
        sa.ForeignKeyConstraint(["run"], ["runs.key"]),
    )


# Rates measured before get the values of a job without measurements: no delay, and relative errors of 0.3.
_KEPT = "job, pool, steps_per_second, sigma, samples, setup_seconds, checkpoint_seconds, at"


def _spreads(op: Operations) -> None:
    """Add the delay of session starts, and the relative errors of set-up and checkpoint times."""
    op.execute("CREATE TABLE rates_before AS SELECT * FROM rates")
    op.drop_table("rates")
    op.create_table(
        "rates",
        *key(_TEXT, "job", "pool"),
        *required(sa.Float(), "steps_per_second", "sigma"),
        *required(_WHOLE, "samples", "setup_seconds", "checkpoint_seconds", "at", "delay_seconds"),
        *required(sa.Float(), "setup_sigma", "checkpoint_sigma"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
    op.execute(
        f"INSERT INTO rates ({_KEPT}, delay_seconds, setup_sigma, checkpoint_sigma) "  # noqa: S608 - our own words
        f"SELECT {_KEPT}, 0, 0.3, 0.3 FROM rates_before"
    )
    op.drop_table("rates_before")


def _removed(op: Operations) -> None:
    """Add removed jobs: their names are free, their history is kept, and their attempts are never repeated."""
    op.add_column("jobs", sa.Column("removed_at", _WHOLE))
    op.add_column("jobs", sa.Column("fenced_attempt", _WHOLE))


def _code(op: Operations) -> None:
    """Add the code of jobs: the one that a lane ran, and when unneeded code is deleted."""
    op.add_column("lanes", sa.Column("code", _TEXT))
    op.create_table("codes", *key(_TEXT, "digest"), *optional(_WHOLE, "delete_at"), *required(sa.Boolean(), "going"))


def _generations(op: Operations) -> None:
    """Add generations: jobs that start from another job's weights, or again from scratch."""
    op.create_table(
        "generations",
        *key(_TEXT, "job"),
        *key(_WHOLE, "number"),
        *required(_WHOLE, "first_attempt", "began_at"),
        *optional(_TEXT, "parent"),
        *optional(_WHOLE, "parent_step"),
        *optional(_TEXT, "parent_key"),
        *required(_TEXT, "refused"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )


def _trees(op: Operations) -> None:
    """Replace code by trees of several kinds in the artifact store, and add the trees of a lane."""
    op.add_column("lanes", sa.Column("trees", _TEXT))
    op.create_table(
        "trees",
        *key(_TEXT, "digest"),
        *optional(_WHOLE, "delete_at"),
        *required(sa.Boolean(), "going"),
        *required(_TEXT, "kind"),
        *optional(_TEXT, "origin"),
    )
    op.execute("INSERT INTO trees (digest, delete_at, going, kind) SELECT digest, delete_at, going, 'code' FROM codes")
    op.drop_table("codes")


def _series(op: Operations) -> None:
    """Add what sessions report about a job's training by step."""
    op.create_table(
        "series",
        *key(_TEXT, "job"),
        *key(_WHOLE, "attempt", "step"),
        *required(_WHOLE, "at"),
        *optional(sa.Float(), "loss", "held_out_loss"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )


def _models(op: Operations) -> None:
    """Add models: versions, evaluations, verdicts, promotions and deployments."""
    _make_versions(op)
    _make_judgement(op)
    _make_use(op)
    _append_only(op, "verdicts")


def _make_versions(op: Operations) -> None:
    """Add versions and the counters of their numbers."""
    op.create_table(
        "models", *key(_TEXT, "name"), *required(_WHOLE, "counter"), sa.ForeignKeyConstraint(["name"], ["jobs.name"])
    )
    op.create_table(
        "model_versions",
        *key(_TEXT, "model"),
        *key(_WHOLE, "number"),
        *required(_TEXT, "checkpoint", "digest"),
        *required(_WHOLE, "step"),
        *optional(_TEXT, "code", "environment", "corpus", "mixture", "parent"),
        *optional(_WHOLE, "parent_number"),
        *optional(_TEXT, "parent_key"),
        *required(_TEXT, "state", "why"),
        *required(_WHOLE, "created_at"),
        one_of("state", "candidate", "evaluating", "accepted", "rejected", "inconclusive", "retired"),
        sa.ForeignKeyConstraint(["checkpoint"], ["checkpoints.key"]),
        sa.ForeignKeyConstraint(["model"], ["models.name"]),
        sa.UniqueConstraint("model", "digest"),
    )


def _make_judgement(op: Operations) -> None:
    """Add evaluations, verdicts, and decisions of people against verdicts."""
    op.create_table(
        "evaluations",
        sa.Column("id", Serial, primary_key=True),
        *of_version(),
        *required(_TEXT, "job", "set_digest", "scorer_digest", "state"),
        *required(_WHOLE, "began_at"),
        *optional(_WHOLE, "ended_at"),
        *required(_TEXT, "error"),
        sa.CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended_at"),
        one_of("state", "open", "scored", "failed"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
        sa.UniqueConstraint("job"),
    )
    op.create_index("uq_evaluations_open", "evaluations", ["model", "number"], unique=True, **rows("state = 'open'"))
    op.create_table(
        "verdicts",
        sa.Column("id", Serial, primary_key=True),
        *of_version(),
        *required(_WHOLE, "evaluation"),
        *required(_TEXT, "gates_digest", "set_digest", "verdict", "evidence"),
        *required(_WHOLE, "at"),
        one_of("verdict", "accepted", "rejected", "inconclusive"),
        sa.ForeignKeyConstraint(["evaluation"], ["evaluations.id"]),
        sa.UniqueConstraint("model", "number", "gates_digest", "set_digest"),
    )
    op.create_index("ix_verdicts_set_digest", "verdicts", ["set_digest"])
    op.create_table(
        "overrules",
        sa.Column("id", Serial, primary_key=True),
        *of_version(),
        *required(_TEXT, "was", "verdict", "by", "why"),
        *required(_WHOLE, "at"),
        one_of("verdict", "accepted", "rejected"),
    )


def _make_use(op: Operations) -> None:
    """Add promotions and deployments."""
    op.create_table(
        "promotions",
        sa.Column("id", Serial, primary_key=True),
        *required(_TEXT, "model", "kind"),
        *optional(_WHOLE, "number", "was"),
        *required(_TEXT, "by", "why"),
        *required(_WHOLE, "at"),
        one_of("kind", "promote", "rollback"),
        sa.ForeignKeyConstraint(["model"], ["models.name"]),
    )
    op.create_index("ix_promotions_model_id", "promotions", ["model", "id"])
    op.create_table(
        "deployments",
        sa.Column("id", Serial, primary_key=True),
        *of_version(),
        *required(_TEXT, "target", "state", "by", "why", "evidence"),
        *required(_WHOLE, "intended_at"),
        *optional(_WHOLE, "served_at", "ended_at"),
        sa.CheckConstraint("(state IN ('intended', 'serving')) = (ended_at IS NULL)", name="ended_at"),
        sa.CheckConstraint("state NOT IN ('serving', 'replaced') OR served_at IS NOT NULL", name="served_at"),
        one_of("state", "intended", "serving", "returned", "failed", "replaced"),
    )
    for state in ("intended", "serving"):
        name, wanted = f"uq_deployments_{state}", rows(f"state = '{state}'")
        op.create_index(name, "deployments", ["model", "target"], unique=True, **wanted)


def _telemetry(op: Operations) -> None:
    """Add durations and sizes of training steps."""
    for name in ("tokens_per_second", "step_seconds_p90", "padding", "gradient_norm", "gpu_memory_bytes"):
        op.add_column("series", sa.Column(name, sa.Float()))


_CONDITIONS = {  # by the event that opens a condition, the events that close it, when this revision was released
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
    """Add the cause of each closure, and conditions as rows, which events open and close."""
    tx = op.get_bind()
    closures = [tuple(row) for row in tx.execute(sa.text("SELECT pool, until, why, at FROM closures"))]
    op.drop_table("closures")
    table = op.create_table(
        "closures",
        *key(_TEXT, "pool"),
        *optional(_WHOLE, "until"),
        *required(_TEXT, "why"),
        *required(_WHOLE, "at"),
        *required(_TEXT, "cause"),
    )
    names = ("pool", "until", "why", "at", "cause")
    rows = [dict(zip(names, (*row, _cause(tx, row[0], row[2])), strict=True)) for row in closures]
    if rows:
        op.bulk_insert(table, rows)
    table = op.create_table(
        "conditions",
        *key(_TEXT, "kind", "subject", "what"),
        *required(_TEXT, "state"),
        *required(_WHOLE, "since"),
        *required(_TEXT, "why"),
        one_of("state", "open", "closed"),
    )
    if conditions := _conditions(tx):
        op.bulk_insert(table, conditions)


def _cause(tx: sa.Connection, pool: str, why: str) -> str:
    """Return the cause of a closure; a text that only a person can have written has the cause ``person``."""
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
    """Allow several holds of a run: that of a session that waits in its platform's queue moves with it."""
    op.drop_index("uq_ledger_run_hold", table_name="ledger")
    _guard_moved_holds(op)


def _guard_moved_holds(op: Operations) -> None:
    """A run may have several holds, but only one settlement; on PostgreSQL unique indexes alone see to that."""
    if _is_sqlite(op):
        op.execute("DROP TRIGGER ledger_no_replace")
        op.execute(
            "CREATE TRIGGER ledger_no_replace BEFORE INSERT ON ledger WHEN EXISTS (SELECT 1 FROM ledger WHERE "
            "id = NEW.id OR (run = NEW.run AND kind IN ('spend', 'release') AND NEW.kind IN ('spend', 'release'))) "
            "BEGIN SELECT RAISE(ABORT, 'ledger is append-only: there is such a row already'); END"
        )


def _gpu_busy(op: Operations) -> None:
    """Add the share of time in which GPUs work."""
    op.add_column("series", sa.Column("gpu_busy", sa.Float()))


def _chains(op: Operations) -> None:
    """Add when a lane continued in a session that ran already."""
    op.add_column("lanes", sa.Column("begun_at", _WHOLE))


STEPS = (
    *(_retention, _watched, _spreads, _removed, _code, _generations, _trees, _series),
    *(_models, _telemetry, _causes, _moved_holds, _gpu_busy, _chains),
)
"""The steps of migration, oldest first: the first one makes revision 0002 of 0001."""
