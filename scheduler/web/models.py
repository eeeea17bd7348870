"""Models: their versions, what the gates found, and which is in force."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from scheduler.core.version import split_version
from scheduler.store import versions
from scheduler.views import models as views
from scheduler.web.shapes import Data, Shape

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scheduler.views.models import VersionFacts
    from scheduler.web.source import Source


class ModelVersion(Shape):
    """A version of a model; ``serving`` are the targets where it serves."""

    name: str
    model: str
    number: int
    step: int
    state: str
    why: str
    in_force: bool
    parent: str
    serving: list[str]
    created_at: int


class ModelRow(Shape):
    """A model with its versions, the newest last. ``paused``: a person must promote the next."""

    name: str
    in_force: str | None
    paused: bool
    versions: list[ModelVersion]
    promotions: list[Data]


class Models(Shape):
    """All models that have versions or say how they are evaluated."""

    models: list[ModelRow]


class VersionDetail(Shape):
    """One version, with the keys of ``schedctl models show --json``."""

    version: Data


def everything(tx: Connection) -> Models:
    """Return all models."""
    return Models.model_validate({"models": [asdict(found) for found in views.models(tx)]})


def facts(tx: Connection, name: str) -> VersionFacts:
    """Return all there is to know of the version that ``ufm@3`` names. Raises UnknownVersion."""
    named = split_version(name)
    if named is None:
        raise versions.UnknownVersion(name)
    return views.facts(tx, versions.get(tx, *named))


def detail(source: Source, name: str) -> VersionDetail:
    """Return one version. Raises UnknownVersion."""
    with source.read() as tx:
        return VersionDetail(version=facts(tx, name).document())
