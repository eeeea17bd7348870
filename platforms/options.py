"""Options of a pool: a platform declares its own as a dataclass, and one reader holds what a person wrote against it.

A field's name is the option's, its default the option's; one without a default must be written.
Whole numbers are at least zero, lists are separated by commas. ``Written`` says what a type cannot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from platforms.base import Misconfigured
from platforms.registry import read_count, reject_unknown

_Settings = TypeVar("_Settings")
_ANYWHERE = {"expected_device"}  # read by the daemon itself


@dataclass(frozen=True, slots=True)
class Written:
    """How an option is written: as ``name``, where that is not the field's, in units that are so many of the field's.

    Numbers below ``least`` count as that. A text is of a ``form``. Of ``words``, the first of two says yes.
    """

    name: str = ""
    units: float = 1
    least: int = 0
    form: re.Pattern[str] | None = None
    words: tuple[str, ...] = ()
    remedy: str = ""
    error: type[Misconfigured] = Misconfigured


YES = Written(words=("yes", "no"), remedy="Write yes or no")


class Declared(NamedTuple):
    """A field of a platform's options: its name, that of the option, its type, its default, and how it is written."""

    field: str
    name: str
    kind: Any
    default: Any  # MISSING: it must be written
    how: Written


def read_options(platform: str, kind: type[_Settings], options: Mapping[str, str]) -> _Settings:
    """Return the options of a pool as ``kind`` declares them. Raises Misconfigured."""
    declaration: Any = kind
    declared = declared_options(declaration)
    reject_unknown(platform, options, frozenset(each.name for each in declared) | _ANYWHERE)
    if missing := [each.name for each in declared if each.default is MISSING and not options.get(each.name)]:
        raise Misconfigured(platform, "load", f"missing: {', '.join(missing)}", f"See docs/{platform}.md")
    written = [each for each in declared if each.name in options]
    return kind(**{each.field: _read(platform, each.name, options, each.kind, each.how) for each in written})


@cache
def declared_options(kind: Any) -> tuple[Declared, ...]:
    """Return the fields of a dataclass; to look at its types takes longer than to read what was written."""
    plain, hints = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    options = []
    for field in fields(kind):
        marks = (mark for mark in get_args(hints[field.name])[1:] if isinstance(mark, Written))
        how = next(marks, Written())
        name = how.name or field.name
        options.append(Declared(field.name, name, plain[field.name], field.default, how))
    return tuple(options)


def _read(platform: str, name: str, options: Mapping[str, str], kind: Any, how: Written) -> object:
    text = options[name]
    if kind in {int, float}:
        return kind(max(how.least, read_count(platform, options, name, 0)) * how.units)
    if get_origin(kind) is tuple:
        return tuple(filter(None, (word.strip() for word in text.split(","))))
    words = how.words or (get_args(kind) if get_origin(kind) is Literal else ())
    if words and text not in words:
        why = "" if how.remedy else f" is none of {', '.join(words)}"
        raise Misconfigured(platform, "load", f"{name} = {text!r}{why}", how.remedy)
    if how.form is not None and not how.form.fullmatch(text):
        why, remedy = ("", how.remedy) if how.remedy else (" is not usable", f"See docs/{platform}.md")
        raise how.error(platform, "load", f"{name} = {text!r}{why}", remedy)
    return text == words[0] if kind is bool else text
