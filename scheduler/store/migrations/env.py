"""How alembic runs our migrations: on the connection it is handed, inside the transaction already open."""

from __future__ import annotations

from alembic import context

from scheduler.store.schema import complete

context.configure(connection=context.config.attributes["connection"], target_metadata=complete())
with context.begin_transaction():
    context.run_migrations()
