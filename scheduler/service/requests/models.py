"""Models: what people ask of versions. Used by the command line, with or without a running daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection

from jobs.corpus.folder import CorpusFolder
from platforms.artifacts.base import BlobStore
from scheduler.core.version import split_version
from scheduler.service.requests.checkpoint_files import choose
from scheduler.service.versions import force, making
from scheduler.service.versions.item_set import set_for
from scheduler.service.versions.making import VersionRefused
from scheduler.store import jobs, versions
from scheduler.store.engine import Database
from scheduler.store.versions import Version


def meant(tx: Connection, name: str) -> Version:
    """Return the version that ``ufm@3`` names; of ``ufm`` alone the one in force, or else the newest.

    Raises UnknownVersion, UnknownJob, VersionRefused.
    """
    named = split_version(name)
    if named is not None:
        return versions.get(tx, *named)
    if jobs.find(tx, name) is None:
        jobs.get(tx, name)
    found = versions.in_force(tx, name) or next(reversed(versions.everything(tx, name)), None)
    if found is None:
        raise VersionRefused(
            f"{name} has no version yet. Make one of its newest checkpoint: schedctl models evaluate {name}"
        )
    return found


def evaluate(  # noqa: PLR0913 - where it is kept, what is asked, by whom
    database: Database,
    artifacts: BlobStore,
    corpora: Callable[[], CorpusFolder],
    bundle: Path,
    name: str,
    step: int | None,
    *,
    keep_seconds: int,
    now: int,
    by: str,
) -> tuple[Version, str]:
    """Queue the evaluation of a version, or of a model's newest checkpoint or that at ``step``, of which one is made.

    Returns the version and the job that evaluates it. Raises UnknownVersion, UnknownJob, PullRefused, VersionRefused,
    TreeGoes, CorpusError, StoreError.
    """
    named = split_version(name)
    with database.read() as tx:
        if named:
            versions.get(tx, *named)
        spec = jobs.get(tx, named[0] if named else name).spec
    test_set = set_for(spec, database, artifacts, corpora, now + keep_seconds)
    with database.write() as tx:
        record = jobs.get(tx, spec.name)
        version = versions.get(tx, *named) if named else making.version_of(tx, record, choose(tx, name, step), now, by)
        job = making.evaluate(tx, record, version, test_set, bundle, now, by)
        return versions.get(tx, version.model, version.number), job


def promote(database: Database, name: str, why: str, now: int, by: str) -> Version:
    """Put a version in force. Raises UnknownVersion, VersionRefused."""
    with database.write() as tx:
        return force.promote(tx, meant_exactly(tx, name), why, now, by)


def rollback(database: Database, model: str, why: str, now: int, by: str) -> tuple[Version, Version | None]:
    """Take back what is in force of a model. Raises UnknownJob, VersionRefused."""
    with database.write() as tx:
        if jobs.find(tx, model) is None:
            jobs.get(tx, model)
        return force.rollback(tx, model, why, now, by)


def overrule(
    database: Database, name: str, verdict: Literal["accepted", "rejected"], why: str, now: int, by: str
) -> Version:
    """Let a person's word count in place of the judge's. Raises UnknownVersion, VersionRefused."""
    with database.write() as tx:
        return force.overrule(tx, meant_exactly(tx, name), verdict, why, now, by)


def meant_exactly(tx: Connection, name: str) -> Version:
    """Return the version that ``ufm@3`` names; nothing else will do. Raises UnknownVersion."""
    named = split_version(name)
    if named is None:
        raise versions.UnknownVersion(name)
    return versions.get(tx, *named)
