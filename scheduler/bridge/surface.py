"""Surface: answers verbs with JSON text, for the port and for MCP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import BaseModel

from scheduler.app import App
from scheduler.bridge.arguments import Arguments, arguments_of, checked
from scheduler.bridge.processes import Processes
from scheduler.clock import stopwatch
from scheduler.web.log_tail import LogTails
from scheduler.web.source import Source


@dataclass(frozen=True)
class Verb:
    """One thing that may be asked: its name, and who answers; it takes what the answer has as parameters.

    An answer is made of the surface, or of its source alone, as the first parameter says. It ``changes`` something; is
    ``slow``, so that others are answered meanwhile; is given again for ``kept_seconds`` unless something was changed
    here.
    """

    name: str
    answer: Callable[..., Any]
    changes: bool = False
    slow: bool = False
    kept_seconds: float = 0.0

    @cached_property
    def takes(self) -> type[Arguments]:
        """What may be given."""
        return arguments_of(self.name, self.answer)

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.answer.__doc__ or "").strip().splitlines()[0]

    @cached_property
    def _annotations(self) -> list[Any]:
        return [one.annotation for one in signature(self.answer, eval_str=True).parameters.values()]

    def ask(self, surface: Surface, arguments: Arguments) -> Any:
        """Return the answer to what was ``asked``. Raises what it raises."""
        place = surface.source if self._annotations[0] is Source else surface
        if self.takes in self._annotations:
            return self.answer(place, arguments)
        return self.answer(place, **{name: getattr(arguments, name) for name in self.takes.model_fields})


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
    def commands(self) -> Processes:
        """The commands that run on behalf of requests."""
        return Processes(self.config)

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
        arguments = checked(verb.takes, args)
        before = self._changed
        try:
            result = verb.ask(self, arguments)
        finally:
            if verb.changes:
                with self._lock:
                    self._changed += 1
                    self._kept.clear()
        body = self.text_of(result)
        if verb.kept_seconds:
            with self._lock:
                if before == self._changed:
                    self._kept[verb.name] = (stopwatch() + verb.kept_seconds, body)
        return body

    def text_of(self, shape: Any) -> bytes:
        """Return shapes or plain values as JSON text in which no known secret stands."""
        value = shape.model_dump(mode="json") if isinstance(shape, BaseModel) else shape
        return self.app.redact(json.dumps(value, allow_nan=False)).encode()
