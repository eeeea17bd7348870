"""Preconditions of a launch: what may be missing when a planned session is due."""

from __future__ import annotations

from enum import StrEnum


class Precondition(StrEnum):
    """What a launch waits for. A value in an event or a plan is never renamed."""

    DATA = "data"
    INPUTS = "inputs"
    PACKAGES = "packages"
    PLATFORM = "platform"
    QUOTA_READING = "quota_reading"
    PARENT = "parent"
    ROOM = "room"
    TIME = "time"
    CLEANING = "cleaning"
    REQUEST = "request"

    @property
    def words(self) -> str:
        """The precondition as the end of a sentence."""
        return _WORDS[self]

    @property
    def comes_by_itself(self) -> bool:
        """Whether the daemon's own work will meet it."""
        return self in {
            Precondition.DATA,
            Precondition.INPUTS,
            Precondition.PACKAGES,
            Precondition.PLATFORM,
            Precondition.QUOTA_READING,
            Precondition.CLEANING,
        }


_WORDS = {
    Precondition.DATA: "its training data is not made yet",
    Precondition.INPUTS: "its inputs are not in the artifact store yet",
    Precondition.PACKAGES: "its packages are not in the artifact store yet",
    Precondition.PLATFORM: "the platform of the pool is not opened yet",
    Precondition.QUOTA_READING: "the quota of the pool has not been read",
    Precondition.PARENT: "no checkpoint is left that it can start from",
    Precondition.ROOM: "the pool has less room than was planned",
    Precondition.TIME: "less than half of the planned session was left",
    Precondition.CLEANING: "old checkpoints of it are being deleted",
    Precondition.REQUEST: "a secret or the artifact store failed when the launch was prepared",
}
