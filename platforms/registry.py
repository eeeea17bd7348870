"""The table of our platforms, with those of plug-ins: find and load the functions of a platform by its name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from platforms import plugin
from platforms.base import Checked, Misconfigured, Platform, Published, SecretWay

if TYPE_CHECKING:
    from platforms.artifacts.base import BlobStore
    from platforms.wrap import LatePlatform

# The functions of each platform, as "module:function", which is imported when a pool uses it. ``load`` creates the
# adapter, ``checkup`` returns the checks of doctor, ``files`` the files with credentials, ``secret_way`` how sessions
# get secrets. ``published`` opens the platform's models and datasets. ``account_name`` returns a pool's account without
# a call, ``folders`` the folders that the daemon writes to beside its state. See docs/inside/adding-a-platform.md.
_SHIPPED: Mapping[str, Mapping[str, str]] = {
    "kaggle": {
        "load": "platforms.kaggle.adapter:KagglePlatform",
        "checkup": "platforms.kaggle.checkup:checks",
        "files": "platforms.kaggle.settings:files",
        "secret_way": "platforms.kaggle.settings:secret_way",
        "published": "platforms.kaggle.api.account:open_published",
        "account_name": "platforms.kaggle.api.account:account_name",
    },
    "local": {"load": "platforms.local.adapter:LocalPlatform", "secret_way": "platforms.local.spawn:secret_way"},
    "manual": {"load": "platforms.manual.adapter:ManualPlatform"},
    "sagemaker": {
        "load": "platforms.sagemaker.adapter:SageMakerPlatform",
        "checkup": "platforms.sagemaker.checkup:checks",
        "files": "platforms.sagemaker.settings:files",
        "secret_way": "platforms.sagemaker.settings:secret_way",
    },
    "skypilot": {"load": "platforms.skypilot.adapter:SkyPilotPlatform", "checkup": "platforms.skypilot.checkup:checks"},
    "slurm": {
        "load": "platforms.slurm.adapter:SlurmPlatform",
        "checkup": "platforms.slurm.checkup:checks",
        "folders": "platforms.slurm.settings:folders",
    },
}


@dataclass(frozen=True, slots=True)
class PlatformContext:
    """The context of a pool, which its adapter gets in addition to the pool's settings.

    ``state_folder`` belongs to this one pool and survives restarts. ``bundle`` is the folder that contains the payload
    package. ``clock`` is the ``clock`` part of the launch contract; empty means real time. ``store_kind`` is the kind
    of address by which sessions reach the artifact store; empty means unknown. ``open_store`` returns the store itself,
    for platforms that copy its objects to sessions; it raises StoreError. ``device_counts`` are the numbers of devices
    that a session may ask for; empty means that every session has ``devices_per_session``. ``is_priced``: the settings
    declare the price of an hour. ``hidden`` returns the paths that no session on this machine may see: credentials,
    settings, database, state, store. ``accounts`` returns the accounts of the platform's enabled pools by name, as far
    as they are known. ``kind`` is the kind of the pool's devices, "gpu" or "tpu"; empty means unknown.
    """

    state_folder: Path
    python: str
    bundle: Path
    sessions_max: int = 1
    session_cap_seconds: int = 43_200
    clock: Mapping[str, float] = field(default_factory=dict)
    store_kind: str = ""
    open_store: "Callable[[], BlobStore] | None" = None
    devices_per_session: int = 1
    kind: str = ""
    device_counts: tuple[int, ...] = ()
    is_priced: bool = False
    hidden: Callable[[], Sequence[Path]] = tuple
    accounts: Callable[[], Mapping[str, str]] = dict


# (options, environment, now in real UTC seconds, ``probe``) -> the checks of one pool by name.
Checkup = Callable[..., dict[str, Callable[[], Checked]]]
Files = Callable[[Mapping[str, str], Mapping[str, str]], list[Path]]
Loader = Callable[[Mapping[str, str], PlatformContext], Platform]


def shipped() -> frozenset[str]:
    """Return the names of our own platforms."""
    return frozenset(_SHIPPED)


def all_names() -> tuple[str, ...]:
    """Return the names of all platforms, sorted."""
    return tuple(sorted({*_SHIPPED, *plugin.offered()}))


def load(platform: str, settings: Mapping[str, str], context: PlatformContext) -> Platform:
    """Return the adapter of a pool. Raises Misconfigured for an unknown name, a missing library or a bad setting."""
    with _needs_library(platform, "load"):
        adapter: Platform = _function(platform, "load", "load")(settings, context)
    if context.device_counts and not adapter.capabilities.device_counts:
        why = "device_counts: its sessions cannot ask for a number of devices"
        raise Misconfigured(platform, "load", why, "Set devices_per_session and sessions_max instead")
    return adapter


def late(
    platform: str, settings: Mapping[str, str], environ: Mapping[str, str], context: PlatformContext
) -> "LatePlatform":
    """Return an adapter for one pool that is created at its first use; see LatePlatform. Raises nothing."""
    from platforms.wrap import LatePlatform

    make, mark = partial(load, platform, settings, context), partial(_mark, platform, settings, environ)
    return LatePlatform(platform, make, mark)


def _mark(platform: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return a text that changes if the files of the platform's credentials change."""
    files = _function(platform, "files", "load")
    if files is None:
        return "none"
    from platforms.record_file import fingerprint

    return fingerprint(files(settings, environ))


def folders(platform: str, settings: Mapping[str, str]) -> list[Path]:
    """Return the folders of this machine that the daemon writes to for a pool, beside its state."""
    own = _function(platform, "folders", "load") if platform in _SHIPPED else None
    return list(own(settings)) if own else []


def publisher() -> str:
    """Return the platform on which anybody can publish models and datasets."""
    return next(name for name, functions in _SHIPPED.items() if "published" in functions)


def published(platform: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> Published:
    """Return the published models and datasets that an account can access. Raises Misconfigured."""
    with _needs_library(platform, "fetch"):
        files: Published = _function(platform, "published", "fetch")(settings, environ)
    return files


def account_name(platform: str, settings: Mapping[str, str], environ: Mapping[str, str], state_folder: Path) -> str:
    """Return the account of a pool without a call to the platform; "" if it is unknown or irrelevant."""
    try:
        name = _function(platform, "account_name", "log in") if platform in _SHIPPED else None
        return str(name(settings, environ, state_folder)) if name else ""
    except Misconfigured:
        return ""


def checkup(
    platform: str, settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the platform's own checks of one pool by name, empty if it has none; ``now`` is real UTC seconds.

    Raises Misconfigured for an unknown platform, a missing library or a bad setting.
    """
    with _needs_library(platform, "check"):
        checks: Checkup | None = _function(platform, "checkup", "check")
        return {} if checks is None else checks(settings, environ, now, probe=probe)


def secret_way(platform: str, settings: Mapping[str, str]) -> SecretWay:
    """Return how sessions of a pool with these settings get secrets; ``none`` if the pool is misconfigured."""
    try:
        own: Callable[[Mapping[str, str]], SecretWay] | None = _function(platform, "secret_way", "look for secrets")
        if own is None:
            return SecretWay("none", f"sessions on {platform} get no secrets", "Let the job run on other pools")
        return own(settings)
    except Misconfigured as error:
        return SecretWay("none", error.why, error.remedy or "Correct the options of the pool")


def _function(platform: str, name: str, action: str) -> Any:
    """Return a function of a platform, None if it has none. Raises Misconfigured, ImportError."""
    if platform in _SHIPPED:
        address = _SHIPPED[platform].get(name)
        return resolve_name(address) if address else None
    distribution = plugin.find(platform)
    if distribution is None:
        raise Misconfigured(platform, action, "there is no such platform", f"Known platforms: {', '.join(all_names())}")
    return getattr(distribution, name)


@contextmanager
def _needs_library(platform: str, action: str) -> Iterator[None]:
    """Translate the ImportError of one of our platforms into Misconfigured, which names the extra to install."""
    try:
        yield
    except ImportError as error:
        if not (extra := plugin.traits(platform).extra):
            raise
        remedy = f"Install the extra of this platform: uff-scheduler[{extra}]"
        raise Misconfigured(platform, action, str(error), remedy) from error
