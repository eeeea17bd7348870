"""Options that adapters declare as dataclasses: of pools, of targets, of the artifact store. One reader holds them all.

A field's name is the option's, its default the option's; one without a default must be written.
Whole numbers are at least zero, lists are separated by commas. ``Written`` says what a type cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from jobs.duration import parse_duration
from jobs.payload.bounds import SPAN_MAX, digits
from platforms.base import Misconfigured
from platforms.image import OPTIONS, image_of

_Options = TypeVar("_Options")
_Refuse = Callable[[str, str], Exception]  # of why, and the remedy
_ANYWHERE = OPTIONS | {"expected_device"}  # of any pool; read by the daemon itself
_SHOWN_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class Written:
    """How an option is written: as ``name``, where that is not the field's, in units that are so many of the field's.

    Numbers below ``least`` count as that. With ``most`` it is a duration of so many seconds at most, like ``90s``. A
    text is of a ``form``. Of ``words``, the first of two says yes.
    """

    name: str = ""
    units: float = 1
    least: int = 0
    most: int = 0
    form: re.Pattern[str] | None = None
    words: tuple[str, ...] = ()
    remedy: str = ""


YES = Written(words=("yes", "no"), remedy="Write yes or no")


class Declared(NamedTuple):
    """A declared option: its field, its name, its type, its default, and how it is written."""

    field: str
    name: str
    kind: Any
    default: Any  # MISSING: it must be written
    how: Written


def read_options(
    platform: str, kind: type[_Options], options: Mapping[str, str], error: type[Misconfigured] = Misconfigured
) -> _Options:
    """Return the options of a pool as ``kind`` declares them. Raises Misconfigured, or the kind of it that is given."""
    image_of(platform, options)
    return read_declared(kind, options, partial(error, platform, "load"), f"docs/{platform}.md", _ANYWHERE)


def read_declared(
    kind: type[_Options], options: Mapping[str, str], refuse: _Refuse, page: str, others: frozenset[str] = frozenset()
) -> _Options:
    """Return options as ``kind`` declares them; ``others`` may be written too. Raises what ``refuse`` returns."""
    declaration: Any = kind
    declared = declared_options(declaration)
    names = others.union(each.name for each in declared)
    if unknown := sorted(set(options) - names):
        raise refuse(f"unknown setting {', '.join(unknown)}", f"Known settings: {', '.join(sorted(names)) or 'none'}")
    if missing := [each.name for each in declared if each.default is MISSING and not options.get(each.name)]:
        raise refuse(f"missing: {', '.join(missing)}", f"See {page}")
    written = [each for each in declared if each.name in options]
    return kind(**{each.field: _read(each, options[each.name], refuse, page) for each in written})


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


def _read(option: Declared, text: str, refuse: _Refuse, page: str) -> object:
    name, kind, how = option.name, option.kind, option.how
    if how.most:
        return _duration(name, text, how.most, refuse)
    if kind in {int, float}:
        if (count := digits(text, SPAN_MAX)) is None:
            raise refuse(f"{name} = {text!r} is no whole number of at least 0", "")
        return kind(max(how.least, count) * how.units)
    if get_origin(kind) is tuple:
        return tuple(filter(None, (word.strip() for word in text.split(","))))
    words = how.words or (get_args(kind) if get_origin(kind) is Literal else ())
    if words and text not in words:
        raise refuse(f"{name} = {text!r}" + ("" if how.remedy else f" is none of {', '.join(words)}"), how.remedy)
    if how.form is not None and not how.form.fullmatch(text):
        raise refuse(f"{name} = {text[:_SHOWN_CHARACTERS]!r} is not usable", how.remedy or f"See {page}")
    return text == words[0] if kind is bool else text


def _duration(name: str, text: str, most: int, refuse: _Refuse) -> int:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise refuse(f"{name}: {error}", "Write it like 90s or 10m") from None
    if not 1 <= seconds <= most:
        raise refuse(f"{name} = {seconds} s", f"Write at least 1s and at most {most}s")
    return seconds
