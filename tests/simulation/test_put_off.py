"""A job that can never be launched keeps none of the others from being done, whatever step of the launch it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from config.errors import ConfigError, Problem
from platforms.artifacts.base import StoreUnreachable
from scheduler.core.job import Done
from scheduler.service.launch import launch
from scheduler.store import jobs
from tests.lab.simulation.database import Laboratory
from tests.lab.simulation.scenario import steady_scenario
from tests.lab.simulation.simulation import Simulation

LAST = steady_scenario().jobs[-1].name


def _unpinned(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ports, tx, record, now: record.spec.name != LAST and real(ports, tx, record, now)


def _no_trees(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda spec, copies, able: None if spec.name == LAST else real(spec, copies, able)


def _no_request(error: Exception) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        def request(ports: Any, run: Any, order: Any) -> Any:
            if any(lane.job == LAST for lane in run.lanes):
                raise error
            return real(ports, run, order)

        return request

    return make


FOR_EVER = {
    "parent": ("pin_parent", _unpinned),
    "stored inputs": ("trees_of", _no_trees),
    "secret": ("launch_request", _no_request(ConfigError([Problem("secrets", "", "token", "not there", "store it")]))),
    "store": ("launch_request", _no_request(StoreUnreachable("put", "runs", "cannot be written"))),
}


@pytest.mark.parametrize(("name", "make"), FOR_EVER.values(), ids=FOR_EVER)
def test_all_others_are_done_whatever_one_job_lacks_for_ever(
    laboratory: Laboratory, name: str, make: Callable[..., Any]
) -> None:
    scenario = steady_scenario()
    # It goes first on the only pool, and no other waits for it.
    first = tuple(
        replace(job, pools=(), weight=1e6, gate=None, start_from=None) if job.name == LAST else replace(job, pools=())
        for job in scenario.jobs
    )
    scarce = replace(scenario, pools=scenario.pools[:1], jobs=first, unlaunchable=frozenset({LAST}))
    simulation = Simulation(laboratory, scarce, liveness_weeks=4)
    there = patch.object(Simulation, "_data_prefix", lambda _self, job: f"data/{job}/")
    with there, patch.object(launch, name, make(getattr(launch, name))):
        simulation.run()
    with simulation.database.read() as tx:
        assert not isinstance(jobs.get(tx, LAST).state, Done)
