"""Surface: answers verbs with JSON text, for whoever speaks to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import BaseModel, ValidationError

from scheduler.app import App
from scheduler.bridge.arguments import Arguments
from scheduler.bridge.commands import Commands
from scheduler.bridge.errors import BadRequest
from scheduler.bridge.verbs import VERBS, Verb
from scheduler.clock import stopwatch
from scheduler.web.log_tail import LogTails
from scheduler.web.source import Source

_SAID_MAX = 3  # of a request's mistakes


@dataclass
class Surface:
    """What programs may ask of one database, with the rights of the user who started this process.

    ``who`` stands in the event log; ``config`` is the settings file that commands are given; ``tell`` makes an error
    the document that ``--json`` shows of it.
    """

    app: App
    who: str
    config: Path | None
    tell: Callable[[BaseException], dict[str, Any]]
    _kept: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    _changed: int = 0
    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def source(self) -> Source:
        """What reads are made of."""
        return Source(self.app)

    @cached_property
    def tails(self) -> LogTails:
        """The ends of logs."""
        return LogTails(self.source)

    @cached_property
    def commands(self) -> Commands:
        """The commands that run on behalf of requests."""
        return Commands(self.config)

    @property
    def now(self) -> int:
        """Scheduled UTC seconds."""
        return self.app.clock.now()

    def answer(self, verb: Verb, args: Mapping[str, Any]) -> bytes:
        """Return the answer as JSON text, with secrets taken out. Raises BadRequest and what the verb raises."""
        if verb.kept_seconds and not args:
            kept = self._kept.get(verb.name)
            if kept is not None and stopwatch() < kept[0]:
                return kept[1]
        asked = checked(verb.takes, args)
        before = self._changed
        try:
            found = verb.answer(self, asked)
        finally:
            if verb.changes:
                with self._lock:
                    self._changed += 1
                    self._kept.clear()
        body = self.text_of(found)
        if verb.kept_seconds:
            with self._lock:
                if before == self._changed:
                    self._kept[verb.name] = (stopwatch() + verb.kept_seconds, body)
        return body

    def ask(self, name: str, args: Mapping[str, Any]) -> Any:
        """Return the answer as values. Raises as :meth:`answer` does, KeyError for an unknown verb."""
        return json.loads(self.answer(VERBS[name], args))

    def text_of(self, found: Any) -> bytes:
        """Return shapes or plain values as JSON text in which no known secret stands."""
        value = found.model_dump(mode="json") if isinstance(found, BaseModel) else found
        return self.app.redact(json.dumps(value, allow_nan=False)).encode()


def checked(takes: type[Arguments], args: Mapping[str, Any]) -> Any:
    """Return what was given as ``takes``. Raises BadRequest, which says what is wrong, and shows no value."""
    try:
        return takes.model_validate(args)
    except ValidationError as error:
        said = [f"{'.'.join(map(str, one['loc'])) or 'args'}: {one['msg']}" for one in error.errors(include_url=False)]
        raise BadRequest("; ".join(said[:_SAID_MAX])) from None
