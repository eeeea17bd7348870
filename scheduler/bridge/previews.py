"""Previews: what a change would do, told before it is made; it is made only by whoever shows the preview's token."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scheduler.clock import stopwatch

if TYPE_CHECKING:
    from scheduler.bridge.surface import Surface
    from scheduler.bridge.verbs import Verb

_GOOD_SECONDS = 900.0
_TOKENS_MAX = 100


@dataclass
class Tokens:
    """The previews that were given: each lets the same change with the same arguments be made once, for a while."""

    _given: dict[str, tuple[float, str, str]] = field(default_factory=dict)

    def give(self, verb: str, args: dict[str, Any], fingerprint: str = "") -> str:
        """Return a token for one change, of files with this fingerprint."""
        while len(self._given) >= _TOKENS_MAX:
            del self._given[next(iter(self._given))]
        token = secrets.token_urlsafe(12)
        self._given[token] = (stopwatch() + _GOOD_SECONDS, _key(verb, args), fingerprint)
        return token

    def take(self, token: str, verb: str, args: dict[str, Any]) -> str | None:
        """Return the fingerprint that a token was given for; None if it is for another change, used or too old."""
        until, key, fingerprint = self._given.pop(token, (0.0, "", ""))
        return fingerprint if stopwatch() < until and key == _key(verb, args) else None


def preview(surface: Surface, verb: Verb, args: dict[str, Any]) -> Any:
    """Return what a change would do, or what it would be done to. Nothing is changed. Raises as the verbs do."""
    if "dry_run" in verb.takes.model_fields:
        return surface.ask(verb.name, {**args, "dry_run": True})
    match verb.name:
        case "queue.priority":
            return surface.ask("plan.preview", {"weights": {args["job"]: args["weight"]}})
        case "runs.stop":
            return surface.ask("runs.show", {"run": args["run"]})
        case "models.promote":
            return surface.ask("models.show", {"version": args["version"]})
        case _:
            found = surface.ask("queue.show", {"job": args["job"]})
            return {name: found[name] for name in ("name", "state", "why", "done_step", "target_step", "weight")}


def _key(verb: str, args: dict[str, Any]) -> str:
    return json.dumps([verb, args], sort_keys=True)
