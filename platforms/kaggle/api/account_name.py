"""Account name: the account of a pool, kept between daemons, because two accounts of one owner are refused.

A legacy key names its account. Of an access token only Kaggle tells it, so the answer is kept in the pool's folder,
beside a digest of the token that it belongs to.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from platforms.base import Misconfigured
from platforms.kaggle.api.credentials import read_credentials
from platforms.record_file import DamagedRecord, read_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from platforms.kaggle.api.account import Account
    from platforms.kaggle.api.credentials import Credentials
    from platforms.registry import PlatformContext

_FILE = "account.json"
REMEDY = "Give all Kaggle pools credentials of one account, or disable the others (enabled = false)"


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
        kept = read_record(state_folder, _FILE, lambda document: _Kept(**document))
    except (DamagedRecord, OSError):
        return ""
    return kept.username if kept is not None and kept.credential == _digest(credentials) else ""


def require_one_account(account: Account, context: PlatformContext) -> str:
    """Return the account's name as Kaggle tells it, and keep it.

    Raises Misconfigured when another pool is of another account, and Unreachable.
    """
    name, credentials = account.client.owner(), account.credentials
    if not credentials.username:
        _keep(context.state_folder / _FILE, _Kept(name, _digest(credentials)))  # before the comparison: others see it
    for pool, other in context.accounts().items():
        if other.lower() != name.lower():
            why = f"this pool is of the account {name}, and the pool {pool} is of the account {other}"
            raise Misconfigured("kaggle", "log in", f"{why}: one owner has one account", REMEDY)
    return name


def _keep(file: Path, kept: _Kept) -> None:
    temporary = file.with_suffix(f".{os.urandom(4).hex()}")
    temporary.write_text(json.dumps(asdict(kept)))
    temporary.replace(file)


def _digest(credentials: Credentials) -> str:
    return hashlib.sha256(credentials.token.encode()).hexdigest()[:16]
