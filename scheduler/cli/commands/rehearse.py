"""`schedctl rehearse`: run a week in minutes with the real daemon on an accelerated clock, and show its figures."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.size import counted
from scheduler import clock
from scheduler.cli.commands.model_show import show_versions
from scheduler.cli.shell.command import command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit
from scheduler.cli.shell.output import Output
from scheduler.rehearsal import run, stand_ins
from scheduler.rehearsal.folder import Rehearsal, clear, reopen, stop_clock
from scheduler.report.document import hours as _hours
from scheduler.report.week import JobFigures, PoolFigures, Week, to_json
from scheduler.views import models

_SCALE = 3_600.0


@command(
    "schedctl rehearse --out out/week                        # a week in about three minutes",
    "schedctl rehearse --out out/week --resume               # go on after a crash or Ctrl-C",
    "schedctl rehearse --hours 24 --scale 1800               # one day, at half the speed",
    "schedctl rehearse --slurm --hours 24                    # with this machine's Slurm cluster as one more pool",
    "schedctl --config out/week/rehearsal.toml runs list     # look at it with any command",
)
def rehearse(  # noqa: PLR0913, PLR0917 - one parameter per option
    cli: Cli,
    out: Annotated[Path, option("--out", "Folder of the rehearsal; an earlier one is replaced.")] = Path("out/week"),
    hours: Annotated[float, option("--hours", "Scheduled hours to run.", min=0.01, max=24 * 366)] = 168.0,
    scale: Annotated[
        float | None,
        option("--scale", "Scheduled seconds in a real second: 3600, or 600 with --slurm.", min=1.0, max=36_000),
    ] = None,
    epoch: Annotated[str, option("--epoch", "Scheduled instant at the start, ISO 8601 with zone.")] = run.DEFAULT_EPOCH,
    seed: Annotated[int, option("--seed", "Added to every model's seed.", min=0)] = 0,
    resume: Annotated[bool, option("--resume", "Go on with the rehearsal that is in the folder.")] = False,
    kaggle_proxy: Annotated[
        str,
        option(
            "--kaggle-proxy",
            "Address of a server that speaks Kaggle's protocol, runs at --scale and shows --epoch right now; "
            "credentials come from the environment.",
        ),
    ] = "",
    aws_endpoint: Annotated[
        str,
        option(
            "--aws-endpoint",
            "Address of a server that speaks AWS's protocols, runs at --scale and shows --epoch right now; "
            "bucket, role and region come from --config, credentials from AWS's usual places.",
        ),
    ] = "",
    slurm: Annotated[bool, option("--slurm", "Add this machine's Slurm cluster as one more pool: slurm.")] = False,
) -> None:
    """Rehearse a week on this machine in minutes. Daemon, database and training are real, the clock is scaled.

    With --config the pools and models of that file are rehearsed instead of the shipped ones. Leaves week.json,
    week.svg, rehearsal.toml and daemon.log in the folder. Exits with 9 when a quota was exceeded, a checkpoint
    went backwards, or a pool was kept from all that was meant for it: its launches were refused, or it was closed.
    """
    out = out.expanduser().absolute()
    began_at = clock.process_began()  # --epoch is the scheduled time at which this process started
    if resume:
        app = run.open_app(reopen(out))
    else:
        # Our clock starts after the preparation; the clock of an external server runs already.
        origin = began_at if kaggle_proxy or aws_endpoint else 0.0
        scale = scale or (stand_ins.SLURM_SCALE if slurm else _SCALE)
        rehearsal = Rehearsal(out, run.instant_of(epoch), hours, scale, origin)
        base = run.read_base(cli.options.config)
        if slurm:
            stand_ins.add_slurm_pool(base, out, scale)
        stand_ins.use_kaggle_emulator(base, out, kaggle_proxy)
        stand_ins.use_aws_emulator(base, out, aws_endpoint)
        run.refuse_while_running(rehearsal)
        clear(out)
        app = run.prepare(rehearsal, base, seed)
    begun = reopen(out)
    with run.running_emulators(begun, app):
        run.run_daemon(begun, app)
    stop_clock(begun, app.clock.now())
    app = run.open_app(begun)
    week = run.week_figures(begun, app)
    run.write_week(out, week, app)
    output = Output(cli.options.json, cli.colour, app.settings.zone)
    output.data(to_json(week))
    show_week(output, week, out)
    with app.database.read() as tx:
        show_versions(output, models.models(tx))
    if week.violations or week.barred:
        raise typer.Exit(Exit.VIOLATIONS)


def show_week(out: Output, week: Week, folder: Path) -> None:
    """Write pools, jobs, goodput, broken rules and failures; all hours are metered hours."""
    out.table(
        ("pool", "-->available h", ">billed h", ">productive h", "->goodput", "-->fullest window", ">cost"),
        [_pool_row(pool) for pool in week.pools],
    )
    out.line()
    out.table(
        (
            *("job", "state", ">step", "->target", "-->runs", "-->resumed", "--->on another pool", "-->saved"),
            *("--initialised from", "held-out loss", "-~pools"),
        ),
        [_job_row(job) for job in week.jobs],
    )
    out.line()
    out.line(
        f"goodput: {week.goodput:.1%} of {_hours(week.charged_seconds)} billed hours were productive; "
        f"{counted(week.shared_runs, 'session')} trained two jobs at once, "
        f"{counted(week.continued, 'job')} continued in a running session"
    )
    if week.violations:
        out.line(f"{len(week.violations)} rules were broken:")
        for violation in week.violations:
            out.line(f"  {violation}")
    else:
        out.line("no quota exceeded, no checkpoint went backwards")
    for pool in week.pools:
        counts = pool.launches
        if counts.why_idle:
            out.line(f"{pool.name} did nothing: {counts.why_idle}")
        elif counts.refused:
            refused = f"{counts.refused} of {counts.launches} launches"
            out.line(f"{pool.name} refused {refused}, the last: {counts.last_refusal}")
    for job in week.jobs:
        if job.why:
            out.line(f"{job.name} is {job.state}: {job.why}")
    out.line(f"figures: {folder / 'week.json'}")
    out.line(f"picture: {folder / 'week.svg'}")


def _pool_row(pool: PoolFigures) -> tuple[str, ...]:
    fullest = max(pool.windows, key=lambda window: window.charged_seconds, default=None)
    return (
        pool.name,
        _hours(pool.quota_seconds),
        _hours(pool.charged_seconds),
        _hours(pool.useful_seconds),
        f"{pool.useful_seconds / pool.charged_seconds:.1%}" if pool.charged_seconds else "-",
        f"{_hours(fullest.charged_seconds)} of {_hours(fullest.limit_seconds)}" if fullest else "-",
        f"${pool.cost_microdollars / 1_000_000:.2f}" if pool.cost_microdollars else "-",
    )


def _job_row(job: JobFigures) -> tuple[str, ...]:
    has_losses = job.loss_first is not None and job.loss_last is not None
    parent_loss = f" ({job.loss_parent:.3f})" if job.starts_from and job.loss_parent is not None else ""
    return (
        job.name,
        job.state,
        f"{job.step:,}",
        f"{job.target_step:,}",
        str(job.runs),
        str(job.resumes),
        str(job.resumed_elsewhere),
        str(job.checkpoints),
        (job.starts_from or "-") + parent_loss,
        f"{job.loss_first:.3f} to {job.loss_last:.3f}" if has_losses else "-",
        ", ".join(job.pools),
    )
