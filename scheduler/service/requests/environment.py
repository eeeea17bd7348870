"""Environment: the packages that a job asks for, locked once for every pool that it may use, and kept in the store."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jobs.environment.demands import PythonTarget, RequirementsError, read_demands
from jobs.environment.tool import find_tools, make_lock, sizes
from jobs.nouns.pool import Pool
from jobs.payload.store.lock import LOCK, encode_lock, lock_prefix
from jobs.spec import JobSpec, Requirements
from platforms.artifacts.base import BlobStore
from platforms.image import Image, has_lock, image_of, options_for
from scheduler.service.launch.inputs import drop_damaged
from scheduler.store import trees
from scheduler.store.engine import Database


def keep(
    database: Database, artifacts: BlobStore, spec: JobSpec, pools: Mapping[str, Pool], delete_at: int
) -> Requirements | None:
    """Lock what a job asks for, for each of its pools, and store that; return it with its digest.

    It goes after ``delete_at`` if no job names it by then. Raises Refused, StoreError and what :func:`locked` raises.
    """
    if spec.requirements is None:
        return None
    requirements, data = locked(spec, spec.requirements, pools)
    digest = requirements.digest
    with database.write() as tx:
        trees.note(tx, "lock", digest, delete_at)
    drop_damaged(artifacts, lock_prefix(digest), {LOCK: digest})
    artifacts.create(f"{lock_prefix(digest)}/{LOCK}", data)
    return requirements


def locked(spec: JobSpec, wanted: Requirements, pools: Mapping[str, Pool]) -> tuple[Requirements, bytes]:
    """Lock what a job wants, for each of its pools; return it with its digest, and the lock. Nothing is stored.

    Raises RequirementsError, OSError, and Misconfigured for a pool whose image cannot be.
    """
    source = wanted.source
    demands = read_demands(Path(source))
    targets: defaultdict[PythonTarget, list[str]] = defaultdict(list)
    images: dict[PythonTarget, list[Image]] = defaultdict(list)
    for pool in pools.values():
        image = image_of(pool.platform, options_for(spec, pool.platform, pool.options))
        if image.target is not None and (not spec.pools or pool.name in spec.pools):
            targets[image.target].append(pool.name)
            images[image.target].append(image)
    if not targets:
        raise RequirementsError(
            source,
            "of none of the job's pools it is known which Python it has",
            'Name it in the options of the pool: image_python = "3.12"',
        )
    lock = make_lock(Path(source), demands, targets, spec.environment)
    data = encode_lock(lock)
    digest = hashlib.sha256(data).hexdigest()
    requirements = Requirements(source, digest, tuple(sorted(lock.targets)), max(map(len, lock.targets.values())))
    tools = find_tools()
    for target, there in images.items():
        package_sizes = sizes(tools, lock.targets[target.name], target, spec.environment)
        for image in there:
            own = {name: size for name, size in package_sizes.items() if image.has(name)}
            fetched, more = sum(package_sizes.values()) - sum(own.values()), sum(own.values())
            if (fetched + more, fetched) > (
                requirements.fetched_bytes + requirements.image_bytes,
                requirements.fetched_bytes,
            ):
                largest = max(own, key=lambda name: own[name], default="")
                requirements = replace(requirements, fetched_bytes=fetched, image_bytes=more, image_largest=largest)
    return requirements, data


def without_lock(spec: JobSpec, pools: Mapping[str, Pool]) -> list[str]:
    """Return the pools that the job may use but for its lock, which has nothing for their Python."""
    if spec.requirements is None:
        return []
    locked = spec.requirements.targets
    return [
        name
        for name, pool in pools.items()
        if (not spec.pools or name in spec.pools)
        and not has_lock(pool.platform, options_for(spec, pool.platform, pool.options), locked)
    ]
