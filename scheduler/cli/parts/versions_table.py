"""Versions of models as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.cli.shell.output import Output
    from scheduler.views.models import ListedVersion, Model


def show_versions(out: Output, found: Sequence[Model]) -> bool:
    """Write the versions of models, and which of these a person must promote; return whether there are versions."""
    rows = [_row(out, version) for one in found for version in one.versions]
    if rows:
        out.table(
            ("version", ">step", "state", "promoted", "-initialised from", "-deployed to", "--made", "~why"), rows
        )
    for one in found:
        if one.paused:
            remedy = f"schedctl models promote {one.name}@N"
            out.say(f"{one.name}: a version was rolled back, so a person must promote the next one: {remedy}")
    return bool(rows)


def _row(out: Output, version: ListedVersion) -> tuple[str, ...]:
    return (
        version.name,
        str(version.step),
        version.state,
        "yes" if version.in_force else "",
        version.parent,
        ", ".join(version.serving),
        out.moment(version.created_at),
        version.why,
    )
