"""Fingerprint: what a job would run, so that an approval is for these bytes and no others."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from jobs.code.pack import pack
from jobs.inputs.folder import pack_folder
from jobs.job_table import table_of
from jobs.readers import is_remote
from jobs.spec import Code, Input, JobSpec
from scheduler.core.pool import Pool
from scheduler.service.launch.inputs import KIND
from scheduler.service.requests import environment
from scheduler.service.requests.inputs import folder_of


def measure(specs: Sequence[JobSpec], pools: Mapping[str, Pool]) -> list[JobSpec]:
    """Return jobs with the digests of the code, the packages and the local inputs they have now. Nothing is stored.

    Raises CodeError, RequirementsError, TreeError, OSError.
    """
    measure_code, measure_input = cache(_measure_code), cache(_measure_input)  # a sweep has the same for each job
    measured: list[JobSpec] = []
    for spec in specs:
        evaluation = spec.evaluation
        if evaluation is not None:
            evaluation = replace(evaluation, test_set=measure_input(evaluation.test_set))
        packages = spec.requirements
        if packages is not None:
            known = next((one for one in measured if _same_packages(one, spec)), None)
            packages = known.requirements if known else environment.locked(spec, packages, pools)[0]
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


def _same_packages(one: JobSpec, other: JobSpec) -> bool:
    if one.requirements is None or other.requirements is None:
        return False
    names = ("pools", "image", "image_python", "environment")
    same_file = one.requirements.source == other.requirements.source
    return same_file and all(getattr(one, name) == getattr(other, name) for name in names)


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
