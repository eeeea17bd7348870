"""The table of platforms: an explicit name for each, loaded only when a pool asks for it, and those of plug-ins."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from jobs.payload.bounds import SPAN_MAX, digits
from platforms import plugin
from platforms.base import Misconfigured, SecretWay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from platforms.artifacts.base import BlobStore
    from platforms.base import Checked, Platform, Published
    from platforms.late import LatePlatform

# name -> "module:function" with the signature Loader. Adding a platform: docs/inside/adding-a-platform.md.
_LOADERS: Mapping[str, str] = {
    "kaggle": "platforms.kaggle.adapter:load",
    "local": "platforms.local.adapter:load",
    "manual": "platforms.manual.adapter:load",
    "sagemaker": "platforms.sagemaker.adapter:load",
    "skypilot": "platforms.skypilot.adapter:load",
    "slurm": "platforms.slurm.adapter:load",
}

# name -> "module:function" with the signature Checkup, for platforms that can be looked at before they are used.
_CHECKUPS: Mapping[str, str] = {
    "kaggle": "platforms.kaggle.checkup:checks",
    "sagemaker": "platforms.sagemaker.checkup:checks",
    "skypilot": "platforms.skypilot.checkup:checks",
    "slurm": "platforms.slurm.checkup:checks",
}

# name -> "module:function" that names the files its credentials may come from, for platforms that read some.
_FILES: Mapping[str, str] = {
    "kaggle": "platforms.kaggle.api.credentials:files",
    "sagemaker": "platforms.sagemaker.settings:files",
}


# name -> "module:function" with the signature Opening, for platforms that hold models and datasets.
_PUBLISHED: Mapping[str, str] = {"kaggle": "platforms.kaggle.api.account:open_published"}
# name -> "module:function" that returns the account of a pool without asking the platform, for platforms of which one
# owner may use one account.
_ACCOUNTS: Mapping[str, str] = {"kaggle": "platforms.kaggle.api.account:account_name"}
# name -> "module:function" that tells by a pool's options how its sessions get secrets; the others' get none.
_SECRETS: Mapping[str, str] = {
    "kaggle": "platforms.kaggle.settings:secret_way",
    "local": "platforms.local.spawn:secret_way",
    "sagemaker": "platforms.sagemaker.settings:secret_way",
}


@dataclass(frozen=True, slots=True)
class PlatformContext:
    """What a platform is given besides its own settings.

    ``state_folder`` belongs to this one pool and survives restarts. ``bundle`` is the folder that holds the
    payload package. ``clock`` is the ``clock`` part of the launch contract; empty means real time.
    ``store_kind`` is the kind of address that sessions get of the artifact store; empty means not known.
    ``open_store`` returns the store itself, for platforms that carry its objects to sessions; it raises StoreError.
    ``device_counts`` are those a session may ask for; empty means that all have as many.
    ``is_priced`` says that a person has declared what an hour costs.
    ``hidden`` returns what no session on this machine may see: credentials, settings, database, state, store.
    ``accounts`` returns the accounts of the platform's enabled pools by name, as far as they are known.
    """

    state_folder: Path
    python: str
    bundle: Path
    sessions_max: int = 1
    session_cap_seconds: int = 43_200
    clock: Mapping[str, float] = field(default_factory=dict)
    store_kind: str = ""
    open_store: Callable[[], BlobStore] | None = None
    devices_per_session: int = 1
    device_counts: tuple[int, ...] = ()
    is_priced: bool = False
    hidden: Callable[[], Sequence[Path]] = tuple
    accounts: Callable[[], Mapping[str, str]] = dict


if TYPE_CHECKING:

    class Checkup(Protocol):
        """See platforms.kaggle.checkup.checks."""

        def __call__(
            self, settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
        ) -> dict[str, Callable[[], Checked]]:
            """Return the checks of one pool by name."""

    Files = Callable[[Mapping[str, str], Mapping[str, str]], list[Path]]
    Opening = Callable[[Mapping[str, str], Mapping[str, str]], Published]
    Loader = Callable[[Mapping[str, str], PlatformContext], Platform]


def shipped() -> frozenset[str]:
    """Return the names of our own platforms."""
    return frozenset(_LOADERS)


def known() -> tuple[str, ...]:
    """Return the names of all platforms, sorted."""
    return tuple(sorted({*_LOADERS, *plugin.offered()}))


def load(platform: str, settings: Mapping[str, str], context: PlatformContext) -> Platform:
    """Return the adapter ``platform`` for one pool.

    Raises Misconfigured for an unknown name, a missing library or a bad setting.
    """
    found = _loaded(platform, settings, context)
    if context.device_counts and not found.capabilities.device_counts:
        why = "device_counts: its sessions cannot ask for a number of devices"
        raise Misconfigured(platform, "load", why, "Set devices_per_session and sessions_max instead")
    return found


def _loaded(platform: str, settings: Mapping[str, str], context: PlatformContext) -> Platform:
    address = _LOADERS.get(platform)
    if address is None:
        return _plugin(platform, "load").load(settings, context)
    module, function = address.split(":")
    try:
        return cast("Loader", getattr(import_module(module), function))(settings, context)
    except ImportError as error:
        raise Misconfigured(
            platform, "load", str(error), f"Install the extra of this platform: uff-scheduler[{platform}]"
        ) from error


def late(
    platform: str, settings: Mapping[str, str], environ: Mapping[str, str], context: PlatformContext
) -> LatePlatform:
    """Return the adapter ``platform`` for one pool as it is when it is used; see LatePlatform. Raises nothing."""
    from platforms.late import LatePlatform

    return LatePlatform(
        platform, partial(load, platform, settings, context), partial(_mark, platform, settings, environ)
    )


def _mark(platform: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return a word that changes with the files that the platform's credentials may come from."""
    files: Files | None = None
    if platform in _FILES:
        module, function = _FILES[platform].split(":")
        files = cast("Files", getattr(import_module(module), function))
    elif platform not in _LOADERS:
        files = _plugin(platform, "load").files
    if files is None:
        return "none"
    from platforms.fingerprint import fingerprint

    return fingerprint(files(settings, environ))


def published(platform: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> Published:
    """Return what an account at the platform may see of what it holds. Raises KeyError, Misconfigured."""
    module, function = _PUBLISHED[platform].split(":")
    try:
        return cast("Opening", getattr(import_module(module), function))(settings, environ)
    except ImportError as error:
        raise Misconfigured(
            platform, "fetch", str(error), f"Install the extra of this platform: uff-scheduler[{platform}]"
        ) from error


def account_name(platform: str, settings: Mapping[str, str], environ: Mapping[str, str], state_folder: Path) -> str:
    """Return the account of a pool without asking the platform; "" where it is not known or does not matter."""
    if platform not in _ACCOUNTS:
        return ""
    module, function = _ACCOUNTS[platform].split(":")
    name = cast("Callable[[Mapping[str, str], Mapping[str, str], Path], str]", getattr(import_module(module), function))
    try:
        return name(settings, environ, state_folder)
    except Misconfigured:
        return ""


def checkup(
    platform: str, settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the platform's own checks of one pool by name, none when it has none; ``now`` is real UTC seconds.

    Raises Misconfigured for an unknown platform, a missing library or a bad setting.
    """
    if platform not in _LOADERS:
        own = _plugin(platform, "check").checkup
        return {} if own is None else own(settings, environ, now, probe=probe)
    if platform not in _CHECKUPS:
        return {}
    module, function = _CHECKUPS[platform].split(":")
    try:
        checks = cast("Checkup", getattr(import_module(module), function))
        return checks(settings, environ, now, probe=probe)
    except ImportError as error:
        raise Misconfigured(
            platform, "check", str(error), f"Install the extra of this platform: uff-scheduler[{platform}]"
        ) from error


def secret_way(platform: str, settings: Mapping[str, str]) -> SecretWay:
    """Return how sessions of a pool with these settings get secrets; a pool that cannot be used gives none."""
    none = SecretWay("none", f"sessions on {platform} are given none", "Let it run on other pools")
    try:
        if platform not in _LOADERS:
            own = _plugin(platform, "look for secrets").secret_way
            return none if own is None else own(settings)
        if platform not in _SECRETS:
            return none
        module, function = _SECRETS[platform].split(":")
        return cast("Callable[[Mapping[str, str]], SecretWay]", getattr(import_module(module), function))(settings)
    except Misconfigured as error:
        return SecretWay("none", error.why, error.remedy or "Correct the options of the pool")


def _plugin(platform: str, action: str) -> plugin.Plugin:
    """Return the plug-in of a platform that is not shipped. Raises Misconfigured."""
    found = plugin.find(platform)
    if found is None:
        raise Misconfigured(platform, action, "there is no such platform", f"Known platforms: {', '.join(known())}")
    return found


def reject_unknown(platform: str, settings: Mapping[str, str], allowed: frozenset[str]) -> None:
    """Raise Misconfigured when ``settings`` names something the platform does not know, or an image that cannot be."""
    from platforms.image import OPTIONS, image_of

    allowed |= OPTIONS
    image_of(platform, settings)
    if unknown := sorted(set(settings) - allowed):
        raise Misconfigured(
            platform,
            "load",
            f"unknown setting {', '.join(unknown)}",
            f"Known settings: {', '.join(sorted(allowed)) or 'none'}",
        )


def read_count(platform: str, settings: Mapping[str, str], name: str, default: int) -> int:
    """Return a setting that is a whole number of at least zero. Raises Misconfigured."""
    text = settings.get(name, str(default))
    if (count := digits(text, SPAN_MAX)) is None:
        raise Misconfigured(platform, "load", f"{name} = {text!r} is no whole number of at least 0")
    return count
