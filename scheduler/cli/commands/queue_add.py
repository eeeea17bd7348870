"""`schedctl queue add`: add jobs that a file, options or the settings define; a dry run only shows them."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from jobs.catalogue import job_from_table
from jobs.definition import merged, table_of, toml_of, whole_of
from jobs.duration import show_duration
from jobs.payload.store.tree import LISTING, code_prefix
from jobs.problem import Refusal
from jobs.size import size
from jobs.spec import JobSpec
from jobs.toml_file import read_toml
from scheduler.cli.commands import job_options as options
from scheduler.cli.commands.plan_changes import show_changes
from scheduler.cli.commands.queue_show import code_line, lock_line
from scheduler.cli.shell.command import argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.names import listed
from scheduler.core.reasons import DeadlineUnreachable, Reason
from scheduler.planner.model.urgency import with_urgency
from scheduler.service.facts import snapshot as facts
from scheduler.service.facts.overheads import Overheads
from scheduler.service.requests import concerns, queue
from scheduler.service.requests.agents import AGENT, IS_APPROVED, budgeted
from scheduler.service.requests.concerns import of_gates
from scheduler.service.requests.questions import ask_what_if, late, obstacles
from scheduler.service.requests.stored import default_code, fingerprint, measure, stored, without_lock
from scheduler.store import jobs
from scheduler.views.documents import job_json, picked, plan_json

_STEPS_PER_HOUR = 1_000  # if the user gives none; the first session measures it


@command(
    "schedctl queue add job.toml",
    "schedctl queue add job.toml --dry-run",
    "schedctl queue add --models",
    "schedctl queue add --name tiny --command 'python train.py' --target-step 500 --steps-per-hour 1000",
    job_file="job.toml",
)
@options.allowing
def add(
    cli: Cli,
    file: Annotated[Path | None, argument("FILE", "A job definition (TOML).")] = None,
    models: Annotated[bool, option("--models", "Add each model of the settings that is not in the queue yet.")] = False,
    fields: Annotated[dict[str, Any], options.described("max_time")] = options.NOTHING,
    go_on: Annotated[
        bool, option("--continue", "Go on from what a removed job of this name saved, instead of from step 0.")
    ] = False,
    dry_run: options.DryRun = False,
    expect: options.Expect = "",
) -> None:
    """Add a job from a file or options, or all models of the settings.

    Options change what a file says. A job that no pool can ever run is added with a warning.
    """
    table = options.table_of(fields)
    if models and (file or table or go_on):
        raise UsageFault("--models stands alone", "it takes its jobs from the settings", "Leave the rest out")
    if not (models or file or table):
        raise UsageFault("nothing to add", "no job was named", "Give a FILE, --models, or --name and its options")
    specs = _models(cli) if models else [read_spec(file, table)]
    for renamed in concerns.of_names([file] if file else ()):
        cli.out.warn(str(renamed))
    where = "" if models else str(file or "command line")
    if dry_run and specs:
        show_jobs(cli, specs, where)
    else:
        add_specs(cli, specs, where, go_on=go_on, expect=expect)


def _models(cli: Cli) -> list[JobSpec]:
    """Return the models of the settings that are not in the queue yet; if there is none, write why."""
    with cli.app.database.read() as tx:
        names = {record.spec.name for record in jobs.everything(tx)}
    specs = [spec for spec in cli.app.catalogue.jobs if spec.name not in names]
    if not specs:
        cli.out.line(
            "All models are in the queue already."
            if cli.app.catalogue.jobs
            else "The settings name no models: docs/configuration.md. A script needs none: schedctl submit"
        )
    return specs


def add_specs(
    cli: Cli, specs: Sequence[JobSpec], where: str, *, go_on: bool = False, old: JobSpec | None = None, expect: str = ""
) -> None:
    """Add all jobs or none, report the result, and warn about jobs that no pool can run or finish in time.

    ``where`` is the file of the definitions, for warnings; empty for the settings. Code and inputs are packed once for
    all jobs; the first job may reuse those of the job ``old``. ``expect`` is the start of a dry run's fingerprint.
    Raises ProblemsFound, Refusal, CodeError, TreeError, StoreError.
    """
    specs = budgeted(specs, cli.who, cli.app.pools, cli.app.settings.agents.limits)
    concerns.require_trainable(cli.app.settings, specs, where)
    reasons = foreseen_problems(cli, specs)  # before adding: jobs that cannot be planned at all are refused
    keep_until = cli.now + cli.app.policy.retention.grace_seconds
    ready: list[JobSpec] = []
    for spec in specs:
        ready.append(stored(cli.app, spec, keep_until, cli.out.say, ready[-1] if ready else old))
    if expect and not fingerprint(ready).startswith(expect):
        why = "the definition, the code, the packages or the inputs are not those of --expect"
        raise Refusal("nothing was added", why, "Look at them again with --dry-run")
    limits = cli.app.settings.agents.limits if os.environ.get(AGENT) and not os.environ.get(IS_APPROVED) else None
    added = queue.add(cli.app.database, ready, cli.now, cli.who, go_on=go_on, limits=limits)
    cli.out.data({"jobs": [job_json(record, reasons.get(record.spec.name)) for record in added]})
    if added:
        cli.out.line(f"Added {listed([record.spec.name for record in added])}.")
    warn_of_reasons(cli, reasons)
    report_single_sessions(cli, ready)
    for doubt in (
        *concerns.of_platforms(cli.app.settings),
        *concerns.of_units(cli.app.settings),
        *concerns.of_jobs(cli.app.settings, ready, cli.app.bundle, where),
    ):
        cli.out.warn(str(doubt))
    for spec in ready:
        warn_of_lock(cli, spec)
        warn_of_secrets(cli, spec)
    for requirements in {spec.requirements for spec in ready if spec.requirements is not None}:
        cli.out.say(f"Packages: {lock_line(requirements)}.")
    for record in added:
        if record.attempts and not go_on:
            cli.out.say(
                f"{record.spec.name} starts from step 0. What the removed job of this name saved is not used, and is "
                f"deleted after {show_duration(cli.app.policy.retention.grace_seconds)}, except what is pinned. "
                f"See: schedctl checkpoints list {record.spec.name}"
            )
    if added:
        cli.wake_daemon()


def report_single_sessions(cli: Cli, specs: Sequence[JobSpec]) -> None:
    """Report what a single session means for jobs that save no checkpoints."""
    for spec in specs:
        if spec.whole:
            cli.out.say(
                f"{spec.name} gets a single session of at most {whole_of(spec)}. It cannot be resumed: what is cut "
                "starts again from the beginning. What it leaves in ./output is collected when it ends by itself. "
                f"See: schedctl checkpoints pull {spec.name} DIR"
            )


def read_spec(file: Path | None, table: dict[str, Any]) -> JobSpec:
    """Return the job that a file and ``table`` define; keys of ``table`` override the file. Raises ProblemsFound.

    Without the key ``code``, the folder of the job's code is derived from its command.
    """
    defaults = {"steps_per_hour": _STEPS_PER_HOUR} if file is None else read_toml(file)
    table = merged(defaults, table)
    spec = job_from_table(table, str(file or "command line"))
    return spec if "code" in table else replace(spec, code=default_code(spec.command, file))


def warn_of_lock(cli: Cli, spec: JobSpec) -> None:
    """Warn about pools for which a job's packages are not locked: the job cannot run there."""
    if without := without_lock(spec, cli.app.pools):
        cli.out.warn(
            f"{spec.name}: its requirements are not locked for {listed(without)}, and no session of it is planned "
            'there. Name its Python in the options of the pool (image_python = "3.12"), then: '
            f"schedctl queue update {spec.name}"
        )


def warn_of_gates(cli: Cli, spec: JobSpec) -> None:
    """Warn about quality gates that the job's test set can never decide."""
    for _, value, why, remedy in of_gates(spec):
        cli.out.warn(f"{spec.name}: {value}: {why}; {remedy}")


def warn_of_secrets(cli: Cli, spec: JobSpec) -> None:
    """Warn about pools that give a job no secrets, and about secrets that the daemon cannot read."""
    from scheduler.host.doctor import secret_problem

    pools = [pool for name, pool in cli.app.pools.items() if not spec.pools or name in spec.pools]
    missing = [lacking for pool in pools if (lacking := facts.lacks_secrets(spec, pool, str))]
    if len(missing) < len(pools):  # otherwise the job can never start, which another warning reports
        for lacking in missing:
            cli.out.warn(f"{spec.name} {lacking.sentence()}. No session of it is planned there")
    if any(facts.gives_secrets(pool) for pool in pools):
        for name in spec.secrets:
            if wrong := secret_problem(cli.app, name):
                cli.out.warn(f"{spec.name} waits for its secret {name}: {wrong.why}: {wrong.file}. {wrong.remedy}")


def warn_of_job(cli: Cli, name: str) -> None:
    """Warn if a queued job can never start or cannot meet its deadline."""
    with cli.app.database.read() as tx:
        snapshot = facts.load_snapshot(tx, cli.app.pools, cli.now, cli.app.policy.horizon_seconds)
    warn_of_reasons(cli, late(snapshot, {name}) | obstacles(snapshot, {name}))


def warn_of_reasons(cli: Cli, reasons: dict[str, Reason]) -> None:
    """Write warnings for the reasons that :func:`foreseen_problems` returned."""
    for name, reason in reasons.items():
        words = reason.sentence(cli.out.zone)
        if isinstance(reason, DeadlineUnreachable):
            cli.out.warn(f"{name}: its {words}. No plan can keep it. See: schedctl quota; schedctl queue edit {name}")
        else:
            cli.out.warn(f"{name} can never start here: {words}. See: schedctl pools; schedctl queue edit {name}")


def foreseen_problems(cli: Cli, specs: Sequence[JobSpec]) -> dict[str, Reason]:
    """Return by job why new jobs can never start or cannot meet their deadline."""
    if not specs:
        return {}
    app, names = cli.app, {spec.name for spec in specs}
    with app.database.read() as tx:
        snapshot = facts.load_snapshot(tx, app.pools, cli.now, app.policy.horizon_seconds)
        priors = facts.priors_of(tx, app.pools)
    queued = [view for view in snapshot.jobs if view.name not in names]
    places = enumerate(specs, start=len(queued) + 1)
    overheads = Overheads({})
    targets = {view.name: view.target_step for view in snapshot.jobs} | {spec.name: spec.target_step for spec in specs}
    new = [
        facts.by_fraction(facts.view_of_new(spec, app.pools, cli.now, place, priors, overheads), targets)
        for place, spec in places
    ]
    snapshot = with_urgency(replace(snapshot, jobs=(*queued, *new)))
    return late(snapshot, names) | obstacles(snapshot, names)


def show_jobs(cli: Cli, specs: Sequence[JobSpec], where: str) -> None:
    """Write the jobs, what would be uploaded, and what the next plan would do with them. Nothing is stored.

    ``where`` is as in :func:`add_specs`. Raises ProblemsFound.
    """
    specs = budgeted(specs, cli.who, cli.app.pools, cli.app.settings.agents.limits)
    concerns.require_trainable(cli.app.settings, specs, where)
    plan, difference = ask_what_if(cli.planning_context, specs, [], None)
    reasons = foreseen_problems(cli, specs)
    measured = measure(specs, cli.app.pools)
    first, digest = measured[0], fingerprint(measured)
    code, packages = first.code, first.requirements
    is_stored = code is None or cli.app.artifacts.size(f"{code_prefix(code.digest)}/{LISTING}") is not None
    upload = 0 if code is None or is_stored else code.bytes
    about_code = ("source", "digest", "commit", "dirty", "files", "bytes")
    names = {spec.name for spec in specs}
    mine = replace(
        plan,
        placements=tuple(p for p in plan.placements if any(lane.job in names for lane in p.lanes)),
        deferrals=tuple(deferral for deferral in plan.deferrals if deferral.job in names),
    )
    cli.out.data(
        {
            "jobs": [{**table_of(spec), "weight": spec.weight} for spec in specs],
            "upload": {**picked(code, *about_code), "upload_bytes": upload} if code is not None else None,
            "packages": asdict(packages) if packages is not None else None,
            "plan": plan_json(mine),
            "changes": asdict(difference),
            "fingerprint": digest,
        }
    )
    for line in toml_of(table_of(specs[0])).splitlines():
        cli.out.line(line)
    for spec in specs[1:]:
        cli.out.line(f"The same as {specs[0].name}: {' '.join(spec.command)}" if spec.sweep else spec.name)
    cli.out.line()
    if code is not None:
        sent = f"{size(upload)} to upload, before it is packed" if upload else "nothing to upload, it is in the store"
        cli.out.line(f"Code {code_line(code)}: {sent}.")
    if packages is not None:
        cli.out.line(f"Packages {lock_line(packages)}.")
    cli.out.line(f"Fingerprint {digest}: --expect {digest[:12]} adds this and nothing else.")
    cli.out.line()
    show_changes(cli.out, difference)
    for deferral in plan.deferrals:
        if deferral.job in names:
            cli.out.line(f"{deferral.job} waits: {deferral.reason.sentence(cli.out.zone)}.")
    cli.out.line()
    cli.out.line("Nothing was changed: this is a dry run.")
    warn_of_reasons(cli, reasons)
