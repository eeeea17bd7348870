"""Clients of AWS services, and of what speaks their protocols, with every default that matters written down."""

from __future__ import annotations

from typing import Any

# Attempts in all, for throttling and broken connections. Botocore's default has changed before; ours has not.
_ATTEMPTS = 6
_CONNECTIONS = 16


def connect(service: str, *, region: str, endpoint: str = "", profile: str = "") -> Any:
    """Return a client of ``service``; credentials come from ``profile``, or by the usual chain of AWS.

    An ``endpoint`` of its own means a server that is not AWS: its buckets are addressed by path, and it is sent no
    checksums but those we ask it to check. Raises botocore's ProfileNotFound.
    """
    import boto3
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
    session = boto3.session.Session(profile_name=profile or None, region_name=region)
    return session.client(service, endpoint_url=endpoint or None, config=config)
