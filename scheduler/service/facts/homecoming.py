"""Output collection: whether all outputs of an ended session have arrived, when to fetch again, and when to give up.

A download may be damaged, a platform may answer in part, a store may be late. So an end counts only when all reported
checkpoints have arrived. Missing ones are fetched again, less often each time; after PATIENCE_SECONDS they are lost,
which is an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobs.payload.store.manifest import manifest_key
from scheduler.core.run import Run
from scheduler.core.window import HOUR
from scheduler.service.facts.observation import LiveJobs, Observation
from scheduler.service.outside.ports import Ports
from scheduler.store import events

PATIENCE_SECONDS = 6 * HOUR
_AGAIN_SECONDS, _AGAIN_SECONDS_MAX = 60, HOUR // 2
AWAITED, LOST = "session.awaited", "session.lost"


class Homecoming:
    """Keeps when to fetch again; this may be lost. The event log has the time since which outputs are awaited."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._next: dict[str, tuple[int, int, str]] = {}  # by run: pause, when it is over, why
        self.read: set[str] = set()  # runs that are home, about which the store has not told all yet
        self.answers: dict[str, Observation] = {}  # by question: the answers of earlier cycles
        self.fresh: dict[str, Observation] = {}  # the same of the look that is going on

    def is_due(self, run: Run, observation: Observation, now: int) -> bool:
        """Return whether to fetch the run's outputs now; if not, the last error stays in ``seen.awaited``."""
        if run.key in self.read:
            return False
        _, at, why = self._next.get(run.key, (0, 0, ""))
        if now < at and why:
            observation.awaited[run.key] = why
        return now >= at

    def judge(self, over: Sequence[Run], stored: LiveJobs, observation: Observation, now: int) -> None:
        """Move runs from ``seen.awaited`` to ``seen.lost`` after PATIENCE_SECONDS.

        Runs whose lanes report missing checkpoints come first. ``over`` are ended runs and those with a final report.
        """
        self.read = {run.key for run in over} & observation.home & observation.late
        self.answers, self.fresh = self.fresh, {}
        for run in over:
            if run.key not in self.read:
                with observation.isolated(run.key):
                    self._judge(run, stored, observation, now)
        for key in self._next.keys() - {run.key for run in over}:
            del self._next[key]

    def _judge(self, run: Run, stored: LiveJobs, observation: Observation, now: int) -> None:
        fetched = run.key not in observation.awaited
        if fetched and (missing := "; ".join(_missing(run, stored, observation))):
            observation.awaited[run.key] = missing
        why = observation.awaited.get(run.key)
        if why is None:
            self._next.pop(run.key, None)
            return
        pause, at, _ = self._next.get(run.key, (_AGAIN_SECONDS // 2, 0, ""))
        if now >= at and observation.is_reached(run):
            pause = min(2 * pause, _AGAIN_SECONDS_MAX)
            self._next[run.key] = pause, now + pause, "" if fetched else why
        # Time without a query does not count, for example while the daemon was off, so the pause must be long as well.
        if now - self._tell(AWAITED, run, why, now) >= PATIENCE_SECONDS and pause >= _AGAIN_SECONDS_MAX:
            observation.lost[run.key] = observation.awaited.pop(run.key)
            self._tell(LOST, run, why, now)

    def _tell(self, kind: str, run: Run, why: str, now: int) -> int:
        """Write one event of a kind for a run; return its instant."""
        with self._ports.database.read() as tx:
            last = events.tail(tx, limit=1, kinds=[kind], subject=run.key)
        if last:
            return last[0].at
        with self._ports.write() as tx:
            events.append(tx, kind, run.key, now, why=why[:500])
        self._ports.log.warning(kind, run=run.key, jobs=[lane.job for lane in run.lanes], why=why)
        return now


def _missing(run: Run, stored: LiveJobs, observation: Observation) -> Iterator[str]:
    """Yield the checkpoints that lanes report and that are missing."""
    here = {manifest.key for manifest in observation.manifests} | set(stored.keys)
    for lane in run.lanes:
        report = observation.results.get((run.key, lane.index)) or observation.heartbeats.get((run.key, lane.index))
        if lane.outcome is not None or report is None or lane.job not in observation.listed:
            continue  # the store has not listed it
        step = report.checkpoint_step
        began = lane.restore_step if report.restored_step is None else report.restored_step
        # With the attempt: an earlier one may have saved a damaged checkpoint of the same step.
        if step is not None and step != began and manifest_key(lane.job, step, lane.attempt) not in here:
            yield f"step {step} of {lane.job} is not here, or damaged"
