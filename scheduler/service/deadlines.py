"""Deadlines: notices when the plan no longer keeps one, and when it keeps it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.report.forecast import forecast
from scheduler.store import events, jobs, plans, rates

if TYPE_CHECKING:
    from scheduler.service.ports import Ports

AT_RISK, KEPT = "deadline.at_risk", "deadline.kept"


def watch_deadlines(ports: Ports, now: int) -> None:
    """Write an event for each job whose deadline came to be at risk, or is no longer, since the last look.

    At risk is a deadline before the late end of the forecast by the newest plan, or without any forecast.
    """
    with ports.database.read() as tx:
        dated = [job for job in jobs.everything(tx, {"queued", "active", "held"}) if job.spec.deadline is not None]
        if not dated:
            return
        plan, speeds = plans.newest(tx), rates.everything(tx)
        changes = []
        for job in dated:
            name, left = job.spec.name, job.spec.target_step - job.done_step
            sigma = max((rate.sigma for (of, _), rate in speeds.items() if of == name and rate.samples), default=None)
            found = forecast(name, left, plan, 0.0, sigma, now)
            risky = left > 0 and (found is None or found.latest > (job.spec.deadline or 0))
            last = events.tail(tx, limit=1, kinds=(AT_RISK, KEPT), subject=name)
            if risky != bool(last and last[-1].kind == AT_RISK):
                changes.append((name, job.spec.deadline, risky, found.latest if found else None))
    with ports.write() as tx:
        for name, deadline, risky, latest in changes:
            events.append(tx, AT_RISK if risky else KEPT, name, now, deadline=deadline, forecast=latest)
