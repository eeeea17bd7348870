"""Stuck: the daemon's own eye on sessions whose heartbeats go on while their steps do not.

A payload ends a session that burns hours by itself (jobs/payload/lane/stall.py). This is the second line, for one that
does not: after twice what it was given it is asked to leave, and its end counts as a stall. Only heartbeats that are
fresh count; silence is "unknown". How long a lane stood still may be lost: after a restart the wait begins again. Which
lanes were asked to leave is stored, as conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jobs.lane_report import LaneReport
from scheduler.core.reconcile import AskStop
from scheduler.core.run import Run, Running
from scheduler.service.facts.overheads import Overheads
from scheduler.service.faults.isolation import isolated_run
from scheduler.service.launch.patience import FIRST_PROGRESS_SECONDS, patience, quiet_seconds
from scheduler.service.outside.ports import Ports
from scheduler.store import conditions, jobs, rates, runs

STUCK = "no new step for too long, the daemon says"
_TIMES = 2  # what a payload gives its command
_AT_WORK = frozenset({"starting", "training", "saving"})
_Lane = tuple[str, int]


class _Seen(NamedTuple):
    step: int | None
    checkpoint_step: int | None
    since: int


class Stuck:
    """Remembers since when each live lane has stood at its step. No bound is asked for before its least has passed."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._seen: dict[_Lane, _Seen] = {}

    def look(
        self, live: Sequence[Run], heard: Mapping[_Lane, LaneReport], faults: dict[str, str], now: int
    ) -> list[AskStop]:
        """Return whom to ask to leave, after noting what is ``heard`` now; into ``faults`` goes why some cannot be."""
        fresh = now - self._ports.policy.overdue_seconds
        held: dict[_Lane, _Seen] = {}
        for lane, said in heard.items():
            # Without a step, only a command that was started can be stuck: until then the agent prepares.
            at_work = said.phase in _AT_WORK and (said.step is not None or said.command_at is not None)
            if not at_work or said.at is None or said.at < fresh:
                continue
            before = self._seen.get(lane)
            same = before is not None and (before.step, before.checkpoint_step) == (said.step, said.checkpoint_step)
            held[lane] = before if before and same else _Seen(said.step, said.checkpoint_step, now)
        self._seen = held
        stuck: dict[str, dict[int, str]] = {}
        for run in live:
            with isolated_run(faults, run.key):
                if isinstance(run.state, Running) and (lanes := self._stuck(run, now)):
                    stuck[run.key] = lanes
        self._record({(key, lane): why for key, lanes in stuck.items() for lane, why in lanes.items()}, live, now)
        return [ask for run in live if run.key in stuck for ask in _asks(run, stuck[run.key])]

    def judged(self, results: Mapping[_Lane, LaneReport]) -> dict[_Lane, LaneReport]:
        """Return last words, those of lanes that were asked to leave for this and had nothing to save as stalls."""
        if not results:
            return {}
        asked = self._asked()
        return {
            lane: replace(said, outcome="failed", error_class="stalled")
            if said.outcome == "yielded" and lane in asked
            else said
            for lane, said in results.items()
        }

    def _asked(self) -> set[_Lane]:
        """Return the lanes that were asked to leave for this."""
        with self._ports.database.read() as tx:
            return {(known.subject, int(known.what)) for known in conditions.standing(tx, conditions.STALLED)}

    def _record(self, stuck: Mapping[_Lane, str], live: Sequence[Run], now: int) -> None:
        """Store which lanes are asked to leave, before they are, and forget those that are over."""
        opened = {(run.key, lane.index) for run in live for lane in run.lanes if lane.outcome is None}
        asked = self._asked()
        if stuck.keys() <= asked <= opened:
            return
        with self._ports.write() as tx:
            for key, lane in asked - opened:
                conditions.close(tx, conditions.STALLED, key, str(lane))
            for key, lane in stuck.keys() - asked:
                conditions.put(tx, conditions.STALLED, key, at=now, why=stuck[key, lane], what=str(lane))

    def _stuck(self, run: Run, now: int) -> dict[int, str]:
        """Return why each lane of a run that stands still must leave."""
        opened = [lane for lane in run.lanes if lane.outcome is None]
        stuck = {}
        for lane in opened:
            seen = self._seen.get((run.key, lane.index))
            if seen is not None and now - seen.since > _TIMES * FIRST_PROGRESS_SECONDS:
                limit = self._limit(run, lane.job, reports=seen.step is not None)
                if limit is not None and now - seen.since > _TIMES * limit:
                    at = "nothing was reported" if seen.step is None else f"the newest is {seen.step}"
                    stuck[lane.index] = f"{STUCK}: {at}, for {(now - seen.since) / 60:.0f} min"
        return stuck

    def _limit(self, run: Run, job: str, *, reports: bool) -> int | None:
        """Return what the payload was given, as far as is known now; None when the rule is off."""
        pool = self._ports.pools.get(run.pool)
        with self._ports.database.read() as tx:
            record = jobs.find(tx, job)
            if pool is None or record is None:
                return None
            overheads = Overheads(rates.everything(tx))
            bounds = patience(
                record.spec,
                pool,
                overheads.of(record.spec, pool),
                overheads.measured,
                done_step=record.done_step,
                quiet_seconds=quiet_seconds(runs.reports_of_good_sessions(tx, job)),
                scale=self._ports.clock.payload_clock()["scale"],
            )
        limit: int | None = bounds["no_progress_seconds" if reports else "first_progress_seconds"]
        return limit


def _asks(run: Run, stuck: Mapping[int, str]) -> list[AskStop]:
    if len(stuck) == sum(lane.outcome is None for lane in run.lanes):
        return [AskStop(run, None, "; ".join(sorted(set(stuck.values()))))]
    return [AskStop(run, index, why) for index, why in stuck.items()]
