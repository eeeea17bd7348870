"""Metrics: the state of things in the text formats of Prometheus. docs/status-page.md lists every name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from scheduler.store import counts, queue_waits, runs
from scheduler.verbs.questions import meters as all_meters
from scheduler.verbs.questions import newest_needs, pools, scheduler_health
from scheduler.verbs.source import Source
from scheduler.views import models

_STATES = ("queued", "active", "held", "done", "failed", "cancelled")

_PACKAGE = "uff-scheduler"
_TOTALS_SECONDS = 15

Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class _Read(Collector):
    """Metrics that were read already, as prometheus_client asks for them."""

    metrics: list[Metric]

    def collect(self) -> Iterable[Metric]:
        """Return the metrics that have samples."""
        return (metric for metric in self.metrics if metric.samples)


def metrics(source: Source, accept: str) -> tuple[bytes, str]:
    """Return all metrics and their content type: OpenMetrics where ``accept`` asks for it. Raises StoreFailure."""
    now = source.now
    with source.read() as tx:
        samples = [*_daemon(source, tx, now), *_work(source, tx), *_pools(source, tx, now)]
        # Sums over whole tables; no scrape comes more often.
        samples += source.kept("models", now // _TOTALS_SECONDS, lambda: list(_models(tx)))
        samples += source.kept("totals", now // _TOTALS_SECONDS, lambda: list(_totals(tx)))
    encode, content_type = choose_encoder(accept)
    return encode(_Read(samples)), content_type


def _daemon(source: Source, tx: Connection, now: int) -> Iterable[Metric]:
    leader, cycled_at, problems = scheduler_health(source, tx, now)
    plan = source.plan(tx)
    yield _metric("uff_build_info", "The version of this program.", [({"version": version(_PACKAGE)}, 1)])
    yield _one("uff_ready", "1 when the scheduler does its work.", float(not problems))
    yield _one("uff_leader", "1 when a daemon holds the lease.", float(leader is not None))
    if cycled_at is not None:
        yield _one("uff_last_cycle_timestamp_seconds", "Newest finished cycle of the daemon.", cycled_at)
    yield _one("uff_scheduled_time_seconds", "The scheduler's clock.", now)
    if plan is not None:
        yield _one("uff_plan_timestamp_seconds", "When the newest plan was made.", plan.made_at)
        yield _one("uff_plan_value", "Weighted discounted useful hours of the newest plan.", plan.value)
        yield _one("uff_plan_sessions", "Sessions of the newest plan.", len(plan.placements))
        if plan.bound is not None:
            yield _one("uff_plan_bound", "What no plan can exceed.", plan.bound)
    needs = len(newest_needs(source, tx, now))
    yield _one("uff_needs", "Things that only a person can settle, of the last week.", needs)


def _work(source: Source, tx: Connection) -> Iterable[Metric]:
    states = counts.jobs_by_state(tx)
    yield _metric("uff_jobs", "Jobs by state.", [({"state": s}, states.get(s, 0)) for s in _STATES])
    records = source.kept("progress", source.news(tx), lambda: counts.progress(tx))
    yield _metric("uff_job_steps", "Checkpointed steps of each open job.", [({"job": n}, d) for n, d, _ in records])
    yield _metric("uff_job_target_steps", "Steps to train.", [({"job": n}, t) for n, _, t in records])
    yield _one("uff_outbox_waiting", "Messages not delivered yet.", counts.messages_waiting(tx))


def _models(tx: Connection) -> Iterable[Metric]:
    all_models = models.models(tx)
    states = Counter(version.state for one in all_models for version in one.versions)
    yield _metric("uff_versions", "Versions of models by state.", [({"state": s}, n) for s, n in states.items()])
    listed = [version for one in all_models for version in one.versions if version.in_force]
    yield _metric(
        "uff_version_in_force", "Number of the promoted version.", [({"model": v.model}, v.number) for v in listed]
    )
    costs = [(version, models.cost(tx, version)) for version in listed]
    for unit, scale, words in (("seconds", 1, "Metered time"), ("dollars", 1_000_000, "Money")):
        field_name = "seconds" if unit == "seconds" else "microdollars"
        samples: list[Sample] = [({"model": v.model}, getattr(cost, field_name) / scale) for v, cost in costs]
        yield _metric(
            f"uff_version_cost_{unit}", f"{words} that the promoted version took with its evaluation.", samples
        )


def _totals(tx: Connection) -> Iterable[Metric]:
    yield _metric(
        "uff_runs_ended_total",
        "Lanes that ended, by pool and outcome.",
        [({"pool": pool, "outcome": outcome}, n) for (pool, outcome), n in counts.lanes_by_outcome(tx).items()],
    )
    saved = counts.checkpoints_by_state(tx)
    yield _metric("uff_checkpoints", "Checkpoints by state.", [({"state": s}, c) for s, c in saved.items()])
    yield _metric(
        "uff_spent_seconds_total",
        "Metered time of settled sessions, as first settled.",
        [({"pool": name}, seconds) for name, seconds in counts.spent_seconds(tx).items()],
    )


def _pools(source: Source, tx: Connection, now: int) -> Iterable[Metric]:
    states = pools(source, tx, now)
    yield _metric(
        "uff_pool_open", "1 when sessions may start.", [({"pool": p.name}, p.state == "open") for p in states]
    )
    yield _metric("uff_pool_sessions", "Live sessions.", [({"pool": p.name}, p.sessions_live) for p in states])
    waiting = Counter(run.pool for run in queue_waits.attach(tx, runs.live(tx)) if run.wait is not None)
    samples_waiting: list[Sample] = [({"pool": p.name}, waiting[p.name]) for p in states]
    yield _metric("uff_pool_sessions_waiting", "Live sessions in their platform's queue.", samples_waiting)
    meters = all_meters(source, tx, now)
    for part, words in (("limit", "Limit"), ("used", "Spent"), ("held", "Held for live sessions"), ("free", "Left")):
        for unit, name, scale in (("seconds", "seconds", 1), ("microdollars", "dollars", 1_000_000)):
            samples: list[Sample] = [
                ({"pool": meter.pool, "quota": meter.quota}, getattr(meter, part) / scale)
                for meter in meters
                if meter.unit == unit
            ]
            yield _metric(f"uff_quota_{part}_{name}", f"{words}, in the window that counts now.", samples)


def _one(name: str, words: str, value: float) -> Metric:
    return _metric(name, words, [({}, value)])


def _metric(name: str, words: str, samples: Iterable[Sample]) -> Metric:
    metric = Metric(name.removesuffix("_total"), words, "counter" if name.endswith("_total") else "gauge")
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return metric
