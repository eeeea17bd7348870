"""Put in place what a lane's command starts from: devices, data, its own code, its checkpoint or another's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..clock import stopwatch
from ..log import log
from ..store import hub, mount
from ..store.listing import unpack
from ..store.manifest import split_key
from ..store.publish import Restored, restore
from ..store.transport import Transport
from ..store.tree import by_gigabytes, fetch_tree, note_use
from .failure import Failure
from .gpus import check_devices
from .launch import LaneOrder, Launch
from .output import OUTPUT
from .secret_values import secrets_of
from .status import LaneStatus


class Prepared(NamedTuple):
    """What stands when the command can start."""

    devices: tuple[str, ...]
    data: str  # the folder of its data; empty: it has none
    inputs: Mapping[str, str]  # the folder of each, by the variable that names it
    restored: Restored
    parent: str  # the folder of the weights it begins with; empty: it has none, or goes on from its own
    environment: Path | None  # of its own packages; None: the image's are all there is
    secrets: Mapping[str, str]  # by the variable that holds each


def prepare(launch: Launch, order: LaneOrder, transport: Transport, folder: Path, status: LaneStatus) -> Prepared:
    """Check the devices, get secrets, data and inputs, unpack the code, install packages, restore a checkpoint.

    Raises Failure.
    """
    devices = check_devices(launch.expected_devices)
    secrets = secrets_of(order.secrets, launch.secrets, launch.secret_store)
    try:
        data = str(transport.folder(order.data)) if order.data else ""
    except (OSError, ValueError) as error:
        raise Failure("data", f"the data {order.data!r} cannot be found: {error}") from None
    inputs = fetch_inputs(launch, order, transport, secrets.get("HF_TOKEN"))
    _unpack_code(transport, order, folder / "command")
    environment = None
    if order.packages is not None:
        from .environment import build  # loads what few sessions need

        environment = build(launch, order, order.packages, transport)
    if order.whole:
        try:
            (folder / "command" / OUTPUT).mkdir(exist_ok=True)
        except OSError as error:
            raise Failure("code", f"the command's folder for its output cannot be made: {error}") from None
    status.phase = "restoring" if order.restore or order.parent else "starting"
    parent = "" if order.restore else _restore_parent(transport, order, folder / "parent")
    try:
        restored = restore(transport, order.job, order.restore, folder / "resume")
    except OSError as error:
        raise Failure("store", f"the checkpoint cannot be put into {folder}: {error}") from None
    return Prepared(devices, data, inputs, restored, parent, environment, secrets)


def _unpack_code(transport: Transport, order: LaneOrder, target: Path) -> None:
    """Put a fresh copy of a lane's code into the empty folder in which its command starts."""
    if order.code:
        try:
            unpack(transport.folder(order.code), order.code.rpartition("/")[2], target)
        except OSError as error:
            raise Failure("store", f"the code {order.code!r} cannot be unpacked: {error}") from None
        except ValueError as error:
            why = f"the code {order.code!r} is damaged: {error}. To send it again: schedctl queue update {order.job}"
            raise Failure("store", why) from None


def _restore_parent(transport: Transport, order: LaneOrder, target: Path) -> str:
    if not order.parent:
        return ""
    named = split_key(order.parent)
    if named is None:
        raise Failure("parent", f"{order.parent!r} is no manifest, so there is nothing to begin with")
    try:
        restored = restore(transport, named[0], (order.parent,), target)
    except OSError as error:
        raise Failure("store", f"the parent's checkpoint cannot be put into {target}: {error}") from None
    if restored.manifest is None:
        why = "; ".join(why for _, why in restored.bad)
        raise Failure("parent", f"the parent's checkpoint {order.parent} cannot be used: {why}")
    return str(target)


# A lane's inputs: folders that are fetched once for all who need them on this machine, checked, and only read.
PURPOSE = "input."  # what begins so is an input, and the rest is its name


def fetch_inputs(launch: Launch, order: LaneOrder, transport: Transport, token: str | None = None) -> dict[str, str]:
    """Return where each input of a lane is, by the variable that tells its command. Raises Failure.

    ``token`` opens repositories of the Hub; None: the one of the environment, if any.
    """
    result: dict[str, str] = {}
    for purpose, prefix in sorted(order.trees.items()):
        if purpose.startswith(PURPOSE):
            name = purpose[len(PURPOSE) :]
            result[f"SCHED_INPUT_{name.upper()}"] = _fetch(launch, order, transport, name, prefix, token)
    return result


def _fetch(launch: Launch, order: LaneOrder, transport: Transport, name: str, prefix: str, token: str | None) -> str:
    lane, target = order.lane, launch.cache / prefix.replace("/", "-")
    began = stopwatch()
    kind = prefix.partition("/")[0]
    try:
        if kind == mount.KIND:
            mounted = mount.find_mounted(transport, prefix, target, launch.mounts)
            log(lane, f"input {name}: {mounted.source}, attached at {mounted.folder}, its sizes are those listed")
            return str(mounted.folder)
        report_size = by_gigabytes(lambda size: log(lane, f"input {name}: {size}"))
        opens = os.environ.get("HF_TOKEN", "") if token is None else token
        source = (
            hub.fetch_repository(transport, prefix, target, report_size, opens)
            if kind == hub.KIND
            else fetch_tree(transport, prefix, target, report_size)
        )
        note_use(target, launch.clock.wall_seconds_until(launch.deadline))
    except (OSError, ValueError) as error:
        why = f"the input {name} ({prefix[:20]}) cannot be fetched: {error}"
        if isinstance(error, ValueError) and kind not in {hub.KIND, mount.KIND}:
            why += f". To send it again: schedctl queue update {order.job} --input {name}"
        raise Failure("network" if kind == hub.KIND and isinstance(error, ConnectionError) else "store", why) from None
    spent = stopwatch() - began
    log(lane, f"input {name}: {len(source.entries)} files, {source.bytes / 1e9:.2f} GB, checked, {spent:.0f} s")
    return str(target)
