"""What a lane's command starts from besides its checkpoint: its data, and its own code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store.code import unpack
from .failure import Failure

if TYPE_CHECKING:
    from pathlib import Path

    from ..store.transport import Transport
    from .launch import LaneOrder


def find_data(transport: Transport, order: LaneOrder) -> str:
    """Return the folder of a lane's data, nothing when it has none. Raises Failure."""
    try:
        return str(transport.folder(order.data)) if order.data else ""
    except (OSError, ValueError) as error:
        raise Failure("data", f"the data {order.data!r} cannot be found: {error}") from None


def unpack_code(transport: Transport, order: LaneOrder, target: Path) -> None:
    """Put a fresh copy of a lane's code into the empty folder in which its command starts. Raises Failure."""
    if order.code:
        try:
            unpack(transport.folder(order.code), order.code.rpartition("/")[2], target)
        except (OSError, ValueError) as error:
            raise Failure("store", f"the code {order.code!r} cannot be unpacked: {error}") from None
