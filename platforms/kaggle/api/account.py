"""An account: credentials, the wire and the client of one pool, put together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs.payload.whole_file import write_whole
from platforms.base import Misconfigured
from platforms.kaggle.api.client import KaggleClient, KagglePublished
from platforms.kaggle.api.wire import Wire, import_library
from platforms.kaggle.settings import Credentials, KaggleSettings, read_credentials, read_settings
from platforms.record_file import DamagedRecord, read_record
from platforms.registry import PlatformContext

_FILE = "account.json"
REMEDY = "Give all Kaggle pools credentials of one account, or disable the others (enabled = false)"


def open_published(settings: Mapping[str, str], environ: Mapping[str, str]) -> KagglePublished:
    """Return what the account of a pool with these settings may see. Raises Misconfigured, ImportError."""
    return open_account(read_settings(settings), environ).published


def open_account(settings: KaggleSettings, environ: Mapping[str, str]) -> KaggleClient:
    """Return Kaggle as the account of a pool sees it, without asking Kaggle. Raises Misconfigured, ImportError."""
    import_library()
    from kagglesdk.kaggle_env import get_env

    try:
        get_env()
    except Exception as error:
        raise Misconfigured("kaggle", "load", str(error), "Unset it, or set it to PROD") from error
    wire = Wire(read_credentials(settings.credentials, environ), settings.emulator, settings.call_seconds)
    return KaggleClient(wire, settings.tries, settings.pause_seconds)


# The account of a pool, kept between daemons, because two accounts of one owner are refused.
#
# A legacy key names its account. Of an access token only Kaggle tells it, so the answer is kept in the pool's folder,
# beside a digest of the token that it belongs to.
@dataclass(frozen=True, slots=True)
class _Kept:
    username: str
    credential: str


def account_name(settings: Mapping[str, str], environ: Mapping[str, str], state_folder: Path) -> str:
    """Return the account of a pool without asking Kaggle; "" while it is not known. Raises Misconfigured."""
    credentials = read_credentials(settings.get("credentials", ""), environ)
    if credentials.username:
        return credentials.username
    try:
        kept = read_record(state_folder, _FILE, _Kept)
    except (DamagedRecord, OSError):
        return ""
    return kept.username if kept is not None and kept.credential == _digest(credentials) else ""


def require_one_account(client: KaggleClient, context: PlatformContext) -> str:
    """Return the account's name as Kaggle tells it, and keep it.

    Raises Misconfigured when another pool is of another account, and Unreachable.
    """
    name, credentials = client.owner(), client.wire.credentials
    if not credentials.username:
        kept = _Kept(name, _digest(credentials))
        write_whole(context.state_folder / _FILE, json.dumps(asdict(kept)))  # before the comparison: others see it
    for pool, other in context.accounts().items():
        if other.lower() != name.lower():
            why = f"this pool is of the account {name}, and the pool {pool} is of the account {other}"
            raise Misconfigured("kaggle", "log in", f"{why}: one owner has one account", REMEDY)
    return name


def _digest(credentials: Credentials) -> str:
    return hashlib.sha256(credentials.token.encode()).hexdigest()[:16]
