"""What a job takes along: its code, the lock of its packages and its inputs, all in the store before it is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from jobs.spec import HELD_OUT, Evaluation, JobSpec
from platforms.artifacts.base import BlobStore
from platforms.base import Published
from scheduler.core.pool import Pool
from scheduler.service.requests import code, environment, inputs
from scheduler.store.engine import Database


class Places(Protocol):
    """Where it is kept, and the pools whose Python its packages are locked for."""

    @property
    def database(self) -> Database:
        """Where it is noted what is kept, and until when."""

    @property
    def artifacts(self) -> BlobStore:
        """The artifact store, which may be opened when it is asked for."""

    @property
    def pools(self) -> Mapping[str, Pool]:
        """All pools, by name."""

    def published(self) -> Published:
        """Return what Kaggle holds and shows to our account. Raises PlatformError."""

    def hub_token(self) -> str:
        """Return what opens repositories of the Hub, if anything. Raises ConfigError."""


def stored(
    places: Places, spec: JobSpec, delete_at: int, say: Callable[[str], None], before: JobSpec | None = None
) -> JobSpec:
    """Return a job whose code, lock and inputs are in the store; those ``before``, of the same places, stay.

    What no job names goes after ``delete_at``. ``say`` is told of what takes long. Raises CodeError,
    RequirementsError, TreeError, TreeGoes, StoreError, ConfigError, OSError.
    """
    if spec.code is not None:  # only then is the artifact store opened
        spec = code.kept(places.database, places.artifacts, spec, delete_at, before.code if before else None)
    if spec.requirements is not None:
        spec = environment.kept(places.database, places.artifacts, spec, places.pools, delete_at, before)
    if spec.inputs:
        old = before.inputs if before else ()
        spec = inputs.kept(
            places.database, places.artifacts, spec, delete_at, say, old, places.hub_token, places.published
        )
    if spec.evaluation is not None and spec.evaluation.test_set.source != HELD_OUT:
        spec = replace(spec, evaluation=_with_set(places, spec.evaluation, delete_at, say, before))
    return spec


def _with_set(
    places: Places, evaluation: Evaluation, delete_at: int, say: Callable[[str], None], before: JobSpec | None
) -> Evaluation:
    """Return an evaluation whose test set is stored; the same one as before stays what it was."""
    wanted, old = evaluation.test_set, before.evaluation.test_set if before and before.evaluation else None
    if old is not None and old.source == wanted.source:
        return replace(evaluation, test_set=old)
    database, artifacts = places.database, places.artifacts
    taken = inputs.take(database, artifacts, wanted, delete_at, say, places.hub_token, places.published)
    return replace(evaluation, test_set=taken)
