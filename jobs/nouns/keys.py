"""Keys: what a dataclass declares of its fields, from which everything else that knows its keys is derived.

A field that people write is annotated with its :class:`Rule`; with a :class:`Key` where its key is another word than
the field's own without its unit; and with an :class:`Option` where the command line can set it. A field whose type is
a dataclass is a table of that one's keys. A field without any of these is not written by people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any, get_args, get_type_hints

from jobs.duration import show_duration


class Wrong(ValueError):
    """Why a value cannot be used, and what would be right."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Range:
    """From ``least`` to ``most``, both included, in ``unit``; ``whole`` numbers only, if said so.

    A number outside its range is a mistake in any unit (a step an hour, a billion of them a second), and one that a
    plan or a database could not hold.
    """

    least: float
    most: float
    unit: str = ""
    whole: bool = False

    def holds(self, value: object) -> bool:
        """Return whether ``value`` is a number in the range; no truth value is, and neither is NaN."""
        number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return number and self.least <= value <= self.most  # type: ignore[operator] # compared exactly, however large

    def nearest(self, value: Any) -> Any:
        """Return the number in the range that is nearest to ``value``, the least one for NaN."""
        if self.holds(value):
            return value
        return self.most if value > self.most else self.least

    def __str__(self) -> str:
        if self.unit == "seconds":
            return f"{show_duration(round(self.least))} to {show_duration(round(self.most))}"
        return f"{self.least:,} to {self.most:,} {self.unit}".rstrip()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Rule:
    """How people write a value: ``read`` returns what they mean or raises ValueError, ``show`` is the way back.

    ``kind`` is its type on the command line. A ``place`` is a path, relative to the file that names it. ``off`` is in
    no range. Where a value sets a field ``also``, it is read as a pair.
    """

    read: Callable[[Any], Any]
    show: Callable[[Any], Any] = _plain
    kind: type = str
    range: Range | None = None
    off: int | None = None
    place: bool = False
    also: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a field, and the one by which an older version called it, which still works."""

    name: str
    old: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """The option that sets a field: its help, and its flags where they are not those of the key."""

    help: str
    flags: str = ""
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class TableKey:
    """A key that people write, and the ``names`` of the fields that it sets.

    It has a rule, or is a table of the keys of ``inner``, or a list of ``many`` of these. ``default`` is MISSING where
    it must be written.
    """

    key: str
    old: str
    names: tuple[str, ...]
    rule: Rule | None
    inner: Any
    many: bool
    default: Any
    option: Option | None

    @property
    def flags(self) -> list[str]:
        """Return the flags of its option; none where the command line cannot set it."""
        if self.option is None:
            return []
        names = (name for name in (self.key, self.old) if name)
        return self.option.flags.split() or [f"--{name.replace('_', '-')}" for name in names]

    def of(self, record: Any) -> Any:
        """Return the value that a record has, as its rule shows it."""
        values = tuple(getattr(record, name) for name in self.names)
        return values if len(values) > 1 else values[0]


@cache
def keys_of(kind: Any) -> tuple[TableKey, ...]:
    """Return the keys of a dataclass, in the order of its fields."""
    hints, plain = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    entries = {entry.name: entry for entry in fields(kind)}
    result = []
    for name, hint in hints.items():
        marks: dict[type, Any] = {type(mark): mark for mark in getattr(hint, "__metadata__", ())}
        rule, key = marks.get(Rule), marks.get(Key) or Key(name.removesuffix("_seconds"))
        parts: tuple[Any, ...] = (plain[name], *get_args(plain[name]))
        inner = next((part for part in parts if hasattr(part, "__dataclass_fields__") and keys_of(part)), None)
        if rule is None and inner is None and not marks:
            continue
        names = (name, rule.also) if rule and rule.also else (name,)
        defaults = [_default(entries[one]) for one in names]
        default = tuple(defaults) if len(names) > 1 else defaults[0]
        many = isinstance(default, tuple) and inner is not None and rule is None
        result.append(TableKey(key.name, key.old, names, rule, inner, many, default, marks.get(Option)))
    return tuple(result)


def paths(kind: Any) -> dict[str, TableKey]:
    """Return the keys of a dataclass and those of its tables, as ``needs.dtype``."""
    tables = {"": kind} | {f"{one.key}.": one.inner for one in keys_of(kind) if one.inner and not one.many}
    return {f"{prefix}{one.key}": one for prefix, inner in tables.items() for one in keys_of(inner)}


def _default(entry: Field[Any]) -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()
