"""Context: what a command works with. Everything is made on first use, so a listing pays for nothing else."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from scheduler.cli.shell.output import Output, wants_colour

if TYPE_CHECKING:
    from pathlib import Path

    from config.known_secrets import KnownSecrets
    from config.paths import Paths
    from jobs.payload.redact import Redactor
    from platforms.base import Platform
    from scheduler.app import App
    from scheduler.service.requests.questions import PlanningContext


@dataclass(slots=True)
class GlobalOptions:
    """The options that every command takes, before or after its name, and those of lists."""

    config: Path | None = None
    json: bool = False
    no_color: bool = False
    debug: bool = False
    wide: bool = False
    columns: str = ""


@dataclass
class Cli:
    """One call of ``schedctl``."""

    options: GlobalOptions = field(default_factory=GlobalOptions)

    @cached_property
    def paths(self) -> Paths:
        """State folder, database and zone, without the cost of all settings. Raises ConfigError."""
        from config.paths import load_paths

        return load_paths(self.options.config)

    @cached_property
    def app(self) -> App:
        """The app on the full settings. Raises ConfigError."""
        from scheduler.app import load_app

        return load_app(self.options.config)

    @cached_property
    def out(self) -> Output:
        """Where to write; times are shown in the zone of the settings."""
        return self._output(self.paths.zone, self.redact)

    @cached_property
    def redact(self) -> KnownSecrets:
        """Replaces every secret that is known in a text."""
        from config.known_secrets import KnownSecrets

        return KnownSecrets(self.paths.values, os.environ)

    @property
    def colour(self) -> bool:
        """Whether colours are wanted."""
        return not self.options.no_color and wants_colour()

    @cached_property
    def plain(self) -> Output:
        """As ``out``, for commands that must work while the settings do not."""
        from scheduler.cli.shell.exits import known_to

        return self._output("UTC", known_to(self.options))

    def _output(self, zone: str, redact: Redactor) -> Output:
        only = tuple(name.strip().lower() for name in self.options.columns.split(",") if name.strip())
        return Output(self.options.json, self.colour, zone, redact, self.options.wide, only)

    @property
    def planning_context(self) -> PlanningContext:
        """What questions to the planner are answered with, as the daemon would plan now."""
        from scheduler.service.requests.questions import PlanningContext

        app = self.app
        return PlanningContext(app.database, app.pools, self.now, app.policy.horizon_seconds, app.planning)

    def platform(self, pool: str) -> Platform:
        """Return the adapter of one configured pool, whatever is wrong with the others. Raises PlatformError."""
        return self.app.platform(pool)

    def close(self) -> None:
        """Close the database, if the command opened it."""
        app: App | None = vars(self).get("app")
        if app is not None and "database" in vars(app):
            app.database.close()

    @property
    def now(self) -> int:
        """Scheduled UTC seconds; in the folder of a rehearsal, the rehearsal's."""
        return self.app.clock.now()

    @property
    def who(self) -> str:
        """Who asks, for the event log."""
        if name := os.environ.get("SUDO_USER") or os.environ.get("USER"):
            return name
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return f"uid {os.getuid()}"

    def wake_daemon(self) -> None:
        """Let a running daemon act on what was just written; say who will where none listens here."""
        from scheduler.store import lease
        from scheduler.wake import wake

        if wake(self.paths.state_dir):
            return
        with self.app.database.read() as tx:
            leader = lease.current(tx)
        if leader is None:
            self.out.say("No daemon runs here; the change waits for the next one (schedctl daemon).")
        else:
            self.out.say(f"The daemon that leads, {leader.holder}, takes up the change with its next cycle.")
