"""`--dry-run` of what adds jobs: the jobs, what would be uploaded, and what the next plan would do with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from jobs.job_table import table_of, toml_of
from jobs.payload.store.listing import LISTING, code_prefix
from jobs.size import size
from jobs.spec import Code, JobSpec
from scheduler.cli.commands.queue_add import foreseen, warn_of
from scheduler.cli.commands.queue_show import code_line, lock_line
from scheduler.cli.parts.plan_changes import difference_json, show_changes
from scheduler.cli.shell.context import Cli
from scheduler.service.requests.concerns import require_trainable
from scheduler.service.requests.fingerprint import fingerprint, measure
from scheduler.service.requests.questions import ask_what_if
from scheduler.views.documents import plan_json


def show_jobs(cli: Cli, specs: Sequence[JobSpec], where: str) -> None:
    """Print the jobs, what would be uploaded, and what the next plan would do with them. Nothing is stored.

    ``where`` they are defined, as of ``add_specs``. Raises CatalogueError.
    """
    require_trainable(cli.app.settings, specs, where)
    plan, difference = ask_what_if(cli.planning_context, specs, [], None)
    reasons = foreseen(cli, specs)
    measured = measure(specs, cli.app.pools)
    first, digest = measured[0], fingerprint(measured)
    code, packages = first.code, first.requirements
    upload = 0 if code is None else _upload_bytes(cli, code)
    names = {spec.name for spec in specs}
    mine = replace(
        plan,
        placements=tuple(p for p in plan.placements if any(lane.job in names for lane in p.lanes)),
        deferrals=tuple(deferral for deferral in plan.deferrals if deferral.job in names),
    )
    cli.out.data(
        {
            "jobs": [{**table_of(spec), "weight": spec.weight} for spec in specs],
            "upload": {**_code_json(code), "upload_bytes": upload} if code is not None else None,
            "packages": asdict(packages) if packages is not None else None,
            "plan": plan_json(mine),
            "changes": difference_json(difference),
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
    warn_of(cli, reasons)


def _code_json(code: Code) -> dict[str, object]:
    return {name: getattr(code, name) for name in ("source", "digest", "commit", "dirty", "files", "bytes")}


def _upload_bytes(cli: Cli, code: Code) -> int:
    stored = cli.app.artifacts.size(f"{code_prefix(code.digest)}/{LISTING}") is not None
    return 0 if stored else code.bytes
