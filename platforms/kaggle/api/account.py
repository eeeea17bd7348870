"""An account: credentials, the wire and the client of one pool, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from platforms.base import Misconfigured
from platforms.kaggle.api.client import Client
from platforms.kaggle.api.credentials import Credentials, read_credentials
from platforms.kaggle.api.library import import_library
from platforms.kaggle.api.wire import Endpoint, Wire
from platforms.kaggle.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from platforms.kaggle.api.published import Published
    from platforms.kaggle.settings import Settings


@dataclass(frozen=True, slots=True)
class Account:
    """Who we are and how we talk to Kaggle."""

    credentials: Credentials
    wire: Wire
    client: Client


def open_published(settings: Mapping[str, str], environ: Mapping[str, str]) -> Published:
    """Return what the account of a pool with these settings may see. Raises Misconfigured, ImportError."""
    return open_account(read_settings(settings), environ).client.published


def open_account(settings: Settings, environ: Mapping[str, str]) -> Account:
    """Return the account of a pool, without asking Kaggle. Raises Misconfigured, ImportError."""
    import_library()
    from kagglesdk.kaggle_env import get_env

    try:
        get_env()
    except Exception as error:
        raise Misconfigured("kaggle", "load", str(error), "Unset it, or set it to PROD") from error
    credentials = read_credentials(settings.credentials, environ)
    wire = Wire(credentials, Endpoint(settings.emulator, settings.call_seconds))
    client = Client(wire, credentials.username, credentials.token, settings.tries, settings.pause_seconds)
    return Account(credentials, wire, client)
