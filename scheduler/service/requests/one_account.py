"""One account: pools on a platform that gives one owner one account must have credentials of the same account."""

from __future__ import annotations

import os
from collections.abc import Mapping

from config.errors import ConfigError, Problem
from config.settings import Settings
from platforms.registry import account_name


def accounts(settings: Settings, environ: Mapping[str, str], platform: str) -> dict[str, str]:
    """Return the accounts of the enabled pools of a platform by pool, as far as they are known without asking it."""
    return {
        pool.name: name
        for pool in settings.pools
        if pool.enabled
        and pool.platform == platform
        and (name := account_name(platform, dict(pool.options), environ, settings.state_dir / "sessions" / pool.name))
    }


def require_one_account(settings: Settings) -> None:
    """Raise ConfigError when enabled pools of one platform are known to be of several accounts."""
    wrong = []
    for platform in sorted({pool.platform for pool in settings.pools}):
        (first, owner), *others = accounts(settings, os.environ, platform).items() or [("", "")]
        wrong += [
            Problem(
                settings.origin("pools"),
                f"pools.{pool}",
                "",
                f"its credentials are of the {platform} account {name}, those of the pool {first} of {owner}: "
                "several accounts of one owner are refused (docs/security.md)",
                "give all these pools credentials of one account, or set enabled = false",
            )
            for pool, name in others
            if name.lower() != owner.lower()
        ]
    if wrong:
        raise ConfigError(wrong)
