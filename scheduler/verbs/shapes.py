"""Models of the answers of the JSON API. Their keys are those of ``schedctl --json``, or stand in docs/status-page.md.

Instants are integer UTC seconds, durations integer seconds, money integer micro-dollars; null means none or unknown.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from scheduler.core.early_stop import Progress
from scheduler.core.ledger import LedgerEntry
from scheduler.core.plan import KeptHours, Placement
from scheduler.core.quota import Meter
from scheduler.core.run import Lane
from scheduler.report.burn_down import BurnDown
from scheduler.report.report import Need
from scheduler.store.events import Event
from scheduler.store.generations import Generation
from scheduler.store.rates import RateRecord
from scheduler.views.long_work import Work
from scheduler.views.overview import PoolNow
from scheduler.views.plan_history import SessionChange
from scheduler.views.training import ShareNow, TrainingProgress
from scheduler.views.verdict import Verdict


def finite(value: Any) -> Any:
    """Return a copy of a value with None in place of NaN and infinities, which JSON does not have."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [finite(inner) for inner in value]
        case _:
            return value


Data = Annotated[dict[str, Any], BeforeValidator(finite)]


class ApiAnswer(BaseModel):
    """Base class of all answers."""

    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)


class JobRow(ApiAnswer):
    """A job of the queue. ``why`` says in a sentence why it waits or is in its state; ``waiting`` is as in a run."""

    name: str
    role: str
    position: int
    state: str
    state_detail: Data
    why: str
    weight: float
    priority: float  # the same as weight
    target_step: int
    done_step: int
    attempts: int
    failures: int
    last_pool: str | None
    not_before: int | None
    deadline: int | None
    created_at: int
    waits: Data | None
    waiting: Data | None = None


class TrainingRow(JobRow):
    """A job with the progress of its training."""

    training: TrainingProgress


class TrainingNow(ApiAnswer):
    """The verdict and the most important jobs; ``more`` is the number of other jobs in the queue.

    ``line`` is the verdict as a sentence. ``finished`` are the jobs done in the last seven days, newest first.
    """

    verdict: Verdict
    line: str
    jobs: list[TrainingRow]
    more: int
    finished: list[JobRow]


class Paged(ApiAnswer):
    """Page number ``page`` (from 1) of ``pages``, of a list with ``total`` entries."""

    total: int
    page: int
    pages: int


def paged(page: int, rows: int, total: int) -> dict[str, int]:
    """Return the fields of :class:`Paged` for a list with ``rows`` entries per page; an empty list has one page."""
    return {"total": total, "page": page, "pages": max(1, -(-total // rows))}


class Queue(Paged):
    """One page of the queue. ``states`` counts all jobs by state, ``total`` those that match the filter."""

    jobs: list[JobRow]
    states: dict[str, int]


@dataclass(frozen=True)
class LaneRow(Lane):
    """One job's lane in a run, with its newest heartbeat.

    ``begun_at`` is when the lane joined a running session, after an earlier job ended; null if it began with it.
    """

    heartbeat: Data | None = None


class RunRow(ApiAnswer):
    """A run; ``started`` and ``ended`` are null until the session starts or ends.

    ``waiting`` describes a session in its platform's queue, as far as known: the reason, since when, the expected
    start, and the position (1 is next). It is null if the session does not wait.
    """

    key: str
    run_id: str
    pool: str
    waiting: Data | None
    state: str
    state_detail: Data
    planned_start: int
    deadline: int
    held_until: int
    started: int | None
    ended: int | None
    outcome: str | None
    lanes: list[LaneRow]


class Runs(Paged):
    """One page of runs, newest first."""

    runs: list[RunRow]


class Events(ApiAnswer):
    """Events, oldest first. Ask for more after ``position``; events up to ``missed_up_to`` were deleted (0: none)."""

    events: list[Event]
    position: int
    missed_up_to: int


class RunDetail(RunRow):
    """A run and its events, oldest first."""

    events: list[Event]


class CheckpointRow(ApiAnswer):
    """A checkpoint of a job, without its components."""

    model_config = ConfigDict(extra="ignore")

    key: str
    job: str
    step: int
    attempt: int
    run: str
    created_at: int
    trained_seconds: int
    bytes: int
    metrics: Data
    state: str
    why: str
    pinned: bool
    seen_at: int


class JobDetail(JobRow):
    """All details of one job.

    ``losses`` has (step, held-out loss) of the checkpoints of its generation. ``told`` has (step, loss) as its sessions
    reported them; ``sessions`` has the steps at which these sessions began.
    """

    training: TrainingProgress
    stop: Progress | None
    share: ShareNow | None
    training_data: Data | None
    checkpoint: str | None
    spec: Data
    speeds: list[RateRecord]
    losses: list[tuple[int, float]]
    told: list[tuple[int, float]]
    sessions: list[int]
    generations: list[Generation]
    checkpoints: list[CheckpointRow]
    runs: list[RunRow]


class Quotas(ApiAnswer):
    """The meters of all quotas, and a chart of the use of each over time."""

    quotas: list[Meter]
    burn_down: list[BurnDown]


class Ledger(Paged):
    """One page of the ledger, newest first."""

    entries: list[LedgerEntry]


class Status(ApiAnswer):
    """The summary of everything. ``problems`` has sentences on what keeps the scheduler from working."""

    version: str
    now: int
    zone: str
    revision: str
    leader: str | None
    last_cycle_at: int | None
    problems: list[str]
    jobs: dict[str, int]
    runs_live: int
    runs_waiting: int
    plan_made_at: int | None
    pools: list[PoolNow]
    needs: list[Need]
    work: list[Work]


class ReportRow(ApiAnswer):
    """One week with a report; ``sent`` has for each channel when the report was sent, null while it waits."""

    week: str
    start: int
    end: int
    sent: dict[str, int | None]


class ReportMessage(ApiAnswer):
    """A week's report as sent to a channel; ``sent`` is the time, null while the message waits."""

    week: str
    channel: str
    sent: int | None
    subject: str
    text: str


class Revision(ApiAnswer):
    """A text that changes when anything in the database does, for cheap polling."""

    revision: str
    now: int


class Health(ApiAnswer):
    """Whether the service is alive or ready (``ok``); ``problems`` says why not."""

    ok: bool
    problems: list[str]


class Fault(ApiAnswer):
    """An error in the format of RFC 9457, with the additional fields of an error of ``schedctl``."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str
    why: str
    remedy: str

    @classmethod
    def of(cls, code: int, error: str, why: str, remedy: str) -> "Fault":
        """Return the error document for an HTTP status ``code``."""
        return cls(status=code, title=error, detail=why, error=error, why=why, remedy=remedy)


class DeferralRow(ApiAnswer):
    """A job that waits, and why."""

    job: str
    reason: Data


class PlanHead(ApiAnswer):
    """A plan without its sessions."""

    made_at: int
    made_by: str
    value: float
    bound: float | None


class PlanRow(PlanHead):
    """A plan."""

    digest: str
    warnings: list[str]
    placements: list[Placement]
    deferrals: list[DeferralRow]
    kept: list[KeptHours]


class FinishChange(ApiAnswer):
    """A job whose planned finish moved; null means that it does not finish within the horizon."""

    job: str
    before: int | None
    after: int | None


class PlanDifference(ApiAnswer):
    """What differs between an earlier plan, ``before``, and the newest plan, ``after``."""

    before: PlanHead
    after: PlanHead
    sessions: list[SessionChange]
    finishes: list[FinishChange]


class SessionRow(ApiAnswer):
    """A session of the timeline; ``key`` is the run's ID, null if the session is only planned."""

    pool: str
    start: int
    end: int
    phase: Literal["past", "bad", "running", "planned"]
    key: str | None
    jobs: list[str]
    outcome: str


class Span(ApiAnswer):
    """The sessions that overlap with the time from ``start`` up to ``end``."""

    start: int
    end: int
    now: int
    sessions: list[SessionRow]
