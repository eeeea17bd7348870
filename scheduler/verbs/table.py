"""The table of all verbs. Modules that declare verbs are imported here."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.verbs import archive, changes, questions
from scheduler.verbs.surface import VERBS, Surface, Verb

__all__ = ["PROTOCOL", "VERBS", "ask", "document"]
PROTOCOL = 1
"""Grows when something that was promised goes; what is new is named in the capabilities."""
del archive, changes, questions  # importing them fills the table


def ask(surface: Surface, name: str, args: Mapping[str, Any]) -> Any:
    """Return the answer as plain values. Raises what the verb raises, KeyError for an unknown verb."""
    return json.loads(surface.answer(VERBS[name], args))


def document(of_the_port: Iterable[Verb] = ()) -> dict[str, Any]:
    """Return the table, with the verbs that only the port has, as one JSON document."""
    verbs = sorted([*of_the_port, *VERBS.values()], key=lambda verb: verb.name)
    return {"protocol": PROTOCOL, "verbs": {verb.name: verb.document() for verb in verbs}}
