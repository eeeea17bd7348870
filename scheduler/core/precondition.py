"""Preconditions of a launch: what may be missing when a planned session is due."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Precondition(StrEnum):
    """What a launch waits for. A value in an event or a plan is never renamed.

    ``words`` is the end of a sentence; ``comes_by_itself`` says whether the daemon's own work will meet it.
    """

    words: str
    comes_by_itself: bool

    def __new__(cls, name: str, words: str = "", *by_itself: bool) -> Self:
        """Return the member of a stored name."""
        member = str.__new__(cls, name)
        member._value_, member.words, member.comes_by_itself = name, words, any(by_itself)
        return member

    DATA = "data", "its training data is not made yet", True
    INPUTS = "inputs", "its inputs are not in the artifact store yet", True
    PACKAGES = "packages", "its packages are not in the artifact store yet", True
    PLATFORM = "platform", "the platform of the pool is not opened yet", True
    QUOTA_READING = "quota_reading", "the quota of the pool has not been read", True
    PARENT = "parent", "no checkpoint is left that it can start from"
    ROOM = "room", "the pool has less room than was planned"
    BUDGET = "budget", "the budget of its sweep leaves less than a session needs"
    TIME = "time", "less than half of the planned session was left"
    CLEANING = "cleaning", "old checkpoints of it are being deleted", True
    REQUEST = "request", "a secret or the artifact store failed when the launch was prepared"
