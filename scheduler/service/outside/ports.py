"""Ports: everything that use cases need from outside, passed in by the composition root."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from platforms.base import Misconfigured, Platform, Published
from platforms.facts import Facts
from scheduler.clock import SchedulerClock
from scheduler.core.plan import Plan
from scheduler.core.retention import Retention
from scheduler.core.snapshot import Snapshot
from scheduler.core.version import DeploymentRule
from scheduler.service.outside.calls import Calls
from scheduler.store import lease as leases
from scheduler.store.engine import Database

if TYPE_CHECKING:  # not loaded by commands that only read
    from jobs.corpus.folder import CorpusFolder
    from platforms.artifacts.base import BlobStore
    from platforms.targets.base import Target


class EventLog(Protocol):
    """The part of a structlog logger that use cases call: an event name with fields."""

    def debug(self, event: str, **fields: Any) -> Any:
        """Log something that matters for debugging."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log an event."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Log a problem that is being handled."""

    def error(self, event: str, **fields: Any) -> Any:
        """Log a failure."""

    def exception(self, event: str, **fields: Any) -> Any:
        """Log an unexpected failure with its traceback."""


Opening = Callable[..., str]
"""Makes sure that a pool's platform can be used; see LatePlatform.open.

It returns a text that changes with the platform's credentials and options, and takes ``reload``. Raises PlatformError.
"""


def no_account() -> Published:
    """Raise Misconfigured: there is no Kaggle account."""
    raise Misconfigured("kaggle", "fetch", "no account is configured", "See docs/kaggle.md")


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings on which decisions depend. All times are scheduled seconds."""

    launch_prefix: str = "uff"
    heartbeat_seconds: int = 30
    grace_seconds: int = 60
    overdue_seconds: int = 300
    failures_max: int = 5
    retry_base_seconds: int = 60
    retry_cap_seconds: int = 3_600
    horizon_seconds: int = 604_800
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True)
class ServedAt:
    """A deployment target of the settings: its rule, and how it is opened. ``open`` raises TargetError."""

    rule: DeploymentRule
    open: Callable[[], Target]


@dataclass(frozen=True, slots=True)
class Ports:
    """The environment of the daemon's use cases. ``platforms``, ``pools`` and ``openings`` are keyed by pool name."""

    database: Database
    artifacts: BlobStore
    platforms: Mapping[str, Platform]
    pools: Mapping[str, Pool]
    clock: SchedulerClock
    policy: Policy
    plan: Callable[[Snapshot, Plan | None], Plan]
    data_prefix: Callable[[str], str]  # job name -> store prefix of its training data
    bundle: str  # folder of the program that sessions run
    log: EventLog
    epoch: int = 0  # of this daemon's lease
    calls: Calls = field(default_factory=Calls)
    openings: Mapping[str, Opening] = field(default_factory=dict)  # of pools whose platform may not exist yet
    scratch: Path = Path(tempfile.gettempdir(), "uff-inputs")  # local folder of files in transfer to the store
    published: Callable[[], Published] = no_account  # datasets and models on Kaggle; raises PlatformError
    corpora: Callable[[], CorpusFolder] | None = None  # None: no corpora
    redact: Callable[[str], str] = str  # hides known secrets in stored messages; the default hides nothing
    read_secret: Callable[[str], str] = str  # secrets of a job by name; raises ConfigError for a missing one
    targets: Mapping[str, ServedAt] = field(default_factory=dict)  # deployment targets by name
    hub_token: Callable[[], str] = str  # the daemon's own token for the Hub; raises ConfigError
    facts: Callable[[], Mapping[str, Facts]] = dict  # facts that hold now, by pool

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction that only the holder of the lease can commit."""
        with self.database.write() as tx:
            leases.fence(tx, self.epoch)
            yield tx
