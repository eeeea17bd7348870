"""What a rehearsal has in place of Kaggle: the shipped emulator on the rehearsal's clock, or somebody else's."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platforms.base import Misconfigured
from platforms.registry import checkup
from scheduler import clock
from scheduler.app import App
from scheduler.rehearsal.emulator import Emulator, answers, free_port
from scheduler.rehearsal.folder import Rehearsal, RehearsalError

_OWNER = "rehearsal"
_CREDENTIALS = "kaggle.json"
_PLATFORM = "kaggle"
_IDLE_SECONDS = 20
# Real seconds on the loopback interface, where nothing is far away and a scheduled hour may pass in one of them.
_HASTE = {
    "call_seconds": "5",
    "upload_seconds": "3",
    "push_seconds": "5",
    "settle_seconds": "0",
    "ready_seconds": "10",
    "pause_milliseconds": "50",
    "idle_milliseconds": "100",
}
# Neither what somebody else's kernels can reach is known, nor how late a push may take effect.
_FOREIGN = {"checkpoints": "relay", "settle_seconds": "3"}


def stand_in(base: dict[str, Any], folder: Path, proxy: str) -> None:
    """Point every pool of Kaggle to a stand-in: the one at ``proxy``, or else one of our own.

    With a proxy the credentials are taken from the environment, and a pool named kaggle becomes one of Kaggle's. What
    cannot work is refused: raises RehearsalError, Misconfigured.
    """
    pools = [
        {**pool, "platform": _PLATFORM} if proxy and pool.get("name") == _PLATFORM else pool for pool in base["pools"]
    ]
    if proxy and not any(pool.get("platform") == _PLATFORM for pool in pools):
        raise RehearsalError("--kaggle-proxy: no pool is one of Kaggle's. Name one kaggle")
    if proxy and not answers(proxy):
        raise RehearsalError(f"--kaggle-proxy: nobody listens at {proxy}. Start the server first")
    address = proxy or f"http://127.0.0.1:{free_port()}"
    # Kernels of the shipped emulator reach the artifact folder as those of Kaggle reach an object store.
    own = _FOREIGN if proxy else {"checkpoints": "direct", "credentials": str(folder / _CREDENTIALS)}
    base["pools"] = [
        {**pool, "options": {**_HASTE, **own, **pool.get("options", {}), "emulator": address}}
        if pool.get("platform") == _PLATFORM
        else pool
        for pool in pools
    ]
    for pool in base["pools"]:
        if proxy and pool.get("platform") == _PLATFORM:
            _look(pool["options"])


def _look(options: Mapping[str, str]) -> None:
    """Show our credentials to somebody else's server. One that gives no answer just now may do so later."""
    try:
        checkup(_PLATFORM, options, os.environ, clock.real_now(), probe=False)["credentials"]()
    except Misconfigured as error:
        remedy = f". {error.remedy}" if error.remedy else ""
        raise RehearsalError(f"--kaggle-proxy: {error.why}{remedy}") from None


def emulator_of(rehearsal: Rehearsal, app: App) -> Emulator | None:
    """Return the shipped emulator that the rehearsal's settings point to, if it does not run yet."""
    credentials = rehearsal.folder / _CREDENTIALS
    pools = [pool for pool in app.settings.pools if pool.options.get("credentials") == str(credentials)]
    if not pools or answers(pools[0].options["emulator"]):
        return None
    hours = max((quota.limit_seconds for quota in pools[0].quotas), default=108_000) / 3_600
    figures = {
        "--port": pools[0].options["emulator"].rpartition(":")[2],
        "--owner": _OWNER,
        "--epoch": rehearsal.epoch,
        "--origin": rehearsal.origin,
        "--scale": rehearsal.scale,
        "--gpu-hours": hours,
        "--idle-seconds": _IDLE_SECONDS,
    }
    options = [str(word) for pair in figures.items() for word in pair]
    command = [sys.executable, "-m", "platforms.emulators.kaggle", str(rehearsal.folder / "kaggle"), *options]
    return Emulator("Kaggle", command, rehearsal.folder / "kaggle.log", f"{_key(credentials)}\n")


def _key(file: Path) -> str:
    """Return the API key of the emulated account, making one the first time."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(json.dumps({"username": _OWNER, "key": secrets.token_hex(16)}))
    return str(json.loads(file.read_text())["key"])
