"""Models: their versions, what the gates found, and which is in force."""

from __future__ import annotations

from sqlalchemy import Connection

from scheduler.core.version import VersionState, split_version
from scheduler.store import versions
from scheduler.views import models as views
from scheduler.views.models import VersionFacts
from scheduler.web.shapes import Data, Shape
from scheduler.web.source import Source


class Models(Shape):
    """All models that have versions or say how they are evaluated."""

    models: list[views.Model]


# What it consists of names these for the type checker alone.
Models.model_rebuild(_types_namespace={"VersionState": VersionState, "Promotion": versions.Promotion})


class VersionDetail(Shape):
    """One version, with the keys of ``schedctl models show --json``."""

    version: Data


def everything(tx: Connection) -> Models:
    """Return all models."""
    return Models(models=views.models(tx))


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
