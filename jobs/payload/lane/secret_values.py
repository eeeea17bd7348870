"""Secrets of a session: the values that its commands are given as variables, and that nothing it says may show.

Where the platform hands them over they come in one variable of the agent's environment, which is taken out of it before
anything else is started. Else the launch document names a store of AWS, and the session asks it in its own name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..log import hidden
from .failure import Failure

VARIABLE = "SCHED_SECRETS"
"""Holds all secrets of a session, by name, as JSON."""


class SecretStore(NamedTuple):
    """Where a session asks for its secrets: ``kind`` is ``ssm`` or ``secretsmanager``, ``prefix`` precedes each name.

    ``endpoint`` is empty for AWS's own.
    """

    kind: str
    prefix: str
    region: str
    endpoint: str


def take_given() -> dict[str, str]:
    """Take what the platform handed over out of the environment, before any other process is started.

    Raises ValueError when it is not what it should be.
    """
    text = os.environ.pop(VARIABLE, "")
    try:
        given = json.loads(text) if text else {}
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ValueError(f"{VARIABLE} does not hold texts by name")  # without its cause, which would quote it
    hidden.know(given.values())
    return given


def secrets_of(names: Sequence[str], given: Mapping[str, str], store: SecretStore | None) -> dict[str, str]:
    """Return the secrets that a lane's command is given, by name. Raises Failure."""
    if store is None or not names:
        if missing := [name for name in names if name not in given]:
            raise Failure("secret", f"the session was not given {', '.join(missing)}; see: schedctl doctor")
        return {name: given[name] for name in names}
    from .aws_secrets import Refusal, fetch  # loads what few sessions need

    try:
        found = fetch(store, names)
    except Refusal as error:
        raise Failure("secret", str(error)) from None
    except OSError as error:
        raise Failure("network", f"AWS cannot be asked for the secrets {', '.join(names)}: {error}") from None
    hidden.know([*given.values(), *found.values()])
    return found
