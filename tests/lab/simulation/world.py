"""The world: time, places, sessions, the store, people; and the seeded dice that decide what befalls them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from jobs.nouns.window import DAY, HOUR, WEEK
from platforms.base import Refused
from tests.lab.simulation.agenda import Agenda, SkewedClock
from tests.lab.simulation.blobs import Shelves
from tests.lab.simulation.checkpoints import CheckpointTruth
from tests.lab.simulation.faults import Violation
from tests.lab.simulation.lane import LaneFate, Sickness
from tests.lab.simulation.mood import GOOD
from tests.lab.simulation.place import Place
from tests.lab.simulation.session import SessionFate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from platforms.base import LaunchRequest
    from tests.lab.simulation.scenario import Scenario
    from tests.lab.simulation.session import Session

_BAD_DISKS, _BAD_SECTORS = 0.3, 0.03  # of the worlds, and of the manifests in one of them
_NOTICE_SECONDS = 30  # a payload looks for its stop flag with every heartbeat


class World:
    """Everything that is true, whatever the daemon believes."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.mood = scenario.mood
        self.rng = Random(scenario.seed ^ 0x5EED)
        self.agenda = Agenda(scenario.start)
        self.clock = SkewedClock(self.agenda)
        self.shelves = Shelves()
        self.shelves.watchers.append(self._written)
        self.checkpoints = CheckpointTruth()
        self.seen: Counter[str] = Counter()
        self.calm = False
        self.news_at: int | None = None  # since when there is something the daemon could notice
        self.specs = {spec.name: spec for spec in scenario.jobs}
        self.sickness: dict[str, Sickness] = {}
        self.burnt: Counter[str] = Counter()  # sessions for nothing, by job, since progress or a person's look
        self._fall_sick()
        self._quirks = {
            (spec.name, pool.name): (self.rng.uniform(0.7, 1.3), self.rng.uniform(0.5, 1.6))
            for spec in scenario.jobs
            for pool in scenario.pools
        }
        self.places = {
            pool.name: Place(self, pool, tells_times=self.rng.random() < 0.8, cancels=self.rng.random() < 0.8)
            for pool in scenario.pools
        }
        for place in self.places.values():
            self.recur(self.mood.outages_per_week, partial(self._outage, place))
            self.recur(self.mood.surprises_per_week, partial(self._surprise, place))
        self.recur(self.mood.artifact_outages_per_week, self._artifact_outage)
        self.hanging: list[int | None] = []  # of calls that nobody waits for: until when the innermost hangs
        self._later = Random(f"later dice of {scenario.seed}")
        for place in self.places.values():
            self.recur(self.mood.wrong_spells_per_week, partial(self._wrong_spell, place), self._later)
            self.recur(self.mood.false_quota_per_week, partial(self._false_quota, place), self._later)
            self.recur(self.mood.hangs_per_week, partial(self._hang, place), self._later)
        self.recur(self.mood.clock_jumps_per_week, self._jump)

    # -- what happens by itself ------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """True time."""
        return self.agenda.now

    def sometimes(self, what: str, times: int = 1) -> None:
        """Count that something was reached."""
        self.seen[what] += times

    def noticed(self) -> None:
        """Something happened that a look would show."""
        if self.news_at is None:
            self.news_at = self.now

    def live_sessions(self) -> Iterator[Session]:
        """Yield the sessions that wait or run, on all places."""
        for place in self.places.values():
            for session in place.sessions.values():
                if session.live:
                    yield session

    def _fall_sick(self) -> None:
        """Draw who falls sick, of what and when, from dice of their own."""
        rng = Random(f"sickness in {self.scenario.seed}")
        for name in self.specs:
            kind, at = rng.choice(list(Sickness)), self.now + int(rng.random() * self.scenario.weeks * WEEK / 4)
            if rng.random() < self.mood.sick:
                self.agenda.add(at, partial(self._sicken, name, kind))

    def _sicken(self, name: str, kind: Sickness) -> None:
        if not self.calm:
            self.sickness[name] = kind
            self.sometimes(f"sick: {kind}")

    def calm_down(self) -> None:
        """Let faults stop: from now on nothing goes wrong by itself."""
        self.calm = True
        self.mood = GOOD
        self.sickness.clear()
        self.shelves.down = False
        self.clock.skew_seconds = 0
        for place in self.places.values():
            place.down = place.fails_to_read = False
            place.exhausted_until = place.wrong_until = place.claims_used_up_until = place.hangs_until = 0

    def recur(self, per_week: float, what: Callable[[], object], rng: Random | None = None) -> None:
        """Let ``what`` happen at random, so often on average, until faults stop."""
        if per_week <= 0:
            return
        dice = rng or self.rng

        def happen() -> None:
            if not self.calm:
                what()
                self.recur(per_week, what, rng)

        self.agenda.add(self.now + max(1, int(dice.expovariate(per_week / WEEK))), happen)

    def _outage(self, place: Place) -> None:
        self.sometimes("platform outage")
        place.down = True
        self.agenda.add(self.now + self._outage_seconds(), lambda: setattr(place, "down", False))

    def _artifact_outage(self) -> None:
        self.sometimes("artifact outage")
        self.shelves.down = True
        self.agenda.add(self.now + self._outage_seconds(), lambda: setattr(self.shelves, "down", False))

    def _outage_seconds(self) -> int:
        return int(600 * 100 ** self.rng.random())

    def go_down_over_the_end_of(self, session: Session) -> None:
        """Let some sessions end while their place is down until after their deadline, and fail the look after that."""
        dice = Random(f"outage over {session.key} in {self.scenario.seed}")
        place = session.place
        if self.calm or dice.random() >= self.mood.outage_over_end:
            return

        def come_back() -> None:
            place.down, place.fails_to_read = False, not self.calm

        def go_down() -> None:
            if not self.calm:
                self.sometimes("outage over an end")
                place.down = True
                overdue = session.deadline + session.fate.overrun_seconds + self.scenario.policy.overdue_seconds
                self.agenda.add(overdue + dice.randrange(60, HOUR), come_back)

        self.agenda.add(max(self.now, session.closes_at - dice.randrange(HOUR)), go_down)

    def _surprise(self, place: Place) -> None:
        place.exhaust(self.now + self.rng.randrange(HOUR, 2 * DAY), kills=self.rng.random() < 0.5)

    def _wrong_spell(self, place: Place) -> None:
        place.wrong_until = self.now + self._later.randrange(HOUR, 3 * DAY)

    def _false_quota(self, place: Place) -> None:
        place.claims_used_up_until = self.now + self._later.randrange(600, 10 * HOUR)

    def _hang(self, place: Place) -> None:
        place.hangs_until = self.now + self._later.randrange(30, 1_200)

    def _jump(self) -> None:
        self.sometimes("clock jump")
        self.clock.skew_seconds = self.rng.choice((-90, -30, 0, 30, 90))

    def _written(self, key: str) -> None:
        parts = key.split("/")
        if parts[0] != "runs":
            return
        self.noticed()
        if parts[-1] == "stop":
            for place in self.places.values():
                session = place.sessions.get(parts[1])
                if session is not None:
                    self.agenda.add(self.now + self.rng.randint(1, _NOTICE_SECONDS), session.notice_stop)
        if parts[-1] == "next.json":
            dice = Random(f"order {key} in {self.scenario.seed}")
            for place in self.places.values():
                session = place.sessions.get(parts[1])
                if session is not None:
                    look = partial(session.notice_order, int(parts[2].removeprefix("lane-")))
                    self.agenda.add(self.now + dice.randint(1, _NOTICE_SECONDS), look)

    # -- dice --------------------------------------------------------------------------------------------------------

    def _chance(self, probability: float, dice: Random | None = None) -> bool:
        return probability > 0 and (dice or self.rng).random() < probability

    def true_speed(self, job: str, pool: str, devices: int, lanes: int) -> float:
        """Return the steps per second a lane really makes."""
        spec, place = self.specs[job], self.places[pool].pool
        gain = spec.device_speedup[min(devices, len(spec.device_speedup)) - 1]
        sharing = place.sharing if lanes > 1 else 1.0
        return spec.steps_per_hour / HOUR * place.speed * self._quirks[job, pool][0] * gain * sharing

    def setup_seconds(self, job: str, pool: str) -> int:
        """Return how long a job really takes to begin training."""
        guess = self.specs[job].setup_seconds + self.places[pool].pool.setup_seconds
        return max(1, int(guess * self._quirks[job, pool][1]))

    def session_fate(self, place: Place, request: LaunchRequest) -> SessionFate:
        """Decide what will become of a session."""
        mood, rng, pool = self.mood, self.rng, place.pool
        length = max(1, request.deadline - self.now)
        queue = rng.randint(0, pool.start_delay_seconds)
        if self._chance(mood.long_queue):
            self.sometimes("long queue")
            queue = rng.randint(queue, max(queue, int(length * 1.2)))
        if place.extends and place.waits.random() < mood.endless_queue:
            self.sometimes("endless queue")
            queue = place.waits.randint(length, 3 * length)
        hidden = rng.randint(0, pool.visibility_seconds) if self._chance(mood.hidden) else 0
        if hidden and not mood.honest:
            hidden *= 20
        stays = 0
        if not mood.honest and Random(f"lateness of {request.key} in {self.scenario.seed}").random() < mood.late_starts:
            self.sometimes("started after all that was held")
            queue = length + pool.overrun_seconds + 600
            hidden, stays = queue, 3 * HOUR
        return SessionFate(
            stays_seconds=stays,
            queue_seconds=queue,
            hidden_seconds=hidden,
            dies_after=rng.randint(1, length) if self._chance(mood.dies) else None,
            warned=self._chance(mood.warned),
            overrun_seconds=rng.randint(0, pool.overrun_seconds),
            wrong_device=self._chance(mood.wrong_device) or self.now < place.wrong_until,
            checkpoint_every=rng.choice((2, 4, 6)) * HOUR,
            lanes={
                order["index"]: replace(self._lane_fate(length), sick=self.sickness.get(order["job"]))
                for order in request.launch["lanes"]
            },
        )

    def chained_fate(self, session: Session, order: Mapping[str, Any]) -> LaneFate:
        """Decide what will become of a job that continues in a session, from dice of its own."""
        dice = Random(f"chain of {session.key} {order['index']} in {self.scenario.seed}")
        fate = self._lane_fate(max(1, session.deadline - self.now), dice)
        return replace(fate, sick=self.sickness.get(order["job"]))

    def _lane_fate(self, length: int, dice: Random | None = None) -> LaneFate:
        mood, rng = self.mood, dice or self.rng
        return LaneFate(
            fails_after=rng.randint(1, length) if self._chance(mood.fails, rng) else None,
            error_class=rng.choice(("code", "oom", "device", "data")),
            saves_when_failing=rng.random() < 0.5,
            store_unreadable=self._chance(mood.store_unreadable, rng),
            deaf=self._chance(mood.deaf, rng),
            forgets_result=self._chance(mood.forgets_result, rng),
            dies_waiting=self._chance(mood.dies, self._later),
        )

    def damage_at_random(self, manifest: str, blob: str, objects: dict[str, bytes]) -> None:
        """Let a published checkpoint rot, or be published in part by a store that is not atomic."""
        if self._chance(self.mood.damaged):
            self.sometimes("checkpoint damaged")
            self.checkpoints.damage(manifest)
            objects[blob] = bytes(len(objects[blob]))
        elif self._is_bad_parent(manifest):
            self.sometimes("parent damaged")
            self.checkpoints.damage(manifest)
            objects[blob] = bytes(len(objects[blob]))
        elif self._chance(self.mood.torn):
            self.sometimes("torn upload")
            self.checkpoints.damage(manifest)
            key = self.rng.choice((manifest, blob))
            objects[key] = objects[key][: len(objects[key]) // 2]

    def _is_bad_parent(self, manifest: str) -> bool:
        """Draw whether a checkpoint that other jobs start from rots, from dice of its own."""
        job = manifest.split("/")[1]
        starts = any(spec.start_from is not None and spec.start_from.parent == job for spec in self.specs.values())
        dice = Random(f"parent {manifest} in {self.scenario.seed}")
        return starts and dice.random() < self.mood.bad_parents

    def lock_at_random(self, manifest: str) -> None:
        """Let a manifest be there that nobody can read."""
        seed = self.scenario.seed
        bad_disk = self.mood != GOOD and Random(f"disk in {seed}").random() < _BAD_DISKS
        if bad_disk and Random(f"sector of {manifest} in {seed}").random() < _BAD_SECTORS:
            self.checkpoints.damage(manifest)
            self.shelves.unreadable.add(manifest)

    def refuse_at_random(self, place: Place) -> None:
        """Raise Refused when the platform is in the mood."""
        mood = self.mood
        if self._chance(mood.throttled):
            self.sometimes("throttled")
            raise Refused(place.name, "launch", "too many requests", wait_until=self.now + self.rng.randint(60, 7_200))
        if self._chance(mood.refused):
            self.sometimes("refused")
            raise Refused(place.name, "launch", "no capacity")
        if self._chance(mood.refused_for_good):
            self.sometimes("refused for good")
            raise Refused(place.name, "launch", "this can never run", permanent=True)

    def answer_lost(self, place: Place) -> int | None:
        """Return after how many seconds a launch takes effect of which no answer comes; None for an answer."""
        if not self._chance(self.mood.answer_lost):
            return None
        self.sometimes("launch answer lost")
        patience = place.pool.visibility_seconds
        return self.rng.randint(0, patience if self.mood.honest else 4 * HOUR)

    def list_as_of(self, place: Place) -> int:
        """Return of when the list is that a look sees."""
        if not self._chance(self.mood.stale_list) or not place.pool.visibility_seconds:
            return self.now
        self.sometimes("stale list")
        return self.now - self.rng.randint(0, place.pool.visibility_seconds)

    def meet_hanging(self, place: Place, action: str) -> None:
        """Raise Violation when somebody waits for a call that hangs; note it for those that nobody waits for."""
        if self.now >= place.hangs_until:
            return
        self.sometimes("call hangs")
        if not self.hanging:
            raise Violation("a hanging call delays nobody", f"the daemon waits for {action} of {place.name}")
        self.hanging[-1] = max(place.hangs_until, self.hanging[-1] or 0)

    def two_seats(self, job: str, first: Session, second: Session) -> None:
        """Two live sessions train one job."""
        raise Violation("one lane per job", f"{first.key} and {second.key} both train {job}")
