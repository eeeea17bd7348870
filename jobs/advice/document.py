"""Advice as plain values for programs: what JSON shows, and what pages and tables are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobs.advice.card import GIB
from jobs.advice.recipe import flags
from jobs.advice.speed import cadence

if TYPE_CHECKING:
    from jobs.advice.choice import Advice, Choice

_DISK_BYTES_A_SECOND = 1e9  # at which a checkpoint is written


def advice_json(advice: Advice) -> dict[str, Any]:
    """Return all rungs, the one taken and what would fit if none does. Memory in GiB, times in hours."""
    told = advice.wishes.tokens > 0
    return {
        "model": advice.shape.name,
        "parameters": advice.shape.parameters,
        "card": advice.card.name,
        "devices": advice.devices,
        "usable_gib": advice.card.usable_gib,
        "precision": advice.card.precision,
        "attention": advice.card.attention,
        "wheel": advice.card.wheel,
        "warnings": list(advice.card.warnings),
        "tokens": advice.wishes.tokens,
        "taken": choice_json(advice.taken, told=told) if advice.taken else None,
        "nearest": advice.nearest,
        "rungs": [choice_json(one, told=told) for one in advice.rungs],
    }


def choice_json(one: Choice, *, told: bool) -> dict[str, Any]:
    """Return one rung; hours and money are null unless it was ``told`` how much is to be trained."""
    setup, pace = one.setup, one.pace
    return {
        "rung": one.rung,
        "verdict": one.verdict,
        "why": one.why,
        "told": setup.told,
        "method": setup.method,
        "batch": setup.batch,
        "accumulate": setup.accumulate,
        "rows": setup.rows,
        "seq": setup.seq,
        "checkpointing": setup.checkpointing,
        "parallel": setup.parallel,
        "offload": setup.offload,
        "gib": round(one.memory.gib, 2),
        "allocated_gib": round(one.memory.allocated / GIB, 2),
        "margin": round(one.margin, 3),
        "instant": one.memory.instant,
        "parts": {part.name: {"gib": round(part.bytes / GIB, 3), "formula": part.formula} for part in one.memory.parts},
        "ram_gib": round(one.storage.ram / GIB, 1),
        "checkpoint_gb": round(one.storage.checkpoint / 1e9, 2),
        "disk_gb": round(one.storage.disk / 1e9, 1),
        "checkpoint_every_seconds": cadence(max(1.0, one.storage.checkpoint / _DISK_BYTES_A_SECOND)),
        "tokens_per_second": round(pace.tokens_per_second),
        "step_seconds": round(pace.step, 3),
        "sigma": round(pace.sigma, 3),
        "seen_steps": pace.seen,
        "limits": {name: round(share, 3) for name, share in pace.limits.items()},
        "hours": round(one.hours, 3) if told else None,
        "hours_p90": round(one.hours_p90, 3) if told else None,
        "kwh": round(one.kwh, 2) if told else None,
        "usd": round(one.usd, 2) if told else None,
        "flags": flags(setup),
    }
