"""Plug-ins: platforms from other packages, by entry points of the group ``uff_scheduler.platforms``.

::

    [project.entry-points."uff_scheduler.platforms"]
    myplace = "my_package:PLUGIN"

A package is imported only if a pool uses its platform.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from platforms.base import Misconfigured, SecretWay

if TYPE_CHECKING:
    from platforms.registry import Checkup, Files, Loader

GROUP = "uff_scheduler.platforms"
CONTRACT = 1
"""Version of the contract between daemon and adapter: platforms/base.py, and the launch document of the payload."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a platform that are known before an adapter is created.

    ``extra`` is the extra of our package that it needs. ``image_python`` is the Python of its images, empty if they
    differ. ``runs_here``: sessions run in the daemon's interpreter, as they do when the option ``emulated_by`` is set.
    ``chooses_image``: each launch may choose an image, whose name may contain its Python's version. ``tells_price``:
    the platform reports the price of an hour if none is declared. ``needs_person``: a person starts its sessions.
    """

    extra: str = ""
    image_python: str = ""
    runs_here: bool = False
    emulated_by: str = ""
    chooses_image: bool = False
    tells_price: bool = False
    needs_person: bool = False


_SHIPPED = {
    # What Kaggle's images ran in 2026.
    "kaggle": Traits(extra="kaggle", image_python="3.12", emulated_by="emulator"),
    "local": Traits(runs_here=True),
    "manual": Traits(needs_person=True),
    "sagemaker": Traits(extra="aws", chooses_image=True, emulated_by="endpoint"),
    "skypilot": Traits(tells_price=True),
}


@dataclass(frozen=True, slots=True)
class Plugin:
    """A platform: its version of the ``contract``, and functions with the meaning that platforms/registry.py gives."""

    contract: int
    load: "Loader"
    checkup: "Checkup | None" = None
    files: "Files | None" = None
    secret_way: Callable[[Mapping[str, str]], SecretWay] | None = None


def traits(platform: str) -> Traits:
    """Return the traits of a platform; the defaults for platforms of other packages."""
    return _SHIPPED.get(platform, Traits())


@cache
def offered() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points of installed packages by platform name, without importing the packages."""
    from importlib.metadata import entry_points

    result: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        if point not in result.get(point.name, ()):
            result[point.name] = (*result.get(point.name, ()), point)
    return result


def find(platform: str) -> Plugin | None:
    """Load the plug-in of a platform; return None if no package has it. Raises Misconfigured if it is not usable."""
    points = offered().get(platform, ())
    if not points:
        return None
    if len(points) > 1:
        why = f"several packages provide it: {', '.join(map(source, points))}"
        raise Misconfigured(platform, "load", why, "Uninstall all but one")
    (point,) = points
    try:
        plugin = point.load()
    except Exception as error:
        why = f"its package {source(point)} cannot be loaded: {type(error).__name__}: {error}"
        raise Misconfigured(platform, "load", why, "Install it again, with its dependencies") from error
    if not isinstance(plugin, Plugin):
        why = f"{point.value} of {source(point)} is not a platforms.plugin.Plugin"
        raise Misconfigured(platform, "load", why, "Report this to the authors of the package")
    if plugin.contract != CONTRACT:
        why = f"{source(point)} is made for contract {plugin.contract}, and this is {CONTRACT}"
        raise Misconfigured(platform, "load", why, "Install matching versions of the package and of uff-scheduler")
    return plugin


def source(point: EntryPoint) -> str:
    """Return the package that an entry point comes from, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
