"""Reload: new settings for a running daemon, tried as a whole before any of them counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from config.errors import ConfigError, Problem
from platforms.base import PlatformError
from scheduler.app import App
from scheduler.service.requests.one_account import require_one_account

if TYPE_CHECKING:
    from collections.abc import Callable

    from platforms.late import LatePlatform

# What the lock, the lease and the books of a running daemon stand on.
_FIXED = ("state_dir", "database_url", "clock")


def reloaded(old: App, load: Callable[[], App]) -> App:
    """Return the app on the settings as they are now, with everything made that can fail to be made.

    A pool that works and would not with the new settings counts as a failure; one that waits for a person anyhow does
    not. It shares the open database of ``old``. Raises ConfigError (also for what cannot change without a restart),
    CatalogueError, PlatformError or StoreError; then ``old`` is as good as before.
    """
    new = load()
    moved = [key for key in _FIXED if getattr(new.settings, key) != getattr(old.settings, key)]
    if moved:
        why, remedy = "cannot change while the daemon runs", "restart the daemon to use it, or change it back"
        raise ConfigError([Problem(new.settings.origin(key), key, "", why, remedy) for key in moved])
    require_one_account(new.settings)
    vars(new)["database"] = old.database  # a cached property: what is there already is not made anew
    for part in ("catalogue", "artifacts", "mailing"):
        getattr(new, part)
    for name, platform in new.platforms.items():
        try:
            platform.open()
        except PlatformError:
            # A pool that waits for a person keeps nobody from new settings; one that works is not broken by them.
            if name in old.platforms and _works(old.platforms[name]):
                raise
    return new


def _works(platform: LatePlatform) -> bool:
    try:
        platform.open()
    except PlatformError:
        return False
    return True
