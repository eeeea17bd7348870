"""Addresses of HTTP servers in the options of pools: plain ones, that no token crosses a network to in the clear."""

from __future__ import annotations

from urllib.parse import urlsplit

from platforms.base import Misconfigured

_HERE = frozenset({"127.0.0.1", "localhost", "::1"})


def read_address(platform: str, option: str, text: str, example: str, *, token: bool) -> str:
    """Return an address without the / at its end. Raises Misconfigured when it is no plain one of http or https.

    ``token``: one is sent along. No secret stands in an address.
    """
    try:
        parts = urlsplit(text)
        usable = bool(parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port > 0))
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        why = f"{option} = {text.rpartition('@')[2]!r} is no plain http or https address"
        raise Misconfigured(platform, "load", why, f"Write one like {example}; credentials go into token_file")
    if token and parts.scheme == "http" and parts.hostname not in _HERE:
        raise Misconfigured(
            platform, "load", f"a token would cross the network to {parts.hostname} in the clear", "Use https"
        )
    return text.rstrip("/")
