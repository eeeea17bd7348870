"""Checks of a SkyPilot server for `schedctl doctor skypilot`. Nothing is launched."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from jobs.payload.deadline import header_date
from platforms.base import Checked, check_clock
from platforms.skypilot.server import ApiServer
from platforms.skypilot.settings import DOC, SkyPilotSettings, read_settings

_TESTED = re.compile(r"0\.14\.\d+")


def checks(
    settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the checks of one pool by name; ``now`` is real UTC seconds. A check raises PlatformError if it fails."""
    del environ, probe
    chosen = read_settings(settings, Path())
    server = ApiServer(chosen)
    cloud = chosen.infra.partition("/")[0].strip("*")
    checks_by_name: dict[str, Callable[[], Checked]] = {
        "server": partial(_server, server),
        "clouds": partial(_clouds, server, cloud),
        "clock": partial(_clock, server, now),
    }
    if chosen.accelerator:
        checks_by_name["catalogue"] = partial(_price, server, chosen)
    return checks_by_name


def _server(server: ApiServer) -> Checked:
    health, _ = server.health()
    status, version = str(health.get("status")), str(health.get("version"))
    if status != "healthy":
        return Checked("bad", f"version {version} says it is {status}", f"Set token_file, see {DOC}")
    if not _TESTED.fullmatch(version):
        return Checked("warning", f"SkyPilot {version}, which was not tried", "Use 0.14, or try one job first")
    return Checked("ok", f"SkyPilot {version} is {status}")


def _clouds(server: ApiServer, cloud: str) -> Checked:
    enabled = server.clouds()
    if not enabled:
        return Checked("bad", "no cloud is enabled", "Give the server credentials of one, then: sky check")
    words = ", ".join(enabled)
    if cloud and cloud.lower() not in {one.lower() for one in enabled}:
        return Checked("bad", f"{cloud} is not enabled, but {words}", "Correct the option infra, or run: sky check")
    return Checked("ok", words)


def _price(server: ApiServer, chosen: SkyPilotSettings) -> Checked:
    priced, name = server.offers(1), chosen.accelerator
    if not priced:
        return Checked("warning", f"no price of one {name} is in the catalogue", "Set price_per_hour yourself")
    spot = ", spot" if chosen.use_spot else ""
    words = f"one {name} from ${priced[0].dollars:.2f} an hour ({priced[0].place}){spot}"
    if not chosen.max_hourly_cost:
        return Checked("ok", f"{words}; the cheapest is booked and launched, unless price_per_hour is set")
    most = float(chosen.max_hourly_cost)
    if priced[0].dollars > most:
        return Checked("bad", f"{words}, and max_hourly_cost allows ${most:.2f}", "Raise max_hourly_cost")
    return Checked("ok", f"{words}; booked is the dearest up to ${most:.2f}, unless price_per_hour is set")


def _clock(server: ApiServer, now: float) -> Checked:
    return check_clock(header_date(server.health()[1]), now, "the server")
