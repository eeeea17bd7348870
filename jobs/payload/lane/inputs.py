"""A lane's inputs: folders that are fetched once for all who need them on this machine, checked, and only read."""

from __future__ import annotations

import os

from ..clock import stopwatch
from ..log import log
from ..store import hub, mount
from ..store.transport import Transport
from ..store.tree import by_gigabytes, fetch_tree, note_use
from .failure import Failure
from .launch import LaneOrder, Launch

PURPOSE = "input."  # what begins so is an input, and the rest is its name


def fetch_inputs(launch: Launch, order: LaneOrder, transport: Transport, token: str | None = None) -> dict[str, str]:
    """Return where each input of a lane is, by the variable that tells its command. Raises Failure.

    ``token`` opens repositories of the Hub; None: the one of the environment, if any.
    """
    found: dict[str, str] = {}
    for purpose, prefix in sorted(order.trees.items()):
        if purpose.startswith(PURPOSE):
            name = purpose[len(PURPOSE) :]
            found[f"SCHED_INPUT_{name.upper()}"] = _fetch(launch, order, transport, name, prefix, token)
    return found


def _fetch(launch: Launch, order: LaneOrder, transport: Transport, name: str, prefix: str, token: str | None) -> str:
    lane, target = order.lane, launch.cache / prefix.replace("/", "-")
    began = stopwatch()
    kind = prefix.partition("/")[0]
    try:
        if kind == mount.KIND:
            mounted = mount.find_mounted(transport, prefix, target, launch.mounts)
            log(lane, f"input {name}: {mounted.source}, attached at {mounted.folder}, its sizes are those listed")
            return str(mounted.folder)
        told = by_gigabytes(lambda size: log(lane, f"input {name}: {size}"))
        opens = os.environ.get("HF_TOKEN", "") if token is None else token
        found = (
            hub.fetch_repository(transport, prefix, target, told, opens)
            if kind == hub.KIND
            else fetch_tree(transport, prefix, target, told)
        )
        note_use(target, launch.clock.wall_seconds_until(launch.deadline))
    except (OSError, ValueError) as error:
        why = f"the input {name} ({prefix[:20]}) cannot be fetched: {error}"
        if isinstance(error, ValueError) and kind not in {hub.KIND, mount.KIND}:
            why += f". To send it again: schedctl queue update {order.job} --input {name}"
        raise Failure("network" if kind == hub.KIND and isinstance(error, ConnectionError) else "store", why) from None
    spent = stopwatch() - began
    log(lane, f"input {name}: {len(found.entries)} files, {found.bytes / 1e9:.2f} GB, checked, {spent:.0f} s")
    return str(target)
