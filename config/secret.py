"""Recognises settings that contain secrets by their names."""

import re

_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|token|credential|webhook|api_?key|access_?key|private_?key|(client|server)_key",
    re.IGNORECASE,
)


def is_secret(key: str) -> bool:
    """Return whether a setting's dotted key may hold a secret."""
    return key == "database_url" or _SECRET_NAME.search(key.rpartition(".")[2]) is not None
