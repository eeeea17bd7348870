"""Shares: whether what jobs say of the hours that they have together can be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.spec import Share


def wrong_share(name: str, shares: Mapping[str, Share | None]) -> str:
    """Return why the share of the job ``name`` cannot be kept, and what to do; empty when it can, or it has none.

    ``shares`` has all jobs. Who shares with a job leaves it the rest, so nobody shares with one that shares itself.
    """
    share = shares.get(name)
    if share is None:
        return ""
    partner = share.partner
    if partner not in shares:
        return f"there is no job {partner} to share hours with. Add {partner} first"
    other = shares[partner]
    if other is not None:
        root = other.partner if other.partner != name else partner
        return f"{partner} shares its hours with {other.partner} already. Let one of them keep the rest, as {root}"
    taken = sum(one.percent for one in shares.values() if one is not None and one.partner == partner)
    if taken >= 100:
        return f"those who share with {partner} take {taken:g} % together. Leave {partner} something of its hours"
    return ""
