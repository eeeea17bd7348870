"""The context of a command: options, settings, app and output. Each part is created on first use, to start fast."""

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
    from scheduler.app import App
    from scheduler.service.requests.questions import PlanningContext


@dataclass(slots=True)
class GlobalOptions:
    """Options that every command accepts, before or after its name, and those of tables (``wide``, ``columns``)."""

    config: Path | None = None
    json: bool = False
    no_color: bool = False
    debug: bool = False
    wide: bool = False
    columns: str = ""


@dataclass
class Cli:
    """Context of one call of ``schedctl``; every command receives it as its first argument."""

    options: GlobalOptions = field(default_factory=GlobalOptions)

    @cached_property
    def paths(self) -> Paths:
        """State folder, database and zone, read without building all settings. Raises ConfigError."""
        from config.paths import load_paths

        return load_paths(self.options.config)

    @cached_property
    def app(self) -> App:
        """The app, built from the full settings. Raises ConfigError."""
        from scheduler.app import load_app

        return load_app(self.options.config)

    @cached_property
    def out(self) -> Output:
        """Output of the command; times are shown in the time zone of the settings."""
        return self._output(self.paths.zone, self.redact)

    @cached_property
    def redact(self) -> KnownSecrets:
        """Redactor that hides the secrets of settings and environment in a text."""
        from config.known_secrets import KnownSecrets

        return KnownSecrets(self.paths.values, os.environ)

    @property
    def colour(self) -> bool:
        """Whether colours are wanted."""
        return not self.options.no_color and wants_colour()

    @cached_property
    def plain(self) -> Output:
        """Output that works even if the settings are invalid; times are in UTC."""
        from scheduler.cli.shell.exits import redactor_for

        return self._output("UTC", redactor_for(self.options))

    def _output(self, zone: str, redact: Redactor) -> Output:
        only = tuple(name.strip().lower() for name in self.options.columns.split(",") if name.strip())
        return Output(self.options.json, self.colour, zone, redact, self.options.wide, only)

    @property
    def planning_context(self) -> PlanningContext:
        """Inputs for questions to the planner: the same that the daemon would use now."""
        from scheduler.service.requests.questions import PlanningContext

        app = self.app
        return PlanningContext(app.database, app.pools, self.now, app.policy.horizon_seconds, app.planning)

    def close(self) -> None:
        """Close the database, if the command opened it."""
        app: App | None = vars(self).get("app")
        if app is not None and "database" in vars(app):
            app.database.close()

    @property
    def now(self) -> int:
        """The time of the app's clock in UTC seconds; the simulated time in the folder of a rehearsal."""
        return self.app.clock.now()

    @property
    def who(self) -> str:
        """Name of the user or coding agent for the event log; ``uid N`` if the account has no name."""
        from scheduler.service.requests.agents import AGENT

        if name := os.environ.get(AGENT) or os.environ.get("SUDO_USER") or os.environ.get("USER"):
            return name
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return f"uid {os.getuid()}"

    def wake_daemon(self) -> None:
        """Wake the daemon to process a change; if no daemon listens here, report when the change takes effect."""
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
