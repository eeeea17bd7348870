"""One cycle of the daemon: load, observe, reconcile, apply, plan, reserve, launch, settle.

The order is the safety argument. Nothing is launched without a committed intent, no transaction is open while a
platform is called, and every write checks the lease. A crash between any two lines loses nothing: the next cycle
starts from the database and the platforms alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from platforms.artifacts.base import StoreError
from platforms.base import PlatformError
from scheduler.core.job import Active
from scheduler.core.reconcile import AskStop, Facts, Finish, ForceStop, Step, reconcile
from scheduler.core.run import Run, Running, Stopping, Submitting, stop
from scheduler.core.window import HOUR
from scheduler.service.apply import apply
from scheduler.service.launch import launch_all, reserve
from scheduler.service.look_back import is_wanted, look_back
from scheduler.service.observe import observe
from scheduler.service.quota_books import close_books
from scheduler.service.retention import sweep_ended
from scheduler.service.snapshot import load_snapshot
from scheduler.service.watch import watch
from scheduler.store import checkpoints, events, jobs, plans, runs, watched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.core.job import Wish
    from scheduler.core.plan import Plan
    from scheduler.service.observe import Observation
    from scheduler.service.ports import Ports
    from scheduler.store.watched import Watched

_PLAN_AT_LEAST_EVERY_SECONDS = 6 * HOUR  # nothing happened, and nothing planned is due
_PLAN_AGAIN_SECONDS = 600  # something due could not be launched
# What a launch that goes to plan leaves in the event log: the plan said so, hence it is no reason to plan anew.
_AS_PLANNED = frozenset({"run.reserved", "job.activate", "run.submit", "run.accept"})
_EVENTS_MAX = 200
_WATCH_EVERY_SECONDS = 600  # runs that were settled without the platform's word are looked for


@dataclass(frozen=True, slots=True)
class _Loaded:
    live: list[Run]
    wishes: Mapping[str, tuple[Wish, str]]
    known_steps: Mapping[str, int]
    known_keys: set[str]
    watched: list[Watched]


class Cycle:
    """Runs cycles. Keeps only what may be lost: when to plan next, the plan in force, what it has heard and flagged."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._plan_at = 0
        self._planned_event = -1
        self._incumbent: Plan | None = None
        self._heard: dict[tuple[str, int], dict[str, Any]] = {}
        self._flagged: dict[str, int] = {}  # intents about to be given up: since when their stop flags lie in the store
        self._watch_at = 0
        self._looks_back: bool | None = None  # not asked yet

    def run(self) -> int:
        """Run one cycle and return the scheduled second it was run for. Raises what the database raises."""
        now = self._settle()
        if self._may_plan(now):
            self._plan_and_launch(now)
        return now

    def _may_plan(self, now: int) -> bool:
        """Whether the books know all that was launched: after a restore not before what the backup forgot is found."""
        if self._looks_back is None:
            self._looks_back = is_wanted(self._ports)
        if self._looks_back:
            self._looks_back = not look_back(self._ports, now)
        return not self._looks_back

    def drain(self, why: str) -> bool:
        """Launch nothing, ask every live session to save and leave; return whether all have ended and are billed."""
        now = self._settle()
        with self._ports.database.read() as tx:
            running = [run for run in runs.live(tx) if isinstance(run.state, Running)]
        for run in running:
            with self._ports.write() as tx:
                runs.change_state(tx, run.key, run.state, stop(run.state, why, now), "stop", now)
        with self._ports.database.read() as tx:
            if runs.live(tx):
                return False
        return close_books(self._ports, now)

    def _settle(self) -> int:
        """Everything but new launches: observe, reconcile, apply, stop."""
        ports = self._ports
        now = ports.clock.now()
        loaded = self._load()
        if loaded.watched and now >= self._watch_at:
            watch(ports, loaded.watched, now)
            self._watch_at = now + _WATCH_EVERY_SECONDS
        if not loaded.live:
            return now
        seen = observe(ports, loaded.live, loaded.known_steps, loaded.known_keys, now)
        now = ports.clock.now()
        steps = self._fenced(reconcile(self._facts(loaded, seen), now))
        heard = dict(seen.heartbeats)
        # A heartbeat that says what it said before is no news, unless it accuses a checkpoint that we may not know yet.
        seen.heartbeats = {
            lane: said for lane, said in heard.items() if self._heard.get(lane) != said or said.get("bad_manifests")
        }
        if steps or seen.heartbeats or seen.results or seen.manifests or seen.bad:
            with ports.write() as tx:
                apply(ports, tx, loaded.live, seen, steps, now)
        self._heard = heard
        self._send_stops(loaded.live, seen, steps, now)
        if ended := {lane.job for step in steps if isinstance(step, Finish) for lane in step.run.lanes}:
            sweep_ended(ports, ended, now)
        return now

    def _fenced(self, steps: Sequence[Step]) -> list[Step]:
        """Return the steps that may be taken; an intent is given up only some time after its stop flag was put.

        A session that the platform started without showing it follows the flag and leaves within that time; one that it
        starts later finds the flag and leaves at once. So neither trains beside the next session of the job.
        """
        taken: list[Step] = []
        for step in steps:
            if isinstance(step, Finish) and not step.proven and isinstance(step.run.state, Submitting):
                key = step.run.key
                if key not in self._flagged and self._put_stop_flag(step.run, None, step.why):
                    self._flagged[key] = self._ports.clock.now()
                flagged = self._flagged.get(key)
                if flagged is None or self._ports.clock.now() < flagged + self._ports.policy.overdue_seconds:
                    continue
                del self._flagged[key]
            taken.append(step)
        return taken

    def _load(self) -> _Loaded:
        with self._ports.database.read() as tx:
            live, late = runs.live(tx), watched.everything(tx)
            if not live:
                return _Loaded([], {}, {}, set(), late)
            names = sorted({lane.job for run in live for lane in run.lanes})
            records = [record for name in names if (record := jobs.find(tx, name))]
            return _Loaded(
                live=live,
                wishes={
                    record.spec.name: (record.state.wish, record.state.by)
                    for record in records
                    if isinstance(record.state, Active) and record.state.wish
                },
                known_steps={record.spec.name: record.done_step for record in records},
                known_keys=checkpoints.keys(tx, names),
                watched=late,
            )

    def _facts(self, loaded: _Loaded, seen: Observation) -> list[Facts]:
        ports = self._ports
        facts = []
        for run in loaded.live:
            platform = ports.platforms.get(run.pool)
            pool = ports.pools.get(run.pool)
            visibility = max(
                platform.capabilities.visibility_seconds if platform else 0,
                pool.visibility_seconds if pool else 0,
            )
            facts.append(
                Facts(
                    run=run,
                    sighting=seen.sightings.get(run.key),
                    reachable=run.pool in seen.reachable,
                    results={
                        lane.index: seen.results[run.key, lane.index]
                        for lane in run.lanes
                        if (run.key, lane.index) in seen.results
                    },
                    wishes=loaded.wishes,
                    visibility_seconds=visibility,
                    overdue_seconds=ports.policy.overdue_seconds,
                    complete=seen.is_complete(run),
                    heard=seen.heard(run),
                )
            )
        return facts

    def _send_stops(self, live: Sequence[Run], seen: Observation, steps: Sequence[Step], now: int) -> None:
        """Put stop flags where payloads look, and end sessions that overstay. Repeated until the session has ended."""
        for step in steps:
            if isinstance(step, AskStop):
                self._put_stop_flag(step.run, step.lane, step.why)
            elif isinstance(step, ForceStop):
                self._stop_session(step.run, now, force=True)
        for run in live:
            if not isinstance(run.state, Stopping):
                continue
            if self._flag_missing(run):
                self._put_stop_flag(run, None, run.state.why)
            sighting = seen.sightings.get(run.key)
            if sighting is not None and sighting.heeds == "platform" and sighting.state != "ended":
                self._stop_session(run, now, force=False)

    def _stop_session(self, run: Run, now: int, *, force: bool) -> None:
        try:
            self._ports.platforms[run.pool].stop(run.key, now, force=force)
        except (PlatformError, KeyError) as error:
            self._ports.log.error("stop.failed", run=run.key, why=str(error))

    def _flag_missing(self, run: Run) -> bool:
        try:
            return self._ports.artifacts.size(f"runs/{run.key}/stop") is None
        except StoreError:
            return True

    def _put_stop_flag(self, run: Run, lane: int | None, why: str) -> bool:
        """Put the flag; return whether it is there."""
        try:
            self._ports.artifacts.put(f"runs/{run.key}/stop", json.dumps({"reason": why, "lane": lane}).encode())
        except StoreError as error:
            self._ports.log.warning("stop.flag_failed", run=run.key, why=str(error))
            return False
        return True

    def _plan_and_launch(self, now: int) -> None:
        ports = self._ports
        with ports.database.read() as tx:
            newest = events.newest_id(tx)
            if newest == self._planned_event and now < self._plan_at:
                return
            snapshot = load_snapshot(tx, ports.pools, now, ports.policy.horizon_seconds)
            if self._incumbent is None:  # a daemon that starts again carries on the plan in force
                self._incumbent = plans.newest(tx)
        plan = ports.plan(snapshot, self._incumbent)
        for warning in plan.warnings:
            ports.log.warning("plan.warning", why=warning)
        with ports.write() as tx:
            plans.save(tx, plan, now)
        self._incumbent = plan
        reserved = reserve(ports, plan, now)
        launch_all(ports, reserved)
        as_planned = len(reserved) == len(plan.due_now)
        later = [placement.start for placement in plan.placements if placement.start > now]
        patience = _PLAN_AT_LEAST_EVERY_SECONDS if as_planned else _PLAN_AGAIN_SECONDS
        self._plan_at = min([*later, now + patience])
        self._planned_event = self._after_launch(newest) if reserved and as_planned else newest

    def _after_launch(self, newest: int) -> int:
        """Return up to which event the plan knows what happened: past a launch that went as planned, but no further."""
        with self._ports.database.read() as tx:
            found = events.kinds_after(tx, newest, _EVENTS_MAX)
        as_planned = found and all(kind in _AS_PLANNED for _, kind in found)
        return found[-1][0] if as_planned else newest
