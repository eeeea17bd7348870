"""A look at an account before anything depends on it: what `schedctl doctor kaggle` asks."""

from __future__ import annotations

import re
import secrets
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from platforms.base import Checked, Misconfigured, Unreachable, check_clock
from platforms.kaggle.api.account import Account, open_account
from platforms.kaggle.api.client import Push
from platforms.kaggle.api.wire import Denied
from platforms.kaggle.session.tail import SessionLog, entries_of
from platforms.kaggle.settings import read_settings

_TESTED = re.compile(r"0\.1\.(37|38)")
_RETIRED = frozenset({"NvidiaTeslaP100", "TpuV38", "Tpu1VmV38", "TpuV232", "TpuV2256"})
_PROBE_LOOKS = 100
_PROBE_SECONDS = 60
_CALL_SECONDS = 20
_NO_ANSWER = "Try again; if it stays, look at the network from here and at status.kaggle.com"
# Tells its session, and whether the token that Kaggle puts into notebooks lets it look at its own account.
_PROBE = """import json, os, threading, urllib.request
print("##uff-scheduler##", json.dumps({"begins": "probe", "container": os.environ.get("KAGGLE_CONTAINER_NAME", "")}))
codes = []
def ask():
    at_home = os.environ.get("KAGGLE_API_ENVIRONMENT") == "LOCALHOST"
    base = "http://localhost/api" if at_home else "https://api.kaggle.com"
    token = open(os.environ["KAGGLE_API_V1_TOKEN"]).read().strip()
    url = base + "/v1/kernels.KernelsApiService/GetKernelSessionStatus"
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
    asked = urllib.request.Request(url, json.dumps(WHO).encode(), headers)
    codes.append(urllib.request.urlopen(asked, timeout=SECONDS).status)
asking = threading.Thread(target=ask, daemon=True)
asking.start()
asking.join(SECONDS)  # a time-out counts per read: an answer that drips would hold the kernel
print("##uff-scheduler##", json.dumps({"hears": codes == [200]}))
"""


def checks(
    settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the checks of one pool by name, to be called in any order; ``now`` is real UTC seconds.

    ``probe`` adds one that runs a CPU kernel for a moment, which costs no GPU time. What fails raises PlatformError.
    """
    chosen = read_settings(settings)
    try:
        account = open_account(chosen, environ)
    except Misconfigured as error:
        return {"library": _library, "credentials": partial(_fail, error)}  # the rest cannot be asked without
    questions: dict[str, Callable[[], Checked]] = {
        "library": _library,
        "credentials": partial(_credentials, account),
        "quota": partial(_quota, account),
        "clock": partial(_clock, account, now),
        "accelerator": partial(_accelerator, chosen.machine_shape),
        "uploads": partial(_uploads, account, chosen.call_seconds),
    }
    if probe:
        questions["probe"] = partial(_probe, account, chosen.push_seconds)
    return {name: partial(_answered, check) for name, check in questions.items()}


def _answered(check: Callable[[], Checked]) -> Checked:
    """Return what a check found; that Kaggle gave no answer, or said no, is found as well."""
    try:
        return check()
    except Unreachable as error:
        return Checked("bad", f"{error.action}: {error.why}", error.remedy or _NO_ANSWER)
    except Denied as error:
        return Checked("bad", str(error), "Look at the account in the browser: is its phone number verified?")


def _fail(error: Misconfigured) -> Checked:
    raise error


def _library() -> Checked:
    core, client = _installed("kagglesdk"), _installed("kaggle")
    if not _TESTED.match(core):
        return Checked("warning", f"kagglesdk {core} is not what was tested", "Install kagglesdk 0.1.37 or 0.1.38")
    if client and not _installed("six"):
        return Checked("warning", f"kaggle {client} cannot be imported without six", "Run: pip install six")
    return Checked("ok", f"kagglesdk {core}; Kaggle's own client: {client or 'none, and none is needed'}")


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _credentials(account: Account) -> Checked:
    owner = account.client.owner()
    account.client.gpu_week()  # proves that they are taken: a key's owner is known without asking
    return Checked("ok", f"{owner}, by {account.credentials.origin}")


def _quota(account: Account) -> Checked:
    week = account.client.gpu_week()
    left = max(0, week.left_seconds)
    sentence = f"{left / 3600:.1f} of {week.limit_seconds / 3600:.1f} GPU hours are left this week"
    return Checked("ok", sentence) if left else Checked("warning", sentence, "Wait for the refresh")


def _clock(account: Account, now: float) -> Checked:
    account.client.gpu_week()
    return check_clock(account.wire.clock_shown, now, "Kaggle")


def _accelerator(shape: str) -> Checked:
    if shape in _RETIRED:
        return Checked("warning", f"{shape} is retired and silently replaced", "Set machine_shape = NvidiaTeslaT4")
    return Checked("ok", shape or "none: CPU kernels")


def _uploads(account: Account, seconds: int) -> Checked:
    with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
        file = Path(folder) / "doctor.bin"
        file.write_bytes(b"?")
        account.client.datasets.upload(file, file.name, seconds)
    return Checked("ok", "a file was taken")


def probe_source(who: Mapping[str, str], seconds: int) -> str:
    """Return the probe's program, which looks at one session within ``seconds``."""
    return _PROBE.replace("WHO", repr(dict(who))).replace("SECONDS", str(seconds))


def _probe(account: Account, push_seconds: int) -> Checked:
    """Run a kernel that tells its own session id, and delete it."""
    client, slug = account.client, f"uff-probe-{secrets.token_hex(4)}"
    patience = threading.Event()
    source = probe_source({"userName": client.owner(), "kernelSlug": slug}, _CALL_SECONDS)
    push = Push(slug, slug.replace("-", " "), source, (), "", _PROBE_SECONDS, internet=True)
    landed = slug
    try:
        with suppress(Unreachable):  # perhaps it runs: then it is found, and deleted, like any other
            pushed = client.push(push, push_seconds)
            landed = pushed.slug or slug
            if pushed.error or landed != slug:
                return Checked("bad", pushed.error or f"it landed as {landed}", "See docs/kaggle.md")
        for look in range(_PROBE_LOOKS):
            status = client.status(slug)
            if status is not None and status[0] in {"COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED"}:
                break
            patience.wait(min(5.0, 0.05 * 1.5**look))
        else:
            raise Unreachable("kaggle", "probe", f"{slug} did not end", "Look at it in the browser")
        output, log = client.output(slug, ""), SessionLog()
        for _ in log.feed(entries_of(output.log if output else "")):
            pass
    finally:
        try:
            client.delete(landed)
        except (Denied, Unreachable) as error:
            why = f"the kernel {landed} may still be there: {error}"
            raise Unreachable("kaggle", "probe", why, "Delete it in the browser") from None
    if log.session_id is None:
        return Checked("warning", "a kernel does not know its session: forced stops delete it, and lose its log")
    if not log.hears:
        sentence = f"a kernel ran and told its session, {log.session_id}, but it has no rights to read its account"
        return Checked("warning", sentence, "In relay mode it cannot be asked to save: see docs/kaggle.md, Stopping")
    return Checked("ok", f"a kernel ran, told its session, {log.session_id}, and may look at its account")
