"""Inputs of a launch: which folders of the artifact store a lane is given, on the pool where it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.payload.lane.inputs import PURPOSE
from jobs.payload.store.tree import tree_prefix

if TYPE_CHECKING:
    from jobs.spec import JobSpec

KIND = "input"


def trees_of(spec: JobSpec) -> dict[str, str]:
    """Return the folders of the artifact store that a job's lane is given, by purpose."""
    return {f"{PURPOSE}{given.name}": tree_prefix(KIND, given.digest) for given in spec.inputs}
