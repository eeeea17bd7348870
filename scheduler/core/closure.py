"""Closure causes: the reasons for which a pool is closed, as code decides by them; sentences are for people alone."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why a pool is closed. A stored value is never renamed."""

    PERSON = "person"
    CREDENTIALS = "credentials"  # the platform cannot be made, or does not let us in
    QUOTA_UNREADABLE = "quota_unreadable"
    QUOTA_REFUSED = "quota_refused"  # unreadable until a person mends our access
    QUOTA_DENIED = "quota_denied"  # the platform refused a launch for want of quota
    REFUSED = "refused"  # the platform refused a launch for now
    WRONG_DEVICE = "wrong_device"
    NEVER_BEGAN = "never_began"  # a session ended before the command of its job had begun
    PLANNING = "planning"  # no plan can be made with the pool

    @property
    def waits_for_person(self) -> bool:
        """Whether a person must mend something outside; the pool opens by itself when that was done."""
        return self in {Cause.CREDENTIALS, Cause.QUOTA_REFUSED}

    @property
    def of_quota_reading(self) -> bool:
        """Whether the pool opens when its platform's usage records can be read."""
        return self in {Cause.QUOTA_UNREADABLE, Cause.QUOTA_REFUSED}
