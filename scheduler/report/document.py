"""The weekly report as titles, sentences and tables of text. All renderings use this document, so they agree."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobs.grouping import grouped
from jobs.size import counted
from jobs.spec import EVALUATE
from scheduler.core.quota import Meter
from scheduler.report.chart import local, printable
from scheduler.report.report import JobReport, Report, Spent

_OPEN = {"queued", "active"}
_NAMES_MAX = 10
_RULES_MAX = 20
_ORDER = {first: place for place, first in enumerate("FGTS")}  # first characters of the groups of models
_SECONDS_MIN = 180  # less would be rounded to nothing


def hours(seconds: int) -> str:
    """Return seconds as decimal hours."""
    return f"{seconds / 3_600:.1f}"


def money(microdollars: int) -> str:
    """Return micro-dollars as dollars."""
    return f"${microdollars / 1_000_000:.2f}"


def subject(report: Report) -> str:
    """Return the subject of the message: ``Training W48: 4 done, 2 on track, 1 action``."""
    counts = _counts(report)
    parts = [f"{count} {word}" for word, count in counts.items() if count]
    actions = [counted(len(report.needs), "action")] if report.needs else []
    week = report.label.rpartition("-")[2] or report.label
    return f"Training {week}: {', '.join([*parts, *actions]) or 'no jobs'}"


def headline(report: Report) -> Iterator[str]:
    """Yield the first sentences: on track or not, hours and money spent, actions required."""
    counts = _counts(report)
    troubles = [f"{counts[word]} {word}" for word in ("at risk", "failed", "on hold") if counts[word]]
    if counts:
        total = sum(counts.values())
        verdict = f"Not on track: {', '.join(troubles)}" if troubles else "On track"
        on_track = f", {counts['on track']} on track" if counts["on track"] else ""
        yield f"{verdict}. {counts['done']} of {counted(total, 'job')} done{on_track}."
    total_spent, before = report.total, report.total_before
    yield (
        f"Spent {hours(total_spent.charged)} of {hours(total_spent.offered)} h available and "
        f"{money(total_spent.cost_microdollars)} (last week {hours(before.charged)} h and "
        f"{money(before.cost_microdollars)})."
    )
    yield f"{counted(len(report.needs), 'action')} required." if report.needs else "No action is required."


def _counts(report: Report) -> Counter[str]:
    """Return how many jobs are done, on track, at risk, failed and on hold."""
    jobs = Counter(word for job in report.jobs if job.role != EVALUATE and (word := _status_word(job)))
    return Counter({word: jobs[word] for word in ("done", "on track", "at risk", "failed", "on hold") if jobs[word]})


def _status_word(job: JobReport) -> str:
    if job.at_risk:
        return "at risk"
    words = {"done": "done", "failed": "failed", "held": "on hold"}
    return words.get(job.state, "on track" if job.state in _OPEN else "")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. A ``>`` before a title aligns its column right. ``shares`` (0 to 1) draw a bar for each row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Replace control characters in cells, since names and messages of platforms may contain some."""
        object.__setattr__(self, "rows", tuple(tuple(map(printable, row)) for row in self.rows))


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A title, sentences, and an optional table below them."""

    title: str
    lines: tuple[str, ...] = ()
    table: Table | None = None

    def __post_init__(self) -> None:
        """Replace control characters in sentences."""
        object.__setattr__(self, "lines", tuple(map(printable, self.lines)))


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """The input of all renderings. ``subject`` is the subject of an e-mail. Texts have no control characters."""

    title: str
    subtitle: str
    sections: tuple[ReportSection, ...]
    subject: str


def document_of(report: Report) -> ReportDocument:
    """Return the report as a document."""
    period = f"{instant(report.start, report.zone)} to {instant(report.end, report.zone)}"
    return ReportDocument(
        printable(f"Training report {report.label}{', so far' * report.so_far}"),
        f"{period}, made {instant(report.made_at, report.zone)}",
        (
            ReportSection("In short", tuple(headline(report))),
            _actions(report),
            _models(report),
            _pools(report),
            _plan(report),
            *_evaluated(report),
            _waste(report),
            *_gpus(report),
            _jobs(report),
            _losses(report),
            _quotas(report),
        ),
        subject(report),
    )


def instant(at: int | None, zone: str) -> str:
    """Return an instant in ``zone``; a dash for None."""
    return "-" if at is None else local(at, zone, "%a %Y-%m-%d %H:%M %Z")


def _change(now: int, before: int) -> str:
    return f"{(now - before) / 3_600:+.1f}"


def _models(report: Report) -> ReportSection:
    """Return the section with the progress of each model."""
    groups: dict[str, list[str]] = {}
    trained = [job for job in report.jobs if job.role != EVALUATE]  # evaluations train nothing
    for job in trained:
        gained = f" {counted(job.steps, 'step')}" if job.steps and job.step < job.target_step else ""
        if job.state == "done" and job.why:
            what, gained = "Stopped early", f" at step {job.step:,}"
        elif job.steps and job.step >= job.target_step:
            what = "Finished"
        elif job.state == "failed":
            what = "Failed"
        elif job.steps:
            what = "Gained"
        elif not job.runs or job.state in {"done", "cancelled"}:
            continue
        else:
            what = "Trains, nothing saved yet" if job.state == "active" else "Stalled, trained and saved nothing"
        groups.setdefault(what, []).append(f"{job.name}{gained}")
    lines = [
        f"{what}: {', '.join(names)}." for what, names in sorted(groups.items(), key=lambda one: _ORDER[one[0][0]])
    ]
    lines += [f"{job.name} was {job.why}." for job in trained if job.state == "done" and job.why]
    rows = tuple(_model_row(job, report.zone) for job in trained)
    if not rows:
        return ReportSection("Models", ("There are no jobs. Add one: schedctl submit train.py --target-step 1000",))
    columns = ("model", "state", ">done", ">steps", ">best loss", ">change", "ETA", "latest", "deadline")
    shares = tuple(min(1.0, job.step / job.target_step) if job.target_step else 0.0 for job in trained)
    return ReportSection("Models", tuple(lines) or ("No model gained a step.",), Table(columns, rows, shares))


def _evaluated(report: Report) -> Iterator[ReportSection]:
    """Yield the section with the evaluated versions and their results, if there are any."""
    if not report.judged:
        return
    accepted = sum(1 for one in report.judged if one.verdict == "accepted")
    line = f"{counted(len(report.judged), 'version')} evaluated, {accepted} accepted."
    rows = tuple((one.version, one.verdict + (", promoted" if one.in_force else ""), one.why) for one in report.judged)
    yield ReportSection("Versions", (line,), Table(("version", "result", "reason"), rows))


def _model_row(job: JobReport, zone: str) -> tuple[str, ...]:
    change = job.losses[-1][1] - job.loss_before if job.losses and job.loss_before is not None else None
    ends = (None, None) if job.forecast is None else (job.forecast.expected, job.forecast.latest)
    deadline = instant(job.deadline, zone)
    return (
        job.name,
        job.state,
        f"{job.step / job.target_step:.0%}" if job.target_step else "-",
        f"+{job.steps:,}" if job.steps else "-",
        "-" if job.loss_best is None else f"{job.loss_best:.4f}",
        "-" if change is None else f"{change:+.4f}",
        *("-" if at is None else instant(at, zone)[:14] for at in ends),
        f"{deadline}, at risk" if job.at_risk else deadline,
    )


def _summary(report: Report) -> list[str]:
    total, before = report.total, report.total_before
    steps = sum(job.steps for job in report.jobs)
    steps_before = sum(job.steps_before for job in report.jobs)
    if not total.charged and not steps:
        return ["Nothing ran this week."]
    return [
        (
            f"{hours(total.useful)} h of training were productive, of {hours(total.charged)} h billed and "
            f"{hours(total.offered)} h available: goodput {total.goodput:.1%} (last week {before.goodput:.1%})."
        ),
        *(f"{pool.name}: {pool.why}." for pool in report.pools if pool.why),
        (
            f"{counted(total.sessions, 'session')} made {counted(steps, 'step')} "
            f"(last week {before.sessions} and {steps_before:,})."
        ),
        *_late_facts(report),
    ]


def _late_facts(report: Report) -> Iterator[str]:
    """Yield sentences about time in queues and about corrections, if they amount to at least three minutes."""
    total = report.total
    if total.waited >= _SECONDS_MIN:
        yield (
            f"{hours(total.useful)} of {hours(total.charged)} h trained, {hours(total.waited)} h were billed while "
            "sessions waited in the queues of their platforms."
        )
    if abs(report.corrected_seconds) >= _SECONDS_MIN:
        yield (
            f"Corrected after the end of the week: {report.corrected_seconds / 3_600:+.1f} h, by what platforms "
            "reported later. The figures are as they stood at the end."
        )


def _actions(report: Report) -> ReportSection:
    rows = tuple((one.what, one.subject, instant(one.since, report.zone), one.why, one.remedy) for one in report.needs)
    broken = tuple(f"A rule was broken: {rule}." for rule in report.broken_rules[:_RULES_MAX])
    if len(report.broken_rules) > _RULES_MAX:
        broken = (*broken, f"{len(report.broken_rules) - _RULES_MAX} more rules were broken.")
    lines = broken if rows or broken else ("None.",)
    columns = ("what", "subject", "since", "reason", "command")
    return ReportSection("Actions required", lines, Table(columns, rows) if rows else None)


def _pools(report: Report) -> ReportSection:
    rows = tuple(
        (
            pool.name,
            hours(pool.spent.offered),
            hours(pool.spent.charged),
            _change(pool.spent.charged, pool.before.charged),
            hours(pool.spent.useful),
            _change(pool.spent.useful, pool.before.useful),
            f"{pool.spent.goodput:.1%}",
            money(pool.spent.cost_microdollars),
        )
        for pool in report.pools
    )
    columns = ("pool", ">available h", ">billed h", ">change", ">productive h", ">change", ">goodput", ">cost")
    table = Table(columns, rows, tuple(pool.spent.goodput for pool in report.pools))
    return ReportSection("Hours and money", tuple(_summary(report)), table)


_WASTE: Mapping[str, Callable[[Spent], str]] = {
    ">set-up h": lambda spent: hours(spent.set_up),
    ">lost work h": lambda spent: hours(spent.lost),
    ">saving, idle h": lambda spent: hours(spent.overhead),
    ">queue h, billed": lambda spent: hours(spent.waited),
    ">external use h": lambda spent: hours(spent.unattributed),
    ">still reserved h": lambda spent: hours(spent.running),
    ">unused quota h": lambda spent: hours(spent.expired),
    ">refused starts": lambda spent: str(spent.refused_starts),
}
_JOBS: Mapping[str, Callable[[JobReport], str]] = {
    "job": lambda job: job.name,
    "state": lambda job: job.state,
    ">step": lambda job: f"{job.step:,}",
    ">target": lambda job: f"{job.target_step:,}",
    ">done": lambda job: f"{job.step / job.target_step:.1%}" if job.target_step else "-",
    ">this week": lambda job: f"{job.steps:,}",
    ">last week": lambda job: f"{job.steps_before:,}",
    ">steps/h": lambda job: "-" if job.steps_per_hour is None else f"{job.steps_per_hour:,.0f} ± {job.sigma or 0:.0%}",
    ">runs": lambda job: str(job.runs),
    ">resumed": lambda job: str(job.resumes),
    ">on another pool": lambda job: str(job.resumed_elsewhere),
    ">saved": lambda job: str(job.checkpoints),
}
"""The columns by title, each with the function that returns its text for a row."""


def _waste(report: Report) -> ReportSection:
    rows = tuple((pool.name, *(cell(pool.spent) for cell in _WASTE.values())) for pool in report.pools)
    return ReportSection("Where the other hours went", (), Table(("pool", *_WASTE), rows))


def _gpus(report: Report) -> Iterator[ReportSection]:
    """Yield the section with the use of GPUs, if any was reported."""
    if report.gpus:
        rows = tuple((one.job, one.pool, one.gpu_use) for one in report.gpus)
        offers = tuple(f"{one.offer}." for one in report.gpus if one.offer)
        yield ReportSection("GPUs", offers, Table(("job", "pool", "use of its GPUs"), rows))


def _jobs(report: Report) -> ReportSection:
    shares = tuple(min(1.0, job.step / job.target_step) if job.target_step else 0.0 for job in report.jobs)
    rows = tuple(tuple(cell(job) for cell in _JOBS.values()) for job in report.jobs)
    table = Table(tuple(_JOBS), rows, shares)
    families = grouped((job.starts_from, job.name) for job in report.jobs if job.starts_from is not None)
    lines = tuple(f"Initialised from {start}: {', '.join(names)}." for start, names in families.items())
    return ReportSection("Jobs", lines, table) if rows else ReportSection("Jobs", ("No jobs.",))


def _losses(report: Report) -> ReportSection:
    rows = tuple((job.name, f"{step:,}", f"{loss:.4f}") for job in report.jobs for step, loss in _sparse(job.losses))
    if not rows:
        return ReportSection("Held-out loss", ("No checkpoint of this week has one.",))
    return ReportSection("Held-out loss", (), Table(("job", ">step", ">loss"), rows))


def _sparse(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return at most six points, the first and the last among them."""
    if len(points) <= 6:
        return points
    return [points[round(index * (len(points) - 1) / 5)] for index in range(6)]


def _quotas(report: Report) -> ReportSection:
    def amount(quota: Meter, value: int) -> str:
        return money(value) if quota.unit == "microdollars" else f"{hours(value)} h"

    rows = tuple(
        (
            quota.pool,
            quota.quota,
            *(amount(quota, value) for value in (quota.limit, quota.used, quota.held, quota.free)),
            instant(quota.resets_at, report.zone),
        )
        for quota in report.quotas
    )
    if not rows:
        return ReportSection("Quotas now", ("No pool has a quota.",))
    used = tuple(min(1.0, max(0.0, q.used / q.limit)) if q.limit else 0.0 for q in report.quotas)
    return ReportSection(
        "Quotas now", (), Table(("pool", "quota", ">limit", ">used", ">reserved", ">free", "resets"), rows, used)
    )


def _plan(report: Report) -> ReportSection:
    waits = tuple(_waits(report))
    rows = tuple((one.pool, one.job, str(one.sessions), hours(one.seconds), f"{one.steps:,}") for one in report.planned)
    if not rows:
        return ReportSection("Next seven days", ("The newest plan places no session.", *waits))
    return ReportSection("Next seven days", waits, Table(("pool", "job", ">sessions", ">hours", ">steps"), rows))


def _waits(report: Report) -> Iterator[str]:
    """Yield one line per reason, with the jobs that wait for it."""
    for why, names in grouped((job.why, job.job) for job in report.waiting).items():
        listing = ", ".join(names[:_NAMES_MAX])
        more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
        yield f"{listing}{more} {'wait' if len(names) > 1 else 'waits'}: {why}."
