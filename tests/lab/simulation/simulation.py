"""One simulation: the production cycle, crashed and started again, in one world, until everything is over."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from jobs.nouns.window import DAY, HOUR, WEEK
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Ports
from scheduler.service.upkeep.housekeeping import run_due
from scheduler.store import lease
from scheduler.store.errors import Fenced, StoreFailure
from tests.lab.simulation.blobs import SimulatedBlobs
from tests.lab.simulation.calls import SimulatedCalls
from tests.lab.simulation.checks import (
    check_at_rest,
    check_busy,
    check_database,
    check_explained,
    check_learned,
    check_refused,
    check_truth,
    check_waiting,
)
from tests.lab.simulation.faults import NO_RATES, Crash, Faults, Violation
from tests.lab.simulation.people import People
from tests.lab.simulation.place import SimulatedPlatform
from tests.lab.simulation.post import Post
from tests.lab.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.core.plan import Plan
    from scheduler.core.snapshot import Snapshot
    from tests.lab.simulation.database import Laboratory
    from tests.lab.simulation.faults import Fate
    from tests.lab.simulation.scenario import Scenario

# What the daemon says when it has to go on without something, because code of ours raised.
_ISOLATED = {
    "run.poisoned", "job.poisoned", "pool.poisoned", "launch.failed", "housekeeping.failed", "cycle.step_failed"
}  # fmt: skip
_CHECKED_EVERY = 16  # cycles between two looks at the whole database and the truth
LIVENESS_WEEKS = 20
CARRIES_ON = 0.1  # of the daemons: the share that plans with all layers and carries on the plan in force
_CYCLES_MAX = 6_000  # a sound daemon needs some hundreds; more is a loop that leads nowhere


class Failure(Exception):
    """A simulation broke a promise: everything needed to see it again."""

    def __init__(self, simulation: Simulation, violation: Violation, traced: str) -> None:
        self.seed = simulation.scenario.seed
        self.rule = violation.rule
        self.detail = violation.detail
        self.point = simulation.faults.points
        self.script = dict(simulation.faults.script)
        self.weeks = simulation.scenario.weeks
        self.last = list(simulation.faults.last)
        self.traced = traced
        super().__init__(f"seed {self.seed}, point {self.point}: {violation}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it travel from a worker: its attributes say everything, and simulations stay where they are."""
        return Failure.__new__, (Failure, str(self)), self.__dict__

    @property
    def replay(self) -> str:
        """Return the command that shows it again."""
        points = "".join(f" --at {point}:{fate}" for point, fate in sorted(self.script.items()))
        which = "--steady" if points else f"--seed {self.seed}"
        return f"python benchmarks/simulate.py {which} --weeks {self.weeks:g}{points}"

    def report(self) -> str:
        """Return seed, point, last events and the replay command."""
        return "\n".join((*self.last, str(self), self.traced, f"replay: {self.replay}"))


@dataclass(frozen=True, slots=True)
class Result:
    """What a simulation that kept all promises showed."""

    weeks: float
    points: int
    cycles: int
    trace: str
    seen: Counter[str]


class SilentLog:
    """The daemon's log, as counted events."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def info(self, event: str, **fields: Any) -> None:
        """Count an event; what is isolated from all others is a fault of ours all the same."""
        if event in _ISOLATED:
            raise Violation("no unexpected error", f"{event} {fields}")
        self._simulation.world.sometimes(f"log {event}")

    debug = warning = error = exception = info


class Simulation:
    """Drives one scenario. ``script`` forces fates at numbered points; without it the mood's rates hold."""

    def __init__(
        self,
        laboratory: Laboratory,
        scenario: Scenario,
        script: Mapping[int, Fate] | None = None,
        liveness_weeks: int = LIVENESS_WEEKS,
    ) -> None:
        laboratory.clean()
        self.liveness_weeks = liveness_weeks
        self.laboratory = laboratory
        self.scenario = scenario
        self.world = World(scenario)
        self.faults = Faults(
            Random(scenario.seed ^ 0xFA017),
            scenario.mood.rates,
            dict(script or {}),
            now=lambda: self.world.now,
            delayed=self._delayed,
            stalled=self._stalled,
        )
        laboratory.database.faults = self.faults
        self.database = laboratory.database
        self.post = Post(self.world, self.faults, scenario.zone, laboratory.people)
        self.people = People(self.world, laboratory.people)
        self.rng = Random(scenario.seed ^ 0xD43)
        self.rng_of_plans = Random(scenario.seed ^ 0x91A)
        self.overbooks = 0.2 if self.rng_of_plans.random() < scenario.mood.overbooks else 0.0
        # Some daemons carry on the plan in force, as the real one does; the others ask the plain dispatcher.
        carries_on = Random(scenario.seed ^ 0x1D1E).random() < CARRIES_ON
        self.planner = Planner(PlannerOptions(search_steps=0)) if carries_on else None
        self.cycle: Cycle | None = None
        self.ports: Ports | None = None
        self.holder = 0
        self.cycles = 0
        self.planned: list[int] = []
        self.running: frozenset[str] = frozenset()  # by the books, after the last cycle that went through
        self.nested = False
        self.world.recur(scenario.mood.restarts_per_week, self._restart)

    def run(self) -> Result:
        """Run to the end. Raises Failure."""
        try:
            self.people.fill_queue()
            self.advance(int(self.scenario.start + self.scenario.weeks * WEEK))
            self.calm_down()
            check_at_rest(self.world, self.laboratory.people)
            self.post.check_complete()
        except Violation as violation:
            raise Failure(self, violation, "") from None
        except Crash:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a finding
            raise Failure(self, Violation("no unexpected error", repr(error)), traceback.format_exc()) from None
        finally:
            self.database.faults = None
        weeks = (self.world.now - self.scenario.start) / WEEK
        return Result(weeks, self.faults.points, self.cycles, self.faults.trace, self.world.seen + self.faults.seen)

    # -- time ---------------------------------------------------------------------------------------------------------

    def advance(self, end: int) -> None:
        """Let the daemon work until ``end``."""
        while self.world.now < end:
            self._tick()
            self._jump(end)

    def _jump(self, end: int) -> None:
        """Let time pass until the daemon could notice something, or something is planned."""
        world, tick = self.world, self.scenario.habits.tick_seconds
        began = world.now
        limit = min(began + self.scenario.habits.idle_seconds, end)
        planned = [at for at in self.planned if at > began]
        if self.cycle is not None and (at := self.cycle.plan_at - world.clock.skew_seconds) >= began:
            planned.append(max(at, began + 1))
        if planned:
            limit = min(limit, *planned)
        world.news_at = None
        while world.now < limit and world.news_at is None:
            following = world.agenda.next_at()
            world.agenda.advance(limit if following is None else min(limit, following))
        # The next tick of the timer, which beats from the beginning on.
        grid = self.scenario.start
        world.agenda.advance(max(began + 1, grid + -(-(world.now - grid) // tick) * tick))

    def calm_down(self) -> None:
        """No more faults: every job must finish within a bound, and nothing may stay behind."""
        self.faults.set_rates(NO_RATES)
        self.world.calm_down()
        bound = self.world.now + self.liveness_weeks * WEEK
        while left := self.people.unfinished():
            if self.world.now > bound:
                raise Violation(
                    "all jobs finish", f"{left} are not done {self.liveness_weeks} weeks after the last fault"
                )
            self.people.release_all()
            self.advance(self.world.now + DAY)
        self.advance(self.world.now + 2 * DAY)

    # -- the daemon -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Do what the daemon's timer does, and what the system does to the daemon."""
        self.cycles += 1
        if self.cycles > _CYCLES_MAX:
            raise Violation("all jobs finish", f"{self.cycles} cycles, and {self.people.unfinished()} are not done")
        whole, booted, began = False, self.holder, self.world.now
        try:
            cycle = self.cycle or self.boot()
            booted = self.holder
            cycle.run()
            whole = cycle is self.cycle
            if self.scenario.habits.housekeeping and self.ports is not None and self.cycles % 4 == 0:
                run_due(self.ports, self.world.clock.now())
            if self.post.used and self.ports is not None and self.cycles % 4 == 2:
                self.post.look_after(self.ports, self.world.clock.now())
        except Crash:
            self._crashed()
        except Fenced:
            self.world.sometimes("fenced off")
            if not self.nested:
                self.cycle = None
        except (StoreFailure, OSError) as error:
            self.world.sometimes(f"cycle failed: {type(error).__name__}")
        # A daemon that took over during the housekeeping may have stopped anywhere.
        self._check(began, whole=whole and booted == self.holder)

    def _check(self, began: int, *, whole: bool) -> None:
        """Look at the truth and at the database; ``whole`` says that the cycle that ``began`` then went through."""
        people, regular = self.laboratory.people, self.cycles % _CHECKED_EVERY == 0
        if regular or self.world.calm:
            check_truth(self.world, people)
        if regular or not whole:
            check_database(people)
        if whole:
            check_refused(self.world, people)
            self.running = check_waiting(self.world, people, self.running, began)
        if whole and regular:
            check_explained(people)
            check_learned(self.world, people)
        # What could not be written down is as good as not heard.
        for place in self.world.places.values():
            place.refused.clear()
        if whole:
            self.world.shelves.met |= self.world.shelves.met_now
        self.world.shelves.met_now.clear()

    def boot(self) -> Cycle:
        """Start a daemon: a new lease, and nothing remembered."""
        self.holder += 1
        taken = lease.acquire(self.database, f"daemon-{self.holder}", 0)
        if taken is None:
            raise Violation("harness", "the lease is not free")
        scenario, world = self.scenario, self.world
        self.ports = Ports(
            database=self.database,
            artifacts=SimulatedBlobs(world.shelves, self.faults),
            platforms={name: SimulatedPlatform(place, self.faults) for name, place in world.places.items()},
            pools={pool.name: pool for pool in scenario.pools},
            clock=world.clock,
            policy=scenario.policy,
            plan=self._plan,
            data_prefix=self._data_prefix,
            bundle="/simulated",
            log=SilentLog(self),
            epoch=taken.epoch,
            calls=SimulatedCalls(world),
        )
        self.cycle = Cycle(self.ports)
        return self.cycle

    def _data_prefix(self, job: str) -> str:
        if job in self.scenario.unlaunchable:
            self.world.sometimes("a job that cannot be launched")
            raise FileNotFoundError(f"there are no sources for {job}")
        return f"data/{job}/"

    def _plan(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        made = dispatch(snapshot) if self.planner is None else self.planner.plan(snapshot, incumbent)
        check_busy(self.world, snapshot, made)
        plan = self._overbooked(made)
        self.planned = [placement.start for placement in plan.placements]
        return plan

    def _overbooked(self, plan: Plan) -> Plan:
        """Return a plan that now and then wants more than there is, as a faulty planner's would."""
        if self.world.calm or not plan.due_now or self.rng_of_plans.random() >= self.overbooks:
            return plan
        self.world.sometimes("overbooked plan")
        first, *others = plan.placements
        return replace(plan, placements=(replace(first, end=first.end + 40 * HOUR), first, *others))

    def _crashed(self) -> None:
        """The process is gone; after some time the system starts another."""
        self.cycle = None
        self.laboratory.database.close()  # people's own processes live on
        self.world.sometimes("crash")
        draw = self.rng.random()
        if self.scenario.mood.long_down and draw < self.scenario.mood.long_down and not self.world.calm:
            self.world.sometimes("ten days down")
            down = 10 * DAY
        else:
            down = int(2 * HOUR ** self.rng.random()) if draw < 0.8 else self.rng.randrange(2 * HOUR)
        self.world.agenda.advance(self.world.now + down)

    def _restart(self) -> None:
        """Somebody restarts the service between two cycles."""
        self.world.sometimes("restart")
        self.cycle = None

    def _delayed(self) -> None:
        self.world.agenda.advance(self.world.now + self.rng.randint(1, 60))

    def _stalled(self) -> None:
        """The process stands still while another daemon takes over; then it goes on where it stood."""
        if self.nested:
            return
        old = self.cycle, self.ports
        self.nested, self.cycle = True, None
        self.world.sometimes("stalled")
        rates = self.faults.rates
        self.faults.set_rates(replace(rates, stall=0.0, crash=0.0))
        self.advance(self.world.now + int(HOUR * 24 ** self.rng.random()))
        self.faults.set_rates(rates if not self.world.calm else NO_RATES)
        self.nested = False
        # The new daemon stays; the old one is still on the stack and learns it with its next write.
        del old
