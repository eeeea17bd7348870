"""The account of a pool: create its client from credentials and settings, and record the account's name."""

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
    """Return the published models and datasets that a pool's account can access. Raises Misconfigured, ImportError."""
    return open_account(read_settings(settings), environ).published


def open_account(settings: KaggleSettings, environ: Mapping[str, str]) -> KaggleClient:
    """Return the client for a pool's account; makes no call. Raises Misconfigured, ImportError."""
    import_library()
    from kagglesdk.kaggle_env import get_env

    try:
        get_env()
    except Exception as error:
        raise Misconfigured("kaggle", "load", str(error), "Unset it, or set it to PROD") from error
    wire = Wire(read_credentials(settings.credentials, environ), settings.emulator, settings.call_seconds)
    return KaggleClient(wire, settings.tries, settings.pause_seconds, settings.quota)


# All Kaggle pools must use one account. So a pool's account name is stored where other pools can read it.
#
# A legacy key contains its account name. For an access token only Kaggle knows it: the answer is stored in the pool's
# folder with a digest of the token.
@dataclass(frozen=True, slots=True)
class _AccountRecord:
    username: str
    credential: str


def account_name(settings: Mapping[str, str], environ: Mapping[str, str], state_folder: Path) -> str:
    """Return the account name of a pool without a call to Kaggle; "" if it is unknown. Raises Misconfigured."""
    credentials = read_credentials(settings.get("credentials", ""), environ)
    if credentials.username:
        return credentials.username
    try:
        record = read_record(state_folder, _FILE, _AccountRecord)
    except (DamagedRecord, OSError):
        return ""
    return record.username if record is not None and record.credential == _digest(credentials) else ""


def require_one_account(client: KaggleClient, context: PlatformContext) -> str:
    """Query, store and return the account's name. Raises Misconfigured if a pool uses another one, Unreachable."""
    name, credentials = client.owner(), client.wire.credentials
    if not credentials.username:
        record = _AccountRecord(name, _digest(credentials))
        write_whole(context.state_folder / _FILE, json.dumps(asdict(record)))  # first, because other pools read it
    for pool, other in context.accounts().items():
        if other.lower() != name.lower():
            why = f"this pool is of the account {name}, and the pool {pool} is of the account {other}"
            raise Misconfigured("kaggle", "log in", f"{why}: Kaggle allows one account per person", REMEDY)
    return name


def _digest(credentials: Credentials) -> str:
    return hashlib.sha256(credentials.token.encode()).hexdigest()[:16]
