"""The table of all verbs. It imports the modules that declare verbs, which fills the table."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.verbs import archive, changes, questions
from scheduler.verbs.surface import VERBS, Surface, Verb

__all__ = ["PROTOCOL", "VERBS", "ask", "document"]
PROTOCOL = 1
"""Version of the port's protocol. It grows when a feature is removed; additions appear in the capabilities instead."""
del archive, changes, questions  # only their import matters


def ask(surface: Surface, name: str, args: Mapping[str, Any]) -> Any:
    """Return the answer of a verb as plain JSON values. Raises what the verb raises, KeyError for an unknown verb."""
    return json.loads(surface.answer(VERBS[name], args))


def document(of_the_port: Iterable[Verb] = ()) -> dict[str, Any]:
    """Return the schemas of all verbs as one JSON document; ``of_the_port`` are verbs that only the port has."""
    verbs = sorted([*of_the_port, *VERBS.values()], key=lambda verb: verb.name)
    return {"protocol": PROTOCOL, "verbs": {verb.name: verb.document() for verb in verbs}}
