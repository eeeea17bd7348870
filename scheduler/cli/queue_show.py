"""`schedctl queue show`: one job with its definition, progress, speeds and newest sessions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from config.secret import MARK, is_secret
from scheduler.cli.output import hours
from scheduler.cli.shapes import job_state_json, run_json, share, why
from scheduler.store import jobs, plans, rates, runs

if TYPE_CHECKING:
    from scheduler.cli.context import Cli
    from scheduler.core.reasons import Reason
    from scheduler.store.jobs import JobRecord
    from scheduler.store.rates import RateRecord

_RUNS_SHOWN = 5


def show_job(cli: Cli, name: str) -> None:
    """Write one job. Raises UnknownJob."""
    with cli.app.database.read() as tx:
        record = jobs.get(tx, name)
        waits = plans.reason(tx, name)
        speeds = [rate for (job, _), rate in sorted(rates.everything(tx).items()) if job == name]
        sessions = runs.recent(tx, _RUNS_SHOWN, job=name)
    if cli.options.json:
        document = job_json(record, waits)
        document["rates"] = [asdict(rate) for rate in speeds]
        document["runs"] = [run_json(run) for run in sessions]
        cli.out.data({"job": document})
        return
    cli.out.facts(_facts(cli, record, waits))
    if speeds:
        cli.out.line()
        cli.out.table((">steps/h", "pool", ">measured", ">set-up", ">save"), [_speed(rate) for rate in speeds])
    if sessions:
        from scheduler.cli.runs_table import RUN_COLUMNS, run_row

        cli.out.line()
        cli.out.table(RUN_COLUMNS, [run_row(run, cli.out) for run in sessions])


def job_json(record: JobRecord, waits: Reason | None = None) -> dict[str, Any]:
    """Return a job with its whole definition; what its environment calls a secret is hidden, as on the status page."""
    spec = asdict(record.spec)
    spec["environment"] = {name: MARK if is_secret(name) else text for name, text in record.spec.environment.items()}
    return {
        "name": record.spec.name,
        "role": record.spec.role,
        "position": record.position,
        **job_state_json(record.state),
        "weight": record.spec.weight,
        "target_step": record.spec.target_step,
        "done_step": record.done_step,
        "attempts": record.attempts,
        "failures": record.failures,
        "last_pool": record.last_pool,
        "not_before": record.spec.not_before,
        "deadline": record.spec.deadline,
        "created_at": record.created_at,
        "waits": waits.to_json() if waits else None,
        "checkpoint": record.checkpoint,
        "spec": spec,
    }


def _facts(cli: Cli, record: JobRecord, waits: Reason | None) -> list[tuple[str, str]]:
    spec, needs, out = record.spec, record.spec.needs, cli.out
    devices = f"{needs.devices_min}-{needs.devices_max}" if needs.devices_max > needs.devices_min else needs.devices_min
    mixture = f"{spec.mixture.extra_share:.0%} more of {spec.mixture.domain}" if spec.mixture.domain else "full corpus"
    return [
        ("job", spec.name),
        ("role", spec.role),
        ("state", type(record.state).__name__.lower()),
        ("why", why(record.state, waits.to_json() if waits else None, out.zone)),
        ("progress", f"{record.done_step} of {spec.target_step} steps, {share(record.done_step, spec.target_step)}"),
        ("checkpoint", record.checkpoint or "none yet"),
        ("weight", f"{spec.weight:g}"),
        ("place", str(record.position)),
        ("pools", ", ".join(spec.pools) or "any"),
        ("needs", f"{devices} x {needs.vram_gib:g} GiB, {needs.dtype}"),
        ("data", mixture),
        ("gate", f"{spec.gate.parent} at {spec.gate.fraction:.0%}" if spec.gate else ""),
        ("not before", out.instant(spec.not_before)),
        ("deadline", out.instant(spec.deadline)),
        ("command", " ".join(spec.command)),
        ("launches", f"{record.attempts}, {record.failures} failed in a row" if record.attempts else "none yet"),
        ("added", out.instant(record.created_at)),
    ]


def _speed(rate: RateRecord) -> tuple[str, ...]:
    return (
        f"{rate.steps_per_second * 3_600:.0f}" if rate.samples else "-",
        rate.pool,
        f"{rate.samples} times",
        hours(round(rate.setup_seconds)),
        f"{rate.checkpoint_seconds:.0f} s",
    )
