"""Catalogue: what an hour of a pool's sessions costs by SkyPilot's list of offers."""

from __future__ import annotations

import math
from typing import NamedTuple

from platforms.skypilot.server import ApiServer, Failed
from platforms.skypilot.settings import Settings


class Offer(NamedTuple):
    """One offer: dollars an hour, and the cloud and region that make it."""

    dollars: float
    place: str


def offers(server: ApiServer, settings: Settings, devices: int) -> list[Offer]:
    """Return what a session with so many devices may be had for, the cheapest first. Raises Unreachable."""
    infra = str(settings.asked.get("infra", "")).split("/")
    cloud, region = infra[0].strip("*"), (infra[1] if len(infra) > 1 else "").strip("*")
    spot = bool(settings.asked.get("use_spot"))
    found = server.prices(settings.accelerator, devices, cloud, region)
    return sorted(
        Offer(dollars, place) for price, dear, place in found if math.isfinite(dollars := dear if spot else price)
    )


def dearest(server: ApiServer, settings: Settings, devices: int) -> Offer | None:
    """Return the dearest offer within max_hourly_cost, without that the cheapest one; None when nothing has a price.

    What is booked must not be less than what may be launched. Raises Unreachable when the server cannot be asked.
    """
    try:
        known = [offer for offer in offers(server, settings, devices) if offer.dollars > 0]
    except Failed:  # it has no catalogue of that cloud
        return None
    most = settings.asked.get("max_hourly_cost")
    if most is None:
        return known[0] if known else None
    return max((offer for offer in known if offer.dollars <= most), default=None)
