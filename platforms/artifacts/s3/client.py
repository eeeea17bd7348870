"""Clients of AWS services, and of what speaks their protocols, with every default that matters written down."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

# Attempts in all, for throttling and broken connections. Botocore's default has changed before; ours has not.
_ATTEMPTS = 6
_CONNECTIONS = 16
# The only profile of a credentials file that was named without one.
_DEFAULT_PROFILE = "default"

# Clients are made by one thread at a time: what reads the descriptions is shared, and made for one.
_turn = threading.Lock()


def connect(service: str, *, region: str, endpoint: str = "", profile: str = "", credentials: str = "") -> Any:
    """Return a client of ``service``, which any number of threads may use.

    Credentials come from the file ``credentials`` (of AWS's own form, with the section ``profile`` or ``default``),
    else from ``profile``, else by the usual chain of AWS. An ``endpoint`` of its own means a server that is not AWS:
    its buckets are addressed by path, it is sent no checksums but those we ask it to check, and bodies unasked. Raises
    botocore's ProfileNotFound, and ValueError for a credentials file that is not there or an endpoint that is none.
    """
    import boto3
    import botocore.session
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        connect_timeout=10,
        read_timeout=30,
        max_pool_connections=_CONNECTIONS,
        signature_version="s3v4" if service == "s3" else None,
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_supported",
    )
    if credentials and not Path(credentials).is_file():
        raise ValueError(f"there is no credentials file {credentials}")
    # A session is made each time, so that credentials that were exchanged count.
    core = botocore.session.Session()
    core.register_component("data_loader", _loader())
    if credentials:
        core.set_config_variable("credentials_file", credentials)
        # A profile that is named goes before the environment's credentials; without one they would win over the file.
        profile = profile or _DEFAULT_PROFILE
    session = boto3.session.Session(botocore_session=core, profile_name=profile or None, region_name=region)
    with _turn:
        client = session.client(service, endpoint_url=endpoint or None, config=config)
    if endpoint:
        client.meta.events.register_last("before-call.s3", _expect_nothing)
    return client


def _expect_nothing(params: dict[str, Any], **_: Any) -> None:
    """Send a body without asking first. Simple servers do not answer the question, and each object waits a second."""
    params["headers"].pop("Expect", None)


@cache
def _loader() -> Any:
    """Return what reads the descriptions of AWS's services; they take a third of a second, and are kept."""
    import botocore.loaders

    return botocore.loaders.create_loader()
