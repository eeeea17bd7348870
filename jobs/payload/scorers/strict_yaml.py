"""YAML as plain text in lists and tables, for documents that a model wrote: nothing is guessed, nothing grows.

Scalars stay texts: 1.10 is no number, ``on`` is no truth value, dates are no objects. Doubled keys, anchors and
aliases, tags, great size and depth are refused: with them a few bytes mean many, or two readers read two things.
"""

from __future__ import annotations

from typing import Any

from .given import NotGiven

BYTES_MAX = 1 << 20
DEPTH_MAX = 50


class BadYaml(ValueError):
    """A document that is not read; the message says where and why."""


def read_yaml(text: str) -> Any:
    """Return a document of texts, lists and tables. Raises BadYaml, and NotGiven without the library PyYAML."""
    try:
        import yaml
    except ImportError:
        remedy = "add pyyaml to the requirements of the evaluation"
        raise NotGiven(f"YAML is read by PyYAML, which is not installed here; {remedy}") from None
    if len(text.encode(errors="replace")) > BYTES_MAX:
        raise BadYaml(f"more than {BYTES_MAX:,} bytes")
    # Events come one by one, so that depth is refused before the parser of a whole document falls into it.
    reader = _Reader()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            reader.take(event)
    except yaml.YAMLError as error:
        raise BadYaml(f"no YAML: {' '.join(str(error).split())[:200]}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, BadYaml):
            raise
        raise BadYaml(f"no YAML: {error}"[:200]) from None
    return reader.document


class _Reader:
    """Builds a document from events. ``_open`` are the lists and tables that are not closed yet, with a key's name."""

    def __init__(self) -> None:
        self.document: Any = None
        self._documents = 0
        self._open: list[tuple[Any, list[str]]] = []

    def take(self, event: Any) -> None:
        """Take the next event. Raises BadYaml."""
        kind = type(event).__name__
        where = f"line {event.start_mark.line + 1}"
        if kind == "AliasEvent" or getattr(event, "anchor", None):
            raise BadYaml(f"{where}: anchors and aliases are not read; write the text out")
        if getattr(event, "tag", None):
            raise BadYaml(f"{where}: the tag {event.tag} is not read; leave it out")
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise BadYaml(f"{where}: a second document; write one")
        elif kind == "ScalarEvent":
            self._put(event.value, where)
        elif kind in ("SequenceStartEvent", "MappingStartEvent"):
            made: Any = [] if kind == "SequenceStartEvent" else {}
            self._put(made, where)
            self._open.append((made, []))
            if len(self._open) > DEPTH_MAX:
                raise BadYaml(f"{where}: nested deeper than {DEPTH_MAX}")
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            self._open.pop()

    def _put(self, value: Any, where: str) -> None:
        if not self._open:
            self.document = value
            return
        holder, key = self._open[-1]
        if isinstance(holder, list):
            holder.append(value)
        elif not key:
            if not isinstance(value, str):
                raise BadYaml(f"{where}: a key is a text, not a list or a table")
            if value in holder:
                raise BadYaml(f"{where}: the key {value[:50]!r} stands twice")
            key.append(value)
        else:
            holder[key.pop()] = value
