"""Parse and validate options that adapters declare as dataclasses: of pools, targets and the artifact store.

A field's name and default are those of the option; a field without a default is required. Whole numbers must be at
least 0, lists are separated by commas. ``Written`` adds rules that a type cannot express.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from jobs.duration import parse_duration
from jobs.payload.bounds import SPAN_MAX, digits
from platforms.base import BadOption, Misconfigured
from platforms.image import OPTIONS, image_of

_Options = TypeVar("_Options")
_Refuse = Callable[[str, str], Exception]  # (why, remedy) -> error
_ANYWHERE = OPTIONS | {"expected_device"}  # options of any pool, read by the daemon itself
_SHOWN_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class Written:
    """Rules for an option's text.

    ``name`` is the option's name if it differs from the field's. A number is multiplied by ``units``; numbers below
    ``least`` are raised to it. With ``most`` the option is a duration, like ``90s``, of 1 to ``most`` seconds. A text
    must match ``form``, or be one of ``words``; for a bool, the first word means True.
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
    """A declared option: its field, name, type and default, and the rules for its text."""

    field: str
    name: str
    kind: Any
    default: Any  # MISSING: the option is required
    how: Written


def read_options(
    platform: str, kind: type[_Options], options: Mapping[str, str], name_error: type[Misconfigured] = Misconfigured
) -> _Options:
    """Parse a pool's options. Raises BadOption for an invalid value, ``name_error`` for an unknown or missing name."""
    image_of(platform, options)
    refuse, refuse_name = partial(BadOption, platform, "load"), partial(name_error, platform, "load")
    return read_declared(kind, options, refuse, f"docs/{platform}.md", _ANYWHERE, refuse_name)


def read_declared(
    kind: type[_Options],
    options: Mapping[str, str],
    refuse: _Refuse,
    page: str,
    others: frozenset[str] = frozenset(),
    refuse_name: _Refuse | None = None,
) -> _Options:
    """Parse options as the dataclass ``kind`` declares them; ignore those in ``others``.

    Raises the error that ``refuse`` returns; ``refuse_name`` replaces it for an unknown or a missing option.
    """
    refuse_name = refuse_name or refuse
    declaration: Any = kind
    declared = declared_options(declaration)
    names = others.union(each.name for each in declared)
    if unknown := sorted(set(options) - names):
        listing = ", ".join(sorted(names)) or "none"
        raise refuse_name(f"unknown setting {', '.join(unknown)}", f"Known settings: {listing}")
    if missing := [each.name for each in declared if each.default is MISSING and not options.get(each.name)]:
        raise refuse_name(f"missing: {', '.join(missing)}", f"See {page}")
    written = [each for each in declared if each.name in options]
    return kind(**{each.field: _read(each, options[each.name], refuse, page) for each in written})


@cache
def declared_options(kind: Any) -> tuple[Declared, ...]:
    """Return the options that a dataclass declares; cached, as resolving its types is slower than parsing."""
    plain, hints = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    options = []
    for field in fields(kind):
        marks = (mark for mark in get_args(hints[field.name])[1:] if isinstance(mark, Written))
        how = next(marks, Written())
        options.append(Declared(field.name, how.name or field.name, plain[field.name], field.default, how))
    return tuple(options)


def _read(option: Declared, text: str, refuse: _Refuse, page: str) -> object:
    name, kind, how = option.name, option.kind, option.how
    if how.most:
        return _duration(name, text, how.most, refuse)
    if kind in {int, float}:
        if (count := digits(text, SPAN_MAX)) is None:
            raise refuse(f"{name} = {text!r} is not a whole number of at least 0", "")
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
