"""The overview of jobs, sessions and pools as tables of text: `status` prints them, `top` redraws them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scheduler.cli.parts import OVER
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.output import Output, amount, figure, share
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, Queued
from scheduler.core.run import Run
from scheduler.core.why import in_queue, why
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import job_state_json, picked, run_json
from scheduler.views.overview import Overview, daemon_health, overview
from scheduler.views.training import TrainingProgress
from scheduler.views.verdict import sentence, when

ACTIONS, JOBS, SESSIONS, POOLS, WORK = "Actions required", "Jobs", "Sessions", "Pools", "Under way"
"""Titles of the sections, in display order."""
ORDERS = ("place", "progress", "state", "name")
_CLEAR_SECONDS = 6 * 86_400
# Sort order by state: unfinished jobs before finished ones.
_STATES = (Active, Queued, Held, Failed, Done, Cancelled)


@dataclass(frozen=True, slots=True)
class ScreenTable:
    """A table with a title; ``columns`` have the marks of shell.table, ``more`` is the command that lists all rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: str


def read_overview(cli: Cli) -> Overview:
    """Return the overview, read from the database in one transaction. Raises StoreFailure."""
    app, now = cli.app, cli.now
    daemon, clock = app.settings.daemon, app.settings.clock
    with app.database.read() as tx:
        health = daemon_health(tx, now, daemon.cycle_seconds, app.clock.wall_seconds, over=clock.stopped_at is not None)
        return overview(tx, app.pools, health, daemon.heartbeat_seconds, now)


def verdict_line(state: Overview, out: Output) -> str:
    """Return one sentence that says whether training is on track."""
    return sentence(state.verdict, state.at, out.zone)


def headline(state: Overview, out: Output) -> str:
    """Return one sentence about the daemon: its problem if it has one, else its name and last cycle."""
    daemon = state.daemon
    if daemon.problem:
        return daemon.problem
    if daemon.leader is None:
        return "This rehearsal is over."
    reloaded = f"; settings reloaded {out.instant(state.read_anew_at)}" if state.read_anew_at is not None else ""
    return f"The daemon {daemon.leader} works; last cycle {out.instant(daemon.cycled_at)}{reloaded}."


def sections(
    state: Overview, out: Output, order: str = "place", keeps: Callable[[JobRecord], bool] | None = None
) -> list[ScreenTable]:
    """Return the sections that have rows: actions required, jobs, sessions, pools, work under way, finished jobs.

    ``order`` is one of ``ORDERS`` and sorts the jobs. ``keeps`` returns whether to show a job that is neither done
    nor cancelled; None shows all.
    """
    jobs = [job for job in state.jobs if not isinstance(job.state, Done | Cancelled) and (not keeps or keeps(job))]
    jobs.sort(key=_KEYS[order])
    over = sorted(
        (
            (job.state.at, job)
            for job in state.jobs
            if isinstance(job.state, Done) and job.state.at > state.at - _CLEAR_SECONDS
        ),
        key=lambda one: -one[0],
    )
    going = {one.job: one for one in state.trainings}
    parts = [
        ScreenTable(
            ACTIONS,
            ("what", "subject", "-since", "~why", "_command"),
            tuple(
                (need.what, need.subject, when(need.since, state.at, out.zone), need.why, need.remedy)
                for need in state.needs
            ),
            "schedctl status --all",
        ),
        ScreenTable(
            JOBS,
            ("--->#", "job", "state", "---progress", ">done", "-->loss", "-eta", "~next"),
            tuple(_job(job, going[job.spec.name], state, out) for job in jobs),
            "schedctl queue list",
        ),
        ScreenTable(
            SESSIONS,
            ("job", "-pool", ">step", ">loss", "--gpu", "reported", "--ends", "---run"),
            tuple(
                _lane(going[lane.job], run, state.at, out)
                for run in state.live
                for lane in run.lanes
                if lane.job in going and lane.outcome is None
            ),
            "schedctl runs list --live",
        ),
        ScreenTable(
            POOLS,
            ("pool", "state", "-->live", "~quota", ">free", "--->of", "-resets"),
            tuple(_pools(state, out)),
            "schedctl quota",
        ),
        ScreenTable(
            WORK,
            ("what", "state", "-since", "~how far, or why"),
            tuple((one.what, one.state, when(one.since, state.at, out.zone), one.told) for one in state.work),
            "schedctl status --all",
        ),
        ScreenTable(
            OVER,
            ("job", "at", "->steps", ">loss"),
            tuple(
                (name, when(at, state.at, out.zone), f"{job.done_step:,}", figure(last_loss(going[name])))
                for at, job in over
                if (name := job.spec.name)
            ),
            "schedctl queue list",
        ),
    ]
    return [section for section in parts if section.rows]


def overview_json(state: Overview) -> dict[str, Any]:
    """Return the overview as the document of ``status --json``."""
    return {
        "at": state.at,
        "verdict": asdict(state.verdict),
        "daemon": {**asdict(state.daemon), "read_anew_at": state.read_anew_at},
        "needs": [asdict(need) for need in state.needs],
        "work": [asdict(one) for one in state.work],
        "plan_warnings": list(state.plan_warnings),
        "runs": [run_json(run) for run in state.live],
        "pools": [
            {
                **picked(pool, "name", "state", "sessions_max"),
                "live": pool.sessions_live,
                "until": pool.closed_until,
                "why": pool.closed_why,
            }
            for pool in state.pools
        ],
        "quotas": [asdict(meter) for meter in state.meters],
        "jobs": [
            {
                "name": job.spec.name,
                "position": job.position,
                **job_state_json(job.state),
                "done_step": job.done_step,
                "target_step": job.spec.target_step,
                "waits": reason.to_json() if (reason := state.waits.get(job.spec.name)) else None,
                "next": asdict(placement) if (placement := state.next.get(job.spec.name)) else None,
                "training": asdict(going),
            }
            for job, going in zip(state.jobs, state.trainings, strict=True)
        ],
    }


def _lane(going: TrainingProgress, run: Run, now: int, out: Output) -> tuple[str, ...]:
    """Return the row of one job in a session. To save width, an unusual health replaces the age of its last report."""
    if run.wait is not None:
        place = f"number {run.wait.place}" if run.wait.place else ""
        return (going.job, run.pool, f"{going.step:,}", "", "", "waits", place, run.key)
    health = going.health if going.health != "trains" else ""
    reported = health or ("" if going.told_at is None else ago(now - going.told_at))
    loss = f"{figure(going.loss)} {arrow(going.trend)}".strip()
    gpu = going.gpu_use.replace(" busy", "").replace(" of the time", "")
    return (going.job, run.pool, f"{going.step:,}", loss, gpu, reported, when(run.deadline, now, out.zone), run.key)


def _pools(state: Overview, out: Output) -> Iterator[tuple[str, ...]]:
    """Yield one row for each quota of each pool; a pool without a quota has one row."""
    for pool in state.pools:
        first: tuple[str, ...] = (pool.name, pool.state, f"{pool.sessions_live}/{pool.sessions_max}")
        quotas = [
            (m.quota, amount(m.free, m.unit), amount(m.limit, m.unit), when(m.resets_at, state.at, out.zone))
            for m in state.meters
            if m.pool == pool.name
        ]
        for cells in quotas or [(pool.closed_why, "", "", when(pool.closed_until, state.at, out.zone))]:
            yield (*first, *cells)
            first = ("", "", "")


def _job(job: JobRecord, going: TrainingProgress, overview: Overview, out: Output) -> tuple[str, ...]:
    """Return the row of one job; ``next`` is its live session, its planned session, or why it waits."""
    name = job.spec.name
    reason, placement = overview.waits.get(name), overview.next.get(name)
    reason_text = why(job.state, reason.to_json() if reason else None, out.zone, overview.at)
    if isinstance(job.state, Queued) and placement is not None:
        planned = f"{placement.pool} from {when(placement.start, overview.at, out.zone)}"
        reason_text = f"{planned}; now {reason_text}" if reason_text else planned
    if isinstance(job.state, Active) and job.state.wish is None:
        run = next((run for run in overview.live if run.key == job.state.run), None)
        if run is not None and run.wait is not None:
            reason_text = in_queue(run.pool, run.key, run.wait, out.zone)
        elif run is not None:
            words = (f"{run.pool} until {when(run.deadline, overview.at, out.zone)}", run.continued_by(name))
            reason_text = ", ".join(filter(None, words))
    state = "waiting" if going.health == "waits" else type(job.state).__name__.lower()
    drawn = bar(going.saved_step, going.step, going.target_step)
    done = share(going.step, going.target_step)
    end = forecast_words(going, overview.at, out.zone)
    return (str(job.position), name, state, drawn, done, figure(last_loss(going)), end, reason_text)


_KEYS: dict[str, Any] = {
    "place": lambda job: (job.position, job.spec.name),
    "progress": lambda job: (-job.done_step / max(1, job.spec.target_step), job.position),
    "state": lambda job: (_STATES.index(type(job.state)), job.position),
    "name": lambda job: job.spec.name,
}


def cut(section: ScreenTable, most: int) -> tuple[Sequence[tuple[str, ...]], int]:
    """Return the rows that fit into ``most`` lines, and how many rows are left out."""
    if len(section.rows) <= most:
        return section.rows, 0
    kept = max(0, most - 1)  # one line says how many rows were left out
    return section.rows[:kept], len(section.rows) - kept


# Training progress as text: bars, arrows and ages.
_STEADY = 0.002  # a smaller trend of the loss, up or down, is shown as level
_HOUR, _DAY = 3_600, 86_400


def bar(saved: int, live: int, whole: int, width: int = 10) -> str:
    """Return a bar of ``width`` characters: the saved steps, the unsaved steps, and the steps to go.

    ``whole`` is the job's target step; the bar is empty if that is not positive.
    """
    if whole <= 0:
        return ""
    full = min(width, width * saved // whole)
    beyond = min(width, -(-width * live // whole)) if live > saved else full
    return "█" * full + "▒" * (beyond - full) + "░" * (width - max(full, beyond))


def arrow(trend: float | None) -> str:
    """Return an arrow for the trend of a loss; empty if ``trend`` is None."""
    if trend is None:
        return ""
    return "→" if abs(trend) < _STEADY else "↓" if trend < 0 else "↑"


def ago(seconds: int) -> str:
    """Return an age in its largest unit, such as ``12s ago``, ``5m ago`` or ``3h ago``; a negative age counts as 0."""
    seconds = max(0, seconds)
    if seconds < 60:
        return f"{seconds}s ago"
    if seconds < _HOUR:
        return f"{seconds // 60}m ago"
    return f"{seconds // _HOUR}h ago" if seconds < 2 * _DAY else f"{seconds // _DAY}d ago"


def forecast_words(going: TrainingProgress, now: int, zone: str) -> str:
    """Return the expected and latest end of a job, such as ``Fri 12:40 (latest 15:40)``; empty without a forecast."""
    forecast = going.forecast
    if forecast is None:
        return ""
    expected, latest = (when(at, now, zone) for at in (forecast.expected, forecast.latest))
    day = expected.rpartition(" ")[0]
    return f"{expected} (latest {latest.removeprefix(f'{day} ')})"


def last_loss(going: TrainingProgress) -> float | None:
    """Return the newest held-out loss, or the newest training loss if there is none; None without either."""
    return going.loss if going.held_out_loss is None else going.held_out_loss


def facts(going: TrainingProgress, now: int, zone: str) -> list[tuple[str, str]]:
    """Return a job's training progress as (name, value) pairs; a value is empty if it is unknown."""
    drawn = bar(going.saved_step, going.step, going.target_step, 20)
    live = f", {going.step:,} live" if going.step > going.saved_step else ""
    done = share(going.step, going.target_step)
    level = {"": "", "→": ", level", "↓": ", falling", "↑": ", rising"}[arrow(going.trend)]
    speed = f"{going.steps_per_hour:,.0f} steps an hour" if going.steps_per_hour else ""
    health = f"{going.health}, reported {ago(now - going.told_at)}" if going.health and going.told_at else going.health
    end = ""
    if going.forecast is not None:
        first, last = (when(at, now, zone) for at in (going.forecast.earliest, going.forecast.latest))
        end = f"{when(going.forecast.expected, now, zone)}, between {first} and {last}, by the {going.forecast.basis}"
    return [
        ("progress", f"{drawn} {done}, {going.saved_step:,} saved{live}, of {going.target_step:,} steps"),
        ("health", health),
        ("loss", f"{figure(going.loss)}{level}" if going.loss is not None else ""),
        ("held-out", figure(going.held_out_loss)),
        ("speed", f"{speed}, estimated" if speed and going.guessed else speed),
        ("GPU", going.gpu_use),
        ("ETA", end),
    ]
