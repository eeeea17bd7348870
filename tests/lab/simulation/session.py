"""A session as it truly is on its platform: when it starts, what it is billed, how it ends."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from platforms.base import InQueue, Observed, SessionState
from scheduler.core.run import WRONG_DEVICE
from tests.lab.simulation.faults import Violation
from tests.lab.simulation.lane import LEAVE_SECONDS, Lane, LaneFate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from platforms.base import LaunchRequest
    from tests.lab.simulation.place import Place


@dataclass(slots=True)
class SessionFate:
    """What the platform will do to this session. All in seconds."""

    queue_seconds: int = 0
    hidden_seconds: int = 0
    dies_after: int | None = None  # of running: taken away
    warned: bool = False  # a death announces itself, so that the payload saves
    overrun_seconds: int = 0  # how late the platform ends it after its deadline
    stays_seconds: int = 0  # how long it stays after its last lane has left, whatever its deadline was
    wrong_device: bool = False
    checkpoint_every: int = 3_600
    lanes: Mapping[int, LaneFate] = field(default_factory=dict)


class Session:
    """One launch key on one place."""

    def __init__(self, place: Place, request: LaunchRequest, fate: SessionFate, asked_at: int) -> None:
        world = place.world
        self.place = place
        self.world = world
        self.key = request.key
        self.deadline = request.deadline
        self.places = place.pool.places_of(request.devices)
        self.orders: list[dict[str, Any]] = request.launch["lanes"]
        self.chain: dict[str, Any] | None = request.launch.get("chain")
        self.waiting_since = 0  # when its last lane that worked left
        self.free: dict[int, list[int]] = dict(self.chain["free"]) if self.chain else {}  # devices, by lanes to come
        self.closes_at: int = request.deadline - request.launch["stop_margin_seconds"]
        self.length = request.deadline - asked_at
        self.checkpoint_every = fate.checkpoint_every
        self.wrong_device = fate.wrong_device
        self.fate = fate
        self.visible_at = world.now + fate.hidden_seconds
        # An honest platform shows a key in time, however stale its lists are.
        self.shown_from = asked_at + place.pool.visibility_seconds if world.mood.honest else None
        self.asked_at = asked_at
        self.starts_at = world.now + fate.queue_seconds
        self.began = False
        self.never = False  # cancelled while it waited: it can never start
        self.ended_at: int | None = None
        self.detail = ""
        self.taken = False  # the platform says that it took it away
        self.swept = False
        self.bad_downloads = Random(f"downloads of {self.key} in {world.scenario.seed}").choice((0, 0, 1, 3))
        self.kept: dict[str, bytes] = {}  # what the platform has of it and the store does not
        self.lanes: list[Lane] = []
        world.agenda.add(self.starts_at, self._begin)

    @property
    def live(self) -> bool:
        """Whether it waits or runs."""
        return self.ended_at is None and not self.never

    def bill(self) -> tuple[int, int] | None:
        """Return the billed interval so far, None while nothing is billed."""
        if not self.began:
            return None
        return self.starts_at, self.world.now if self.ended_at is None else self.ended_at

    def wait(self) -> tuple[int, int] | None:
        """Return for how long it waited before it began."""
        return (self.asked_at, self.starts_at) if self.began else None

    def waits_at(self, instant: int) -> bool:
        """Return whether it waited then, also one that never began."""
        return self.asked_at <= instant < min(self.starts_at, instant + 1 if self.ended_at is None else self.ended_at)

    def observe(self, as_of: int) -> Observed | None:
        """Return what the platform tells about ``as_of``; None when it does not show the key yet."""
        promised = self.shown_from is not None and self.world.now >= self.shown_from
        if self.swept or (as_of < self.visible_at and not promised):
            return None
        remote, tells = f"remote-{self.key}", self.place.tells_times
        if self.never and self.ended_at is not None and as_of >= self.ended_at:
            return Observed(self.key, SessionState.ABSENT, remote, detail="cancelled while it waited")
        if as_of < self.starts_at or not self.began:
            length, deadline = (self.length, self.deadline) if self.place.extends else (None, None)
            waits = InQueue("others come first", None, None, length, deadline)
            return Observed(self.key, SessionState.QUEUED, remote, detail="queued", waits=waits)
        started = self.starts_at if tells else None
        if self.ended_at is None or as_of < self.ended_at:
            deadline = self.deadline if self.place.extends else None
            return Observed(self.key, SessionState.RUNNING, remote, started, detail="running", deadline=deadline)
        ended = self.ended_at if tells else None
        return Observed(self.key, SessionState.ENDED, remote, started, ended, self.detail, taken=self.taken)

    def _begin(self) -> None:
        world = self.world
        if self.never:
            return
        if self.starts_at - self.asked_at >= self.length > 0 and self.starts_at < self.deadline:
            world.sometimes("began after the deadline of its launch")
        if self.place.extends:
            margin, self.deadline = self.deadline - self.closes_at, min(self.deadline, self.starts_at + self.length)
            self.closes_at = self.deadline - margin
        if self.starts_at >= self.deadline and not self.fate.stays_seconds:
            self.cancel("its deadline passed while it waited")
            return
        self.began = True
        self.lanes = [
            Lane(world, self, order, self.fate.lanes.get(order["index"], LaneFate())) for order in self.orders
        ]
        limit = max(self.deadline + self.fate.overrun_seconds, self.starts_at + LEAVE_SECONDS + self.fate.stays_seconds)
        world.agenda.add(limit, lambda: self.end("killed at its deadline"))
        if self.fate.dies_after is not None:
            world.agenda.add(self.starts_at + self.fate.dies_after, self._die)
        for lane in self.lanes:
            lane.begin()
            if lane.open:
                self._claim_seat(lane.job)

    def _claim_seat(self, job: str) -> None:
        for other in self.world.live_sessions():
            if other is not self and other.began and any(lane.job == job and lane.open for lane in other.lanes):
                self.world.two_seats(job, other, self)

    def _die(self) -> None:
        if self.ended_at is None:
            self.world.sometimes("preempted" if self.fate.warned else "killed without a word")
            for lane in self.lanes:
                lane.preempt(warned=self.fate.warned)
            self.taken = self.place.names_thieves
            self.end("preempted" if self.fate.warned else "lost its machine")

    def write(self, key: str, data: bytes) -> None:
        """Publish an object: into the store, or to the platform where it waits to be asked for."""
        if self.place.relays:
            self.kept[key] = data
        else:
            self.world.shelves.put(key, data)

    @property
    def can_write(self) -> bool:
        """Whether what a lane publishes is taken."""
        return self.place.relays or not self.world.shelves.down

    @property
    def lost_time(self) -> bool:
        """Whether its wait in the queue made it shorter than planned: nobody moved its deadline on."""
        return self.deadline < self.starts_at + self.length

    def waits_until(self, outcome: str, why: str, error_class: str | None) -> int | None:
        """Return until when a lane that ends now waits for an order; None when it does not."""
        of_session = error_class in {"store", "device", WRONG_DEVICE} or outcome == "preempted" or "deadline" in why
        of_session |= self.stop_asked(None)
        latest = self.closes_at - int((self.chain or {}).get("least_seconds", 0))
        if self.chain is None or of_session or self.world.now >= latest:
            return None
        return min(latest, self.world.now + int(self.chain["wait_seconds"]))

    def lane_left(self) -> None:
        """A lane has said its last word; the session ends after the last one, unless one waits for another job."""
        if self.ended_at is not None or any(lane.open for lane in self.lanes):
            return
        for index in list(self.free):
            self._refuse(index)
        self.waiting_since = since = self.world.now
        leaves = self.world.now
        if self.chain and any(lane.waits for lane in self.lanes):
            latest = self.closes_at - self.chain["least_seconds"]
            leaves = max(leaves, min(latest, leaves + self.chain["wait_seconds"]))
        leaves += LEAVE_SECONDS + self.fate.stays_seconds
        self.world.agenda.add(leaves, lambda: self._leave(since))

    def _leave(self, since: int) -> None:
        """End, unless another job has continued here meanwhile."""
        if self.waiting_since == since and not any(lane.open for lane in self.lanes):
            self.end("complete")

    def notice_order(self, before: int) -> None:
        """Let a lane that waits look at what follows it."""
        key = f"runs/{self.key}/lane-{before}/next.json"
        lane = next((lane for lane in self.lanes if lane.index == before), None)
        if self.ended_at is not None or (lane is not None and lane.open) or self.world.shelves.down:
            return
        document = json.loads(self.world.shelves.objects[key])
        if lane is None:
            has_time = self.chain is not None and self.world.now < self.closes_at - self.chain["least_seconds"]
            if self.began and has_time and before in self.free:
                self.world.sometimes("continued on a free device")
                self._continue(before, self.free.pop(before), document)
            return
        if not lane.waits:
            if lane.fate.dies_waiting and any(other.open for other in self.lanes) and document["lane"] is not None:
                self.world.sometimes("order refused")
                self.world.shelves.put(key, json.dumps({**document, "lane": None}).encode())
            return
        lane.waits = False
        if document["lane"] is None:
            self.world.sometimes("nothing continues")
            self.lane_left()
        elif self.chain is not None and self.world.now < self.closes_at - self.chain["least_seconds"]:
            self._continue(before, lane.order["devices"], document)

    def _refuse(self, before: int) -> None:
        """Say that nobody takes an order here any more."""
        self.free.pop(before)
        if not self.world.shelves.down:
            closed = {"format": 1, "run": self.key, "after": before, "lane": None}
            self.world.shelves.put(f"runs/{self.key}/lane-{before}/next.json", json.dumps(closed).encode())

    def _continue(self, before: int, devices: list[int], document: dict[str, Any]) -> None:
        order = document["lane"]
        if (document["run"], document["after"]) != (self.key, before):
            raise Violation("an order is for one lane", f"{self.key} was given {document}")
        if any(lane.index == order["index"] for lane in self.lanes):
            raise Violation("an order is taken once", f"{self.key} has lane {order['index']} already")
        if not set(order["devices"]) <= set(devices):
            raise Violation("a chain keeps its devices", f"{self.key} gives {order['devices']} to {order['job']}")
        self.world.sometimes("continued")
        lane = Lane(self.world, self, order, self.world.chained_fate(self, order))
        self.lanes.append(lane)
        lane.begin()
        if lane.open:
            self._claim_seat(lane.job)

    def end(self, detail: str) -> None:
        """End the session now, if it has not ended."""
        if self.ended_at is not None:
            return
        self.ended_at = self.world.now
        self.detail = detail
        for lane in self.lanes:
            lane.open = False
        limit = self.deadline + self.fate.overrun_seconds
        if self.ended_at > limit and not self.fate.stays_seconds:
            raise Violation("harness", f"{self.key} was billed until {self.ended_at}, after {limit}")
        self.world.noticed()

    def cancel(self, detail: str) -> None:
        """Take a waiting session out of the queue: it can never start."""
        self.never = True
        self.ended_at = self.world.now
        self.detail = detail
        self.world.sometimes("never started")
        self.world.noticed()

    def extend(self, deadline: int) -> None:
        """Let it run until then, though it has not begun."""
        if self.live and not self.began:
            self.deadline, self.closes_at = deadline, self.closes_at + deadline - self.deadline

    def stop_asked(self, lane: int | None) -> bool:
        """Whether the flag is there and asks this lane to end; None: all of them."""
        flag = self.world.shelves.objects.get(f"runs/{self.key}/stop")
        return flag is not None and json.loads(flag)["lane"] in (None, lane)

    def notice_stop(self) -> None:
        """Let the lanes look at the stop flag; one for all lanes ends the wait for orders."""
        for lane in list(self.lanes):
            lane.notice_stop()
        if self.stop_asked(None) and any(lane.waits for lane in self.lanes):
            for lane in self.lanes:
                lane.waits = False
            self.lane_left()
