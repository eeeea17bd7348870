"""The place that the conformance suite works in: this machine, through the plug-in as a daemon would load it."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from platforms.registry import PlatformContext, load
from scheduler.clock import real_now
from tests.lab.conformance import AGENT, SESSIONS_MAX, Place
from tests.lab.patience import pause

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from platforms.base import LaunchRequest


@contextmanager
def cores(folder: Path) -> Iterator[Place]:
    """Yield an empty place below ``folder``."""
    state, bundle = folder / "state", folder / "bundle"
    (bundle / "payload").mkdir(parents=True)
    (bundle / "payload" / "agent.py").write_text(AGENT)
    context = PlatformContext(state, sys.executable, bundle, sessions_max=SESSIONS_MAX)

    def launch_lost(request: LaunchRequest) -> None:
        order = {"launched_at": 0, "claim_by": 0, "deadline": request.deadline, "devices": []}
        (state / request.key).mkdir()
        (state / request.key / "order.json").write_text(json.dumps(order))

    @contextmanager
    def outage() -> Iterator[None]:
        state.rename(folder / "unmounted")
        yield
        (folder / "unmounted").rename(state)

    platform = load("cores", {}, context)
    yield Place(
        adapter=lambda: load("cores", {}, context),
        now=lambda: int(real_now()),
        later=pause,
        before_launch=lambda *_: None,
        launch_lost=launch_lost,
        outage=outage,
        bundle=str(bundle),
        records=lambda key: [path for path in (state / key).glob("*.json") if path.name != "launch.json"],
    )
    for session in state.iterdir():
        platform.stop(session.name, int(real_now()), force=True)
