"""A daemon in memory whose sessions and platforms lie, and one job beside them that is honest: the victim."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import HOUR, Calendar
from jobs.payload.store.manifest import blob_key, manifest_key
from jobs.spec import JobSpec
from platforms.artifacts.base import Missing, StoreError
from platforms.base import Observed, QuotaReading, SessionState
from scheduler.core.ledger import EntryKind
from scheduler.core.run import Reserved
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.calls import Calls
from scheduler.service.outside.ports import Policy, Ports
from scheduler.service.upkeep.housekeeping import run_due
from scheduler.store import checkpoints, events, jobs, lease, ledger, rates, runs
from tests.lab.border import oddities
from tests.lab.clocks import HandClock
from tests.lab.fake import FakeCloud, FakePlatform, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scheduler.core.plan import Plan
    from scheduler.core.run import Lane, Run
    from scheduler.core.snapshot import Snapshot
    from scheduler.store.engine import Database

START = 1_795_000_000
VICTIM, TARGET = "victim", 10**9
LIARS = tuple(f"liar-{letter}" for letter in "abcdef")
_KEPT_OBJECTS = 1_000
_SESSION_SECONDS = 4 * HOUR


class Shelves:
    """The artifact store, as a mapping."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def create(self, key: str, source: Any) -> bool:
        """Write unless it is there."""
        if key in self.objects:
            return False
        self.objects[key] = source
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write or replace."""
        self.objects[key] = data

    def read(self, key: str, limit_bytes: int = 1 << 24) -> bytes:
        """Return an object."""
        if key not in self.objects:
            raise Missing("read", key, "there is none")
        if len(self.objects[key]) > limit_bytes:
            raise StoreError("read", key, f"more than {limit_bytes} bytes")
        return self.objects[key]

    def fetch(self, key: str, target: Path) -> None:
        """Copy an object into a file."""
        target.write_bytes(self.read(key))

    def size(self, key: str) -> int | None:
        """Return how many bytes an object has."""
        return len(self.objects[key]) if key in self.objects else None

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with ``prefix``."""
        yield from sorted(key for key in self.objects if key.startswith(prefix))

    def delete(self, key: str) -> bool:
        """Remove an object."""
        return self.objects.pop(key, None) is not None

    def sweep(self, older_than: float) -> int:
        """Nothing is ever left half written."""
        del older_than
        return 0

    def payload_address(self, grant: Any) -> dict[str, Any]:
        """No session reads it."""
        del grant
        return {}


class Liar(FakePlatform):
    """An adapter whose every third answer is odd, and that stumbles now and then."""

    def __init__(self, cloud: FakeCloud, world: World) -> None:
        super().__init__(cloud)
        self.capabilities = replace(self.capabilities, reports_quota=True, bills_late=True)
        self._world = world

    def launch(self, request: Any, now: int) -> Observed:
        """Launch, and answer oddly."""
        found = super().launch(request, now)
        return self._world.odd_answer(found)  # type: ignore[no-any-return]

    def find(self, keys: Sequence[str], now: int) -> Any:
        """Find, and answer oddly."""
        found = {key: self._world.odd_answer(each) for key, each in super().find(keys, now).items()}
        if self._world.rng.random() < 0.02:
            return self._world.odd_value(found)
        return found

    def read_quota(self, now: int) -> Any:
        """Tell odd figures."""
        window = Calendar("week", "UTC").window_at(now)
        return self._world.odd_reading(QuotaReading("week", window.start, window.end, 1_000 * HOUR, 0))

    def orphans(self, our_keys: Any, now: int) -> Any:
        """Find odd orphans."""
        return [self._world.odd_answer(each) for each in super().orphans(our_keys, now)]


@dataclass
class Log:
    """Counts what is said, and keeps what must never be."""

    said: Counter[str] = field(default_factory=Counter)
    crashed: list[str] = field(default_factory=list)

    def info(self, event: str, **fields: Any) -> None:
        """Count an event."""
        del fields
        self.said[event] += 1

    debug = warning = error = info

    def exception(self, event: str, **fields: Any) -> None:
        """Keep an error that nobody expected."""
        self.crashed.append(f"{event} {fields}")


class InTurn(Calls):
    """Platforms are asked one after the other, and answer at once."""

    def gather(self, kind: str, work: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Do it all."""
        del kind
        return {name: ask() for name, ask in work.items()}


@dataclass
class World:
    """One daemon with an honest pool and a lying one; ``told`` counts the odd documents and answers so far."""

    database: Database
    rng: Random
    told: int = 0
    crashes: list[str] = field(default_factory=list)
    unclear: set[str] = field(default_factory=set)
    memory: list[int] = field(default_factory=list)  # bytes in use, now and then
    saved: int = 0  # the victim's newest step

    def __post_init__(self) -> None:
        """Build the daemon."""
        self.clock, self.shelves, self.log = HandClock(START), Shelves(), Log()
        held = lease.acquire(self.database, "border", 86_400)
        assert held is not None
        quota = CalendarQuota("week", 900 * HOUR, Calendar("week", "UTC"))
        usual = {"session_cap_seconds": _SESSION_SECONDS, "devices_per_session": 2, "quotas": (quota,)}
        pools = {
            "honest": Pool("honest", "fake", "CPU", sessions_max=1, **usual),  # type: ignore[arg-type]
            "lying": Pool("lying", "fake", "CPU", sessions_max=3, **usual),  # type: ignore[arg-type]
        }
        self.clouds = {name: FakeCloud(3, _SESSION_SECONDS, Script(runs_seconds=None)) for name in pools}
        self.ports = Ports(
            database=self.database,
            artifacts=self.shelves,
            platforms={"honest": FakePlatform(self.clouds["honest"]), "lying": Liar(self.clouds["lying"], self)},
            pools=pools,
            clock=self.clock,
            policy=Policy(failures_max=10**9, retry_cap_seconds=60, horizon_seconds=_SESSION_SECONDS),
            plan=self._plan,
            data_prefix=lambda job: f"data/{job}/",
            bundle="",
            log=self.log,
            epoch=held.epoch,
            calls=InTurn(),
        )
        with self.database.write() as tx:
            for name, pool in ((VICTIM, "honest"), *((liar, "lying") for liar in LIARS)):
                spec = JobSpec(name, "manager", ("train",), TARGET, steps_per_hour=1e5, pools=(pool,))
                jobs.add(tx, spec, START)
        self.cycle = Cycle(self.ports)

    def turn(self, seconds: int) -> None:
        """Let every session and platform say something, and the daemon run a cycle."""
        with self.database.read() as tx:
            live = runs.live(tx)
        for run in live:
            if isinstance(run.state, Reserved):
                continue
            for lane in run.lanes:
                self._honest(run, lane) if lane.job == VICTIM else self._lie(run, lane)
        self.clock.present += seconds
        try:
            self.cycle.run()
            run_due(self.ports, self.clock.present)
        except Exception as error:  # noqa: BLE001 - a crash of the cycle is what is counted
            self.crashes.append(f"{type(error).__name__}: {str(error)[:300]}")
            self.cycle = Cycle(self.ports)
        self._forget()

    def check(self) -> list[str]:
        """Return which promises are broken."""
        broken = [*self.crashes[:5], *self.log.crashed[:5]]
        with self.database.read() as tx:
            victim = jobs.get(tx, VICTIM)
            if victim.done_step != self.saved:
                broken.append(f"the victim stands at {victim.done_step}, and saved {self.saved}")
            if bad := [each.manifest.key for each in checkpoints.everything(tx, VICTIM) if each.state == "quarantined"]:
                broken.append(f"of the victim were condemned: {bad}")
            wrong = [record for record in jobs.everything(tx) if not 0 <= record.done_step <= TARGET]
            broken += [f"{record.spec.name} stands at {record.done_step}" for record in wrong]
            speeds = {at: rate.steps_per_second for at, rate in rates.everything(tx).items() if rate.samples}
            broken += [f"{at} makes {speed} steps a second" for at, speed in speeds.items() if not 1e-6 <= speed <= 1e6]
            since = {run.key: run.planned_start for run in runs.since(tx, 0)}
            for entry in ledger.entries(tx):
                if entry.kind is EntryKind.SPEND and entry.run is not None:
                    early, late = entry.start < since[entry.run] - HOUR, entry.end > self.clock.present
                    if early or late:
                        broken.append(f"{entry.run} is charged {entry.start} .. {entry.end}")
            poisoned = events.tail(tx, limit=20, kinds=["run.poisoned", "job.poisoned"])
            # A platform may say that it cannot tell of a session, which then waits for a person.
            broken += [f"{e.kind} {e.subject}: {e.data.get('why')}" for e in poisoned if e.subject not in self.unclear]
        return broken

    def measure(self) -> None:
        """Note how much memory is in use, the artifact store aside, which is ours."""
        kept = sum(map(len, self.shelves.objects.values()))
        self.memory.append(tracemalloc.get_traced_memory()[0] - kept)

    # -- what is said --------------------------------------------------------------------------------------------------

    def odd_answer(self, honest: Observed) -> Any:
        """Return an answer that is odd every third time."""
        if self.rng.random() < 0.5:
            self.told += 1
            odd = oddities.answer(self.rng, honest)
            if isinstance(odd, Observed) and odd.state is SessionState.UNCLEAR:
                self.unclear.add(honest.key)
            return odd
        return honest

    def odd_value(self, honest: Any) -> Any:
        """Return something that is no mapping, or stumble."""
        self.told += 1
        if self.rng.random() < 0.3:
            raise self.rng.choice((TypeError("odd"), KeyError("status"), RecursionError(), AttributeError("None")))
        return self.rng.choice((None, [], 7, honest, "x"))

    def odd_reading(self, honest: QuotaReading) -> Any:
        """Return readings that are odd now and then."""
        if self.rng.random() < 0.2:
            self.told += 1
            return oddities.readings(self.rng, honest)
        return [honest]

    def _report(self, run: Run, lane: Lane, **more: Any) -> dict[str, Any]:
        now = self.clock.present
        return {
            "format": 1,
            "run": run.key,
            "lane": lane.index,
            "job": lane.job,
            "seq": 1,
            "started_at": run.planned_start,
            "at": now,
            "phase": "training",
            "step": 10,
            "loss": 1.5,
            "held_out_loss": None,
            "steps_per_second": 28.0,
            "setup_seconds": 5.0,
            "checkpoint_seconds": 2.0,
            "checkpoint_step": 10,
            "restored_step": None,
            "restored_from": None,
            "bad_manifests": [],
            "devices": ["CPU"],
            "gpu_memory_bytes": None,
            "message": "",
            **more,
        }

    def _lie(self, run: Run, lane: Lane) -> None:
        """Leave an odd heartbeat, now and then an odd result, and odd manifests of this job and of others."""
        rng, folder = self.rng, f"runs/{run.key}/lane-{lane.index}"
        self.told += 1
        self.shelves.put(f"{folder}/heartbeat.json", oddities.document(rng, self._report(run, lane)))
        if rng.random() < 0.1:
            self.told += 1
            word = self._report(
                run, lane, phase="ended", outcome="yielded", why="", error_class=None, trained_seconds=9
            )
            word["ended_at"] = self.clock.present
            self.shelves.put(f"{folder}/heartbeat.json", json.dumps({**word, "outcome": None}).encode())
            self.shelves.put(f"{folder}/result.json", oddities.document(rng, word))
        for _ in range(rng.choice((0, 3, 6))):
            self.told += 1
            attempt = rng.choice((lane.attempt, lane.attempt, 1, lane.attempt + 1, 999_999))
            step = rng.choice((rng.randrange(10**6), rng.randrange(10**6), TARGET + 1, 10**12 - 1))
            manifest = self._manifest(run, lane, step, attempt)
            data = oddities.document(rng, manifest)
            if rng.random() < 0.5:
                whole = {**manifest, "metrics": "?", "run": rng.choice((run.key, run.key, "uff-victim-0001"))}
                data = json.dumps(whole).replace('"?"', oddities.metrics(rng)).encode()
            self.shelves.create(manifest_key(lane.job, step, attempt), data)

    def _honest(self, run: Run, lane: Lane) -> None:
        """Save, and say so."""
        self.saved += 100
        self.shelves.create(
            manifest_key(lane.job, self.saved, lane.attempt),
            json.dumps(self._manifest(run, lane, self.saved, lane.attempt)).encode(),
        )
        said = self._report(run, lane, step=self.saved, checkpoint_step=self.saved, seq=self.saved)
        self.shelves.put(f"runs/{run.key}/lane-{lane.index}/heartbeat.json", json.dumps(said).encode())

    def _manifest(self, run: Run, lane: Lane, step: int, attempt: int) -> dict[str, Any]:
        self.shelves.create(blob_key(lane.job, "0" * 64), b"x")
        return {
            "format": 1,
            "job": lane.job,
            "step": step,
            "attempt": attempt,
            "run": run.key,
            "lane": lane.index,
            "parent": None,
            "created_at": self.clock.present,
            "trained_seconds": 60,
            "metrics": {"loss": 1.0},
            "components": [{"name": "model.bin", "sha256": "0" * 64, "bytes": 1}],
        }

    def _plan(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        del incumbent
        return dispatch(snapshot)

    def _forget(self) -> None:
        """Let the store forget old objects, so that what grows is the daemon's alone."""
        odd = [key for key in self.shelves.objects if VICTIM not in key]
        for key in odd[: max(0, len(odd) - _KEPT_OBJECTS)]:
            del self.shelves.objects[key]
