"""Prepare: see to it that what a plan wants to start now has all that it needs before quota is set aside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from platforms.image import options_for
from scheduler.core.precondition import Precondition
from scheduler.service.faults.postponements import Obstacle
from scheduler.service.launch.inputs import with_inputs
from scheduler.service.launch.packages import with_packages
from scheduler.service.launch.training_data import with_data
from scheduler.service.quota.audit import launchable
from scheduler.store import jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy import Connection

    from scheduler.core.plan import Placement
    from scheduler.core.pool import Pool
    from scheduler.service.outside.ports import Ports

_CHECKS: tuple[tuple[Precondition, Callable[[Ports, Sequence[Placement]], list[Placement]]], ...] = (
    (Precondition.DATA, with_data),
    (Precondition.INPUTS, with_inputs),
    (Precondition.PACKAGES, with_packages),
    (Precondition.QUOTA_READING, launchable),
)


def prepare(
    ports: Ports, due: Sequence[Placement], unopened: Collection[str]
) -> tuple[list[Placement], list[Obstacle]]:
    """Return the placements all of whose jobs have what they need, and what the others lack.

    Work that brings it is begun, or goes on. Pools that are ``unopened`` have no platform yet.
    """
    each = {id(placement): [replace(placement, lanes=(lane,)) for lane in placement.lanes] for placement in due}
    lanes = [lane for alone in each.values() for lane in alone]
    obstacles = [_obstacle(lane, Precondition.PLATFORM) for lane in lanes if lane.pool in unopened]
    lanes = [lane for lane in lanes if lane.pool not in unopened]
    for precondition, check in _CHECKS:
        kept = {id(lane) for lane in check(ports, lanes)} if lanes else set()
        obstacles += [_obstacle(lane, precondition) for lane in lanes if id(lane) not in kept]
        lanes = [lane for lane in lanes if id(lane) in kept]
    ready = {id(lane) for lane in lanes}
    return [placement for placement in due if all(id(lane) in ready for lane in each[id(placement)])], obstacles


def _obstacle(alone: Placement, precondition: Precondition) -> Obstacle:
    return Obstacle(alone.lanes[0].job, alone.pool, precondition)


def of_one_image(tx: Connection, placement: Placement, pool: Pool) -> Placement:
    """Return a placement without the lanes whose jobs want another image than the first: a session has one."""
    images = [
        options_for(jobs.get(tx, lane.job).spec, pool.platform, pool.options).get("image") for lane in placement.lanes
    ]
    lanes = tuple(lane for lane, image in zip(placement.lanes, images, strict=True) if image == images[0])
    return replace(placement, lanes=lanes)
