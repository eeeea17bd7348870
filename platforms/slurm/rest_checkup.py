"""A look at slurmrestd, and at the pool's folder, before anything depends on them. Nothing is submitted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from platforms.base import Checked
from platforms.slurm.rest import Rest
from platforms.slurm.skew import skew

if TYPE_CHECKING:
    from collections.abc import Callable

    from platforms.slurm.settings import Settings
    from platforms.slurm.way import Way

_SOON_SECONDS = 86_400


def rest_checks(chosen: Settings, now: float) -> dict[str, Callable[[], Checked]]:
    """Return the checks of a pool that asks slurmrestd; ``now`` is real UTC seconds. What fails raises PlatformError.

    Whether Slurm would take a job like ours, the API cannot be asked.
    """
    rest = Rest(chosen)
    return {
        "slurmrestd": partial(_controller, rest, now),
        "nodes": partial(_nodes, rest, chosen.partition),
        "clock": partial(_clock, rest, now),
        "account": partial(
            Checked, "ok", "slurmrestd tells no limits: what the pool may use are its declared quotas and devices_max"
        ),
        "folder": partial(check_folder, rest, chosen.folder),
    }


def check_folder(way: Way, folder: str) -> Checked:
    """Look at what the pool's folder is on. Raises PlatformError."""
    kind = way.ask("look at the folder", 'mkdir -p -- "$root" && [ -w "$root" ] && stat -f -c %T "$root"').strip()
    if kind in {"ext2/ext3", "xfs", "btrfs", "tmpfs", "overlayfs"}:
        remedy = "Nothing on a cluster of one machine; else choose a folder of a shared file system"
        return Checked("warning", f"{folder} is on {kind}, which nodes seldom share", remedy)
    return Checked("ok", f"{folder} on {kind}; whether nodes share it is seen with the first job")


def _controller(rest: Rest, now: float) -> Checked:
    told = rest.api.get("/ping").get("pings")
    pings = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    words = "; ".join(f"{one.get('hostname')} ({one.get('mode')}) is {one.get('ping')}" for one in pings)
    if not any(one.get("ping") == "UP" for one in pings):
        return Checked("bad", words or "it names no controller", "Ask the cluster's administrator")
    words += f"; jobs run as {rest.api.user(now)}"
    left = rest.api.left(now)
    if left is not None and left < _SOON_SECONDS:
        return Checked("warning", f"{words}; its token is good for {left} s", "Write a new one: scontrol token")
    return Checked("ok", words)


def _nodes(rest: Rest, partition: str) -> Checked:
    told = rest.api.get("/nodes").get("nodes")
    nodes = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    nodes = [one for one in nodes if not partition or partition in (one.get("partitions") or ())]
    if not nodes:
        return Checked("bad", f"there are no nodes in {partition or 'any partition'}", "Correct the option partition")
    words = "; ".join(f"{one.get('name')} {one.get('state')} ({one.get('gres') or 'no GPUs'})" for one in nodes)
    # "idle" of a drained node is told with its flags.
    if not any(one.get("state") in {"idle", "mixed", "allocated"} and not _is_out(one) for one in nodes):
        return Checked("warning", words[:500], "Jobs wait until a node comes back")
    return Checked("ok", words[:500])


def _is_out(node: dict[str, object]) -> bool:
    flags = node.get("state_flags")
    return isinstance(flags, list) and bool({"DRAIN", "NOT_RESPONDING", "FAIL", "POWERED_DOWN"} & set(map(str, flags)))


def _clock(rest: Rest, now: float) -> Checked:
    if off := skew(str(rest.time()), now, now, 0):
        words = f"the controller's clock is {off:+d} s off; what it tells is corrected by that"
        return Checked("warning", words, "Synchronise both with NTP")
    return Checked("ok", "agrees with the controller's")
