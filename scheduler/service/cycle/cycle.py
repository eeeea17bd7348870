"""One cycle of the daemon: load, observe, reconcile, apply, plan, reserve, launch, settle.

The order makes it safe. Nothing is launched without a committed intent, no transaction is open while a platform is
called, and every write checks the lease. A crash between any two lines loses nothing: the next cycle starts from the
database and the platforms alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import Connection

from jobs.lane_report import LaneReport
from jobs.nouns.quota import RollingQuota
from jobs.nouns.window import HOUR
from scheduler.clock import at_least
from scheduler.core.job import Active, Wish
from scheduler.core.plan import Plan
from scheduler.core.quota import rolling_edges, windows
from scheduler.core.reconcile import Facts, Finish, Sighting, Step, reconcile
from scheduler.core.run import CONSEQUENCES, Outcome, Run, Running, Wait, stop
from scheduler.core.snapshot import PoolView, Snapshot
from scheduler.service.cycle.late_sessions import LateSessions, catch_up
from scheduler.service.cycle.stops import Stops, StuckLanes
from scheduler.service.deploy.deployer import Deployments
from scheduler.service.facts import halvings
from scheduler.service.facts.apply import apply, extend
from scheduler.service.facts.contradictions import Contradictions, visibility_seconds
from scheduler.service.facts.observation import LiveJobs, Observation, declared
from scheduler.service.facts.observe import OutputCollection, observe
from scheduler.service.facts.snapshot import gather
from scheduler.service.facts.verification import Suspects
from scheduler.service.faults import isolation
from scheduler.service.faults.places import LaunchNews, Places, Postponements
from scheduler.service.launch.chain import continue_sessions
from scheduler.service.launch.launch import launch_all, reserve
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import close_books
from scheduler.service.upkeep.housekeeping import sweep_ended
from scheduler.service.versions.model_sync import ModelSync, Watches
from scheduler.store import checkpoints, due, events, jobs, plans, queue_waits, runs, watched
from scheduler.store.conditions import RUN_UNCLEAR
from scheduler.store.events import Event
from scheduler.store.watched import Watched

_PLAN_AT_LEAST_EVERY_SECONDS = 6 * HOUR  # without events and with nothing due
_PLAN_AGAIN_SECONDS = 600  # if a due session could not be launched
# Events of a launch that went as planned; the plan considers them already.
_AS_PLANNED = frozenset({"run.reserved", "job.activate", "job.start_from", "run.submit", "run.accept"})
_AWAITED = ("data", "inputs", "wheels", "quota", "components")  # work before launches; when it is done, a plan is made
_EVENTS_MAX = 200  # of a launch; more of them lead to another plan
_ENDINGS_AT_ONCE = 500  # the next cycle logs the others
_GOOD = frozenset({Outcome.FINISHED, Outcome.YIELDED, Outcome.CANCELLED})
_RUNS = frozenset(f"run.end_{outcome}" for outcome in Outcome)
_JOBS = frozenset({"job.finish", "job.fail", "job.park", "job.hold", "job.cancel", "job.release", "job.requeue"})
_BAD_STATES = frozenset({"failed", "held"})
# An expected start in a queue changes often. It is stored if it moved by more than this, and a tenth of the wait.
_TENTH = 10
_MOVED_SECONDS, _MOVED_WALL_SECONDS = 600, 2.0


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan, the jobs and pools that were left out of it, the other jobs, and the newest event that it considers.

    ``changes_at`` is when a start becomes possible without a further event. The request may be some cycles old.
    """

    plan: Plan
    left_out: isolation.LeftOut
    newest_event: int
    planned: set[str]
    changes_at: int | None


@dataclass(frozen=True, slots=True)
class _Loaded:
    live: list[Run]
    wishes: Mapping[str, tuple[Wish, str]]  # by job: the request that its session must follow, and its author
    stored: LiveJobs
    watched: list[Watched]

    @property
    def keys(self) -> list[str]:
        """The run IDs of all runs that are observed in this cycle."""
        return [run.key for run in self.live] + [one.run.key for one in self.watched]


class Cycle:
    """Runs cycles. Its state, such as the current plan and the last heartbeats, may be lost in a restart."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.plan_at = 0  # UTC second at which a plan is made even without an event
        self._planned_event = -1
        self._planning = False  # a plan is being made
        self._sweeps: Sequence[str] = ()  # sweeps of jobs for which a decision must be stored
        self._incumbent: Plan | None = None
        self._heard: dict[tuple[str, int], LaneReport] = {}
        self._rejections = border.RejectionLog(ports)
        self._poisoned = isolation.Poisoned(ports)
        self._unclear = isolation.Poisoned(ports, RUN_UNCLEAR, isolation.CLEAR)
        self._undetermined: dict[str, tuple[int, str]] = {}  # by run: since when its state is unknown, and why
        self._stuck = StuckLanes(ports)
        self._left_out = isolation.LeftOut()
        self._ran_at: dict[str, int] = {}
        self._stops = Stops(ports)
        self._contradictions = Contradictions(ports)
        self._late = LateSessions(ports)
        self._collection = OutputCollection(ports)
        self._waits = QueueWaits(ports)
        self._places = Places(ports)
        self._postponements = Postponements(ports)
        self._news = LaunchNews()
        self._unopened: set[str] = set()  # pools whose platforms were not created yet when the newest plan was made
        self._looks_back: bool | None = None  # None: not read yet
        self._suspects = Suspects(ports)
        self._models = ModelSync(ports)
        self._watches = Watches(ports)
        self._deployments = Deployments(ports)

    def run(self) -> int:
        """Run one cycle and return its scheduled second. Raises the errors of the database."""
        self._ports.calls.begin()
        now = self._settle()
        may_plan = self._may_plan(now)
        if may_plan:  # before the plan, because idle sessions wait for their next job
            continue_sessions(self._ports, self._incumbent, now, self._places.unopened, news=False)
        halve = partial(halvings.look, self._ports, self._sweeps, now)
        isolation.apart(self._ports, "cycle.step_failed", halve, None, step="halvings")
        for look in (self._suspects.look, self._models.sync, self._watches.poll, self._deployments.look):
            isolation.apart(self._ports, "cycle.step_failed", partial(look, now), None, step=look.__qualname__)
        if may_plan:
            self._plan_and_launch(now)
        return now

    def _may_plan(self, now: int) -> bool:
        """Return whether plans may be made. After a restore, the launches that the backup lacks are found first."""
        if self._looks_back is None:
            with self._ports.database.read() as tx:  # a backup was restored, and the search is not complete
                self._looks_back = due.RESTORED in due.next_due(tx)
        if self._looks_back:
            done = self._ports.calls.gather("catch up", {"": partial(catch_up, self._ports, now)})
            self._looks_back = not done.get("", False)
        return not self._looks_back

    def drain(self, why: str) -> bool:
        """Launch nothing and ask all live sessions to save and exit; return whether all have ended and are billed."""
        self._ports.calls.begin()
        now = self._settle()
        with self._ports.database.read() as tx:
            running = [run for run in runs.live(tx) if isinstance(run.state, Running)]
        faults: dict[str, str] = {}
        for run in running:
            with isolation.isolated_run(faults, run.key), self._ports.write() as tx:
                runs.change_state(tx, run.key, run.state, stop(run.state, why, now), "stop", now)
        for key, fault in faults.items():
            self._ports.log.error("stop.failed", run=key, why=fault)
        with self._ports.database.read() as tx:
            if runs.live(tx):
                return False
        return close_books(self._ports, now)

    def _settle(self) -> int:
        """Observe, reconcile, apply and stop, which is the part of a cycle before the plan. Return the present."""
        ports = self._ports
        now = ports.clock.now()
        self._places.open(now)
        loaded = self._load()
        self._late.look(loaded.watched, now)
        if not loaded.live:
            self._poisoned.note(loaded.keys, self._late.faults, now)
            return now
        observed = observe(ports, loaded.live, loaded.stored, self._collection, now)
        now = ports.clock.now()
        self._places.note(observed.reachable, observed.troubles, now)
        self._note_running(loaded.live, observed)
        self._waits.note(loaded.live, observed, now)
        faults = dict(observed.poisoned)
        # A state that a platform reported as unknown stays unknown until the platform reports another one.
        undetermined = {key: report for key, report in self._undetermined.items() if key not in observed.asked_at}
        for key, why in observed.undetermined.items():
            undetermined[key] = self._undetermined[key][0] if key in self._undetermined else now, why
        self._undetermined = undetermined
        observed.results = self._stuck.mark_stalled(observed.results)
        steps = self._stops.fenced(self._decide(loaded, observed, faults, now), faults)
        # A report that has not been read in this cycle counts as unchanged.
        heard = {lane: beat for lane, beat in self._heard.items() if lane[0] in observed.late} | observed.heartbeats
        steps.extend(self._stuck.look(loaded.live, heard, faults, now))
        # An unchanged heartbeat is ignored, unless it reports a damaged checkpoint, which may not be recorded yet.
        observed.heartbeats = {
            lane: heartbeat
            for lane, heartbeat in observed.heartbeats.items()
            if self._heard.get(lane) != heartbeat or heartbeat.bad_manifests
        }
        if steps or observed.heartbeats or observed.results or observed.manifests or observed.bad:
            faults |= self._write_down(loaded.live, observed, steps, now)
        self._rejections.report(observed.refused, {run.key for run in loaded.live} | set(loaded.stored.targets), now)
        self._poisoned.note(loaded.keys, {**self._late.faults, **faults}, now)
        patience = ports.policy.overdue_seconds  # a platform that requeues a job reports it as unclear for a minute
        unclear = {key: why for key, (since, why) in self._undetermined.items() if now - since >= patience}
        self._unclear.note(loaded.keys, unclear, now)
        self._heard = {lane: heartbeat for lane, heartbeat in heard.items() if lane[0] not in faults}
        steps = [step for step in steps if step.run.key not in faults]
        compare = partial(self._contradictions.look, loaded.live, observed, steps, now)
        isolation.apart(ports, "cycle.step_failed", compare, None, step="facts")
        extend(ports, steps, now)
        self._stops.send(loaded.live, observed, steps, now)
        if ended := {lane.job for step in steps if isinstance(step, Finish) for lane in step.run.lanes}:
            sweep_ended(ports, ended, now)
        return now

    def _note_running(self, live: Sequence[Run], observed: Observation) -> None:
        """Store when each session was last reported as running."""
        running_since = {
            key: observed.asked_at[key] for key, sighting in observed.sightings.items() if sighting.state == "running"
        }
        ran_at = self._ran_at | running_since
        self._ran_at = {run.key: ran_at[run.key] for run in live if run.key in ran_at}

    def _decide(self, loaded: _Loaded, observed: Observation, faults: dict[str, str], now: int) -> list[Step]:
        """Return the steps for all runs. If the decision fails for a run, its error is added to ``faults``."""
        steps: list[Step] = []
        for run in loaded.live:
            with isolation.isolated_run(faults, run.key):
                steps.extend(reconcile([self._fact(run, loaded, observed)], now))
        return steps

    def _write_down(
        self, live: Sequence[Run], observed: Observation, steps: Sequence[Step], now: int
    ) -> dict[str, str]:
        """Write the observation and the steps to the database; return the errors by run ID."""

        def write(tx: Connection, runs: Sequence[Run], *, regarded: bool) -> None:
            keys = {run.key for run in runs}
            mine = [step for step in steps if step.run.key in keys]
            apply(self._ports, tx, runs, observed.part(runs, regarded=regarded), mine, now)

        return isolation.each_alone(self._ports, live, self._poisoned.reported_runs(), write)

    def _load(self) -> _Loaded:
        with self._ports.database.read() as tx:
            live, late = runs.live(tx), watched.everything(tx)
            due = partial(halvings.due, self._ports, tx)
            self._sweeps = isolation.apart(self._ports, "cycle.step_failed", due, [], step="halvings")
            if not live:
                return _Loaded([], {}, LiveJobs({}, {}, ()), late)
            names = sorted({lane.job for run in live for lane in run.lanes})
            records = [record for name in names if (record := jobs.find(tx, name))]
            return _Loaded(
                live=live,
                wishes={
                    record.spec.name: (record.state.wish, record.state.by)
                    for record in records
                    if isinstance(record.state, Active) and record.state.wish
                },
                stored=LiveJobs(
                    targets={record.spec.name: record.spec.target_step for record in records},
                    steps={record.spec.name: record.done_step for record in records},
                    keys=checkpoints.keys(tx, names),
                    declared=declared(tx, live),
                ),
                watched=late,
            )

    def _fact(self, run: Run, loaded: _Loaded, observed: Observation) -> Facts:
        ports = self._ports
        return Facts(
            run=run,
            sighting=observed.sightings.get(run.key),
            reachable=observed.is_reached(run),
            asked_at=observed.asked_at.get(run.key),
            ran_at=self._ran_at.get(run.key),
            results={
                lane.index: observed.results[run.key, lane.index]
                for lane in run.lanes
                if (run.key, lane.index) in observed.results
            },
            wishes=loaded.wishes,
            visibility_seconds=visibility_seconds(ports, run.pool),
            overdue_seconds=ports.policy.overdue_seconds,
            complete=observed.is_complete(run),
            heard=observed.wrote(run),
            begun=observed.begun(run),
            lost=observed.lost.get(run.key, ""),
            declared=loaded.stored.declared.get(run.key),
        )

    def _plan_and_launch(self, now: int) -> None:
        ports = self._ports
        if self._postponements.record(*self._news.drain(), now):  # results of launches that took longer than one cycle
            self.plan_at = min(self.plan_at, now)
        work = self._wanted_plan(now)
        if continue_sessions(ports, self._incumbent, now, self._places.unopened, news=work is not None):
            work = self._wanted_plan(now)
        result = ports.calls.gather("plan", {"": work}).get("") if work else None
        self._planning = work is not None and result is None
        if result is None:
            return
        plan, newest = result.plan, result.newest_event
        self._left_out.add(result.left_out)
        isolation.wait_for_person(ports, result.left_out, now)
        for warning in plan.warnings:
            ports.log.warning("plan.warning", why=warning)
        with ports.write() as tx:
            plans.save(tx, plan, now)
            isolation.planned_again(tx, result.planned, now)
        self._incumbent = plan
        self._unopened = set(self._places.unopened)
        reserved = reserve(ports, plan, now, self._unopened, self._news.obstacles)
        launch_all(ports, reserved, self._news)
        again = self._postponements.record(*self._news.drain(), now)
        as_planned = len(reserved) == len(plan.due_now)
        later = [placement.start for placement in plan.placements if placement.start > now]
        patience = _PLAN_AT_LEAST_EVERY_SECONDS if as_planned else _PLAN_AGAIN_SECONDS
        changes = [at for at in (result.changes_at, self._postponements.next_end(now)) if at is not None]
        self.plan_at = now if again else min([*later, *changes, now + patience])
        self._planned_event = newest
        if reserved and as_planned:  # then the plan considers the events of these launches, too
            with ports.database.read() as tx:
                kinds = events.kinds_after(tx, newest, _EVENTS_MAX)
            if kinds and all(kind in _AS_PLANNED for _, kind in kinds):
                self._planned_event = kinds[-1][0]

    def _wanted_plan(self, now: int) -> Callable[[], _Planned] | None:
        """Return a function that plans without the known faulty jobs and pools; None while the last plan is valid."""
        from scheduler.planner.model.urgency import with_urgency  # imported here, as in the snapshot

        ports = self._ports
        with ports.database.read() as tx:
            newest = events.newest_id(tx)
            came = ports.calls.news(_AWAITED) or self._places.unopened != self._unopened
            if newest == self._planned_event and now < self.plan_at and not came and not self._planning:
                return None
            if came:
                self._postponements.end_early(now)
            left_out = isolation.LeftOut()
            snapshot = gather(tx, ports.pools, now, ports.policy.horizon_seconds, left_out.jobs, ports.read_secret)
            if self._incumbent is None:  # a new daemon continues from the stored plan
                self._incumbent = plans.newest(tx)
            poisoned = isolation.known_faulty(tx, snapshot)
        incumbent = self._incumbent
        trains = {view.name for view in snapshot.jobs if view.running}
        snapshot = self._postponements.applied(snapshot)
        plannable = isolation.without(
            snapshot, {*poisoned.jobs, *(name for name in self._left_out.jobs if name in trains)}, poisoned.pools
        )

        def make() -> _Planned:
            plan, not_planned = isolation.plan_around(lambda some: ports.plan(with_urgency(some), incumbent), plannable)
            left_out.add(not_planned)
            planned = {view.name for view in plannable.jobs} - left_out.jobs.keys()
            return _Planned(plan, left_out, newest, planned, next_change(plannable))

        return make


# Waits of sessions in the queues of their platforms, with expected starts. Plans and people read them.
#
# An event is written when a wait begins, ends, or changes its reason or expected start. It causes a new plan, because
# sessions that would be launched now wait as long.
class QueueWaits:
    """Stores why live runs wait in their platforms' queues."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._stored: dict[str, Wait] | None = None  # by run ID, as last written; None: not read yet

    def note(self, live: Sequence[Run], observed: Observation, now: int) -> None:
        """Store the waits that have changed. A run that the platform did not report is unchanged."""
        keys = {run.key for run in live}
        if self._stored is None:
            with self._ports.database.read() as tx:
                self._stored = queue_waits.of(tx, keys)
        waits = {key: wait for key, wait in self._stored.items() if key in keys}
        changed: dict[str, Wait | None] = {}
        for key, sighting in observed.sightings.items():
            if key not in keys:
                continue
            with observed.isolated(key):
                before, wait = waits.get(key), _wait(sighting, waits.get(key), now)
                if (wait is None) != (before is None) or (wait and before and self._differs(before, wait, now)):
                    changed[key] = wait
        if changed:
            with self._ports.write() as tx:
                for key, wait in changed.items():
                    queue_waits.record(tx, key, wait, now)
        self._stored = {key: wait for key, wait in (waits | changed).items() if wait is not None}

    def _differs(self, before: Wait, wait: Wait, now: int) -> bool:
        if before != replace(wait, starts_at=before.starts_at, place=before.place):
            return True
        if (before.starts_at is None) != (wait.starts_at is None):
            return True
        if _moved(before.place, wait.place) or before.starts_at is None or wait.starts_at is None:
            return _moved(before.place, wait.place)
        least = at_least(self._ports.clock, _MOVED_SECONDS, _MOVED_WALL_SECONDS)
        return abs(wait.starts_at - before.starts_at) > max(least, (wait.starts_at - now) // 10)


def _moved(before: int | None, place: int | None) -> bool:
    """Return whether a queue position changed by more than a tenth, so that it is stored."""
    if before is None or place is None:
        return before != place
    return abs(place - before) > min(before, place) // _TENTH


def _wait(sighting: Sighting, before: Wait | None, now: int) -> Wait | None:
    """Return the wait of a queued session, else None. Without a new estimate of its start the previous one is kept."""
    if sighting.state != "queued" or sighting.wait is None:
        return None
    expected_start = before.starts_at if before else None
    since = now if before is None or before.since is None else before.since
    new_wait = sighting.wait
    return Wait(
        new_wait.why, expected_start if new_wait.starts_at is None else new_wait.starts_at, new_wait.place, since=since
    )


# The next time at which a start becomes possible without an event.
def next_change(snapshot: Snapshot) -> int | None:
    """Return the next instant at which a waiting job may start, or a pool opens or gets hours of a quota back.

    The instant is in UTC seconds, None if there is none within the horizon. A plan is made then even without an event.
    """
    now, until = snapshot.now, snapshot.now + snapshot.horizon_seconds
    waiting = [view for view in snapshot.jobs if not view.running and view.blocked is None]
    if not waiting:
        return None
    releases = (instant for view in waiting for instant in (view.retry_at, view.not_before) if instant is not None)
    openings = chain.from_iterable(_openings(view, now, until) for view in snapshot.pools)
    return min((instant for instant in chain(releases, openings) if now < instant <= until), default=None)


def _openings(view: PoolView, now: int, until: int) -> Iterator[int]:
    if view.closed_until is not None:
        yield view.closed_until
    yield from (window.start for window in view.pool.open_windows(now, until))
    for quota in view.pool.quotas:
        if isinstance(quota, RollingQuota):
            yield from rolling_edges(view.charges, quota.span_seconds)
        else:
            yield from (window.start for window in windows(quota, view.charges, now, until))


# Endings: log when and why sessions and jobs ended, at warning level after a failure.
#
# They are read from the event log after the commit, so that no line reports a change that was rolled back.
def tell_endings(ports: Ports, after: int) -> int:
    """Log the ends of sessions and jobs since the event ``after``; return the ID of the newest event that was read."""
    with ports.database.read() as tx:
        newest = events.newest_id(tx)
        if newest == after:
            return after
        ended = events.tail(tx, after, _ENDINGS_AT_ONCE, _RUNS | _JOBS)
        lines = [line for event in ended for line in _lines(tx, event)]
    for is_warning, text, fields in lines:
        (ports.log.warning if is_warning else ports.log.info)(text, **fields)
    return ended[-1].id if len(ended) == _ENDINGS_AT_ONCE else newest


def _lines(tx: Connection, event: Event) -> list[tuple[bool, str, dict[str, Any]]]:
    """Return the log lines of an event, each as (whether it is a warning, name of the log event, fields)."""
    state = event.data.get("to") or {}
    if event.kind in _RUNS:
        outcome = Outcome(event.kind.removeprefix("run.end_"))
        run, started = runs.get(tx, event.subject), state.get("started")
        fields = {
            "run": run.key,
            "pool": run.pool,
            "outcome": str(outcome),
            "why": event.data.get("why", ""),
            "seconds": 0 if started is None else state["at"] - started,
            "jobs": {lane.job: f"{lane.outcome or ''} {lane.message}".strip() for lane in run.lanes},
        }
        return [(outcome not in _GOOD, "session.ended", fields)]
    return [_job_line(state, event)] if state.get("state") != "active" else []


def _job_line(state: Mapping[str, Any], event: Event) -> tuple[bool, str, dict[str, Any]]:
    name = str(state.get("state"))
    fields: dict[str, Any] = {"job": event.subject, "by": state.get("by") or event.by}
    why = ": ".join(str(state[part]) for part in ("why", "message") if state.get(part))
    fields |= {"why": why} if why else {}
    if run := event.data.get("run"):
        fields["run"] = run
    if name != "queued":
        # The end of a job that a person requested is not a warning.
        return name in _BAD_STATES and event.by == "daemon", f"job.{name}", fields
    outcome = event.data.get("outcome")
    is_warning = outcome is not None and CONSEQUENCES[Outcome(outcome)].counts_as_failure
    if outcome is not None:
        fields["outcome"] = outcome
    if state.get("retry_at") is not None:
        fields["retry_at"] = state["retry_at"]
    return is_warning, "job.queued", fields
