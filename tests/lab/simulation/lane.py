"""A lane as the payload truly lives it: restore, train, publish, report. Written from the training contract.

Nothing here is told to the daemon but through the artifact store.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jobs.payload.store.manifest import blob_key, manifest_key
from scheduler.core.run import PARENT, WRONG_DEVICE
from tests.lab.simulation.faults import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.lab.simulation.session import Session
    from tests.lab.simulation.world import World

LEAVE_SECONDS = 5  # from the last word of the last lane to the end of its session
SAVE_SECONDS = 20
SICK_AFTER_SECONDS = 300  # of training, until a sickness shows that does not show at once
# Sessions for nothing of one job in a row, before a person is told and the job waits: two that had time to show it, and
# such as were too short for that.
BURNT_MAX = 4
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
RETRY_SECONDS = 60  # a last checkpoint that the store did not take is tried again


class Sickness(StrEnum):
    """What makes every session of a job one for nothing, until somebody mends it."""

    SILENT = "silent"  # neither reports nor saves
    HANGS = "hangs"  # reports its first step, and no other
    DIVERGES = "diverges"  # its loss is no number any more
    NEVER_SAVES = "never saves"
    SAME_ERROR = "same error"


@dataclass(slots=True)
class LaneFate:
    """What this lane does that it should not."""

    sick: Sickness | None = None

    fails_after: int | None = None  # seconds of training until the command fails
    error_class: str = "code"
    saves_when_failing: bool = False
    store_unreadable: bool = False  # cannot reach the checkpoints it was told to start from
    deaf: bool = False  # follows neither stop flags nor its own deadline
    forgets_result: bool = False  # its result never reaches the store
    dies_waiting: bool = False  # its process is gone after its end, and takes no order of another job


class Lane:
    """One job's lane in a session. All state is the world's truth."""

    def __init__(self, world: World, session: Session, order: Mapping[str, Any], fate: LaneFate) -> None:
        self.world = world
        self.session = session
        self.order = order
        self.fate = fate
        self.job: str = order["job"]
        self.index: int = order["index"]
        self.attempt: int = order["attempt"]
        self.open = True
        self.trains_since: int | None = None
        self.first_step = 0
        self.published: str | None = None
        self.published_step: int | None = None
        self.parent: str | None = None
        self.bad: list[dict[str, str]] = []
        self.left_at: int | None = None  # with a last word
        self.waits = False  # for the order of a job that continues here
        self.began = session.starts_at if len(session.lanes) < len(session.orders) else world.now
        self.speed = world.true_speed(self.job, session.place.name, len(order["devices"]), len(session.orders))

    def begin(self) -> None:
        """Start: look for a stop, check the device, restore, then set up."""
        world = self.world
        if self._stop_asked():
            self._leave("yielded", "stop flag, before training began")
        elif self.session.wrong_device:
            world.sometimes("wrong accelerator")
            self._leave("failed", "an accelerator of another kind", WRONG_DEVICE)
        elif self.fate.store_unreadable and self.order["restore"]:
            world.sometimes("checkpoint unreadable")
            self._leave("failed", "the checkpoint cannot be read", "store")
        elif not self._parent_is_whole():
            world.sometimes("damaged parent")
            self._leave("failed", f"the parent's checkpoint {self.order['parent']} cannot be used", PARENT)
        elif self._restore():
            self._beat("starting")
            world.agenda.add(world.now + world.setup_seconds(self.job, self.session.place.name), self._train)
        else:
            world.sometimes("no candidate verifies")
            self._leave("failed", "none of the checkpoints to resume from verifies", "store")

    def _parent_is_whole(self) -> bool:
        """Whether what a job without a checkpoint of its own is told to start from can be, if it is told any."""
        key = self.order["parent"]
        if self.order["restore"] or not key:
            return True
        self.world.sometimes("started from another job")
        self._check_kept(key)
        return self.world.checkpoints.is_whole(key)

    def _restore(self) -> bool:
        """Take the newest candidate that is whole; false when there are candidates and none is."""
        world, candidates = self.world, self.order["restore"]
        for key in candidates:
            world.checkpoints.check_offer(key, self.session.key)
            if world.checkpoints.is_whole(key):
                self._check_kept(key)
                self.parent = self.published = key
                self.published_step = self.first_step = world.checkpoints.steps[key]
                break
            world.sometimes("damaged checkpoint passed over")
            self.bad.append({"manifest": key, "why": "a component does not have its digest"})
        newest = world.checkpoints.newest_whole(self.job)
        if candidates and self.parent is None:
            return False
        if newest is not None and newest > self.first_step:
            raise Violation(
                "nothing lost",
                f"{self.session.key} starts {self.job} from step {self.first_step}, but step {newest} is published",
            )
        return True

    def _check_kept(self, key: str) -> None:
        """Raise Violation when something that a session was told to start from is no longer in the store."""
        objects = self.world.shelves.objects
        components = json.loads(objects[key])["components"] if key in objects else [{"sha256": "no manifest"}]
        job = key.split("/")[1]
        gone = [part["sha256"] for part in components if blob_key(job, part["sha256"]) not in objects]
        if gone:
            raise Violation("what is needed is kept", f"{self.session.key} is told to start from {key}, without {gone}")

    def _train(self) -> None:
        if not self.open or self.session.ended_at is not None:
            return
        if self.fate.sick and self.world.burnt[self.job] >= BURNT_MAX:
            raise Violation("no hours for nothing", f"{self.job} burns a session for nothing after {BURNT_MAX} others")
        if self.fate.sick is Sickness.SILENT:
            self._stay_silent()
            return
        self.trains_since = self.world.now
        self._beat("training")
        self._plan_next()

    def _rule(self, name: str) -> int | None:
        """Return a bound of the orders' stall rules, if the daemon gave one."""
        bound = (self.order.get("stall") or {}).get(name)
        return None if bound is None else int(bound)

    def _stay_silent(self) -> None:
        """Do nothing until a rule or the session's end says so."""
        began, bound = self.world.now, self._rule("first_progress_seconds")
        gives_up = None if bound is None else began + bound
        if gives_up is not None and gives_up < self.session.closes_at:
            self._later(gives_up, lambda: self._burn("no first progress", "stalled"))
        elif not self.fate.deaf:
            self._later(self.session.closes_at, lambda: self._end_empty_handed(began))

    def _later(self, at: int, what: Callable[[], None]) -> None:
        happens = max(self.world.now + 1, at)
        self.world.agenda.add(happens, lambda: what() if self.open and self.session.ended_at is None else None)

    def _end_empty_handed(self, began: int) -> None:
        """Reach the session's end without a checkpoint."""
        bound = self._rule("checkpoint_seconds")
        if bound is not None and self.world.now - began >= bound:
            self._burn("deadline: nothing was saved", "no_checkpoint")
        else:
            self._burn("deadline, before training began", None)

    def _burn(self, why: str, error_class: str | None) -> None:
        """End a session that was for nothing."""
        too_short = error_class is None and self.session.lost_time  # what it waited in the queue is no fault of the job
        if self.session.can_write and not self.fate.forgets_result and not too_short:
            self.world.burnt[self.job] += 1
        self._leave("yielded" if error_class is None else "failed", why, error_class)

    def _plan_next(self) -> None:
        world, began = self.world, self.trains_since or 0
        left = self.order["target_step"] - self.first_step
        moments = [
            (max(world.now + RETRY_SECONDS, began + int(left / self.speed) + SAVE_SECONDS + 1), self._save),
            (world.now + self.session.checkpoint_every, self._save),
        ]
        if self.fate.sick:
            moments = self._sick_moments(began)
        if not self.fate.deaf:
            moments.append((max(world.now + 1, self.session.closes_at), self._close))
        if self.fate.fails_after is not None:
            moments.append((max(world.now + 1, began + self.fate.fails_after), self._fail))
        if moments:
            self._later(*min(moments, key=lambda moment: moment[0]))

    def _sick_moments(self, began: int) -> list[tuple[int, Callable[[], None]]]:
        """Return when the sickness, or a rule that notices it, ends the session."""
        shows = began + SICK_AFTER_SECONDS
        match self.fate.sick:
            case Sickness.HANGS if (bound := self._rule("no_progress_seconds")) is not None:
                return [(began + bound, lambda: self._burn("no new step", "stalled"))]
            case Sickness.DIVERGES if self._rule("loss_nan") is not None:
                return [(shows, lambda: self._burn("the loss is no number", "diverged"))]
            case Sickness.SAME_ERROR:
                return [(shows, lambda: self._burn("KeyError: 'text'", "code"))]
            case _:
                return []

    def _save(self) -> None:
        self._publish()
        if (self.published_step or 0) >= self.order["target_step"]:
            self._leave("finished", "target step")
        else:
            self._beat("training")
            self._plan_next()

    def _close(self) -> None:
        if self.fate.sick:
            self._end_empty_handed(self.trains_since or self.world.now)
            return
        self._publish()
        done = (self.published_step or 0) >= self.order["target_step"]
        self._leave("finished" if done else "yielded", "deadline")

    def _fail(self) -> None:
        self.world.sometimes("training failed")
        if self.fate.saves_when_failing:
            self._publish()
        # No two errors are the same, whatever of their numbers is passed over.
        told = hashlib.sha256(self.session.key.encode()).hexdigest().translate(_LETTERS)
        self._leave("failed", f"the command failed: {told}", self.fate.error_class)

    def notice_stop(self) -> None:
        """A heartbeat after somebody put the flag: save and leave."""
        if not self.open or self.session.ended_at is not None or self.fate.deaf or not self._stop_asked():
            return
        self.world.sometimes("stop flag followed")
        self.world.burnt[self.job] = 0  # somebody looks at it
        if self.trains_since is not None:
            self._publish()
        done = (self.published_step or 0) >= self.order["target_step"]
        self._leave("finished" if done else "yielded", "stop flag")

    def preempt(self, *, warned: bool) -> None:
        """The platform takes the session away."""
        if self.open and warned:
            if self.trains_since is not None:
                self._publish()
            self._leave("preempted", "SIGTERM")
        self.open = False

    def _stop_asked(self) -> bool:
        return self.session.stop_asked(self.index)

    def _step(self) -> int:
        if self.trains_since is None:
            return self.first_step
        trained = max(0, self.world.now - SAVE_SECONDS - self.trains_since)
        return min(int(self.order["target_step"]), self.first_step + int(trained * self.speed))

    def _loss(self, step: int) -> float:
        """Return what training has come to: it falls, and then rises again, sooner for some jobs than for others."""
        share = (0.3, 0.7, 1.5)[(len(self.job) + self.world.scenario.seed) % 3]
        way = step / (share * int(self.order["target_step"]))
        return round(1 - way if way < 0.9 else way - 0.8, 6)

    def _publish(self) -> None:
        """Components first, manifest last; nothing when no step was made or the store is down."""
        world, step = self.world, self._step()
        if self.fate.sick or step <= (self.published_step or 0) or not self.session.can_write:
            return
        world.burnt[self.job] = 0
        content = f"{self.job} {step} {self.attempt}".encode()
        digest = hashlib.sha256(content).hexdigest()
        key = manifest_key(self.job, step, self.attempt)
        manifest = {
            "format": 1,
            "job": self.job,
            "step": step,
            "attempt": self.attempt,
            "run": self.session.key,
            "lane": self.index,
            "parent": self.published,
            "created_at": world.now,
            "trained_seconds": world.now - (self.trains_since or world.now),
            "metrics": {"loss": self._loss(step)},
            "components": [{"name": "model.bin", "sha256": digest, "bytes": len(content)}],
        }
        world.checkpoints.publish(self.job, step, key, self.session.key)
        self.session.write(blob_key(self.job, digest), content)
        self.session.write(key, json.dumps(manifest).encode())
        self.published, self.published_step = key, step
        objects = self.session.kept if self.session.place.relays else world.shelves.objects
        world.lock_at_random(key)
        world.damage_at_random(key, blob_key(self.job, digest), objects)

    def _beat(self, phase: str, **more: Any) -> dict[str, Any]:
        document = {
            "format": 1,
            "run": self.session.key,
            "lane": self.index,
            "job": self.job,
            "at": self.world.now,
            "started_at": self.began,
            "phase": phase,
            "step": self._step(),
            "steps_per_second": self.speed if self.trains_since is not None else None,
            "setup_seconds": None if self.trains_since is None else self.trains_since - self.began,
            "checkpoint_seconds": SAVE_SECONDS,
            "checkpoint_step": self.published_step,
            "restored_step": self.first_step or None,
            "command_at": self.began if self.fate.sick else None,
            "bad_manifests": self.bad,
            **more,
        }
        if not self.world.shelves.down:
            self.world.checkpoints.accuse([entry["manifest"] for entry in self.bad], self.session.key)
            self.world.shelves.put(
                f"runs/{self.session.key}/lane-{self.index}/heartbeat.json", json.dumps(document).encode()
            )
        return document

    def _leave(self, outcome: str, why: str, error_class: str | None = None) -> None:
        self.open = False
        until = self.session.waits_until(outcome, why, error_class)
        said = {"outcome": outcome, "why": why, "error_class": error_class, "message": "", "ended_at": self.world.now}
        said["waits_until"], self.waits = until, until is not None and not self.fate.dies_waiting
        document = self._beat("ended", **said)
        self.left_at = self.world.now
        if not self.fate.forgets_result and self.session.can_write:
            key = f"runs/{self.session.key}/lane-{self.index}/result.json"
            if key not in self.world.shelves.objects:
                self.session.write(key, json.dumps(document).encode())
        self.session.lane_left()
