"""The cluster: two daemons, each with a state folder of its own as on two machines, on one PostgreSQL."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tomli_w
from sqlalchemy import text

from scheduler.store.engine import Database, upgrade
from scheduler.store.lease import current
from scheduler.store.schema import metadata
from tests.lab.patience import until

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.lab.crashes.postgresql import Server
    from tests.lab.crashes.stage import Stage
    from tests.lab.typed import Typed

LEASE_SECONDS = 3


@dataclass
class Cluster:
    """Daemons ``a`` and ``b`` of one rehearsal. The sessions are the stage's: places are the same from everywhere."""

    stage: Stage
    server: Server
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stage.prepare()
        self.stage.rehearsal.state.joinpath("sessions").mkdir(parents=True, exist_ok=True)
        for name in ("a", "b"):
            state = self.folder_of(name)
            state.mkdir()
            (state / "sessions").symlink_to(self.stage.rehearsal.state / "sessions")
            self._write(name, stop_at=None)
        self._done(self.type("a", "db", "init"))
        self._done(self.type("a", "queue", "add", "--models"))

    def folder_of(self, name: str) -> Path:
        """Return the state folder of a daemon."""
        return self.stage.week / f"state-{name}"

    def config_of(self, name: str) -> Path:
        """Return the settings of a daemon."""
        return self.stage.week / f"{name}.toml"

    def type(self, name: str, *words: str) -> Typed:
        """Run ``schedctl`` as on the machine of a daemon."""
        return self.stage.type(*words, config=self.config_of(name))

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a daemon."""
        self.daemons[name] = self.stage.start("--config", str(self.config_of(name)), "daemon")
        return self.daemons[name]

    def said(self, name: str) -> str:
        """Return what a daemon said so far, since its last start."""
        return self.stage.said(self.daemons[name]).read_text()

    def database(self) -> Database:
        """Return the database that both share; the caller closes it."""
        return Database(self.server.url)

    def leader(self) -> str | None:
        """Return which daemon holds the lease in force, by the database's clock."""
        database = self.database()
        try:
            with database.read() as tx:
                lease = current(tx)
        finally:
            database.close()
        found = [name for name in self.daemons if lease is not None and str(self.folder_of(name)) in lease.holder]
        return found[0] if found else None

    def clock(self) -> float:
        """Return the database's clock, in seconds."""
        database = self.database()
        try:
            with database.read() as tx:
                return float(tx.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
        finally:
            database.close()

    def start_both(self) -> None:
        """Start ``a``, which leads, then ``b``, which stands by; return when two sessions train."""
        a = self.start("a")
        until(lambda: self.leader() == "a" or a.poll() is not None, "the leader")
        b = self.start("b")
        until(lambda: "daemon.standing_by" in self.said("b") or b.poll() is not None, "the daemon that stands by")
        until(lambda: len(self.stage.live()) == 2 or a.poll() is not None, "two live sessions")
        self.stage.until_saved(count=2)

    def settle(self, name: str, hours: float = 3.0) -> None:
        """Let one daemon bring the week to its end, and copy the database to where the audit looks."""
        daemon = self.daemons[name]
        if daemon.poll() is None:
            daemon.terminate()
            self._done(self.stage.ended(daemon))
        self._write(name, stop_at=self.stage.now() + round(hours * 3_600))
        last = self.start(name)
        self._done(self.stage.ended(last))
        self._done(self.type(name, "db", "verify"))
        self._copy_for_the_audit()

    def _done(self, typed: Typed) -> None:
        if typed.code != 0:
            raise AssertionError(f"exit {typed.code}: {typed.out}{typed.err}")

    def _write(self, name: str, stop_at: int | None) -> None:
        document: dict[str, Any] = tomllib.loads(self.stage.rehearsal.config.read_text())
        document["state_dir"] = str(self.folder_of(name))
        document["database_url"] = self.server.url
        document["daemon"]["lease"] = f"{LEASE_SECONDS}s"
        document["daemon"].pop("stop_at", None)
        if stop_at is not None:
            document["daemon"]["stop_at"] = stop_at
        self.config_of(name).write_text(tomli_w.dumps(document))

    def _copy_for_the_audit(self) -> None:
        path = self.stage.rehearsal.state / "scheduler.db"
        path.unlink(missing_ok=True)
        upgrade(f"sqlite:///{path}")
        source, target = self.database(), Database(f"sqlite:///{path}")
        with source.read() as read, target.write() as write:
            for table in metadata.sorted_tables:
                rows = [dict(row._mapping) for row in read.execute(table.select())]
                if rows and table.name not in {"lease", "pruned"}:
                    write.execute(table.insert(), rows)
        source.close()
        target.close()
