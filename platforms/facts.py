"""Facts: values for a pool's settings that its platform documents or its sessions showed; explicit settings win.

A fact has the ``value`` of a setting, the value ``assumed`` before, and its ``source``. An assumption that an
acceptance run confirmed is a fact under the name of its probe; it changes no setting.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.nouns.pool import Pool
from jobs.nouns.values import key_of
from platforms.record_file import DamagedRecord, read_record

FACTS = "facts.json"
OPTION = "options."  # before the name of an option of the platform; any other name is a setting of the pool
Facts = dict[str, dict[str, int | str]]
_DOCUMENTED = "shipped, Kaggle's documentation 2026-11-21"
SHIPPED: dict[tuple[str, str], Facts] = {
    ("kaggle", "gpu"): {"session_cap_seconds": {"value": 43_200, "assumed": 43_200, "source": _DOCUMENTED}},
    ("kaggle", "tpu"): {
        "session_cap_seconds": {"value": 32_400, "assumed": 43_200, "source": _DOCUMENTED},
        "options.machine_shape": {"value": "TpuV5E8", "assumed": "NvidiaTeslaT4", "source": _DOCUMENTED},
    },
}
"""The facts that a platform documents, by platform and kind of device; observed facts have priority."""


def read_facts(state_dir: Path) -> dict[str, Facts]:
    """Return the observed facts by pool; {} if they cannot be read, as settings and defaults suffice."""
    try:
        return read_record(state_dir, FACTS, dict[str, Facts]) or {}
    except (DamagedRecord, OSError):
        return {}


def facts_of(pool: Pool, observed: Facts, written: Mapping[str, Any]) -> Facts:
    """Return the facts of a pool, shipped and observed, except where its settings table ``written`` has a value."""
    facts = {**SHIPPED.get((pool.platform, pool.kind), {}), **observed}
    set_here = {*written, *(f"{OPTION}{name}" for name in pool.options)}
    return {name: fact for name, fact in facts.items() if key_of(name) not in set_here}


def with_facts(pool: Pool, facts: Facts) -> Pool:
    """Return a pool with the values of its facts as settings and options."""
    options = {name.removeprefix(OPTION): str(fact["value"]) for name, fact in facts.items() if name.startswith(OPTION)}
    fields: dict[str, Any] = {name: fact["value"] for name, fact in facts.items() if hasattr(pool, name)}
    return replace(pool, **fields, options={**options, **pool.options})
