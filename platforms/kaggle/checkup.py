"""The checks of a Kaggle pool for `schedctl doctor`: library, credentials, quota, clock, accelerator and uploads."""

import re
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from platforms.base import Checked, Misconfigured, Unreachable, check_clock
from platforms.kaggle.api.account import open_account
from platforms.kaggle.api.client import KaggleClient
from platforms.kaggle.api.wire import Denied
from platforms.kaggle.settings import read_settings

_TESTED = re.compile(r"0\.1\.(37|38)")
_RETIRED = frozenset({"NvidiaTeslaP100", "TpuV38", "Tpu1VmV38", "TpuV232", "TpuV2256"})
_NO_ANSWER = "Try again; if this persists, check the network of this machine and status.kaggle.com"


def checks(
    settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the checks of one pool by name; ``now`` is real UTC seconds. A check may raise PlatformError."""
    del probe
    chosen = read_settings(settings)
    try:
        client = open_account(chosen, environ)
    except Misconfigured as error:
        return {"library": _library, "credentials": partial(_fail, error)}  # the other checks need a client
    kaggle_checks: dict[str, Callable[[], Checked]] = {
        "library": _library,
        "credentials": partial(_credentials, client),
        "quota": partial(_quota, client),
        "clock": partial(_clock, client, now),
        "accelerator": partial(_accelerator, chosen.machine_shape),
        "uploads": partial(_uploads, client, chosen.call_seconds),
    }
    return {name: partial(_run_check, check) for name, check in kaggle_checks.items()}


def _run_check(check: Callable[[], Checked]) -> Checked:
    """Return the result of a check, which is "bad" if Kaggle does not answer or denies the call."""
    try:
        return check()
    except Unreachable as error:
        return Checked("bad", f"{error.action}: {error.why}", error.remedy or _NO_ANSWER)
    except Denied as error:
        return Checked("bad", str(error), "Check in the browser that the account's phone number is verified")


def _fail(error: Misconfigured) -> Checked:
    raise error


def _library() -> Checked:
    core, client = _installed("kagglesdk"), _installed("kaggle")
    if not _TESTED.match(core):
        return Checked("warning", f"kagglesdk {core} is not a tested version", "Install kagglesdk 0.1.37 or 0.1.38")
    if client and not _installed("six"):
        return Checked("warning", f"kaggle {client} cannot be imported without six", "Run: pip install six")
    return Checked("ok", f"kagglesdk {core}; Kaggle's own client: {client or 'not installed, and not needed'}")


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _credentials(client: KaggleClient) -> Checked:
    owner = client.owner()
    client.week()  # proves that Kaggle accepts the credentials; the owner of a key is known without a call
    return Checked("ok", f"{owner}, by {client.wire.credentials.origin}")


def _quota(client: KaggleClient) -> Checked:
    week = client.week()
    left = max(0, week.left_seconds)
    result = f"{left / 3600:.1f} of {week.limit_seconds / 3600:.1f} {client.quota.upper()} hours are left this week"
    return Checked("ok", result) if left else Checked("warning", result, "Wait for the weekly refresh")


def _clock(client: KaggleClient, now: float) -> Checked:
    client.week()  # any call: its answer brings Kaggle's time
    return check_clock(client.wire.clock_shown, now, "Kaggle")


def _accelerator(shape: str) -> Checked:
    replacement = "TpuV5E8" if shape.startswith("Tpu") else "NvidiaTeslaT4"
    if shape in _RETIRED:
        return Checked("warning", f"{shape} is retired and silently replaced", f"Set machine_shape = {replacement}")
    return Checked("ok", shape or "none: CPU kernels")


def _uploads(client: KaggleClient, seconds: int) -> Checked:
    with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
        file = Path(folder) / "doctor.bin"
        file.write_bytes(b"?")
        client.datasets.upload(file, file.name, seconds)
    return Checked("ok", "a file was taken")
