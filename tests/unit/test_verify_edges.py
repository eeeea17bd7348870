"""The verifier at the edge of each rule: what is just allowed passes, one second, step or device more is named."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar, DailyHours
from jobs.spec import Gate, Needs
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.quota import ObservedLimit
from scheduler.core.reasons import HeldByPerson
from scheduler.core.snapshot import JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.planner.verify import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = 1_795_046_400  # a midnight UTC
POOL = Pool(
    "p", "fake", "T4", devices_per_session=2, sessions_max=2, session_cap_seconds=4 * HOUR, session_seconds_min=1_800,
    stop_margin_seconds=120, vram_gib=16.0, sharing=0.5,
)  # fmt: skip


def job(name: str = "job", **changes: Any) -> JobView:
    """A job that makes a step a second, set up in ten minutes, and whose checkpoints take no time."""
    usual = JobView(name, 1.0, 100_000, 0, Needs(), {"p": Rate(1.0)}, {"p": 600}, {"p": 0}, device_speedup=(1.0, 1.5))
    return replace(usual, **changes)


def session(start: int, end: int, *lanes: tuple[str, int, int]) -> Placement:
    """A session of NOW + start .. NOW + end; a lane is a job, its devices and its steps."""
    return Placement("p", NOW + start, NOW + end, tuple(PlannedLane(*lane) for lane in lanes))


@dataclass(frozen=True)
class Case:
    """A plan of one pool."""

    plan: Sequence[Placement] = (session(0, HOUR, ("job", 1, 2_000)),)
    jobs: Sequence[JobView] = (job(), job("other"))
    pool: dict[str, Any] = field(default_factory=dict)
    view: dict[str, Any] = field(default_factory=dict)
    snapshot: dict[str, Any] = field(default_factory=dict)

    def said(self) -> list[str]:
        """Return what the verifier says."""
        view = PoolView(replace(POOL, **self.pool), **self.view)
        return verify(Snapshot(NOW, tuple(self.jobs), (view,), **self.snapshot), Plan(NOW, tuple(self.plan), ()))


def one(start: int = 0, end: int = HOUR, steps: int = 2_000, devices: int = 1) -> list[Placement]:
    return [session(start, end, ("job", devices, steps))]


def two(second: int, *, job_of_second: str = "other") -> list[Placement]:
    return [*one(), session(second, second + HOUR, (job_of_second, 1, 2_000))]


def live(deadline: int, held_until: int, *jobs: str) -> LiveRun:
    return LiveRun("run", NOW - HOUR, NOW + deadline, NOW + held_until, jobs)


def used(start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"charges": (Charge(NOW + start, NOW + end, **more),)}


DAYS = Calendar("day")
HOURS = {"quotas": (CalendarQuota("hours", 2 * HOUR, DAYS),)}
MONEY = {"quotas": (MoneyQuota("money", 2_000_000, DAYS),), "price_microdollars_per_hour": 1_000_000}
ROLLING = {"quotas": (RollingQuota("rolling", 2 * HOUR, DAY),)}
FIRST = {"quotas": (FirstUseQuota("first", 2 * HOUR, 6 * HOUR),)}
BROAD = job(needs=Needs(devices_max=2))
SPENT = used(0, 9 * HOUR, price_microdollars_per_hour=1_000_000)
TWICE = {"charges": (Charge(NOW - DAY + HOUR, NOW - DAY + 2 * HOUR),) * 2}
CHILD = (job(gate=Gate("other", 0.5)), job("other", target_step=4_000))
ALONE = [CHILD[0], replace(CHILD[1], device_speedup=(1.0,))]
SAVING_TWICE = [CHILD[0], job("other", target_step=6_000, checkpoint_seconds={"p": 50})]
SLOW_PARENT = [CHILD[0], job("other", target_step=4_000, done_step=500, rates={"p": Rate(0.5)})]
FAR = [CHILD[0], job("other", target_step=7_200)]
SAVING_CHILD = [CHILD[0], replace(CHILD[1], checkpoint_seconds={"p": 50})]


def observed(limit: int, start: int = 0, end: int = DAY) -> dict[str, Any]:
    return {"observed": (ObservedLimit("hours", NOW + start, NOW + end, limit, NOW),)}


LATE, LESS = (observed(limit, DAY + 1, 2 * DAY) for limit in (HOUR, 9))


def parent_then(start: int, steps: int = 2_000, end: int = HOUR) -> list[Placement]:
    return [session(0, end, ("other", 1, steps)), *one(start, start + HOUR)]


EDGES = {
    "now": (Case(one(0)), Case(one(-1)), "outside the horizon"),
    "horizon": (
        Case(one(7_199, 7_199 + HOUR), snapshot={"horizon_seconds": 7_200}),
        Case(one(7_200, 7_200 + HOUR), snapshot={"horizon_seconds": 7_200}),
        "outside the horizon",
    ),
    "cap": (Case(one(0, 4 * HOUR)), Case(one(0, 4 * HOUR + 1)), "exceeds the longest session"),
    "length": (Case(one(0, HOUR)), Case(one(0, 0)), "is not a session length"),
    "closed": (Case(view={"closed_until": NOW}), Case(view={"closed_until": NOW + 1}), "is closed until"),
    "opens": (
        Case(one(HOUR, 2 * HOUR), pool={"hours": (DailyHours("UTC", HOUR, 3 * HOUR),)}),
        Case(one(HOUR - 1, 2 * HOUR), pool={"hours": (DailyHours("UTC", HOUR, 3 * HOUR),)}),
        "not open for the whole session",
    ),
    "shuts, and the overrun with it": (
        Case(one(HOUR, 3 * HOUR - 600), pool={"hours": (DailyHours("UTC", HOUR, 3 * HOUR),), "overrun_seconds": 600}),
        Case(one(HOUR, 3 * HOUR - 599), pool={"hours": (DailyHours("UTC", HOUR, 3 * HOUR),), "overrun_seconds": 600}),
        "not open for the whole session",
    ),
    "open at all": (
        Case(pool={"hours": (DailyHours("UTC", 0, HOUR),)}),
        Case(one(3 * HOUR, 4 * HOUR), pool={"hours": (DailyHours("UTC", 0, HOUR),)}),
        "not open for the whole session",
    ),
    "a lane at least": (Case(), Case([session(0, HOUR)]), "it has no job"),
    "devices of a session": (
        Case([session(0, HOUR, ("job", 1, 1_400), ("other", 1, 1_400))]),
        Case([session(0, HOUR, ("job", 2, 1_400), ("other", 1, 1_400))], [BROAD, job("other")]),
        "more devices than a session has",
    ),
    "sessions at once": (Case(two(0)), Case(two(0), pool={"sessions_max": 1}), "2 sessions at"),
    "one ends as the next begins": (
        Case(two(HOUR + 600), pool={"sessions_max": 1, "overrun_seconds": 600}),
        Case(two(HOUR + 599), pool={"sessions_max": 1, "overrun_seconds": 600}),
        "2 sessions at",
    ),
    "a live one is held until": (
        Case(one(700, 700 + HOUR), pool={"sessions_max": 1}, view={"live": (live(600, 700, "other"),)}),
        Case(one(699, 699 + HOUR), pool={"sessions_max": 1}, view={"live": (live(600, 700, "other"),)}),
        "2 sessions at",
    ),
    "hours of a day": (
        Case(pool=HOURS, view=used(-HOUR, HOUR)), Case(pool=HOURS, view=used(-HOUR, HOUR + 1)), "7201 of 7200 used",
    ),
    "the overrun is used, too": (
        Case(one(0, 7_200 - 600), pool={**HOURS, "overrun_seconds": 600}),
        Case(one(0, 7_200 - 599), pool={**HOURS, "overrun_seconds": 600}),
        "7201 of 7200 used",
    ),
    "what others overran is not ours": (
        Case(one(DAY, DAY + HOUR), pool=HOURS, view=used(0, 3 * HOUR)),
        Case(one(DAY - 1, DAY + HOUR), pool=HOURS, view=used(0, 3 * HOUR)),
        "10801 of 7200 used",
    ),
    "a limit seen": (
        Case(pool=HOURS, view=observed(HOUR)), Case(pool=HOURS, view=observed(HOUR - 1)), "3600 of 3599 used",
    ),
    "a limit seen from the start of the session on": (
        Case(one(HOUR, 2 * HOUR), pool=HOURS, view=observed(HOUR - 1, HOUR + 1)),
        Case(one(HOUR, 2 * HOUR), pool=HOURS, view=observed(HOUR - 1, HOUR)),
        "3600 of 3599 used",
    ),
    "every day of the plan": (
        Case([*one(), *one(DAY, DAY + 2 * HOUR)], pool=HOURS),
        Case([*one(), *one(DAY, DAY + 2 * HOUR + 1)], pool=HOURS),
        "7201 of 7200 used",
    ),
    "a limit seen of this day, whatever the next allows": (
        Case([*one(DAY - HOUR, DAY), *one(DAY, DAY + HOUR)], pool=HOURS, view=observed(HOUR)),
        Case([*one(DAY - HOUR, DAY), *one(DAY, DAY + HOUR)], pool=HOURS, view=observed(HOUR - 1)),
        "3600 of 3599 used",
    ),
    "a limit seen of this day, whatever the last allowed": (
        Case([*one(DAY - HOUR, DAY), *one(DAY + HOUR, DAY + 2 * HOUR)], pool=HOURS, view=LATE),
        Case([*one(DAY - HOUR, DAY), *one(DAY + HOUR, DAY + 2 * HOUR)], pool=HOURS, view=LESS),
        "3600 of 9 used",
    ),
    "the highest limit that a session meets": (
        Case([*one(), *one(2 * HOUR, 3 * HOUR)], pool=HOURS, view=observed(HOUR, 0, HOUR)),
        Case([*one(), *one(2 * HOUR, 3 * HOUR)], pool=HOURS, view=observed(HOUR, 0, 2 * HOUR + 1)),
        "7200 of 3600 used",
    ),
    "money of a day": (
        Case(pool=MONEY, view=used(0, HOUR, price_microdollars_per_hour=1_000_000)),
        Case(pool=MONEY, view=used(0, HOUR, price_microdollars_per_hour=1_000_001)),
        "2000001 of 2000000 used",
    ),
    "what costs nothing, whatever others spent": (
        Case(pool=MONEY | {"price_microdollars_per_hour": 0}, view=SPENT),
        Case(pool=MONEY | {"price_microdollars_per_hour": 1}, view=SPENT),
        "9000001 of 2000000 used",
    ),
    "a rolling span": (
        Case(pool=ROLLING, view=used(-DAY + 1_800, -DAY + 1_800 + 5_400)),
        Case(pool=ROLLING, view=used(-DAY + 1_800, -DAY + 1_800 + 5_401)),
        "7201 of 7200 used",
    ),
    "a rolling span that leaves as fast": (
        Case(pool=ROLLING, view=used(-DAY, -DAY + 2 * HOUR)),
        Case(pool=ROLLING, view=used(-DAY + 1, -DAY + 2 * HOUR + 1)),
        "7201 of 7200 used",
    ),
    "a rolling span that two leave at once": (  # it holds most an hour after the start
        Case(one(0, 2 * HOUR), pool={"quotas": (RollingQuota("rolling", 3 * HOUR, DAY),)}, view=TWICE),
        Case(one(0, 2 * HOUR), pool={"quotas": (RollingQuota("rolling", 3 * HOUR - 1, DAY),)}, view=TWICE),
        "10800 of 10799 used",
    ),
    "a span that goes on when the next session begins": (
        Case([*one(0, 2 * HOUR), *one(5 * HOUR, 6 * HOUR)], pool=FIRST, view=used(-5 * HOUR, -4 * HOUR)),
        Case([*one(0, 2 * HOUR), *one(5 * HOUR, 6 * HOUR + 1)], pool=FIRST, view=used(-5 * HOUR, -4 * HOUR)),
        "7201 of 7200 used",
    ),
    "a span that opens where use begins, not where the last one closed": (
        Case([*one(HOUR, 2 * HOUR), *one(6 * HOUR, 7 * HOUR)], pool=FIRST, view=used(-6 * HOUR, 0)),
        Case([*one(HOUR, 2 * HOUR), *one(6 * HOUR - 1, 7 * HOUR)], pool=FIRST, view=used(-6 * HOUR, 0)),
        "7201 of 7200 used",
    ),
    "a span that no credit opens": (
        Case([*one(0, HOUR), *one(5 * HOUR, 6 * HOUR)], pool=FIRST, view=used(-1_800, -1_700, sign=-1)),
        Case([*one(0, HOUR), *one(5 * HOUR - 1, 6 * HOUR)], pool=FIRST, view=used(-1_800, -1_700, sign=-1)),
        "7201 of 7200 used",
    ),
    "a span that no use opens that was given up": (
        Case([*one(0, HOUR), *one(5 * HOUR, 6 * HOUR)], pool=FIRST, view=used(-1_800, -1_700, sign=0)),
        Case([*one(0, HOUR), *one(5 * HOUR - 1, 6 * HOUR)], pool=FIRST, view=used(-1_800, -1_700, sign=0)),
        "7201 of 7200 used",
    ),
    "a span from its first use": (
        Case(pool=FIRST, view=used(-6 * HOUR, -4 * HOUR)), Case(pool=FIRST, view=used(-6 * HOUR + 1, -4 * HOUR + 1)),
        "7201 of 7200 used",
    ),
    "a span that opens within use": (
        Case(pool=FIRST, view=used(-7 * HOUR, 0)), Case(pool=FIRST, view=used(-7 * HOUR, 1)), "7201 of 7200 used",
    ),
    "a job trains once at a time": (
        Case(two(HOUR, job_of_second="job")), Case(two(HOUR - 1, job_of_second="job")), "runs until",
    ),
    "a job trains once at a time, in whatever order its sessions stand": (
        Case([*reversed(two(HOUR, job_of_second="job"))]), Case([*reversed(two(HOUR - 1, job_of_second="job"))]),
        "runs until",
    ),
    "a job that runs": (
        Case(one(900, 900 + HOUR), (job(running="run"),), view={"live": (live(900, 900, "job"),)}),
        Case(one(899, 899 + HOUR), (job(running="run"),), view={"live": (live(900, 900, "job"),)}),
        "runs until",
    ),
    "a job that runs nowhere we know": (Case(), Case(jobs=[job(running="run")]), "is held or runs"),
    "a job that is held": (Case(), Case(jobs=[job(blocked=HeldByPerson("anna", ""))]), "is held or runs"),
    "not before": (Case(jobs=[job(not_before=NOW)]), Case(jobs=[job(not_before=NOW + 1)]), "not released"),
    "not again before": (
        Case(jobs=[job(not_before=NOW - 9, retry_at=NOW)]), Case(jobs=[job(not_before=NOW - 9, retry_at=NOW + 1)]),
        "not released",
    ),
    "steps that are left": (
        Case(jobs=[job(target_step=5_000, done_step=3_000)]), Case(jobs=[job(target_step=5_000, done_step=3_001)]),
        "2,000 steps planned, 1999 left",
    ),
    "pools that are allowed": (
        Case(jobs=[job(allowed_pools=("p",))]), Case(jobs=[job(allowed_pools=("q",))]), "pool not allowed",
    ),
    "a speed that is known": (Case(), Case(jobs=[job(rates={})]), "speed unknown"),
    "memory": (
        Case(jobs=[job(needs=Needs(vram_gib=16.0))]), Case(jobs=[job(needs=Needs(vram_gib=16.1))]), "does not fit",
    ),
    "numbers": (
        Case(jobs=[job(needs=Needs(dtype="fp16"))]), Case(jobs=[job(needs=Needs(dtype="bf16"))]), "does not fit",
    ),
    "kind of device": (
        Case(jobs=[job(needs=Needs(accelerator="any"))]), Case(jobs=[job(needs=Needs(accelerator="tpu"))]),
        "does not fit",
    ),
    "devices at most": (
        Case(one(0, HOUR, 2_800, 2), [BROAD]), Case(one(0, HOUR, 2_800, 2), [job()]), "2 devices",
    ),
    "devices at least": (
        Case(one(0, HOUR, 2_800, 2), [job(needs=Needs(devices_min=2, devices_max=2))]),
        Case(jobs=[job(needs=Needs(devices_min=2, devices_max=2))]),
        "1 device",
    ),
    "time for what is planned": (
        Case(one(0, 2_720 - 1)), Case(one(0, 2_720 - 2)), "needs 2720 s for 2,000 steps",
    ),
    "two devices are as fast as they were measured": (
        Case(one(0, 2_719, 3_000, 2), [BROAD]),
        Case(one(0, 2_719, 3_003, 2), [BROAD]),
        "needs 2722 s",
    ),
    "lanes that share a session are slower": (
        Case([session(0, 4_719, ("job", 1, 2_000), ("other", 1, 2_000))]),
        Case([session(0, 4_719, ("job", 1, 2_000), ("other", 1, 2_001))]),
        "needs 4722 s",
    ),
    "time for its checkpoints": (  # of 50 s, every 2,000 s of training: two and a half of them
        Case(one(0, 5_845 - 1, 5_000), [job(checkpoint_seconds={"p": 50})], pool={"mtbf_seconds": 40_000}),
        Case(one(0, 5_845 - 2, 5_000), [job(checkpoint_seconds={"p": 50})], pool={"mtbf_seconds": 40_000}),
        "needs 5845 s",
    ),
    "time for one checkpoint at least": (
        Case(one(0, 2_770 - 1), [job(checkpoint_seconds={"p": 50})]),
        Case(one(0, 2_770 - 2), [job(checkpoint_seconds={"p": 50})]),
        "needs 2770 s",
    ),
    "worth a session": (Case(one(steps=1_798)), Case(one(steps=1_797)), "not worth a session"),
    "the last steps are worth one": (
        Case(one(steps=9), [job(target_step=9)]), Case(one(steps=9), [job(target_step=10)]), "not worth a session",
    ),
    "a step at least": (Case(one(steps=1), [job(target_step=1)]), Case(one(steps=0)), "not worth a session"),
    "worth a session, a step more or less": (  # a step takes two seconds
        Case(one(steps=899), [job(rates={"p": Rate(0.5)})]), Case(one(steps=898), [job(rates={"p": Rate(0.5)})]),
        "not worth a session",
    ),
    "a step at least of a job that runs, too": (
        Case(one(900, 900 + HOUR, 1), [job(running="run")], view={"live": (live(900, 900, "job"),)}),
        Case(one(900, 900 + HOUR, 0), [job(running="run")], view={"live": (live(900, 900, "job"),)}),
        "not worth a session",
    ),
    "steps after those of the session before": (
        Case([*one(), session(HOUR, 2 * HOUR, ("job", 1, 9))], [job(target_step=2_009)]),
        Case([*one(), session(HOUR, 2 * HOUR, ("job", 1, 9))], [job(target_step=2_010)]),
        "not worth a session",
    ),
    "a gate that was passed": (
        Case(jobs=[job(gate=Gate("other", 0.5)), job("other", target_step=4_000, done_step=2_000)]),
        Case(jobs=[job(gate=Gate("other", 0.5)), job("other", target_step=4_000, done_step=1_999)]),
        "gate of other not passed",
    ),
    "a gate of one that has ended": (
        Case(jobs=[job(gate=Gate("gone", 0.5))], snapshot={"finished": {"gone": 0.5}}),
        Case(jobs=[job(gate=Gate("gone", 0.5))], snapshot={"finished": {"gone": 0.499}}),
        "gate of gone not passed",
    ),
    "a gate of one that nobody knows": (Case(), Case(jobs=[job(gate=Gate("gone", 0.5))]), "gate of gone not passed"),
    "a gate that a live session opens long before its end": (
        Case(one(1_999, 1_999 + HOUR), ALONE, pool={"sessions_max": 2}, view={"live": (live(9_000, 9_000, "other"),)}),
        Case(one(1_998, 1_998 + HOUR), ALONE, pool={"sessions_max": 2}, view={"live": (live(9_000, 9_000, "other"),)}),
        "gate of other not passed",
    ),
    "a gate that a live session opens by its last save": (
        Case(one(1_879, 1_879 + HOUR), ALONE, pool={"sessions_max": 2}, view={"live": (live(2_000, 2_000, "other"),)}),
        Case(one(1_878, 1_878 + HOUR), ALONE, pool={"sessions_max": 2}, view={"live": (live(2_000, 2_000, "other"),)}),
        "gate of other not passed",
    ),
    "a gate that a live session does not open": (  # on both devices it makes three steps in two seconds
        Case(one(1_334, 1_334 + HOUR), CHILD, view={"live": (live(1_334, 1_334, "other"),)}),
        Case(one(1_334, 1_334 + HOUR), CHILD, view={"live": (live(1_333, 1_333, "other"),)}),
        "gate of other not passed",
    ),
    "a gate that a planned session opens": (
        Case(parent_then(2_599), CHILD), Case(parent_then(2_598), CHILD), "gate of other not passed",
    ),
    "a gate that a planned session opens, after a live one that is overdue": (
        Case(parent_then(2_599), CHILD, view={"live": (live(-5_000, -5_000, "other"),)}),
        Case(parent_then(2_598), CHILD, view={"live": (live(-5_000, -5_000, "other"),)}),
        "gate of other not passed",
    ),
    "a gate that opens with the checkpoint after it": (  # every 2,000 s of training, 50 s each
        Case(parent_then(2_649), SAVING_CHILD, pool={"mtbf_seconds": 40_000}),
        Case(parent_then(2_648), SAVING_CHILD, pool={"mtbf_seconds": 40_000}),
        "gate of other not passed",
    ),
    "a gate that opens with the second checkpoint after it": (
        Case(parent_then(4_699, 4_000, 2 * HOUR), SAVING_TWICE, pool={"mtbf_seconds": 40_000}),
        Case(parent_then(4_698, 4_000, 2 * HOUR), SAVING_TWICE, pool={"mtbf_seconds": 40_000}),
        "gate of other not passed",
    ),
    "a gate on the way of a slow parent": (
        Case(parent_then(3_599, 2_000, 2 * HOUR), SLOW_PARENT), Case(parent_then(3_598, 2_000, 2 * HOUR), SLOW_PARENT),
        "gate of other not passed",
    ),
    "a gate that opens as the session of its parent has to stop": (
        Case(parent_then(2_598, end=2_719), CHILD), Case(parent_then(2_597, end=2_719), CHILD), "gate of other not",
    ),
    "a gate that the second session of its parent opens": (
        Case([*parent_then(5_999, 1_800), session(HOUR, 2 * HOUR, ("other", 1, 1_800))], FAR),
        Case([*parent_then(5_998, 1_800), session(HOUR, 2 * HOUR, ("other", 1, 1_800))], FAR),
        "gate of other not passed",
    ),
    "a gate that the steps planned do not open": (
        Case(parent_then(HOUR), CHILD), Case(parent_then(HOUR, 1_999), CHILD), "gate of other not passed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", EDGES)
def test_a_plan_at_the_edge_passes_and_one_beyond_it_is_named(rule: str) -> None:
    allowed, broken, words = EDGES[rule]
    assert allowed.said() == []
    assert any(words in sentence for sentence in broken.said()), broken.said()


def test_places_and_jobs_that_nobody_knows_are_named() -> None:
    nowhere = Placement("q", NOW, NOW + HOUR, (PlannedLane("job", 1, 2_000),))
    assert Case([nowhere]).said() == ["q with job: no such pool or job"]
    assert Case(jobs=[job("other")]).said() == ["p with job: no such pool or job"]


def test_every_violation_is_told() -> None:
    said = Case([*one(0, HOUR, 9_000), *one(0, HOUR, 1)], pool=HOURS | {"sessions_max": 1}).said()
    for words in ("2 sessions at", "runs until", "needs 9720 s", "not worth a session"):
        assert any(words in sentence for sentence in said), words
