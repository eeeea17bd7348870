"""Poor use: in one sentence, why little of what a pool billed in a week was productive. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scheduler.core.run import Ended, Outcome, Run

if TYPE_CHECKING:
    from scheduler.report.report import Spent

LOSING = {Outcome.FAILED, Outcome.LOST, Outcome.PREEMPTED}
"""The outcomes of sessions and lanes that lose work."""

_PRODUCTIVE_MIN = 0.5  # of what was billed; less is explained
_SECONDS_MIN = 360  # what was billed less long needs no reason
_WORDS = {
    "lost": "went into work that was lost",
    "set_up": "went into set-up",
    "overhead": "went into saving and idle time",
    "waited": "were billed while sessions waited in the platform's queue",
    "unattributed": "were used outside this scheduler",
    "running": "are reserved for sessions that still run",
}


def reason(spent: Spent, runs: Iterable[Run]) -> str:
    """Return why little was productive, ``1.1 of 1.4 h went into set-up``; empty where enough was.

    ``runs`` are the pool's of the week. Of lost work the newest session that lost some is named, with its reason.
    """
    if spent.charged < _SECONDS_MIN or spent.goodput >= _PRODUCTIVE_MIN:
        return ""
    most = max(_WORDS, key=lambda name: int(getattr(spent, name)))
    said = f"{getattr(spent, most) / 3_600:.1f} of {spent.charged / 3_600:.1f} h {_WORDS[most]}"
    if most not in {"lost", "overhead", "set_up"}:
        return said
    ended = [(run.state.at, run.key, run) for run in runs if isinstance(run.state, Ended)]
    for _, key, run in sorted(ended, reverse=True):
        for lane in run.lanes:
            if lane.outcome in LOSING:
                why = f" ({lane.message.rstrip('.')})" if lane.message else ""
                return f"{said}; session {key} was {_ENDS.get(str(lane.outcome), str(lane.outcome))}{why}"
    return said


_ENDS = {"failed": "stopped by a failure", "lost": "lost", "preempted": "stopped by its platform"}
