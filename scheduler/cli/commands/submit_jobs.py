"""What `schedctl submit` does: a script becomes a job, or a family of them, with what can be guessed."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobs.catalogue import job_from_table
from jobs.payload.bounded_file import TEXT_BYTES_MAX
from jobs.payload.bounds import digits
from jobs.spec import JobSpec
from scheduler.cli.commands.dry_run import show_jobs
from scheduler.cli.commands.follow import follow_jobs
from scheduler.cli.commands.queue_add import add_specs
from scheduler.cli.parts.sweep import combinations, name_of
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.core.run import Ended
from scheduler.service.requests.probe import probe
from scheduler.store import jobs, runs

_STEPS_PER_HOUR = 1_000.0  # when nothing is known; the first session measures it
_RUNS_SEARCHED = 200
_SPEAKS = re.compile(rb"\btrainer_kit\b|\bSCHED_(CHECKPOINT|RESUME)_DIR\b")
_REQUIREMENTS = "requirements.txt"
_RUNNERS = {".py": "{python}", ".sh": "bash"}
_HERE = "command line"
_HOW_FAR = (
    "Give --target-step N to a script that saves and resumes (docs/your-own-training.md), or to any other the longest "
    "that it may take: --max-time 3h"
)


@dataclass(frozen=True, slots=True)
class Submission:
    """What was typed: ``table`` has keys of a job file, ``sweeps`` are texts such as ``lr=1e-5,3e-5``."""

    script: Path
    arguments: Sequence[str]
    table: dict[str, Any]
    sweeps: Sequence[str]
    probe_seconds: int


def submit_jobs(cli: Cli, asked: Submission, *, dry_run: bool, expect: str, wait: bool, logs: bool) -> None:
    """Add the jobs, if ``expect`` begins their fingerprint, or show them.

    Raises UsageFault, CatalogueError, QueueError, CodeError, StoreError, typer.Exit.
    """
    script, given = asked.script, asked.table
    folder, word = _placed(script)
    with cli.app.database.read() as tx:
        known = {record.spec.name for record in jobs.everything(tx)}
    guessed = {"name": _free_name(folder, script, known), "steps_per_hour": _STEPS_PER_HOUR}
    if (folder / _REQUIREMENTS).is_file():
        guessed["requirements"] = str(folder / _REQUIREMENTS)
    command = [_runner(script), word, *asked.arguments]
    if "whole" in given:
        del guessed["steps_per_hour"]
    elif "target_step" not in given:
        raise UsageFault("no end is set", "neither --target-step nor --max-time was given", _HOW_FAR)
    specs = _family({**guessed, **given, "command": command, "code": str(folder)}, combinations(asked.sweeps))
    if not ({"steps_per_hour", "whole"} & given.keys()):
        speed = _speed(cli, specs[0], asked.probe_seconds)
        specs = [replace(spec, steps_per_hour=speed) for spec in specs]
    if "whole" in given and _speaks(folder / word):
        cli.out.warn(f"{word} can save and resume, it seems. With --target-step instead of --max-time it would")
    if dry_run:
        show_jobs(cli, specs, _HERE)
        return
    add_specs(cli, specs, _HERE, expect=expect)
    if wait or logs:
        follow_jobs(cli, [spec.name for spec in specs], logs=logs)


def _speaks(script: Path) -> bool:
    with script.open("rb") as stream:
        return _SPEAKS.search(stream.read(TEXT_BYTES_MAX)) is not None


def _placed(script: Path) -> tuple[Path, str]:
    """Return the folder that is taken, and the script's path in it: the current one, or else the script's own."""
    found, here = script.expanduser().resolve(), Path.cwd()
    if not found.is_file():
        raise UsageFault(f"no script {script}", "there is no such file", "Give its path from here")
    folder = here if found.is_relative_to(here) else found.parent
    return folder, found.relative_to(folder).as_posix()


def _runner(script: Path) -> str:
    runner = _RUNNERS.get(script.suffix)
    if runner is None:
        why = f"{script.name} is neither Python nor a shell script"
        raise UsageFault("nothing known to run it with", why, "Use: schedctl queue add --command ... --code .")
    return runner


def _free_name(folder: Path, script: Path, known: Collection[str]) -> str:
    """Return a name that no job of the queue has, made of the folder's, or the script's where that says nothing."""
    wanted = _as_name(folder.name) or _as_name(script.stem) or "job"
    names = (wanted, *(f"{wanted[:36]}-{number}" for number in range(2, len(known) + 3)))
    return next(name for name in names if name not in known)


def _as_name(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:40]


def _family(table: dict[str, Any], chosen: Sequence[dict[str, str]]) -> list[JobSpec]:
    """Return a job for each combination; its values are options of the command, ``seed`` that of the job as well."""
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
    """Return steps an hour of the reference device, as far as this machine can tell; and say where it is from."""
    app = cli.app
    here = [pool for pool in app.pools.values() if pool.platform == "local"]
    with app.database.read() as tx:
        busy = [
            run.key
            for run in runs.recent(tx, _RUNS_SEARCHED)
            if run.pool in {pool.name for pool in here} and not isinstance(run.state, Ended)
        ]
    guess = f"{_STEPS_PER_HOUR:,.0f} steps an hour are assumed until its first session has measured it"
    # A speed without what it needs would be none, and next to another session it would be another.
    apart = {"packages": spec.requirements, "inputs": spec.inputs, "secrets": spec.secrets}
    lacks = (f"which lacks its {what}" for what, found in apart.items() if found)
    why = next(lacks, f"where {busy[0]} trains" if busy else "")
    if why or not seconds:
        cli.out.say(f"Not tried here{why and f', {why}'}: {guess}. A better guess: --steps-per-hour")
    else:
        cli.out.say(f"Trying it here for at most {seconds} s (--steps-per-hour says its speed instead).")
        found = probe(spec, app.bundle, seconds)
        if found.steps_per_hour is not None:
            cli.out.say(f"It makes {found.steps_per_hour:,.0f} steps an hour here.")
            return float(f"{found.steps_per_hour / (here[0].speed if here else 1.0):.3g}")
        cli.out.warn(f"tried here, it showed no speed: {found.why}. {guess.capitalize()}")
    return _STEPS_PER_HOUR
