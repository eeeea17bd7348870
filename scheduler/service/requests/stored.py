"""Stored: what jobs take from this machine, kept in the artifact store, and its fingerprint for approvals."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Protocol

from jobs.code.pack import pack
from jobs.definition import table_of
from jobs.inputs.folder import pack_folder
from jobs.nouns.keys import is_remote
from jobs.nouns.pool import Pool
from jobs.spec import HELD_OUT, Code, Input, JobSpec
from platforms.artifacts.base import BlobStore
from platforms.base import Published
from scheduler.service.launch.inputs import KIND
from scheduler.service.requests import code, environment, inputs
from scheduler.service.requests.inputs import folder_of
from scheduler.store.engine import Database

_OF_IMAGE = ("pools", "image", "image_python")
_LOCKED_BY = (*_OF_IMAGE, "environment")  # beside the file of requirements


class StoredPlaces(Protocol):
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
    places: StoredPlaces, spec: JobSpec, delete_at: int, say: Callable[[str], None], before: JobSpec | None = None
) -> JobSpec:
    """Return a job whose code, lock and inputs are in the store; those ``before``, of the same places, stay.

    What no job names goes after ``delete_at``. ``say`` is called with what takes long. Raises CodeError,
    RequirementsError, TreeError, Refused, StoreError, ConfigError, OSError.
    """

    def take(wanted: Input) -> Input:
        database, artifacts = places.database, places.artifacts
        same = earlier.get((wanted.name, wanted.source))
        return same or inputs.take(database, artifacts, wanted, delete_at, say, places.hub_token, places.published)

    old = before or replace(spec, code=None, requirements=None, inputs=(), evaluation=None)
    tests = [old.evaluation.test_set] if old.evaluation is not None else []
    earlier = {(one.name, one.source): one for one in (*old.inputs, *tests)}
    if (wanted := spec.code) is not None:  # only then is the artifact store opened
        same = old.code is not None and (old.code.source, old.code.revision) == (wanted.source, wanted.revision)
        packed = old.code if same else code.keep(places.database, places.artifacts, wanted, delete_at)
        spec = replace(spec, code=packed)
    if spec.requirements is not None:
        lock = old.requirements if all(getattr(old, name) == getattr(spec, name) for name in _OF_IMAGE) else None
        if lock is None or lock.source != spec.requirements.source:
            lock = environment.keep(places.database, places.artifacts, spec, places.pools, delete_at)
        spec = replace(spec, requirements=lock)
    if (evaluation := spec.evaluation) is not None and evaluation.test_set.source != HELD_OUT:
        evaluation = replace(evaluation, test_set=take(evaluation.test_set))
    return replace(spec, inputs=tuple(map(take, spec.inputs)), evaluation=evaluation)


def measure(specs: Sequence[JobSpec], pools: Mapping[str, Pool]) -> list[JobSpec]:
    """Return jobs with the digests of the code, the packages and the local inputs they have now. Nothing is stored.

    Raises CodeError, RequirementsError, SecretsFound, TreeError, OSError.
    """
    measure_code, measure_input = cache(_measure_code), cache(_measure_input)  # a sweep has the same for each job
    measured: list[JobSpec] = []
    for spec in specs:
        evaluation = spec.evaluation
        if evaluation is not None:
            evaluation = replace(evaluation, test_set=measure_input(evaluation.test_set))
        packages = spec.requirements
        if packages is not None:
            alike = [one for one in measured if all(getattr(one, name) == getattr(spec, name) for name in _LOCKED_BY)]
            earlier = (one.requirements for one in alike if one.requirements)
            same = next((one for one in earlier if one.source == packages.source), None)
            packages = same or environment.locked(spec, packages, pools)[0]
        measured.append(
            replace(
                spec,
                code=None if spec.code is None else measure_code(spec.code),
                requirements=packages,
                inputs=tuple(map(measure_input, spec.inputs)),
                evaluation=evaluation,
            )
        )
    return measured


def fingerprint(specs: Sequence[JobSpec]) -> str:
    """Return the digest of jobs that were measured or stored: their definitions and the bytes they take from here."""
    # A speed is a guess, and may be measured again each time.
    tables = [{key: value for key, value in table_of(spec).items() if key != "steps_per_hour"} for spec in specs]
    document = [{"job": table, "digests": dict(_digests(spec))} for table, spec in zip(tables, specs, strict=True)]
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def _digests(spec: JobSpec) -> Iterator[tuple[str, str]]:
    yield "code", spec.code.digest if spec.code is not None else ""
    yield "packages", spec.requirements.digest if spec.requirements is not None else ""
    inputs = spec.inputs if spec.evaluation is None else (*spec.inputs, spec.evaluation.test_set)
    for item in inputs:
        if not is_remote(item.source):  # what is elsewhere has a name of its own, and is pinned when it is stored
            yield f"input {item.name}", item.digest


def _measure_code(code: Code) -> Code:
    with Path(os.devnull).open("wb") as sink:
        return pack(code, sink)[0]


def _measure_input(item: Input) -> Input:
    if is_remote(item.source):
        return item
    with tempfile.TemporaryDirectory(prefix="schedctl-input-") as scratch:
        packed = pack_folder(folder_of(Path(scratch) / "files", item.source, lambda _line: None), KIND)
    return replace(item, digest=packed.digest, files=len(packed.tree.entries), bytes=packed.tree.bytes)
