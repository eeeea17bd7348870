"""What is still missing: demands held against the packages that an interpreter would see.

Needs the rules of Python packaging (PEP 440 and 508), which pip brings along; without them nothing can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from ..store.lock import canonical


class Installed(NamedTuple):
    """A package as it would be imported: its version and what it demands itself."""

    version: str
    demands: tuple[str, ...]


class Unmet(NamedTuple):
    """A demand that what is seen does not meet; ``by`` is the package that has it, empty for the job itself."""

    name: str
    by: str
    text: str
    version: str  # the version that is there; empty: none


def rules() -> Any:
    """Return the module that reads demands, as the interpreter or its pip has it; None when neither does."""
    for name in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def unmet(
    requirements: Any,
    demands: Iterable[str],
    see: Callable[[str], Installed | None],
    pinned: Mapping[str, str],
    markers: Mapping[str, str],
) -> list[Unmet]:
    """Return which of the demands, and of those that they bring along, are not met; each package is looked at once.

    ``requirements`` is what :func:`rules` returned. ``pinned`` packages must have that very version, whatever is
    demanded of them. ``markers`` change what the demands' own conditions are held against.
    """
    unmet_by_key: dict[tuple[str, str], Unmet] = {}
    ahead = [("", "", demand) for demand in demands]
    checked: set[tuple[str, str]] = set()
    while ahead:
        by, extra, text = ahead.pop()
        try:
            demand = requirements.Requirement(text)
        except ValueError:
            continue  # an old package of the image states it in a form that pip cannot read either
        if demand.marker is not None and not demand.marker.evaluate({**markers, "extra": extra}):
            continue
        name = canonical(demand.name)
        there = see(name)
        if there is None or not _meets(demand, there.version, pinned.get(name)):
            unmet_by_key.setdefault((name, by), Unmet(name, by, text, there.version if there else ""))
            continue
        for part in ("", *demand.extras):
            if (name, part) not in checked:
                checked.add((name, part))
                ahead += [(name, part, inner) for inner in there.demands]
    return list(unmet_by_key.values())


def _meets(demand: Any, version: str, pinned: str | None) -> bool:
    if pinned is not None and version.partition("+")[0] != pinned.partition("+")[0]:
        return False
    try:
        return bool(demand.specifier.contains(version, prereleases=True))
    except ValueError:
        return False
