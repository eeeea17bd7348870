"""`schedctl queue forecast` and `schedctl advise hours`: how much a job's metric would improve with more hours."""

from dataclasses import asdict
from typing import Annotated

from jobs.size import counted
from scheduler.cli.commands.complete import Job
from scheduler.cli.shell.command import command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.output import Output, figure
from scheduler.core.learning_curve import REACH, Band
from scheduler.verbs.questions import advise_hours, queue_forecast
from scheduler.verbs.shapes import finite
from scheduler.verbs.source import Source
from scheduler.views.curve_forecasts import HOURS, JobForecast, share_per_hour

_ROWS, _COLUMNS_MAX = 12, 100  # size of the picture in characters


@command("schedctl queue forecast ufm", "schedctl queue forecast ufm --hours 12 --metric accuracy --json")
def forecast(
    cli: Cli,
    job: Job,
    hours: Annotated[float, option("--hours", "What so many more would buy.", min=0.1, max=10_000)] = HOURS,
    metric: Annotated[str, option("--metric", "Default: its stop rule's, else held_out_loss.")] = "",
) -> None:
    """Show what a job's metric will be, and what more hours would buy. The band of the curve holds 9 of 10 values."""
    one, out = queue_forecast(Source(cli.app), job, hours, metric), cli.out
    out.data(finite({"forecast": asdict(one)}))
    if one.now is None:
        out.line(f"{job} has no forecast: {one.why}.")
        return
    newest = f"{one.now:.4g} at step {one.points[-1][0]:,}, by {counted(len(one.points), 'checkpoint')}"
    far = f"more than a forecast reaches, which is step {REACH * one.points[-1][0]:,}"
    goal = f"{one.goal:.4g} ({one.goal_of})" if one.goal is not None else ""
    reached = f"probably at step {one.goal_step:,} {_by(out, one.goal_at)}" if one.goal_step else "not in sight"
    bought = one.bought
    out.facts(
        (one.metric, f"{newest}; {'lower' if one.aim == 'low' else 'higher'} is better"),
        (f"at step {one.target_step:,}", f"{words(one.target)} {_by(out, one.done_at)}" if one.target else far),
        ("goal", f"{goal}: {reached}" if goal else ""),
        ("reached by then", _percent(one.chance)),
        (f"{hours:g} h more", f"{bought.steps:,} steps: {words(bought.band)}, {_gain(one)}" if bought else "unknown"),
    )
    out.line()
    for line in picture(one, max(20, min(_COLUMNS_MAX, out.columns - 12))):
        out.line(line)


def show_advice(cli: Cli, hours: float = HOURS) -> None:
    """Write what ``hours`` more would gain for each job, and commands that follow from it."""
    advice, out = advise_hours(Source(cli.app), hours), cli.out
    out.data(finite({"advice": asdict(advice)}))
    free = ", ".join(f"{pool} {amount:.1f} h" for pool, amount in sorted(advice.free_hours.items()))
    out.line(f"Free until {out.instant(advice.end)}: {free or 'no hours'}.")
    out.line("Jobs by what an hour more gains, as a share of their metric. Ranges hold 9 of 10 values.")
    out.line()
    out.listing(
        advice.jobs,
        {
            "job": lambda row: row.forecast.job,
            "metric": lambda row: row.forecast.metric,
            ">now": lambda row: figure(row.forecast.now),
            "at target": lambda row: words(row.forecast.target),
            "-done": lambda row: out.moment(row.forecast.done_at),
            "goal": lambda row: f"{figure(row.forecast.goal)} {_percent(row.forecast.chance)}".strip(),
            f">{hours:g} h gain": lambda row: _gain(row.forecast),
            "-free hours buy": lambda row: f"{row.free_hours:.1f} h: {words(row.free.band)}" if row.free else "",
            "-last 7 days": lambda row: f"{row.used_hours:.1f} h: {figure(row.used_gain, '+.3g') or 'no gain known'}",
            "advice": lambda row: row.verdict,
            "~because": lambda row: row.why,
        },
    )
    commands = [f"{row.command}    # {row.verdict}: {row.why}" for row in advice.jobs if row.command]
    why = "imports JAX or torch_xla, so it could use a TPU"
    commands += [f"schedctl queue edit {job} --set needs.accelerator=any    # {why}" for job in advice.for_tpu]
    for one in advice.half_empty:
        change = " --set needs.devices=1" if one.devices > 1 else ""
        commands.append(f"schedctl queue edit {one.job}{change}    # {one.offer} ({one.gpu_use})")
    for line in ["", *commands] if commands else []:
        out.line(line)


def words(band: Band | None) -> str:
    """Return a range of forecast values as text, ``2.31 (2.25 to 2.38)``; empty for None."""
    return f"{band.middle:.4g} ({band.low:.4g} to {band.high:.4g})" if band else ""


def picture(one: JobForecast, columns: int) -> list[str]:
    """Return a picture of a forecast over the steps as lines: checkpoints ``o``, range ``:``, its middle ``-``."""
    last = max(one.bands[-1].step, 1)
    values = [value for _, value in one.points] + [end for band in one.bands for end in (band.low, band.high)]
    low, high = min(values), max(values)
    grid = [[" "] * (columns + 1) for _ in range(_ROWS + 1)]

    def row(value: float) -> int:
        return round((high / 2 - value / 2) / (high / 2 - low / 2) * _ROWS) if high > low else _ROWS // 2

    for before, after in zip(one.bands, one.bands[1:], strict=False):
        for column in range(columns * before.step // last, columns * after.step // last + 1):
            for at in range(row(after.high), row(after.low) + 1):
                grid[at][column] = ":"
            grid[row(after.middle)][column] = "-"
    for step, value in one.points:
        grid[row(value)][columns * step // last] = "o"
    labels = [f"{high:.4g}", *[""] * (_ROWS - 1), f"{low:.4g}"]
    lines = [f"{label:>10} {''.join(cells)}".rstrip() for label, cells in zip(labels, grid, strict=True)]
    return [*lines, f"{'':10} 0{f'step {last:,}':>{columns}}"]


def _by(out: Output, at: int | None) -> str:
    return f"about {out.moment(at)}" if at is not None else ""


def _percent(chance: float | None) -> str:
    return f"{100 * chance:.0f} %" if chance is not None else ""


def _gain(one: JobForecast) -> str:
    share = share_per_hour(one)
    if one.bought is None or share is None:
        return ""
    return f"{one.bought.gain:+.3g} ({100 * share:+.2f} % an hour)"
