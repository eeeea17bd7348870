"""Doctor: whether targets can be reached and asked. Nothing is sent there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.plural import counted
from platforms.base import Checked

if TYPE_CHECKING:
    from scheduler.service.outside.ports import ServedAt

_NOBODY = "doctor-probe"  # a model that no target has


def check_target(at: ServedAt, models: list[str]) -> Checked:
    """Open a target and ask what it serves of the models, or of one that nobody has. Raises TargetError."""
    target = at.open()
    seen = {model: target.read(model) for model in (filter(at.rule.serves, models) if models else [_NOBODY])}
    there = {model: found for model, found in seen.items() if found.version is not None}
    if unproven := sorted(model for model, found in there.items() if not found.proven):
        remedy = f"Let it be brought there again: schedctl models sync {at.rule.name}"
        return Checked("warning", f"nobody has seen {', '.join(unproven)} answer since the newest change", remedy)
    return Checked("ok", f"answers; {counted(len(there), 'model')} served there")
