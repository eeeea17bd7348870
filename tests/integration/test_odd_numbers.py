"""Every number that people may set: it is taken and the daemon plans with it, or refused in words that name it."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

from config.errors import ConfigError
from config.load import load
from config.section import keys_of, table_in
from config.settings import Settings
from jobs.catalogue import job_from_table
from jobs.definition import RANGES
from jobs.problem import ProblemsFound
from jobs.spec import JobSpec
from scheduler.app import App
from scheduler.clock import ScaledClock
from scheduler.core.job import Held
from scheduler.core.plan import Plan
from scheduler.core.snapshot import Snapshot
from scheduler.daemon import Daemon
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Ports
from scheduler.service.upkeep.housekeeping import run_due
from scheduler.store import jobs, plans
from scheduler.store.engine import Database
from tests.lab.fake import FakeCloud, FakePlatform

NOW = 1_795_000_000
ODD: list[Any] = [
    *(0, -1, 1, 1_000, 10**12, 10**400, 1e-9, 1e-310, 1e300, 1e308, float("nan"), float("inf"), True, "100y", "36500d"),
]
BASE: dict[str, Any] = {
    "daemon": {},
    "clock": {"scale": 2.0, "epoch": float(NOW), "origin": float(NOW)},
    "corpus": {"rules": [{"command": ["true"]}], "weights": [{"path": "stdlib", "weight": 1}]},
    "retention": {},
    "report": {"smtp": {}, "slack": {}},
    "web": {},
    "webhooks": [{"name": "hook", "token_url": "https://127.0.0.1:9/", "secret": "sixteen characters"}],
    "targets": [{"name": "griffith", "kind": "directory", "options": {"path": "/nowhere"}}],
    "pools": [
        {
            "name": "desk",
            "platform": "local",
            "quotas": [{"name": "span", "kind": "rolling", "span": "24h", "limit": "4h"}],
        }
    ],
}


def numbers(model: Any = Settings, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the dotted place of every number in the settings model."""
    for key, (_, annotation) in keys_of(model).items():
        if (inner := table_in(annotation)) is not None:
            yield from numbers(inner, (*path, key))
        elif {int, float} & set(kinds_in(annotation)):
            yield (*path, key)


def kinds_in(annotation: Any) -> Iterator[Any]:
    """Yield the types of which an annotation is made."""
    yield annotation
    for part in get_args(annotation):
        yield from kinds_in(part)


PLACES = sorted({*numbers(), ("pools", "quotas", "limit")})


def having(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return usable settings but for one value."""
    found = deepcopy(BASE)
    table: Any = found
    for key in path[:-1]:
        table = table.setdefault(key, {}) if isinstance(table, dict) else table[0][key]
    (table if isinstance(table, dict) else table[0])[path[-1]] = value
    return found


@dataclass
class HandClock:
    """A clock of the settings' scale that shows NOW."""

    scale: float

    def now(self) -> int:
        """Return scheduled UTC seconds."""
        return NOW

    def elapsed(self) -> float:
        """Return scheduled seconds."""
        return float(NOW)

    def wall_seconds(self, scheduled_seconds: float) -> float:
        """Return real seconds."""
        return ScaledClock(0.0, 0.0, self.scale).wall_seconds(scheduled_seconds)

    def payload_clock(self) -> dict[str, float]:
        """Return the clock part of the launch contract."""
        return {"epoch": float(NOW), "origin": float(NOW), "scale": self.scale}


def plan(snapshot: Snapshot, incumbent: Plan | None) -> Plan:
    """Plan as the daemon does, but for the polish."""
    return Planner(PlannerOptions(search_steps=0)).plan(snapshot, incumbent)


def daemon_works(settings: Settings, database: Database, make: Callable[..., Ports], log: Any) -> None:
    """Set the daemon's timer, run two cycles and its duties, with one job."""
    app = App(settings)
    daemon = Daemon(app, log)
    timer = BackgroundScheduler(timezone="UTC")
    daemon._set_intervals(timer)
    timer.start(paused=True)
    timer.shutdown(wait=False)
    assert app.clock.now() < 2**63
    ports = make(
        clock=HandClock(settings.clock.scale),
        platforms={name: FakePlatform(FakeCloud()) for name in app.pools},
        pools=app.pools,
        policy=app.policy,
        plan=plan,
    )
    cycle = Cycle(ports)
    for _ in range(2):
        cycle.run()
    run_due(ports, NOW)
    with database.read() as tx:
        newest = plans.newest(tx)
        assert newest is not None
        aside = [job.spec.name for job in jobs.everything(tx) if isinstance(job.state, Held)]
    assert aside == [], "no plan can be made with them"
    assert not [line for line in log.lines if "poisoned" in line or "exception" in line]


SPEC = JobSpec("ufm", "manager", ("train",), target_step=500, steps_per_hour=100.0)


@pytest.mark.parametrize("path", PLACES, ids=".".join)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_number_of_the_settings_is_planned_with_or_refused_by_name(
    path: tuple[str, ...], database: Database, make_ports: Callable[..., Ports], journal: Any, tmp_path: Path
) -> None:
    with database.write() as tx:
        jobs.add(tx, SPEC, NOW)
    taken, refused = 0, list[str]()
    for value in ODD:
        try:
            settings = load(None, {}, having(path, value) | {"state_dir": str(tmp_path)})
        except ConfigError as error:
            refused.append(str(error))
            continue
        taken += 1
        try:
            daemon_works(settings, database, make_ports, journal)
        except Exception as error:
            raise AssertionError(f"{'.'.join(path)} = {str(value)[:20]} is taken") from error
    assert taken or path[-1] in {"limit", "price_per_hour", "device_counts"}  # which are text, or a list
    assert refused
    assert [said for said in refused if path[-1] not in said] == []


JOB: dict[str, Any] = {
    "name": "ufm",
    "role": "manager",
    "command": ["train"],
    "target_step": 500,
    "steps_per_hour": 100.0,
    "needs": {},
    "stop": {"metric": "loss", "value": 0.1},
    "mixture": {"domain": "code", "extra_share": 0.5},
    "after": {"job": "other", "fraction": 0.5},
    "share": {"with": "other", "percent": 30},
    "stall": {},
    "evaluation": {"command": ["score"], "set": "/items.jsonl"},
    "gates": [{"metric": "loss", "kind": "better"}],
}
CANDIDATE: dict[str, Any] = {
    **{name: value for name, value in JOB.items() if name not in {"stop", "evaluation", "gates"}},
    "sweep": "lr",
    "halving": {"metric": "loss", "budget": "4h", "candidates": 3, "rungs": [500, 1_500]},
}


@pytest.mark.parametrize("key", RANGES)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_number_of_a_job_is_planned_with_or_refused_by_name(
    key: str, database: Database, make_ports: Callable[..., Ports], journal: Any, tmp_path: Path
) -> None:
    settings, refused = load(None, {}, BASE | {"state_dir": str(tmp_path)}), list[str]()
    with database.write() as tx:
        for name in (SPEC.name, "other"):
            jobs.add(tx, replace(SPEC, name=name), NOW)
    outer, _, inner = key.partition(".")
    for number, value in enumerate(ODD):
        table = deepcopy(CANDIDATE if outer == "halving" else JOB)
        odd = [1.0, value] if key == "device_speedup" else value
        table[outer] = table[outer] | {inner: odd} if inner else odd
        try:
            spec = job_from_table(table, "job.toml")
        except ProblemsFound as error:
            refused.append(str(error))
            continue
        with database.write() as tx:
            jobs.add(tx, replace(spec, name=f"ufm-{number}"), NOW)
    assert refused
    assert [said for said in refused if (inner or outer) not in said] == []
    daemon_works(settings, database, make_ports, journal)
