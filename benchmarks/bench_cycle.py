"""How long a cycle of the daemon takes while a corpus of 20 GB is built, and on an artifact store that answers in 5 s.

The cycle, the database and the build are the shipped ones; plans are the plain dispatcher's, since how long planning
takes is the matter of bench_planner.py. The places are scripted; the text is made while it is read, most of it for the
second time, so that no 20 GB lie on any disk. A cycle comes every quarter of
a second of real time and every 30 s of the daemon's clock. Printed are the 50th and the 99th percentile and the longest
cycle of each case, and the 99th against our bound of 2 s; 1 is returned when that is broken.

    python benchmarks/bench_cycle.py [--seconds 60] [--jobs 24]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from jobs.corpus.read.records import CorpusDocument
from jobs.corpus.read.sources import Loader
from jobs.nouns.pool import Pool
from jobs.spec import JobSpec, Mixture
from platforms.artifacts.directory import DirectoryStore
from scheduler.app import load_app
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.calls import Calls
from scheduler.store import jobs, lease, runs
from scheduler.store.engine import upgrade
from tests.lab.clocks import HandClock
from tests.lab.fake import FakeCloud, FakePlatform, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scheduler.app import App
    from scheduler.service.outside.ports import Ports

BOUND_SECONDS = 2.0
STORE_SECONDS = 5.0
CORPUS_BYTES = 20_000_000_000
_NOW = 1_795_000_000
_CYCLE_SECONDS = 30
_PAUSE_SECONDS = 0.25
_TEXT = "What the model reads is made of words, and of nothing that was not said before. " * 40
_FRESH_EVERY = 200  # documents: all others were read before, as most of a large corpus was
_POOLS = 6
_CONFIG = (
    'state_dir = "state"\nmodels = []\n[[pools]]\nname = "desk"\nplatform = "local"\n[corpus]\nsources = ["text"]\n'
)


class SlowStore(DirectoryStore):
    """A store that takes its time for everything but what the benchmark itself writes."""

    def __init__(self, root: Path, seconds: float) -> None:
        super().__init__(root)
        self._seconds = seconds

    def read(self, key: str, limit_bytes: int = 1 << 24) -> bytes:
        """See BlobStore.read."""
        time.sleep(self._seconds)
        return super().read(key, limit_bytes)

    def put(self, key: str, data: bytes) -> None:
        """See BlobStore.put."""
        time.sleep(self._seconds)
        super().put(key, data)

    def size(self, key: str) -> int | None:
        """See BlobStore.size."""
        time.sleep(self._seconds)
        return super().size(key)

    def keys(self, prefix: str) -> Iterator[str]:
        """See BlobStore.keys."""
        time.sleep(self._seconds)
        return super().keys(prefix)


@dataclass
class Stream:
    """Text that is made while it is read; ``made`` counts its bytes."""

    made: int = 0

    def load(self, loader: Loader) -> Iterator[CorpusDocument]:
        """Yield the documents of one source."""
        number = 0
        while self.made < CORPUS_BYTES:
            number += 1
            text = f"{_TEXT}{number // _FRESH_EVERY if number % _FRESH_EVERY == 0 else 0}"
            self.made += len(text)
            loader.bytes_read = self.made
            yield CorpusDocument(text=text, source="stream", line=number)


def _load(loader: Loader, stream: Stream, source: object) -> Iterator[CorpusDocument]:
    """Stand in for Loader.load."""
    del source
    return stream.load(loader)


@dataclass
class Case:
    """One daemon: its places, and how long its cycles took in real seconds."""

    ports: Ports
    clouds: dict[str, FakeCloud]
    quick: DirectoryStore
    seconds: list[float] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Run cycles for so long."""
        cycle, clock, until = Cycle(self.ports), self.ports.clock, time.monotonic() + seconds
        while time.monotonic() < until:
            self._let_sessions_report()
            began = time.monotonic()
            cycle.run()
            self.seconds.append(time.monotonic() - began)
            if isinstance(clock, HandClock):
                clock.present += _CYCLE_SECONDS
            time.sleep(_PAUSE_SECONDS)

    def _let_sessions_report(self) -> None:
        now = self.ports.clock.now()
        said = {"format": 1, "phase": "training", "step": (now - _NOW) // 10, "at": now}
        for cloud in self.clouds.values():
            for key, session in cloud.sessions.items():
                if now < session.end[0]:
                    self.quick.put(f"runs/{key}/lane-0/heartbeat.json", json.dumps(said).encode())

    def figures(self, name: str) -> float:
        """Print what the cycles took; return the 99th percentile."""
        found = sorted(self.seconds)
        half, most = found[len(found) // 2], found[min(len(found) - 1, len(found) * 99 // 100)]
        with self.ports.database.read() as tx:
            over = len(runs.ended_before(tx, self.ports.clock.now() + 1))
        print(
            f"{name:28} p50 {half:6.3f} s  p99 {most:6.3f} s  max {found[-1]:6.3f} s  p99/{BOUND_SECONDS:g} s "
            f"{most / BOUND_SECONDS:5.2f}   {len(found)} cycles, {over} sessions settled"
        )
        return most


def main() -> int:
    """Measure and print; return 1 when the bound is broken."""
    parser = argparse.ArgumentParser(description="How long a cycle takes beside long work.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of real time for each case")
    parser.add_argument("--jobs", type=int, default=24, help="queued jobs")
    options = parser.parse_args()
    found = [_measure(name, options) for name in ("nothing else", "20 GB corpus", "store answers in 5 s")]
    return int(max(found) > BOUND_SECONDS)


def _measure(name: str, options: argparse.Namespace) -> float:
    stream = Stream()
    with (
        tempfile.TemporaryDirectory(prefix="bench-cycle-", ignore_cleanup_errors=True) as folder,
        mock.patch.object(Loader, "load", partialmethod(_load, stream)),
    ):
        app = _app(Path(folder))
        builds = name == "20 GB corpus"
        case = _case(app, options.jobs, STORE_SECONDS if name.startswith("store") else 0.0, builds=builds)
        case.run(options.seconds)
        most = case.figures(name)
        if builds:
            made = stream.made
            print(f"{'':28} {made / 1e9:.1f} GB of the corpus were read meanwhile; {_told(case.ports)}")
            stream.made = CORPUS_BYTES  # nothing more comes
        app.database.close()
    return most


def _told(ports: Ports) -> str:
    return "; ".join(f"{one.kind} {one.name}: {one.progress}" for one in ports.calls.slow(0.0) if one.kind == "data")


def _app(folder: Path) -> App:
    (folder / "config.toml").write_text(_CONFIG.replace('"text"', f'"{folder}/text"'))
    with (folder / "text").open("wb") as sparse:
        sparse.truncate(CORPUS_BYTES)  # a hole: only its size counts, its bytes are made by Stream
    app = load_app(folder / "config.toml", {})
    app.settings.state_dir.mkdir(parents=True, exist_ok=True)
    upgrade(app.settings.database_url)
    return app


def _case(app: App, count: int, store_seconds: float, *, builds: bool) -> Case:
    taken = lease.acquire(app.database, "bench", 86_400)
    if taken is None:
        raise RuntimeError("the lease is not free")
    root = app.settings.state_dir / "store"
    clouds = {f"pool-{index}": FakeCloud(1, usual=Script(runs_seconds=600)) for index in range(_POOLS)}
    with app.database.write() as tx:
        for index in range(count):
            spec = JobSpec(
                f"job-{index:02d}", "manager", ("train",), 1_000_000, steps_per_hour=1_000.0, mixture=Mixture()
            )
            jobs.add(tx, replace(spec, weight=1.0 + index), _NOW)
    waiting = f"job-{count - 1:02d}"  # the one that the planner would launch first

    def data(job: str) -> str:
        return app.training_data.prefix(job) if builds and job == waiting else ""

    ports = replace(
        app.ports(_Silent(), taken.epoch),
        platforms={name: FakePlatform(cloud) for name, cloud in clouds.items()},
        pools={name: Pool(name, "fake", "CPU", vram_gib=16.0, session_cap_seconds=3_600) for name in clouds},
        openings={},
        clock=HandClock(_NOW),
        plan=lambda snapshot, _: dispatch(snapshot),
        artifacts=SlowStore(root, store_seconds) if store_seconds else DirectoryStore(root),
        data_prefix=data,
        calls=Calls(),
    )
    return Case(ports, clouds, DirectoryStore(root))


class _Silent:
    def __getattr__(self, level: str) -> Callable[..., Any]:
        return lambda *_, **__: None


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
