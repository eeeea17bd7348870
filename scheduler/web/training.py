"""Training: the jobs that a person looks for first, each with how it goes, and the verdict on all of them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from jobs.spec import EVALUATE
from scheduler.core.job import Done
from scheduler.core.window import WEEK
from scheduler.report.report import Need
from scheduler.store import counts, events, jobs, limits
from scheduler.views.verdict import sentence, verdict
from scheduler.web.queue import rows
from scheduler.web.quota import meters
from scheduler.web.shapes import TrainingNow, TrainingRow
from scheduler.web.source import Source

_SHOWN = 12
_FINISHED_SHOWN = 6


def training_now(source: Source, tx: Connection, needs: Sequence[Need], now: int) -> TrainingNow:
    """Return the jobs that train, then those that wait and those that failed or are held, and what is over."""
    active, _ = jobs.page(tx, _SHOWN, states={"active"})
    found = list(active)
    for wanted in ({"failed", "held"}, {"queued"}, {"done"}):
        room = _SHOWN - len(found)
        found += jobs.page(tx, room, states=wanted)[0] if room > 0 else []
    # What scored a version and is over says no more than the version does.
    found = [record for record in found if record.spec.role != EVALUATE or not isinstance(record.state, Done)]
    going = source.trainings(tx, found, now)
    states = counts.training_by_state(tx)
    over = source.app.settings.clock.stopped_at is not None
    week = [
        event.subject
        for event in events.tail(tx, limit=_FINISHED_SHOWN, kinds=("job.finish",))
        if event.at > now - WEEK
    ]
    over_now = [record for name in dict.fromkeys(reversed(week)) if (record := jobs.find(tx, name)) is not None]
    told = verdict(
        going,
        states,
        {} if over else source.places(tx),
        needs,
        meters(source, tx, now),
        now,
        paused=limits.paused(tx) is not None,
    )
    return TrainingNow(
        finished=rows(
            source,
            tx,
            [one for one in over_now if isinstance(one.state, Done) and one.spec.role != EVALUATE],
        ),
        verdict=told,
        line=sentence(told, now, source.zone),
        jobs=[
            TrainingRow(**row.model_dump(), training=each)
            for row, each in zip(rows(source, tx, found), going, strict=True)
        ],
        more=sum(count for state, count in states.items() if state != "cancelled")
        - sum(record.spec.role != EVALUATE for record in found),
    )
