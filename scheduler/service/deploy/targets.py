"""Targets of the settings, each opened when it is used, with credentials looked up when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from config.credentials import credential_file, read_secret
from config.errors import ConfigError
from config.settings import Settings, TargetSettings
from platforms.targets.base import Target, TargetContext, TargetError
from scheduler.core.deployment import Rule
from scheduler.service.outside.ports import ServedAt

_Found = TypeVar("_Found")


def targets_of(settings: Settings, environ: Mapping[str, str]) -> dict[str, ServedAt]:
    """Return where versions are served, by name. Nothing is opened, imported or read yet."""
    return {
        target.name: ServedAt(
            Rule(target.name, target.models, target.automatic, target.first, target.watch_seconds),
            partial(_open, target, settings.state_dir, environ),
        )
        for target in settings.targets
    }


def _open(target: TargetSettings, state_dir: Path, environ: Mapping[str, str]) -> Target:
    from platforms.targets.registry import open_target

    def told(read: Callable[[str, Mapping[str, str], Path], _Found], name: str) -> _Found:
        try:
            return read(name, environ, state_dir)
        except ConfigError as error:
            problem = error.problems[0]
            raise TargetError(target.name, f"use the credential {name}", problem.why, problem.remedy) from None

    context = TargetContext(
        state_dir / "targets", lambda name: told(credential_file, name), lambda name: told(read_secret, name)
    )
    return open_target(target.name, target.kind, target.options, context)
