"""`schedctl submit`: make a job or a sweep of jobs from a script; values that are not given are estimated."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import prod
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from jobs.catalogue import job_from_table
from jobs.nouns.window import HOUR
from jobs.payload.bounded_file import TEXT_BYTES_MAX
from jobs.payload.bounds import digits
from jobs.size import counted
from jobs.spec import JobSpec
from scheduler.cli.commands import job_options as options
from scheduler.cli.commands.certify import command_of, warn_of_certificate
from scheduler.cli.commands.queue_add import add_specs, show_jobs
from scheduler.cli.shell.command import argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit, UsageFault
from scheduler.cli.shell.names import free_name
from scheduler.cli.shell.output import clean
from scheduler.core.halving import rungs_of
from scheduler.core.job import Active, Done, Queued
from scheduler.core.run import Ended
from scheduler.core.why import why
from scheduler.service.requests.probe import probe as try_here
from scheduler.service.requests.sessions import followed_log, lines
from scheduler.store import jobs, plans, runs

JOBS_MAX = 200  # of one sweep; a larger number is probably a typo
_NAME_MAX = 40
_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_SPAN = re.compile(r"(-?\d+)\.\.(-?\d+)", re.ASCII)
_STEPS_PER_HOUR = 1_000.0  # if no speed is known; the first session measures it
_RUNS_SEARCHED = 200  # the newest runs, among which live local sessions are searched
# A script that uses one of these names can save and resume.
_RESUME_NAMES = re.compile(rb"\btrainer_kit\b|\bSCHED_(CHECKPOINT|RESUME)_DIR\b")
_REQUIREMENTS = "requirements.txt"
_HERE = "command line"
_HOW_FAR = (
    "Add --max-time 3h, the longest that the script may take, or --target-step N if it saves and resumes "
    "(docs/your-own-training.md)"
)
_LOOK_AGAIN_SECONDS = 1.0  # between two looks at a job that is followed
_PROBE_SECONDS = 30  # of the trial that measures a script's speed


def combinations(sweeps: Sequence[str]) -> list[dict[str, str]]:
    """Return all combinations of ``KEY=A,B,C`` and ``KEY=FIRST..LAST``; the last key changes fastest.

    Without sweeps there is one empty combination. Raises UsageFault.
    """
    axes: dict[str, list[str]] = {}
    for words in sweeps:
        key, _, text = words.partition("=")
        if not _KEY.fullmatch(key) or key in axes:
            why = "it is given twice" if key in axes else "it has a name and values"
            raise UsageFault(f"--sweep {words} cannot be read", why, "Write it like lr=1e-5,3e-5 or seed=0..2")
        axes[key] = _values(words, text)
    if prod(map(len, axes.values())) > JOBS_MAX:
        raise UsageFault(
            "so large a sweep", f"it would be more than {JOBS_MAX} jobs", "Give fewer values, or several sweeps"
        )
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())]


def name_of(prefix: str, chosen: dict[str, str], number: int) -> str:
    """Return the name of one job of a sweep: prefix and values, or its number if that is too long."""
    words = "-".join(re.sub(r"[^a-z0-9.]+", "-", f"{key}{value}".lower()).strip("-.") for key, value in chosen.items())
    name = f"{prefix}-{words}"
    return name if words and len(name) <= _NAME_MAX else f"{prefix[: _NAME_MAX - 4]}-{number:03d}"


def _values(words: str, text: str) -> list[str]:
    if span := _SPAN.fullmatch(text):
        first, last = int(span[1]), int(span[2])
        if 0 <= last - first < JOBS_MAX:
            return [str(value) for value in range(first, last + 1)]
        raise UsageFault(f"--sweep {words} cannot be read", "its numbers do not go up, or too far", "Write seed=0..2")
    values = text.split(",")
    if not all(value.strip() for value in values) or len(set(values)) < len(values):
        raise UsageFault(f"--sweep {words} cannot be read", "a value is empty, or given twice", "Write lr=1e-5,3e-5")
    return values


@command(
    "schedctl submit train.py --target-step 2000 -- --lr 3e-6",
    "schedctl submit train.py --max-time 3h --gpus 1 --env WANDB_MODE=offline --dry-run",
    "schedctl submit train.py --target-step 2000 --sweep lr=1e-5,3e-5 --sweep seed=0..2",
    "schedctl submit train.py --target-step 900 --sweep lr=1e-5,3e-5,1e-4 --halving 3 --metric loss --budget 12h",
    script="train.py",
)
@options.allowing
def submit(  # noqa: PLR0913, PLR0917 - one parameter for each option
    cli: Cli,
    script: Annotated[Path, argument("SCRIPT", "A Python or shell script.")],
    arguments: Annotated[list[str] | None, argument("[-- ARGS]...", "What the script is given.")] = None,
    fields: Annotated[dict[str, Any], options.described("code", "command", "not_before")] = options.NOTHING,
    probe: Annotated[
        int, option("--probe", "Try it here for at most so many seconds; 0: do not.", min=0, max=3_600)
    ] = _PROBE_SECONDS,
    sweep: Annotated[
        list[str] | None, option("--sweep KEY=VALUES", "A job for each of lr=1e-5,3e-5 or seed=0..2; may be repeated.")
    ] = None,
    halving: Annotated[int | None, option("--halving N", "At each rung only the best 1 in N trains on.", min=2)] = None,
    metric: Annotated[str | None, option("--metric", "What --halving compares; add :high if higher is better.")] = None,
    dry_run: options.DryRun = False,
    expect: options.Expect = "",
    and_wait: Annotated[bool, option("--and-wait", "Wait until it is done; 9 if it is not.")] = False,
    follow: Annotated[bool, option("--follow -f", "As --and-wait, and write what its sessions print.")] = False,
) -> None:
    """Queue a script with its folder, and estimate what is not given.

    Its speed is measured by a short trial here, as a session would run it. A script that saves no checkpoints takes
    --max-time instead of --target-step: what it leaves in ./output is collected. Options of the script go after --.
    """
    table = options.table_of(fields)
    folder, command = command_of(script, arguments or ())
    word = command[1]
    with cli.app.database.read() as tx:
        names = {record.spec.name for record in jobs.everything(tx)}
    wanted = _as_name(folder.name) or _as_name(script.stem) or "job"
    guessed = {"name": free_name(wanted, names), "steps_per_hour": _STEPS_PER_HOUR}
    if (folder / _REQUIREMENTS).is_file():
        guessed["requirements"] = str(folder / _REQUIREMENTS)
    if "whole" in table:
        del guessed["steps_per_hour"]
    elif "target_step" not in table:
        raise UsageFault("no end is set", "neither --target-step nor --max-time was given", _HOW_FAR)
    chosen = combinations(sweep or ())
    table |= halving_keys(table, len(chosen), halving, metric)
    specs = _family({**guessed, **table, "command": command, "code": str(folder)}, chosen)
    if not ({"steps_per_hour", "whole"} & table.keys()):
        speed = _speed(cli, specs[0], probe)
        specs = [replace(spec, steps_per_hour=speed) for spec in specs]
    with (folder / word).open("rb") as stream:
        can_resume = _RESUME_NAMES.search(stream.read(TEXT_BYTES_MAX)) is not None
    if "whole" in table and can_resume:
        cli.out.warn(f"{word} can save and resume, it seems. With --target-step instead of --max-time it would resume")
    show_rungs(cli, specs[0])
    warn_of_certificate(cli, specs[0], folder / word, folder)
    if dry_run:
        show_jobs(cli, specs, _HERE)
        return
    add_specs(cli, specs, _HERE, expect=expect)
    if and_wait or follow:
        follow_jobs(cli, [spec.name for spec in specs], logs=follow)


def halving_keys(table: dict[str, Any], count: int, factor: int | None, metric: str | None) -> dict[str, Any]:
    """Return the job keys for successive halving of ``count`` jobs; empty without halving. Raises UsageFault.

    The key ``budget`` is removed from ``table``, because the halving has it instead.
    """
    if factor is None and metric is None:
        return {}
    if factor is None or metric is None or not {"budget", "target_step"} <= table.keys():
        why = "it takes --sweep, --target-step, --halving, --metric and --budget together"
        raise UsageFault("the sweep cannot be halving_keys", why, "Write --halving 3 --metric loss --budget 12h")
    rungs = rungs_of(table["target_step"], count, factor)
    if len(rungs) == 1:
        why = f"it has {counted(count, 'job')}, and the best 1 in {factor} is none"
        raise UsageFault("the sweep cannot be halving_keys", why, f"Give at least {factor} combinations")
    metric, _, aim = metric.partition(":")
    rule = {"metric": metric, "aim": aim or "low", "budget": table.pop("budget")}
    return {"target_step": rungs[0], "halving": {**rule, "candidates": count, "rungs": list(rungs), "factor": factor}}


def show_rungs(cli: Cli, spec: JobSpec) -> None:
    """Write the estimated device hours of each rung of a sweep, and whether its budget is enough."""
    rule = spec.halving
    if rule is None:
        return
    overhead, needed, budget = (spec.setup_seconds + spec.checkpoint_seconds) / HOUR, 0.0, rule.budget_seconds / HOUR
    for level, (before, step) in enumerate(pairwise((0, *rule.rungs))):
        count = rule.candidates // rule.factor**level
        hours = count * spec.needs.devices_min * ((step - before) / spec.steps_per_hour + overhead)
        needed += hours
        cli.out.say(f"Rung {level + 1}: {counted(count, 'job')} to step {step:,}, about {hours:.2f} device hours.")
    cli.out.say(f"All rungs: about {needed:.2f} device hours, of a budget of {budget:g}.")
    if needed > budget:
        cli.out.warn("the budget ends the sweep before its last rung. Raise --budget, or lower --target-step")


def _as_name(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:40]


def _family(table: dict[str, Any], chosen: Sequence[dict[str, str]]) -> list[JobSpec]:
    """Return a job per combination: values become options of the command; ``seed`` also sets the job's seed."""
    family = []
    for number, values in enumerate(chosen, start=1):
        own = {**table, "command": [*table["command"], *(word for key in values for word in (f"--{key}", values[key]))]}
        if values:
            own |= {"name": name_of(table["name"], values, number), "sweep": table["name"]}
        if (seed := digits(values.get("seed"), 10**20 - 1)) is not None:
            own["seed"] = seed
        family.append(job_from_table(own, _HERE))
    return family


def _speed(cli: Cli, spec: JobSpec, seconds: int) -> float:
    """Return steps per hour on the reference device, and report whether they were measured here or are assumed."""
    from platforms.plugin import traits

    app = cli.app
    here = [pool for pool in app.pools.values() if traits(pool.platform).runs_here]
    with app.database.read() as tx:
        busy = [
            run.key
            for run in runs.recent(tx, _RUNS_SEARCHED)
            if run.pool in {pool.name for pool in here} and not isinstance(run.state, Ended)
        ]
    guess = f"{_STEPS_PER_HOUR:,.0f} steps an hour are assumed until its first session has measured it"
    # A trial without packages, inputs or secrets fails, and a running session would slow it down.
    apart = {"packages": spec.requirements, "inputs": spec.inputs, "secrets": spec.secrets}
    lacks = (f"which lacks its {what}" for what, speed in apart.items() if speed)
    why = next(lacks, f"where {busy[0]} trains" if busy else "")
    if why or not seconds:
        cli.out.say(f"Not tried here{why and f', {why}'}: {guess}. A better guess: --steps-per-hour")
    else:
        cli.out.say(f"Trying it here for at most {seconds} s (--steps-per-hour says its speed instead).")
        speed = try_here(spec, app.bundle, seconds)
        if speed.steps_per_hour is not None:
            cli.out.say(f"It makes {speed.steps_per_hour:,.0f} steps an hour here.")
            return float(f"{speed.steps_per_hour / (here[0].speed if here else 1.0):.3g}")
        cli.out.warn(f"tried here, it showed no speed: {speed.why}. {guess.capitalize()}")
    return _STEPS_PER_HOUR


def follow_jobs(cli: Cli, names: Sequence[str], *, logs: bool) -> None:
    """Report changes until every job is done, failed, held or cancelled; with ``logs`` also the output of sessions.

    Raises typer.Exit if a job is not done.
    """
    data: dict[str, str] = {}
    pause = Event()

    def look_again() -> None:
        pause.wait(_LOOK_AGAIN_SECONDS)

    while True:
        with cli.app.database.read() as tx:
            records = [jobs.get(tx, name) for name in names]
            waits = {name: plans.reason(tx, name) for name in names}
        for record in records:
            name, reason = record.spec.name, waits[record.spec.name]
            sentence = why(record.state, reason.to_json() if reason else None, cli.out.zone, cli.now)
            line = f"{name}: {type(record.state).__name__.lower()}" + (f", {sentence}" if sentence else "")
            if data.get(name) != line:
                cli.out.say(f"{line} ({record.done_step} of {record.spec.target_step} steps)")
                data[name] = line
        under_way = [record for record in records if isinstance(record.state, Queued | Active)]
        if not under_way:
            break
        running = next((record.state for record in under_way if isinstance(record.state, Active)), None)
        if logs and len(names) == 1 and running is not None:  # follows the log until the session ends
            with cli.app.database.read() as tx:
                run = runs.get(tx, running.run)
            pieces = followed_log(cli.app.database, cli.app.platform(run.pool), run.key, look_again)
            for piece in lines(pieces):
                sys.stdout.write(cli.redact(clean(piece.decode("utf-8", "replace").removesuffix("\n"))) + "\n")
                sys.stdout.flush()
        look_again()
    missed = [record.spec.name for record in records if not isinstance(record.state, Done)]
    if missed:
        cli.out.say(f"Not done: {', '.join(missed)}. See: schedctl queue show {missed[0]}")
        raise typer.Exit(Exit.VIOLATIONS)
