"""The deployer: all that a deployment needs, the same for the daemon and for a person's command."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection

from config.credentials import credential_file, read_secret
from config.errors import ConfigError
from config.settings import Settings, TargetSettings
from platforms.artifacts.base import BlobStore
from platforms.targets.base import Target, TargetBusy, TargetContext, TargetError
from scheduler.core.deployment import DeploymentRule
from scheduler.service.outside.ports import Ports, ServedAt

FOLDER = "deployments"  # below what is on its way


@dataclass(frozen=True, slots=True)
class Deployer:
    """Where deployments are carried out from.

    ``write`` opens a transaction that only the leader can commit; ``folder`` of this machine holds files on
    their way and the locks that keep two processes of it apart. ``now`` tells scheduled UTC seconds.
    """

    read: Callable[[], AbstractContextManager[Connection]]
    write: Callable[[], AbstractContextManager[Connection]]
    artifacts: BlobStore
    targets: Mapping[str, ServedAt]
    folder: Path
    now: Callable[[], int]
    redact: Callable[[str], str] = str  # takes known secrets out of what a target said

    @classmethod
    def of(cls, ports: Ports) -> Deployer:
        """Return the daemon's."""
        folder = ports.scratch / FOLDER
        read, now = ports.database.read, ports.clock.now
        return cls(read, ports.write, ports.artifacts, ports.targets, folder, now, ports.redact)

    def staging(self, target: str) -> Path:
        """Return the folder of what is on its way to one target: another's comes and goes without it."""
        return self.folder / target

    @contextmanager
    def alone(self, target: str, model: str) -> Iterator[None]:
        """Keep other processes of this machine from the same work. Raises TargetBusy at once when one is at it.

        The lock is the operating system's: it ends with the process, however that ends.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / f"{target}--{model}.lock").open("ab") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = f"another process of this machine deploys {model} there"
                raise TargetBusy(target, "deploy", why, "Try again when it is done") from None
            yield


# Targets of the settings, each opened when it is used, with credentials looked up when they are needed.
_Opened = TypeVar("_Opened")


def targets_of(settings: Settings, environ: Mapping[str, str]) -> dict[str, ServedAt]:
    """Return where versions are served, by name. Nothing is opened, imported or read yet."""
    return {
        target.name: ServedAt(
            DeploymentRule(target.name, target.models, target.automatic, target.first, target.watch_seconds),
            partial(_open, target, settings.state_dir, environ),
        )
        for target in settings.targets
    }


def _open(target: TargetSettings, state_dir: Path, environ: Mapping[str, str]) -> Target:
    from platforms.targets.base import open_target

    def load(read: Callable[[str, Mapping[str, str], Path], _Opened], name: str) -> _Opened:
        try:
            return read(name, environ, state_dir)
        except ConfigError as error:
            problem = error.problems[0]
            raise TargetError(target.name, f"use the credential {name}", problem.why, problem.remedy) from None

    context = TargetContext(lambda name: load(credential_file, name), lambda name: load(read_secret, name))
    return open_target(target.name, target.kind, target.options, context)
