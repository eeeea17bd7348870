"""The table of targets: an explicit kind for each, loaded only when the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import cast

from platforms.targets.base import Target, TargetContext, TargetError

Loader = Callable[[str, Mapping[str, str], TargetContext], Target]

# kind -> "module:function" with the signature Loader.
_LOADERS: Mapping[str, str] = {
    "directory": "platforms.targets.directory:load",
    "s3": "platforms.targets.s3:load",
    "ssh": "platforms.targets.ssh:load",
    "vllm": "platforms.targets.vllm:load",
}


def open_target(name: str, kind: str, options: Mapping[str, str], context: TargetContext) -> Target:
    """Return the target ``name`` of a kind. Raises TargetError for an unknown kind, a bad option, a missing library."""
    address = _LOADERS.get(kind)
    if address is None:
        raise TargetError(name, "open it", f"there is no kind {kind}", f"Known kinds: {', '.join(sorted(_LOADERS))}")
    module, function = address.split(":")
    try:
        return cast("Loader", getattr(import_module(module), function))(name, options, context)
    except ImportError as error:
        raise TargetError(name, "open it", str(error), "Install the extra for AWS: uff-scheduler[aws]") from error
