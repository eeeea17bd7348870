"""The composition root: the only place that creates pools, adapters, stores and ports from settings."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from config.errors import ConfigError, Problem
from config.layers import SYSTEM_FILE, own_file, shipped
from config.settings import Settings
from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota
from jobs.nouns.window import Calendar
from platforms.base import Platform, Published
from platforms.facts import Facts, facts_of, read_facts, with_facts
from platforms.plugin import traits
from platforms.wrap import LatePlatform
from scheduler.clock import ScaledClock, SchedulerClock, stopwatch, system_clock
from scheduler.store.engine import Database

if TYPE_CHECKING:
    from config.known_secrets import KnownSecrets
    from jobs.catalogue import Catalogue
    from platforms.artifacts.base import BlobStore
    from platforms.registry import PlatformContext
    from scheduler.core.plan import Plan
    from scheduler.core.snapshot import Snapshot
    from scheduler.notify.deliver import Channel
    from scheduler.notify.mail import Mailing
    from scheduler.planner.planner import PlannerOptions
    from scheduler.service.launch.inputs import TrainingData
    from scheduler.service.outside.planner_process import PlannerHost
    from scheduler.service.outside.ports import EventLog, Policy, Ports, ServedAt
    from scheduler.service.outside.solver_process import SolverHost

# A session that was asked to exit gets this many times its grace period before it is ended by force: saving a large
# checkpoint takes longer than the trainer's own grace period.
_OVERDUE_GRACES = 5
# Plans are improved by local search if 60 scheduled seconds last at least one real second.
_PLANNING_SECONDS = 60
_POLISH_WALL_SECONDS = 1.0
_SOCKETS = "/var/run/postgresql"  # libpq's default if an address has no host
_SHIPPED = shipped("defaults.toml").parent
_FOLDERS = {"uff-scheduler", ".aws", ".kaggle"}  # hidden completely, because a file in them may be replaced at any time


@dataclass(frozen=True)
class App:
    """The settings, and the objects that they describe. Each object is created at its first use."""

    settings: Settings

    @cached_property
    def clock(self) -> SchedulerClock:
        """The system clock, or a rehearsal's scaled one."""
        clock = self.settings.clock
        if clock.epoch is None or clock.origin is None:
            return system_clock()
        return ScaledClock(clock.epoch, clock.origin, clock.scale, clock.stopped_at)

    @cached_property
    def redact(self) -> KnownSecrets:
        """Redacts every known secret in a text."""
        from config.known_secrets import KnownSecrets

        return KnownSecrets(self.settings, os.environ)

    def read_secret(self, name: str) -> str:
        """Return the value of a secret that jobs use, by its name. Raises ConfigError."""
        from config.credentials import read_secret

        return read_secret(name, os.environ, self.settings.state_dir)

    def hub_token(self) -> str:
        """Return the token for the Hugging Face Hub, "" if there is none. Raises ConfigError."""
        from config.credentials import hub_token

        return hub_token(os.environ, self.settings.state_dir)

    @cached_property
    def database(self) -> Database:
        """The opened database. Raises StoreFailure."""
        from scheduler.store.engine import open_database

        return open_database(self.settings.database_url, lease_seconds=self.settings.daemon.lease_seconds)

    @cached_property
    def reading(self) -> Database:
        """The database, opened for reading only. Raises StoreFailure."""
        from scheduler.store.engine import open_database

        return open_database(self.settings.database_url, read_only=True)

    @cached_property
    def artifacts(self) -> BlobStore:
        """The artifact store. Raises StoreError."""
        from platforms.artifacts.base import open_store

        settings = self.settings.artifacts
        return open_store(settings.kind, settings.root, settings.options)

    @cached_property
    def pools(self) -> dict[str, Pool]:
        """The enabled pools by name."""
        facts = self.facts()
        return {pool.name: with_facts(pool, facts[pool.name]) for pool in self.settings.pools if pool.enabled}

    def facts(self) -> dict[str, Facts]:
        """Return the current facts by pool. A value that is written in a pool's settings is not a fact."""
        observed, tables = read_facts(self.settings.state_dir), self.settings.written.get("pools", ())
        written = {table["name"]: table for table in tables}
        pools = self.settings.pools
        return {one.name: facts_of(one, observed.get(one.name, {}), written.get(one.name, {})) for one in pools}

    @cached_property
    def platforms(self) -> dict[str, LatePlatform]:
        """The adapters by pool. Each is created at its first use, so that a failure affects one pool only."""
        from platforms.registry import late

        return {
            name: late(pool.platform, dict(pool.options), os.environ, self._context(pool))
            for name, pool in self.pools.items()
        }

    def platform(self, pool: str, state_folder: Path | None = None) -> Platform:
        """Return a new adapter of one pool, in its own state folder or another. Raises KeyError, PlatformError."""
        from platforms.registry import load

        wanted = self.pools[pool]
        return load(wanted.platform, dict(wanted.options), self._context(wanted, state_folder))

    def apart(self, pool: str, folder: Path, options: Mapping[str, str], dropped: Collection[str] = ()) -> App:
        """Return an app with one pool, changed options, and its own state folder and artifact store."""
        chosen = next(one for one in self.settings.pools if one.name == pool)
        kept = {name: word for name, word in {**chosen.options, **options}.items() if name not in dropped}
        store, update = self.settings.artifacts, dict[str, object](root=folder / "artifacts")
        if store.kind != "directory":
            update["options"] = {**store.options, "prefix": f"{store.options.get('prefix', '')}{folder.parent.name}/"}
        pools, artifacts = (replace(chosen, options=kept, enabled=True),), store.model_copy(update=update)
        return App(self.settings.model_copy(update={"state_dir": folder, "artifacts": artifacts, "pools": pools}))

    def published(self) -> Published:
        """Return the Kaggle inputs for the account of the first Kaggle pool, or this user's. Raises PlatformError."""
        from platforms.registry import published, publisher

        name = publisher()
        pools = sorted((pool for pool in self.settings.pools if pool.platform == name), key=lambda p: not p.enabled)
        return published(name, dict(pools[0].options) if pools else {}, os.environ)

    def _context(self, pool: Pool, state_folder: Path | None = None) -> PlatformContext:
        from platforms.registry import PlatformContext

        return PlatformContext(
            state_folder=state_folder or self.settings.state_dir / "sessions" / pool.name,
            python=sys.executable,
            bundle=self.bundle,
            sessions_max=pool.sessions_max,
            device_counts=pool.device_counts,
            session_cap_seconds=pool.session_cap_seconds,
            devices_per_session=pool.devices_per_session,
            kind=pool.kind,
            is_priced=pool.price_microdollars_per_hour > 0,
            clock=self.clock.payload_clock(),
            store_kind=self.settings.artifacts.kind,
            open_store=lambda: self.artifacts,
            # Files that sessions on this machine must not see.
            hidden=lambda: private_places(self.settings, self.redact.places, self.database.path, os.environ),
            accounts=partial(accounts, self.settings, os.environ, pool.platform),
        )

    @cached_property
    def bundle(self) -> Path:
        """The folder that contains the payload package."""
        import jobs

        return Path(jobs.__file__).parent

    @cached_property
    def policy(self) -> Policy:
        """The settings that decisions depend on, as plain values."""
        from scheduler.core.retention import Retention
        from scheduler.service.outside.ports import Policy

        daemon = self.settings.daemon
        same = {field.name: getattr(daemon, field.name) for field in fields(Policy) if hasattr(daemon, field.name)}
        return Policy(
            **same,
            retention=Retention(**dict(self.settings.retention)),
            overdue_seconds=_OVERDUE_GRACES * daemon.grace_seconds,
            horizon_seconds=daemon.plan_horizon_seconds,
        )

    @cached_property
    def training_data(self) -> TrainingData:
        """The corpus, and the mixtures of it that jobs train on."""
        from scheduler.service.launch.inputs import TrainingData

        return TrainingData(
            self.settings.artifacts.root,
            self.settings.corpus,
            self.catalogue,
            self.database,
            self.clock.now,
            None if self.settings.artifacts.kind == "directory" else self.artifacts,
        )

    @cached_property
    def catalogue(self) -> Catalogue:
        """The jobs and text domains that the models files define. Raises ProblemsFound."""
        from jobs.catalogue import read_catalogue

        return read_catalogue(self.settings.models)

    @cached_property
    def planning(self) -> PlannerOptions:
        """The options of the daemon's planner, also for questions about other plans."""
        from scheduler.planner.planner import PlannerOptions

        # On a fast clock the time to make a plan is worth more than the last half percent of its value.
        polish = self.clock.wall_seconds(_PLANNING_SECONDS) >= _POLISH_WALL_SECONDS
        return PlannerOptions(search_steps=None if polish else 0, solver=self.solvers)

    @cached_property
    def planner(self) -> PlannerHost:
        """The process that makes the daemon's plans; it is started with the first plan."""
        from scheduler.service.outside.planner_process import PlannerHost

        return PlannerHost(self.planning)

    @cached_property
    def solvers(self) -> SolverHost:
        """The process that solves the planner's linear programmes; it is started with the first one."""
        from scheduler.service.outside.solver_process import SolverHost

        return SolverHost()

    @cached_property
    def channels(self) -> dict[str, Channel]:
        """The configured channels for messages, by name."""
        from scheduler.notify.deliver import AppriseChannel, EmailChannel, SlackChannel, email_channels

        mail, slack = self.settings.report.smtp, self.settings.report.slack
        password = mail.password.get_secret_value()
        webhook, token = slack.webhook_token_url.get_secret_value(), slack.bot_token.get_secret_value()
        channels: dict[str, Channel] = {}
        if mail.host:
            server = (mail.host, mail.port, mail.starttls, mail.user, password, mail.sender)
            channels |= email_channels(EmailChannel(*server, mail.recipients, mail.timeout_seconds))
        if webhook or token:
            channels["slack"] = SlackChannel(webhook, token, slack.channel, slack.timeout_seconds)
        others = [AppriseChannel(url.get_secret_value()) for url in self.settings.report.apprise.token_urls]
        return channels | {channel.name: channel for channel in others}

    @cached_property
    def mailing(self) -> Mailing:
        """When messages are written, and the channels that send them."""
        from scheduler.notify.deliver import webhooks_of
        from scheduler.notify.mail import Mailing
        from scheduler.notify.rules import rules_of

        report, zone = self.settings.report, self.settings.zone
        return Mailing(
            self.channels,
            zone,
            Calendar("week", zone, report.weekly.weekday, report.weekly.offset_seconds),
            report.alerts_every_seconds,
            report.quiet,
            rules_of(self.settings.rules, self.settings.webhooks, self.channels),
            webhooks_of(self.settings.webhooks),
        )

    @cached_property
    def targets(self) -> dict[str, ServedAt]:
        """The deployment targets by name; each is opened when it is used."""
        from scheduler.service.deploy.deployer import targets_of

        return targets_of(self.settings, os.environ)

    def _plan(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        return self.planner.plan(snapshot, incumbent)  # the first plan imports the planner's modules

    def ports(self, log: EventLog, epoch: int) -> Ports:
        """Return the environment of the daemon's use cases, under the lease with ``epoch``."""
        from platforms.wrap import Guarded
        from scheduler.service.outside.ports import Ports

        return Ports(
            database=self.database,
            artifacts=self.artifacts,
            platforms={
                name: Guarded(
                    platform,
                    name,
                    redact=self.redact,
                    stopwatch=stopwatch,
                    note=lambda event, fields: log.debug(event, **fields),
                    seconds=self.settings.daemon.poll_timeout_seconds,
                )
                for name, platform in self.platforms.items()
            },
            pools=self.pools,
            openings={name: platform.open for name, platform in self.platforms.items()},
            clock=self.clock,
            policy=self.policy,
            plan=self._plan,
            data_prefix=self.training_data.prefix,
            bundle=str(self.bundle),
            log=log,
            epoch=epoch,
            published=self.published,
            scratch=self.settings.state_dir / "inputs",
            targets=self.targets,
            redact=self.redact,
            corpora=lambda: self.training_data.folder,  # imported at the first use
            read_secret=self.read_secret,
            hub_token=self.hub_token,
            facts=self.facts,
        )


def load_app(config: Path | None = None, environ: Mapping[str, str] | None = None) -> App:
    """Read the settings once and return the app built on them. Raises ConfigError."""
    from config.load import load

    settings = load(config) if environ is None else load(config, environ)
    if free := [
        Problem(settings.origin("pools"), f"pools.{pool.name}.quotas", "", why, "set price_per_hour of the pool")
        for pool in settings.pools
        if not pool.price_microdollars_per_hour and not traits(pool.platform).tells_price
        for quota in pool.quotas
        if isinstance(quota, MoneyQuota) and (why := f"{quota.name}: hours of this pool cost nothing")
    ]:
        raise ConfigError(free)
    return App(settings)


# Private paths: files and folders of the daemon that sessions must not see.
def private_places(
    settings: Settings, secrets: Iterable[Path], database: Path | None, environ: Mapping[str, str]
) -> list[Path]:
    """Return the paths of state folder, store, settings, ``secrets``, and ``database`` with its side files."""
    files = [*settings.files, own_file(None, environ), SYSTEM_FILE, *secrets]
    folders = [settings.state_dir, settings.artifacts.root]
    folders += [file.parent if file.parent.name in _FOLDERS else file for file in files if file.parent != _SHIPPED]
    if database is not None:
        folders += [Path(f"{database}{ending}") for ending in ("", "-wal", "-shm", "-journal")]
    elif settings.database_url:
        # The server trusts any process of this user that connects by its socket.
        hosts = re.findall(r"[?&\s]host=([^&\s]+)", settings.database_url) or [_SOCKETS]
        folders += [Path(place) for place in map(unquote, hosts) if place.startswith("/")]
    return [place.absolute() for place in folders]


# A platform that allows one account per owner must not be used with credentials of two accounts.
def accounts(settings: Settings, environ: Mapping[str, str], platform: str) -> dict[str, str]:
    """Return the account names of a platform's enabled pools by pool, as far as they are known without a call."""
    from platforms.registry import account_name

    return {
        pool.name: name
        for pool in settings.pools
        if pool.enabled
        and pool.platform == platform
        and (name := account_name(platform, dict(pool.options), environ, settings.state_dir / "sessions" / pool.name))
    }


def require_one_account(settings: Settings) -> None:
    """Raise ConfigError if enabled pools of the same platform are known to use different accounts."""
    wrong = []
    for platform in sorted({pool.platform for pool in settings.pools}):
        (first, owner), *others = accounts(settings, os.environ, platform).items() or [("", "")]
        wrong += [
            Problem(
                settings.origin("pools"),
                f"pools.{pool}",
                "",
                f"its credentials belong to the {platform} account {name}, those of the pool {first} to {owner}: "
                "several accounts of one owner are refused (docs/security.md)",
                "give all these pools credentials of one account, or set enabled = false",
            )
            for pool, name in others
            if name.lower() != owner.lower()
        ]
    if wrong:
        raise ConfigError(wrong)
