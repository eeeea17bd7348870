"""Options of a pool: a platform declares its own as a dataclass, and one reader holds what a person wrote against it.

A field's name is the option's, its default what counts where nobody wrote it; one without a default must be written.
Whole numbers are at least zero, lists are separated by commas. ``Written`` says what a type cannot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

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


def read_options(platform: str, kind: type[_Settings], options: Mapping[str, str]) -> _Settings:
    """Return the options of a pool as ``kind`` declares them. Raises Misconfigured."""
    known: Any = fields(kind)  # type: ignore[arg-type] # a dataclass, for which there is no bound
    hints = get_type_hints(kind, include_extras=True)
    how = {each.name: _how(hints[each.name]) for each in known}
    names = {each.name: how[each.name].name or each.name for each in known}
    reject_unknown(platform, options, frozenset(names.values()) | _ANYWHERE)
    required = [names[each.name] for each in known if each.default is MISSING]
    if missing := [name for name in required if not options.get(name)]:
        raise Misconfigured(platform, "load", f"missing: {', '.join(missing)}", f"See docs/{platform}.md")
    plain = get_type_hints(kind)
    written = {field: name for field, name in names.items() if name in options}
    return kind(**{field: _read(platform, name, options, plain[field], how[field]) for field, name in written.items()})


def _how(hint: Any) -> Written:
    """Return how a field of this type is written."""
    return next((each for each in get_args(hint)[1:] if isinstance(each, Written)), Written())


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
