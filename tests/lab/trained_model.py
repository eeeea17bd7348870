"""A model whose training and evaluations end as a test says, and the daemon's cycle that makes versions of it."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from jobs.nouns.pool import Pool
from jobs.payload.scorers.items import read_items
from jobs.payload.store.manifest import Component, Manifest, blob_key
from jobs.spec import Evaluation, Input, JobSpec, QualityGate
from scheduler.core.job import Done, Failed
from scheduler.core.plan import Plan
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.requests.stored import take_input
from scheduler.store import checkpoints, evaluations, jobs, versions
from tests.lab.fake import FakeCloud, FakePlatform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from scheduler.service.outside.ports import Ports
    from scheduler.store.engine import Database

NOW = 1_795_000_000
ITEMS = 40
TARGET = 100
POINT = QualityGate("atomicity", "threshold", minimum=0.9)
# Commands of real sessions: one saves weights of as much skill as SKILL says, the other scores forty items by it.
TRAIN = """
import json, os, pathlib
parent = os.environ.get("SCHED_INPUT_PARENT")
before = json.loads(pathlib.Path(parent, "weights.json").read_text())["skill"] if parent else 0.0
made = pathlib.Path(os.environ["SCHED_CHECKPOINT_DIR"]) / "making"
made.mkdir()
(made / "weights.json").write_text(json.dumps({"skill": float(os.environ["SKILL"]), "before": before}))
(made / "meta.json").write_text(json.dumps({"step": 100, "metrics": {}}))
made.rename(made.with_name("step-00000100"))
"""
SCORE = """
import hashlib, json, os, pathlib
skill = json.loads(pathlib.Path(os.environ["SCHED_INPUT_MODEL"], "weights.json").read_text())["skill"]
(items,) = pathlib.Path(os.environ["SCHED_INPUT_SET"]).glob("*.jsonl")
said = {name: os.environ["EVALUATION_" + name.upper()] for name in ("model", "checkpoint", "scorer")}
lines = [{"schema": 1, "set": hashlib.sha256(items.read_bytes()).hexdigest(), **said}]
for number, line in enumerate(items.read_text().splitlines()):
    name = json.loads(line)["id"]
    lines.append({"item": name, "cluster": name, "metric": "atomicity", "value": float(number < skill * 40)})
text = "".join(json.dumps(line) + chr(10) for line in lines)
pathlib.Path(os.environ["SCHED_OUTPUT_DIR"], "scores.jsonl").write_text(text)
"""


def passing(share: float) -> list[float]:
    return [1.0 if number < share * ITEMS else 0.0 for number in range(ITEMS)]


class World(SimpleNamespace):
    """A model whose training and evaluations end as a test says, and the daemon's cycle."""

    def train(self, content: str, step: int = 100, model: str = "ufm") -> None:
        """Let a model save ``content`` as its weights; of its next generation if it was done, which it is at 100."""
        with self.database.write() as tx:
            record = jobs.get(tx, model)
            if isinstance(record.state, Done):
                jobs.restart(tx, model, NOW, "test")
            attempt = jobs.note_launch(tx, model, "pool")
            weights = Component("weights.npy", hashlib.sha256(content.encode()).hexdigest(), 3)
            manifest = Manifest(model, step, attempt, f"uff-{model}-0001", 0, None, NOW, 60, {}, (weights,))
            checkpoints.record(tx, manifest, NOW)
            jobs.note_progress(tx, model, step, manifest.key)
            if step == TARGET:
                self._end(tx, model, Done(NOW))

    def score(self, job: str, values: list[float] | bytes, *, repeated: int = 1, **header: Any) -> None:
        """Let an evaluation end and leave these values, of items 0, 1, 2..., or any other bytes."""
        with self.database.write() as tx:
            told = jobs.get(tx, job).spec.environment
            said = {
                "schema": 1,
                "model": told["EVALUATION_MODEL"],
                "checkpoint": told["EVALUATION_CHECKPOINT"],
                "set": read_items(self.items).digest,
                "scorer": told["EVALUATION_SCORER"],
                **header,
            }
            lines = [json.dumps(said)]
            if not isinstance(values, bytes):
                for number, value in enumerate(values):
                    name = f"item-{number}"
                    lines.append(json.dumps({"item": name, "cluster": name, "metric": "atomicity", "value": value}))
            content = values if isinstance(values, bytes) else "\n".join([lines[0], *lines[1:] * repeated]).encode()
            digest = hashlib.sha256(content).hexdigest()
            self.ports.artifacts.create(blob_key(job, digest), content)
            attempt = jobs.note_launch(tx, job, "pool")
            scores = Component("output/scores.jsonl", digest, len(content))
            manifest = Manifest(job, 1, attempt, f"uff-{job}-0001", 0, None, NOW, 60, {}, (scores,))
            checkpoints.record(tx, manifest, NOW)
            jobs.note_progress(tx, job, 1, manifest.key)
            self._end(tx, job, Done(NOW))

    def judged(self, content: str, values: list[float]) -> None:
        """Train, evaluate and judge one version."""
        self.train(content)
        self.cycle.run()
        with self.database.read() as tx:
            (job,) = [one.job for one in evaluations.open_ones(tx)]
        self.score(job, values)
        self.cycle.run()

    def _end(self, tx: Any, job: str, state: Any) -> None:
        jobs.change_state(tx, job, jobs.get(tx, job).state, state, "finish", NOW)

    def fail(self, job: str) -> None:
        """Let a job fail for good."""
        with self.database.write() as tx:
            self._end(tx, job, Failed("code", "it broke", NOW))

    def states(self) -> list[tuple[int, str]]:
        """Return the versions' numbers and states."""
        with self.database.read() as tx:
            return [(found.number, found.state) for found in versions.everything(tx, "ufm")]

    def in_force(self) -> int | None:
        """Return the number of the version in force."""
        with self.database.read() as tx:
            found = versions.in_force(tx, "ufm")
        return found.number if found else None

    def ask(self, act: Callable[..., Any], number: int, *words: Any) -> Any:
        """Do what a person asks of a version."""
        with self.database.write() as tx:
            return act(tx, versions.get(tx, "ufm", number), *words, NOW, "somebody")


def make_world(
    make_ports: Callable[..., Ports],
    database: Database,
    folder: Path,
    journal: Any,
    texts: Sequence[str] = ("",) * ITEMS,
    **fields: Any,
) -> World:
    """Return the world of a model with a threshold of 0.9 on a set of forty items; ``fields`` are its evaluation's."""
    items = folder / "held-out.jsonl"
    lines = [{"id": f"item-{number}"} | ({"text": text} if text else {}) for number, text in enumerate(texts)]
    items.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ports = make_ports(
        platforms={"pool": FakePlatform(FakeCloud())},
        pools={"pool": Pool("pool", "fake", "T4", ())},
        plan=lambda snapshot, _: Plan(snapshot.now, (), ()),
        bundle=str(folder),
    )
    test_set = take_input(database, ports.artifacts, Input("set", str(items)), NOW, print)
    wanted = Evaluation(("score",), test_set, within_seconds=86_400, **fields)
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), TARGET, 10.0, evaluation=wanted, gates=(POINT,)), NOW)
    return World(ports=ports, database=database, cycle=Cycle(ports), items=items, journal=journal)
