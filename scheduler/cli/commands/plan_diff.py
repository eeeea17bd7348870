"""`schedctl plan diff`: what the newest plan does that an earlier one did not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from scheduler.cli.parts.plan_changes import difference_json, show_changes, signed
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.output import hours
from scheduler.core.plan import Placement, Plan
from scheduler.views.plan_history import PlanDiff, SessionChange, compare


def show_diff(cli: Cli, since: int | None) -> None:
    """Write what changed up to the newest plan. Raises NoPlanToCompare."""
    app = cli.app
    found = compare(app.database, app.pools, cli.now, app.policy.horizon_seconds, since)
    cli.out.data(
        {
            "before": _head(found.before),
            "after": _head(found.after),
            "sessions": [asdict(change) for change in found.sessions],
            **difference_json(found.difference),
        }
    )
    _show(cli, found)


def _head(plan: Plan) -> dict[str, Any]:
    return {"made_at": plan.made_at, "made_by": plan.made_by, "digest": plan.digest, "bound": plan.bound}


def _show(cli: Cli, found: PlanDiff) -> None:
    out, before, after = cli.out, found.before, found.after
    out.line(
        f"From the plan of {out.instant(before.made_at)}, worth {before.value:.2f}, "
        f"to that of {out.instant(after.made_at)}, worth {after.value:.2f}."
    )
    if not found.sessions and found.difference.nothing:
        out.line("Both plan the same sessions.")
        return
    if found.sessions:
        out.line()
        out.table(
            ("session", "~jobs", "pool", "from", "->length", "~was"),
            [_session_row(cli, change) for change in found.sessions],
        )
    show_changes(out, found.difference)


def _session_row(cli: Cli, change: SessionChange) -> tuple[str, ...]:
    before, after = change.before, change.after
    shown = after or before
    if shown is None:
        raise ValueError("a change of no session")
    jobs = ", ".join(planned_lane.job for planned_lane in shown.lanes)
    was = _was(cli, before, after) if before and after else ""
    return change.change, jobs, shown.pool, cli.out.moment(shown.start), hours(shown.end - shown.start), was


def _was(cli: Cli, before: Placement, after: Placement) -> str:
    """Return in words how a session that moved was planned."""
    words = []
    if before.pool != after.pool:
        words.append(f"on {before.pool}")
    if before.start != after.start:
        words.append(f"from {cli.out.instant(before.start)} ({signed(after.start - before.start)})")
    if before.end - before.start != after.end - after.start:
        words.append(f"of {hours(before.end - before.start)}")
    return ", ".join(words)
