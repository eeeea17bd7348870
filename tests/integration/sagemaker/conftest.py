"""A SageMaker of our own with a bucket, the shipped payload, and a clock on which an hour is a few seconds."""

import hashlib
import json
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import jobs
from jobs.payload.clock import Clock
from platforms.artifacts.base import BlobStore, Grant, open_store
from platforms.base import LaunchRequest, Observed, Platform, SessionState
from platforms.registry import PlatformContext, load
from scheduler.clock import ScaledClock
from tests.lab.aws import FaultyPlace, FaultyServer, Shortages
from tests.lab.clocks import starting_now
from tests.lab.patience import until_state

EPOCH = 1_800_000_000
BUNDLE = Path(jobs.__file__).parent
DATA = "corpus/v1/mixtures/lm"


@dataclass
class World:
    """Everything a session touches. Adapters made by ``adapter`` share one state folder, as restarted daemons do."""

    folder: Path
    place: FaultyPlace
    address: str
    bucket: str
    clock: ScaledClock
    store: BlobStore
    patience: threading.Event = field(default_factory=threading.Event)

    @property
    def options(self) -> dict[str, str]:
        """The settings of the pool."""
        return {
            "endpoint": self.address,
            "region": "us-east-1",
            "bucket": self.bucket,
            "role": "arn:aws:iam::123456789012:role/uff-execution",
            "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10",
            "instance_types": "ml.g4dn.xlarge",
        }

    def pool(self, **more: Any) -> dict[str, Any]:
        """The pool ``aws`` as a settings file has it."""
        return {
            "name": "aws",
            "platform": "sagemaker",
            "session_cap": "4h",
            "session_min": "30m",
            "setup": "5m",
            "stop_margin": "10m",
            "options": self.options,
            "quotas": [{"name": "hours", "kind": "day", "limit": "20h", "zone": "UTC"}],
            **more,
        }

    def settings(self, folder: Path, **pool: Any) -> dict[str, Any]:
        """A daemon's settings with that pool, the account's bucket as artifact store, and the account's clock."""
        store = {"bucket": self.bucket, "region": "us-east-1", "endpoint": self.address}
        return {
            "artifacts": {"kind": "s3", "root": str(folder / "artifacts"), "options": store},
            "daemon": {"cycle": "3m", "heartbeat": "3m", "grace": "20m", "retry_base": "3m"},
            "clock": {"scale": self.clock.scale, "epoch": self.clock.epoch, "origin": self.clock.origin},
            "pools": [self.pool(**pool)],
        }

    def adapter(self, **options: str) -> Platform:
        """A new adapter, as a daemon makes it at its start."""
        context = PlatformContext(self.folder / "state", sys.executable, BUNDLE, clock=self.clock.payload_clock())
        return load("sagemaker", {**self.options, **options}, context)

    def local(self) -> Platform:
        """This machine as a platform, on the same clock."""
        context = PlatformContext(self.folder / "local", sys.executable, BUNDLE, clock=self.clock.payload_clock())
        return load("local", {}, context)

    def request(
        self,
        key: str,
        command: list[str],
        *,
        attempt: int = 1,
        seconds: int = 7_200,
        folders: Iterable[str] = (DATA,),
        **lane: Any,
    ) -> LaunchRequest:
        """A session of one lane that trains the job ``lm`` from the newest checkpoint there is."""
        restore = sorted(self.store.keys("jobs/lm/manifests/"), reverse=True)
        reads = [f"runs/{key}/stop", *(f"runs/{key}/lane-0/{name}.json" for name in ("heartbeat", "result"))]
        for manifest in restore:
            parts = json.loads(self.store.read(manifest))["components"]
            reads += [manifest, *(f"jobs/lm/blobs/{part['sha256']}" for part in parts)]
        deadline = self.clock.now() + seconds
        usual = {
            "index": 0,
            "job": "lm",
            "attempt": attempt,
            "devices": [],
            "seed": 11,
            "target_step": 100,
            "command": command,
            "environment": {},
            "data": "",
            "setup_seconds": 60,
            "checkpoint_seconds": 10,
            "restore": restore,
        }
        launch = {
            "format": 1,
            "run": key,
            "clock": self.clock.payload_clock(),
            "deadline": deadline,
            "stop_margin_seconds": 300,
            "heartbeat_seconds": 60,
            "grace_seconds": 1_200,
            "mtbf_seconds": 108_000,
            "store": self.store.payload_address(Grant(key, ("lm",), tuple(reads), tuple(folders), 600)),
            "expected_devices": None,
            "lanes": [usual | lane],
        }
        return LaunchRequest(key, "pool", 1, deadline, launch, "", {})

    def until(self, key: str, *states: SessionState, platform: Platform | None = None) -> Observed:
        """Wait, within reason, until the platform reports one of ``states``."""
        asked = platform or self.adapter()  # one for all looks: a client of AWS takes longer to make than to ask
        return until_state(lambda: asked.find([key], self.clock.now()).get(key), *states)

    def output(self, key: str) -> str:
        """What the session printed."""
        return b"".join(self.adapter().logs(key, 0, 1 << 20)).decode()

    def result(self, key: str) -> dict[str, Any]:
        """The lane's last word."""
        document: dict[str, Any] = json.loads(self.store.read(f"runs/{key}/lane-0/result.json"))
        return document

    def newest(self) -> dict[str, str]:
        """The digests of the newest checkpoint's components, the metrics aside."""
        manifest = json.loads(self.store.read(max(self.store.keys("jobs/lm/manifests/"))))
        return {part["name"]: part["sha256"] for part in manifest["components"] if part["name"] != "meta.json"}


@pytest.fixture
def world(tmp_path: Path, aws_credentials: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An account in which nothing ran yet. Fails when a job leaves a process behind."""
    bucket = f"uff-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    clock = starting_now(EPOCH, 600.0)
    rules = Shortages(queue_seconds=30, download_seconds=30, upload_seconds=30, grace_seconds=1_200)
    place = FaultyPlace(tmp_path / "emulator", Clock(**clock.payload_clock()), rules)
    with FaultyServer(place) as server:
        server.make_bucket(bucket)
        options = {"bucket": bucket, "region": "us-east-1", "endpoint": server.address}
        yield World(tmp_path, place, server.address, bucket, clock, open_store("s3", tmp_path / "store", options))
    assert [job.name for job in place.jobs.values() if job.live] == []


@pytest.fixture
def corpus(world: World) -> None:
    """Text to train on, in the store."""
    source = Path(json.__file__).read_text() + Path(random.__file__).read_text()
    texts = [json.dumps({"text": source[start : start + 2000]}) + "\n" for start in range(0, len(source), 2000)]
    world.store.put(f"{DATA}/heldout.jsonl", "".join(texts[:2]).encode())
    world.store.put(f"{DATA}/train-000.jsonl", "".join(texts[2:]).encode())


@pytest.fixture
def waiting(world: World) -> Callable[[str], LaunchRequest]:
    """Sessions that do nothing until they are told to leave; none ends by itself before a slow test does."""
    program = (
        "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print('here', flush=True); signal.pause()"
    )
    return lambda key: world.request(key, ["{python}", "-c", program], seconds=400_000)
