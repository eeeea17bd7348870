"""Closure causes: why a pool is closed. Code decides by the cause; sentences are for people only."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why a pool is closed. A stored value is never renamed."""

    PERSON = "person"
    CREDENTIALS = "credentials"  # the platform cannot be created, or rejects our credentials
    QUOTA_UNREADABLE = "quota_unreadable"
    QUOTA_REFUSED = "quota_refused"  # unreadable until a person corrects our access
    QUOTA_DENIED = "quota_denied"  # the platform refused a launch for lack of quota
    REFUSED = "refused"  # the platform refused a launch for now
    WRONG_DEVICE = "wrong_device"
    NEVER_BEGAN = "never_began"  # a session ended before its job's command began
    PLANNING = "planning"  # the planner fails with the pool

    @property
    def waits_for_person(self) -> bool:
        """Whether a person must correct something outside; the pool then opens by itself."""
        return self in {Cause.CREDENTIALS, Cause.QUOTA_REFUSED}

    @property
    def of_quota_reading(self) -> bool:
        """Whether the pool opens when its platform's usage records can be read."""
        return self in {Cause.QUOTA_UNREADABLE, Cause.QUOTA_REFUSED}
