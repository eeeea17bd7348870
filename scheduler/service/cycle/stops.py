"""Stops: ask sessions to save and exit, repeatedly until they end, and end them by force if they do not."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from jobs.lane_report import LaneReport
from platforms.artifacts.base import StoreError
from platforms.base import PlatformError
from scheduler.core.reconcile import AskStop, Finish, ForceStop, Step
from scheduler.core.run import Run, Running, Stopping, Submitting
from scheduler.service.facts.observation import Observation
from scheduler.service.facts.overheads import FIRST_PROGRESS_SECONDS, Overheads, patience, quiet_seconds
from scheduler.service.faults.isolation import apart, isolated_run
from scheduler.service.faults.places import Pauses
from scheduler.service.launch.launch_document import put_stop_flag, stop_flag_key
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import conditions, jobs, rates, runs


class Stops:
    """Asks sessions to stop and ends them by force if needed. Its state may be lost in a restart."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._pauses = Pauses()
        # By run ID: (deadline in UTC seconds, the same instant on the monotonic clock).
        self._ends: dict[str, tuple[int, float]] = {}
        self._since: dict[str, float] = {}  # by run ID: when it was first asked to exit, on the monotonic clock
        self._flagged: dict[str, int] = {}  # by run ID: when the stop flag of an unanswered launch was written

    def fenced(self, steps: Sequence[Step], faults: dict[str, str]) -> list[Step]:
        """Return the allowed steps. A launch without an answer ends only some time after its stop flag was written.

        If the platform started the session without listing it, the session exits within that time, and one that starts
        later exits at once. So it never trains beside the job's next session. A run whose check fails has no steps;
        ``faults`` gets the reason.
        """
        allowed: list[Step] = []
        for step in steps:
            with isolated_run(faults, step.run.key):
                allowed += [step] if self._is_allowed(step) else []
        return allowed

    def _is_allowed(self, step: Step) -> bool:
        if not (isinstance(step, Finish) and not step.proven and isinstance(step.run.state, Submitting)):
            return True
        key = step.run.key
        if key not in self._flagged and self._flag([step]).get(key):
            self._flagged[key] = self._ports.clock.now()
        flagged = self._flagged.get(key)
        if flagged is None or self._ports.clock.now() < flagged + self._ports.policy.overdue_seconds:
            return False
        del self._flagged[key]
        return True

    def send(self, live: Sequence[Run], observed: Observation, steps: Sequence[Step], now: int) -> None:
        """Write stop flags, and end sessions after their deadline. Call it in each cycle until the sessions have ended.

        Force is used only after the deadline and a grace period on the monotonic clock. With the wall clock, a host
        that slept or whose clock was set would end sessions too early.
        """
        stopping = [run for run in live if isinstance(run.state, Stopping)]
        elapsed = self._ports.clock.elapsed()
        ends = {run.key: (run.deadline, elapsed + max(0, run.deadline - now)) for run in live}
        before = self._ends
        self._ends = {
            key: before[key] if key in before and before[key][0] == end[0] else end for key, end in ends.items()
        }
        self._since = {run.key: self._since.get(run.key, elapsed) for run in stopping}
        ended: dict[str, Callable[[], None]] = {}
        asks: list[AskStop | Finish] = []
        for step in steps:
            if isinstance(step, ForceStop):
                faults: dict[str, str] = {}
                with isolated_run(faults, step.run.key):
                    asks += self._force(step, observed, ended, now)
                for key, why in faults.items():
                    self._ports.log.error("stop.failed", run=key, why=why)
            elif isinstance(step, AskStop) or (isinstance(step, Finish) and step.may_live):
                asks.append(step)
        keys = {step.run.key for step in asks}
        self._flag(asks, [run for run in stopping if run.key not in keys])
        for run in stopping:
            sighting = observed.sightings.get(run.key)
            if sighting is not None and sighting.stop_channel == "platform" and sighting.state != "ended":
                ended.setdefault(run.key, self._ending(run, now, force=False))
        self._pauses.keep(ended)
        self._ports.calls.gather("stop", ended)

    def _force(
        self, step: ForceStop, observed: Observation, ended: dict[str, Callable[[], None]], now: int
    ) -> list[AskStop]:
        """Add the work that ends a session to ``ended``; return a stop flag to write if it still has time to save."""
        sighting = observed.sightings.get(step.run.key)
        channel = sighting.stop_channel if sighting is not None else "store"
        # Force follows a grace period after the deadline or the stop. Without a stop channel a session cannot save.
        key, elapsed = step.run.key, self._ports.clock.elapsed()
        since = self._ends[key][1] if now > step.run.deadline else self._since.get(key, elapsed)
        if channel == "none" or elapsed >= since + self._ports.policy.grace_seconds:
            ended[step.run.key] = self._ending(step.run, now, force=True)
            return []
        if channel == "platform":
            ended[step.run.key] = self._ending(step.run, now, force=False)
        return [AskStop(step.run, None, step.why)]

    def _ending(self, run: Run, now: int, *, force: bool) -> Callable[[], None]:
        """Return the work that ends a session; its errors are logged with the run ID."""

        def end() -> None:
            try:
                border.call(run.pool, "stop", lambda: self._ports.platforms[run.pool].stop(run.key, now, force=force))
            except PlatformError as error:
                if self._pauses.is_due(run.key, now):
                    self._ports.log.error("stop.failed", run=run.key, why=str(error))

        return partial(apart, self._ports, "stop.failed", end, None, run=run.key)

    def _flag(self, asks: Sequence[AskStop | Finish], stopping: Sequence[Run] = ()) -> dict[str, bool]:
        """Write the requested stop flags, and missing ones of runs that are stopping; return success by run.

        Only one write per run is in progress, because a late write of a lane's flag must not replace that of the run.
        """
        wanted: dict[str, tuple[Run, list[tuple[int | None, str]]]] = {}
        for ask in asks:
            lane = ask.lane if isinstance(ask, AskStop) else None
            wanted.setdefault(ask.run.key, (ask.run, []))[1].append((lane, ask.why))
        for run in stopping:
            wanted[run.key] = run, [(None, run.state.why if isinstance(run.state, Stopping) else "")]
        kept = {run.key for run in stopping}
        work = {key: self._flagging(*order, keep=key in kept) for key, order in wanted.items()}
        put = self._ports.calls.gather("flag", work)
        other = {key: wanted[key] for key, (lanes, _) in put.items() if lanes != [lane for lane, _ in wanted[key][1]]}
        if other:  # an earlier request finished late, so the present one is repeated
            again = {key: self._flagging(*order, keep=False) for key, order in other.items()}
            put = {key: put[key] for key in put.keys() - other.keys()} | self._ports.calls.gather("flag", again)
        return {key: there for key, (_, there) in put.items()}

    def _flagging(
        self, run: Run, flags: Sequence[tuple[int | None, str]], *, keep: bool
    ) -> Callable[[], tuple[list[int | None], bool]]:
        """Return the work that writes a run's flags in order. With ``keep`` an existing flag is not written again.

        The work returns the lanes of the flags, and whether all exist. Its errors are logged with the run ID.
        """
        lanes = [lane for lane, _ in flags]

        def put() -> tuple[list[int | None], bool]:
            there = False
            with suppress(StoreError):  # a flag whose existence is unknown counts as missing
                there = keep and self._ports.artifacts.size(stop_flag_key(run.key)) is not None
            return lanes, there or False not in [self._put(run, lane, why) for lane, why in flags]

        return partial(apart, self._ports, "stop.flag_failed", put, (lanes, False), run=run.key)

    def _put(self, run: Run, lane: int | None, why: str) -> bool:
        """Write the flag; return whether that succeeded."""
        try:
            put_stop_flag(self._ports.artifacts, run.key, why, lane)
        except StoreError as error:
            self._ports.log.warning("stop.flag_failed", run=run.key, why=str(error))
            return False
        return True


# Stall detection by the daemon: sessions that send heartbeats without new steps.
#
# The payload ends a stalled session itself (jobs/payload/lane/ending.py). This is the fallback: after twice its
# limit the session is asked to exit, and its end counts as a stall. Only fresh heartbeats count; without one the state
# is unknown. The waiting time is lost in a restart. The lanes that were asked to exit are stored as conditions.
STUCK = "the daemon saw no new step for too long"
_TIMES = 2  # how many times the payload's own limit
_AT_WORK = frozenset({"starting", "training", "saving"})
_Lane = tuple[str, int]


class _LaneProgress(NamedTuple):
    step: int | None
    checkpoint_step: int | None
    since: int


class StuckLanes:
    """Records since when each live lane reports the same step, and stops lanes that report no new one for too long."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._heard: dict[_Lane, _LaneProgress] = {}

    def look(
        self, live: Sequence[Run], heard: Mapping[_Lane, LaneReport], faults: dict[str, str], now: int
    ) -> list[AskStop]:
        """Return the stops of stalled lanes; ``heard`` has the newest heartbeats, ``faults`` gets errors by run ID."""
        fresh = now - self._ports.policy.overdue_seconds
        progress: dict[_Lane, _LaneProgress] = {}
        for lane, report in heard.items():
            # A lane without a step can stall only after its command has started; before, the runner prepares it.
            at_work = report.phase in _AT_WORK and (report.step is not None or report.command_at is not None)
            if not at_work or report.at is None or report.at < fresh:
                continue
            before = self._heard.get(lane)
            same = before is not None and (before.step, before.checkpoint_step) == (report.step, report.checkpoint_step)
            progress[lane] = before if before and same else _LaneProgress(report.step, report.checkpoint_step, now)
        self._heard = progress
        stuck: dict[str, dict[int, str]] = {}
        for run in live:
            with isolated_run(faults, run.key):
                if isinstance(run.state, Running) and (lanes := self._stuck(run, now)):
                    stuck[run.key] = lanes
        self._record({(key, lane): why for key, lanes in stuck.items() for lane, why in lanes.items()}, live, now)
        asks: list[AskStop] = []
        for run, lanes in ((run, stuck[run.key]) for run in live if run.key in stuck):
            if len(lanes) == sum(lane.outcome is None for lane in run.lanes):
                asks.append(AskStop(run, None, "; ".join(sorted(set(lanes.values())))))
            else:
                asks += [AskStop(run, index, why) for index, why in lanes.items()]
        return asks

    def mark_stalled(self, results: Mapping[_Lane, LaneReport]) -> dict[_Lane, LaneReport]:
        """Return final reports; those of stalled lanes that saved nothing become failures of the class ``stalled``."""
        if not results:
            return {}
        stalled = self._stalled_lanes()
        return {
            lane: replace(result, outcome="failed", error_class="stalled")
            if result.outcome == "yielded" and lane in stalled
            else result
            for lane, result in results.items()
        }

    def _stalled_lanes(self) -> set[_Lane]:
        """Return the lanes that were asked to exit because of a stall."""
        with self._ports.database.read() as tx:
            return {(one.subject, int(one.what)) for one in conditions.standing(tx, conditions.STALLED)}

    def _record(self, stuck: Mapping[_Lane, str], live: Sequence[Run], now: int) -> None:
        """Store the lanes that are about to be asked to exit, and delete those that have ended."""
        opened = {(run.key, lane.index) for run in live for lane in run.lanes if lane.outcome is None}
        stalled = self._stalled_lanes()
        if stuck.keys() <= stalled <= opened:
            return
        with self._ports.write() as tx:
            for key, lane in stalled - opened:
                conditions.close(tx, conditions.STALLED, key, str(lane))
            for key, lane in stuck.keys() - stalled:
                conditions.put(tx, conditions.STALLED, key, at=now, why=stuck[key, lane], what=str(lane))

    def _stuck(self, run: Run, now: int) -> dict[int, str]:
        """Return the reason for each stalled lane of a run, by index."""
        opened = [lane for lane in run.lanes if lane.outcome is None]
        stuck = {}
        for lane in opened:
            heard = self._heard.get((run.key, lane.index))
            if heard is not None and now - heard.since > _TIMES * FIRST_PROGRESS_SECONDS:
                limit = self._limit(run, lane.job, reports=heard.step is not None)
                if limit is not None and now - heard.since > _TIMES * limit:
                    at = "no step was reported" if heard.step is None else f"the newest is step {heard.step}"
                    stuck[lane.index] = f"{STUCK}: {at}, for {(now - heard.since) / 60:.0f} min"
        return stuck

    def _limit(self, run: Run, job: str, *, reports: bool) -> int | None:
        """Return the payload's limit in seconds for a lane of ``job``; None if the rule is off."""
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
