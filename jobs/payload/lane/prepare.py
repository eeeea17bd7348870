"""Put in place what a lane's command starts from: devices, data, its own code, its checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..store.code import unpack
from ..store.restore import Restored, restore
from .devices import check_devices
from .failure import Failure

if TYPE_CHECKING:
    from pathlib import Path

    from ..store.transport import Transport
    from .launch import LaneOrder, Launch
    from .status import Status


class Prepared(NamedTuple):
    """What stands when the command can start."""

    devices: tuple[str, ...]
    data: str  # the folder of its data; empty: it has none
    restored: Restored


def prepare(launch: Launch, order: LaneOrder, transport: Transport, folder: Path, status: Status) -> Prepared:
    """Check the devices, find the data, unpack the code, restore the checkpoint. Raises Failure."""
    devices = check_devices(launch.expected_devices)
    data = _find_data(transport, order)
    _unpack_code(transport, order, folder / "command")
    status.phase = "restoring" if order.restore else "starting"
    return Prepared(devices, data, _restore(transport, order, folder / "resume"))


def _find_data(transport: Transport, order: LaneOrder) -> str:
    try:
        return str(transport.folder(order.data)) if order.data else ""
    except (OSError, ValueError) as error:
        raise Failure("data", f"the data {order.data!r} cannot be found: {error}") from None


def _unpack_code(transport: Transport, order: LaneOrder, target: Path) -> None:
    """Put a fresh copy of a lane's code into the empty folder in which its command starts."""
    if order.code:
        try:
            unpack(transport.folder(order.code), order.code.rpartition("/")[2], target)
        except (OSError, ValueError) as error:
            raise Failure("store", f"the code {order.code!r} cannot be unpacked: {error}") from None


def _restore(transport: Transport, order: LaneOrder, target: Path) -> Restored:
    try:
        return restore(transport, order.job, order.restore, target)
    except OSError as error:
        raise Failure("store", f"the checkpoint cannot be put into {target.parent}: {error}") from None
