"""The launch document: what the payload runs in a session. docs/your-own-training.md has the contract."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jobs.environment.tool import NoWheel, download, find_tools
from jobs.nouns.pool import Pool
from jobs.payload.bounds import read_json
from jobs.payload.store import lock as locks
from jobs.payload.store.manifest import sha256_file
from jobs.payload.store.tree import code_prefix
from jobs.spec import JobSpec
from platforms.artifacts.base import BlobStore, Missing
from platforms.image import Image, image_of, options_for
from scheduler.core.plan import Placement
from scheduler.core.run import Lane, Run
from scheduler.service.facts.overheads import Overhead
from scheduler.service.faults.isolation import ready, succeeds
from scheduler.service.outside.calls import tell
from scheduler.service.outside.ports import Policy, Ports
from scheduler.store import jobs, trees

FORMAT = 1


def launch_document(  # noqa: PLR0913 - one keyword per part of the document
    *,
    run: Run,
    pool: Pool,
    specs: Mapping[str, JobSpec],
    overheads: Mapping[str, Overhead],
    stalls: Mapping[str, Mapping[str, Any]],
    restore: Mapping[str, Sequence[str]],
    parents: Mapping[str, str],
    data: Mapping[str, str],
    store: Mapping[str, str],
    clock: Mapping[str, float],
    policy: Policy,
    chain: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the launch document of a run as plain JSON types; mappings are keyed by job name.

    ``chain`` says how long an ended lane waits for the next job, and which devices are free; None: no job may follow.
    """
    device = pool.options.get("expected_device")  # not checked for pools without devices, such as rehearsals on a CPU
    return {
        "format": FORMAT,
        "run": run.key,
        "clock": dict(clock),
        "deadline": run.deadline,
        "stop_margin_seconds": pool.stop_margin_seconds,
        "heartbeat_seconds": policy.heartbeat_seconds,
        "grace_seconds": policy.grace_seconds,
        "mtbf_seconds": pool.mtbf_seconds,
        "store": dict(store),
        "image": specs[run.lanes[0].job].image,  # the image of all lanes: jobs with other images have separate sessions
        "expected_devices": {"count": pool.held_devices(run.devices), "name": device} if device else None,
        "chain": chain,
        "lanes": [
            {
                **_lane(lane, specs[lane.job], overheads[lane.job], restore[lane.job], data[lane.job]),
                "packages": lane_packages(lane, specs[lane.job], pool),
                "parent": parents.get(lane.job, ""),
                "stall": dict(stalls[lane.job]),
            }
            for lane in run.lanes
        ],
    }


def _lane(lane: Lane, spec: JobSpec, overhead: Overhead, restore: Sequence[str], data: str) -> dict[str, Any]:
    return {
        "index": lane.index,
        "job": spec.name,
        "attempt": lane.attempt,
        "devices": list(lane.devices),
        # Derived from the name, so that every run of a job continues the same random stream.
        "seed": spec.seed or int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:4], "big"),
        "target_step": spec.target_step,
        "command": list(spec.command),
        "environment": dict(spec.environment),
        "secrets": list(spec.secrets),
        "data": data,
        "code": code_prefix(lane.code) if lane.code else "",
        "trees": dict(lane.trees),
        "whole": spec.whole,
        "setup_seconds": overhead.setup_seconds,
        "checkpoint_seconds": overhead.checkpoint_seconds,
        "closing_seconds": overhead.closing_seconds,
        "restore": list(restore),
    }


# Packages: the lock file of each job, and its wheels for sessions that cannot reach a package index.
def package_trees(spec: JobSpec, pool: Pool) -> dict[str, str]:
    """Return the store folders of a job's lock file, and of its wheels if sessions on the pool need them."""
    image = _image(spec, pool)
    if spec.requirements is None or image.target is None:
        return {}
    digest = spec.requirements.digest
    wheels = {} if image.internet else {"wheels": locks.wheels_prefix(digest, image.target.name)}
    return {"lock": locks.lock_prefix(digest), **wheels}


def lane_packages(lane: Lane, spec: JobSpec, pool: Pool) -> dict[str, str] | None:
    """Return the packages of a lane for the launch document; None if it needs only those of the image."""
    lock = lane.trees.get("lock")
    target = _image(spec, pool).target if lock else None
    if lock is None or target is None:
        return None
    return {"lock": lock, "target": target.name, "wheels": lane.trees.get("wheels", "")}


def with_packages(ports: Ports, due: Sequence[Placement]) -> list[Placement]:
    """Return the placements whose wheels are stored, or not needed; missing wheels are stored in the background."""
    with ports.database.read() as tx:
        specs = {lane.job: jobs.get(tx, lane.job).spec for placement in due for lane in placement.lanes}

    def needs(placement: Placement) -> dict[str, Callable[[], bool]]:
        storing: dict[str, Callable[[], bool]] = {}
        for spec in (specs[lane.job] for lane in placement.lanes):
            image = _image(spec, ports.pools[placement.pool])
            if spec.requirements is not None and image.target is not None and not image.internet:
                lock = spec.requirements.digest
                store = partial(_store_wheels, ports, lock, image, spec.environment)
                name = f"{spec.name} for {image.target}"
                storing[name] = partial(succeeds, ports, "wheels.unavailable", store, lock=lock)
        return storing

    return ready(ports, "wheels", due, needs)


def _image(spec: JobSpec, pool: Pool) -> Image:
    return image_of(pool.platform, options_for(spec, pool.platform, pool.options))


def _store_wheels(ports: Ports, lock: str, image: Image, variables: Mapping[str, str]) -> None:
    """Store the wheels of a lock file, unless they are stored; their list is written last and marks them as complete.

    Raises BadLock, NoWheel, RequirementsError, Refused, StoreError, OSError.
    """
    if image.target is None:
        return
    target = image.target.name
    prefix = locks.wheels_prefix(lock, target)
    if ports.artifacts.size(f"{prefix}/{locks.WHEELS}") is not None:
        return
    if not find_tools().pip:
        raise NoWheel("uv cannot fetch wheels, and the daemon's Python has no pip. Install pip beside it")
    pins = locks.parse_lock(
        ports.artifacts.read(f"{locks.lock_prefix(lock)}/{locks.LOCK}", locks.LOCK_BYTES_MAX), lock
    ).targets[target]
    tell("fetches the wheels from the package index")
    with tempfile.TemporaryDirectory(prefix="uff-wheels-") as folder:
        needed = [pin for pin in pins if not image.has(pin.name)]
        files = download(needed, image.target, Path(folder), variables) if needed else []
        with ports.write() as tx:
            trees.record(tx, "wheels", locks.wheels_digest(lock, target), None)
        digests = {}
        for number, file in enumerate(files):
            tell(f"stores the wheels, {number} of {len(files)}")
            digests[file.name] = sha256_file(file)
            ports.artifacts.create(f"{prefix}/{digests[file.name]}", file)
        ports.artifacts.create(f"{prefix}/{locks.WHEELS}", locks.encode_wheels(digests))


# Lanes of a session, stored in the artifact store before its launch.
#
# A run ID names the first job only. After the restore of a backup that is older than the launch, the daemon reads here
# which other jobs have a lane in the session, even if none of them has sent a heartbeat or saved a checkpoint.
_LANES_BYTES_MAX = 1 << 20


def store_lanes(artifacts: BlobStore, run: Run) -> None:
    """Store the lanes of ``run`` if it has several. Idempotent. Raises StoreError."""
    if len(run.lanes) > 1:
        lanes = [{"lane": lane.index, "job": lane.job, "attempt": lane.attempt} for lane in run.lanes]
        artifacts.put(_lanes_key(run.key), json.dumps({"lanes": lanes}).encode())


def stored_lanes(artifacts: BlobStore, key: str) -> dict[int, tuple[str, int]]:
    """Return job and attempt by lane, as stored for a run; empty if nothing was stored. ``key`` is the run ID.

    Raises StoreError, and ValueError for an invalid document.
    """
    try:
        document = read_json(artifacts.read(_lanes_key(key), _LANES_BYTES_MAX))
        planned_lanes = {lane["lane"]: (lane["job"], lane["attempt"]) for lane in document["lanes"]}
    except Missing:
        return {}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a list of lanes: {error}") from None
    for index, (job, attempt) in planned_lanes.items():
        if type(index) is not int or type(job) is not str or type(attempt) is not int:
            raise ValueError(f"not a lane: lane {index!r}, job {job!r}, attempt {attempt!r}")
    return planned_lanes


def _lanes_key(key: str) -> str:
    return f"runs/{key}/lanes.json"


# The stop flag: the object in the artifact store that asks a session, or one lane of it, to save and exit.
def stop_flag_key(run: str) -> str:
    """Return the object key of the stop flag of a run ID."""
    return f"runs/{run}/stop"


def put_stop_flag(artifacts: BlobStore, run: str, why: str, lane: int | None = None) -> None:
    """Ask one lane of the run to stop; None: all lanes. Raises StoreError."""
    artifacts.put(stop_flag_key(run), json.dumps({"reason": why, "lane": lane}).encode())
