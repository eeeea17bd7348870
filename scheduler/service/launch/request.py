"""The request: what a launch tells its platform and its session, from the jobs as they stood when it was submitted.

Also what the session may do in the artifact store: write what is its own, read what it starts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.payload.store.code import code_prefix
from jobs.payload.store.manifest import blob_key
from platforms.artifacts.base import Grant
from platforms.base import LaunchRequest
from scheduler.service.facts.snapshot import gives_secrets
from scheduler.service.launch.launch_document import launch_document
from scheduler.service.launch.patience import patience
from scheduler.service.outside.stop_flag import stop_flag_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jobs.payload.store.manifest import Manifest
    from jobs.spec import JobSpec
    from scheduler.core.pool import Pool
    from scheduler.core.run import Run
    from scheduler.service.facts.overheads import Overheads
    from scheduler.service.outside.ports import Ports
    from scheduler.store.jobs import JobRecord


# Beyond what is held for the session: clocks that disagree, and a last report that is repeated.
_SLACK_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Order:
    """What a launch is told of its jobs, by name, as it stood when it was submitted."""

    records: Mapping[str, JobRecord]
    overheads: Overheads
    quiet: Mapping[str, float]
    restore: Mapping[str, Sequence[Manifest]]
    parents: Mapping[str, Manifest]  # what a job without a checkpoint of its own starts from


def launch_request(ports: Ports, run: Run, order: Order) -> LaunchRequest:
    """Describe the session to its platform. Raises StoreError, and ConfigError for a secret that is not there."""
    pool, restore = ports.pools[run.pool], order.restore
    specs = {name: record.spec for name, record in order.records.items()}
    lost = {name: order.overheads.of(spec, pool) for name, spec in specs.items()}
    clock = ports.clock.payload_clock()
    data = {name: ports.data_prefix(name) for name in specs}
    folders = [*data.values(), *(code_prefix(lane.code) for lane in run.lanes if lane.code)]
    folders += [prefix for lane in run.lanes for prefix in lane.trees.values()]
    manifests = [*(manifest for found in restore.values() for manifest in found), *order.parents.values()]
    wall_seconds = ports.clock.wall_seconds(run.held_until - ports.clock.now())
    document = launch_document(
        run=run,
        pool=pool,
        specs=specs,
        overheads=lost,
        stalls={
            name: patience(
                record.spec,
                pool,
                lost[name],
                order.overheads.measured,
                done_step=record.done_step,
                quiet_seconds=order.quiet[name],
                scale=clock["scale"],
            )
            for name, record in order.records.items()
        },
        restore={name: [manifest.key for manifest in found] for name, found in restore.items()},
        parents={name: manifest.key for name, manifest in order.parents.items()},
        data=data,
        store=ports.artifacts.payload_address(grant(run, manifests, folders, wall_seconds)),
        clock=clock,
        policy=ports.policy,
    )
    return LaunchRequest(
        key=run.key,
        pool=run.pool,
        devices=pool.held_devices(run.devices),
        deadline=run.deadline,
        launch=document,
        bundle=ports.bundle,
        options=pool.options,
        secrets=_secrets(ports, pool, specs.values()),
    )


def _secrets(ports: Ports, pool: Pool, specs: Iterable[JobSpec]) -> dict[str, str]:
    """Return what a session's jobs name, where the platform hands it over. Raises ConfigError."""
    names = sorted({name for spec in specs for name in spec.secrets})
    return {name: ports.read_secret(name) for name in names} if names and gives_secrets(pool) else {}


def grant(run: Run, restore: Iterable[Manifest], data: Iterable[str], wall_seconds: float) -> Grant:
    """Return a run's rights; ``wall_seconds`` is the real time until it must be over.

    ``restore`` are the checkpoints it may start from, ``data`` the store prefixes of its training data, code and trees.
    """
    reads = {stop_flag_key(run.key)}
    for lane in run.lanes:
        reads |= {f"runs/{run.key}/lane-{lane.index}/{name}.json" for name in ("heartbeat", "result")}
    for manifest in restore:
        reads.add(manifest.key)
        reads |= {blob_key(manifest.job, component.sha256) for component in manifest.components}
    return Grant(
        run=run.key,
        jobs=tuple(sorted({lane.job for lane in run.lanes})),
        reads=tuple(sorted(reads)),
        folders=tuple(sorted({prefix.rstrip("/") for prefix in data} - {""})),
        lasts_seconds=max(0, round(wall_seconds)) + _SLACK_SECONDS,
    )
