"""The places of SkyPilot in the conformance suite: a stand-in of its server, and a real one over a real Slurm."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from platforms.folders import is_folder_name
from platforms.registry import PlatformContext, load
from scheduler.clock import real_now
from tests.lab.conformance import AGENT, SESSIONS_MAX, Place
from tests.lab.faults import Fault
from tests.lab.patience import pause, until
from tests.lab.sky_server import SkyServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from platforms.base import LaunchRequest, Platform
    from tests.lab.skypilot import SkyLab


@contextmanager
def skypilot(folder: Path) -> Iterator[Place]:
    """SkyPilot's adapter against a stand-in of its server, over HTTP. Fails when a job leaves a process behind."""
    bundle = folder / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    context = PlatformContext(folder / "state", sys.executable, bundle, sessions_max=SESSIONS_MAX)
    with SkyServer(folder / "cloud") as server:
        settings = {"address": server.address, "poll_seconds": "0", "python": sys.executable}

        def adapter() -> Platform:
            return load("skypilot", settings, context)

        @contextmanager
        def outage() -> Iterator[None]:
            server.faults.always["*"] = Fault.SERVER_ERROR
            yield
            server.faults.always.clear()

        yield Place(
            adapter,
            lambda: int(real_now()),
            pause,
            lambda key, lasting: None,
            lambda request: order_lost(adapter(), folder / "state" / "sessions", request),
            outage,
            str(bundle),
            server.faults,
            lambda key: list((folder / "state" / "sessions" / key).glob("*.json")),
            asks_to_leave=False,
        )
    until(lambda: not server.left(), "the end of all processes")


@contextmanager
def real_skypilot(folder: Path, lab: SkyLab) -> Iterator[Place]:
    """SkyPilot's adapter against a real server, which makes clusters of our own Slurm."""
    bundle, owner = folder / "bundle", os.urandom(4).hex()
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    context = PlatformContext(folder / "state", sys.executable, bundle, sessions_max=SESSIONS_MAX)

    def adapter() -> Platform:
        return load("skypilot", lab.options(owner), context)

    @contextmanager
    def outage() -> Iterator[None]:
        def refuse(_: object) -> None:
            raise ConnectionRefusedError("as ordered")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("platforms.skypilot.server.HTTPConnection.connect", refuse)
            yield

    with pytest.MonkeyPatch.context() as patient:
        patient.setattr("tests.lab.patience.PATIENCE_SECONDS", 1800.0)  # a cluster takes minutes on a busy machine
        yield Place(
            adapter,
            lambda: int(real_now()),
            lambda: pause(1),
            lambda key, lasting: lab.prepare(key, owner) if is_folder_name(key) else None,
            lambda request: order_lost(adapter(), folder / "state" / "sessions", request),
            outage,
            str(bundle),
            None,
            lambda key: list((folder / "state" / "sessions" / key).glob("*.json")),
            asks_to_leave=False,
        )
    platform = adapter()
    for left in platform.orphans((), int(real_now())):
        platform.stop(left.key, int(real_now()), force=True)
    until(lambda: not platform.orphans((), int(real_now())), "the end of all clusters", seconds=1200, every=1)


def order_lost(_: Platform, sessions: Path, request: LaunchRequest) -> None:
    """The order is written, long ago, and whoever should have asked the server is gone."""
    (sessions / request.key).mkdir()
    order = {"at": 0, "deadline": request.deadline, "start_by": 0}
    (sessions / request.key / "order.json").write_text(json.dumps(order))
