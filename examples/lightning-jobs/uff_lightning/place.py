"""The place that the conformance suite works in: the plug-in, on a stand-in of Lightning's SDK."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from platforms.registry import PlatformContext, load
from scheduler.clock import real_now
from tests.lab.conformance import AGENT, SESSIONS_MAX, Place
from tests.lab.patience import pause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from platforms.base import LaunchRequest


@contextmanager
def lightning(folder: Path) -> Iterator[Place]:
    """Yield an empty place below ``folder``."""
    sys.path.insert(0, str(Path(__file__).with_name("stand_in")))
    from lightning_sdk import World

    state, bundle = folder / "state", folder / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    (folder / "there").mkdir()
    World.folder, World.jobs, World.is_away = folder / "there", {}, False
    context = PlatformContext(state, sys.executable, bundle, sessions_max=SESSIONS_MAX)
    settings = {"teamspace": "me/lab", "machine": "T4", "image": "python:3.12", "python": sys.executable}

    def launch_lost(request: LaunchRequest) -> None:
        load("lightning", settings, context)
        (state / "sessions" / request.key).mkdir()
        order = {"at": 0, "deadline": request.deadline, "start_by": 0}
        (state / "sessions" / request.key / "order.json").write_text(json.dumps(order))

    @contextmanager
    def outage() -> Iterator[None]:
        World.is_away = True
        yield
        World.is_away = False

    yield Place(
        adapter=lambda: load("lightning", settings, context),
        now=lambda: int(real_now()),
        later=pause,
        before_launch=lambda *_: None,
        launch_lost=launch_lost,
        outage=outage,
        bundle=str(bundle),
        records=lambda key: list((state / "sessions" / key).glob("*.json")),
        asks_to_leave=False,
    )
    for job in World.jobs.values():
        job.stop()
