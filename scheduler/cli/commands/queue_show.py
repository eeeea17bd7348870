"""`schedctl queue show`: show one job with its definition, progress, measured speeds and newest sessions."""

from collections.abc import Sequence
from dataclasses import asdict

from jobs.definition import whole_of
from jobs.nouns.window import HOUR
from jobs.payload.trainers.tuning.data.tally import facts_told
from jobs.size import counted, size
from jobs.spec import Code, Input, Requirements, StartFrom, StopRule
from scheduler.cli.commands.complete import Job
from scheduler.cli.parts.runs_table import RUN_COLUMNS, run_row
from scheduler.cli.parts.screen import facts
from scheduler.cli.shell.command import Tables, command
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.output import hours
from scheduler.core.early_stop import Progress
from scheduler.core.halving import rung_of
from scheduler.core.reasons import Reason
from scheduler.core.why import why
from scheduler.service.facts import halvings
from scheduler.service.facts.early_stops import standing
from scheduler.store import generations, jobs, plans, queue_waits, rates, runs, training_data
from scheduler.store.generations import Generation
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import job_json, run_json
from scheduler.views.training import TrainingProgress, share_now, trainings

_RUNS_SHOWN = 5


@command("schedctl queue show ufm", kind=Tables)
def show_job(cli: Cli, job: Job) -> None:
    """Show all of one job."""
    with cli.app.database.read() as tx:
        record = jobs.get(tx, job)
        waits = plans.reason(tx, job)
        speeds = [rate for (name, _), rate in sorted(rates.everything(tx).items()) if name == job]
        sessions = queue_waits.attach(tx, runs.recent(tx, _RUNS_SHOWN, job=job))
        lineage = generations.of_job(tx, job)
        share = share_now(tx, job)
        learned = training_data.of_job(tx, job)
        gained = standing(tx, record.spec, record.fenced_attempt)
        left = halvings.budgets(tx).get(halvings.account(record.spec), 0) if halvings.has_budget(record) else 0
        beat = cli.app.settings.daemon.heartbeat_seconds
        live = queue_waits.attach(tx, runs.live(tx))
        (going,) = trainings(tx, [record], live, plans.newest(tx), cli.app.pools, beat, cli.now)
    document = job_json(record, waits)
    document["training"] = asdict(going)
    document["training_data"] = learned
    document["stop"] = asdict(gained) if record.spec.stop else None
    document["share"] = asdict(share) if share else None
    document["generations"] = [asdict(generation) for generation in lineage]
    document["rates"] = [asdict(rate) for rate in speeds]
    document["runs"] = [run_json(run) for run in sessions]
    cli.out.data({"job": document})
    cli.out.facts(
        *_facts(cli, record, going, waits, lineage),
        ("stops early", stop_line(record.spec.stop, gained) if record.spec.stop else ""),
        ("halving", halving_line(record)),
        ("budget", budget_line(record, left)),
        ("share", share.words() if share else ""),
        ("learned", facts_told(learned) if learned else ""),
        *((f"sample {at}", repr(text)) for at, text in enumerate((learned or {}).get("samples", []), 1)),
    )
    cli.out.listing(
        speeds,
        {
            ">steps/h": lambda rate: f"{rate.steps_per_second * HOUR:.0f}" if rate.samples else "-",
            "pool": lambda rate: rate.pool,
            ">measured": lambda rate: counted(rate.samples, "time"),
            ">set-up": lambda rate: hours(round(rate.setup_seconds)),
            ">save": lambda rate: f"{rate.checkpoint_seconds:.0f} s",
        },
        below=True,
    )
    cli.out.table(RUN_COLUMNS, [run_row(run, cli.out) for run in sessions], below=True)


def code_line(code: Code) -> str:
    """Return a line on a job's code: digest, commit, size and source."""
    git = f", commit {code.commit[:12]}, {'dirty' if code.dirty else 'clean'}" if code.commit else ", without a commit"
    return f"{code.digest[:12]}{git}, {counted(code.files, 'file')}, {size(code.bytes)}, of {code.source}"


def input_line(one: Input) -> str:
    """Return a line on an input: digest, revision, size and source."""
    word = "commit" if one.kind == "hub" else "version"
    commit = f", {word} {one.revision[:12]}" if one.revision else ""
    return f"{one.digest[:12]}{commit}, {counted(one.files, 'file')}, {size(one.bytes)}, of {one.source}"


def lock_line(requirements: Requirements) -> str:
    """Return a line on a job's locked packages: digest, count, targets, download size and source."""
    count, targets = counted(requirements.packages, "package"), ", ".join(requirements.targets)
    more = requirements.image_largest
    fetched = f", at most {size(requirements.fetched_bytes)} to fetch" if requirements.fetched_bytes or more else ""
    if more:
        image = f"{size(requirements.image_bytes)} more if the image's own, such as {more}, do not satisfy it"
        fetched = f"{fetched}, {image}"
    return f"{requirements.digest[:12]}, {count} for {targets}{fetched}, of {requirements.source}"


def start_line(start: StartFrom | None, lineage: Sequence[Generation]) -> str:
    """Return where a job's first weights come from: the chosen checkpoint, or the rule that will choose it."""
    chosen = lineage[-1] if lineage and lineage[-1].parent_key is not None else None
    if chosen is not None:
        return f"{chosen.parent} at step {chosen.parent_step}, {chosen.parent_key}"
    if start is None:
        return ""
    points = {"newest": "its newest checkpoint", "done": "its last checkpoint", "accepted": "its newest accepted one"}
    return f"{start.parent}, {points[start.at] if isinstance(start.at, str) else f'once it is at {start.at:.0%}'}"


def stop_line(rule: StopRule, gained: Progress) -> str:
    """Return when a job's rule would stop it early, and its best value so far."""
    value = f"when {rule.metric} reaches {rule.value:g}" if rule.value is not None else ""
    best = "highest" if rule.aim == "high" else "lowest"
    rest = f"{counted(rule.patience, 'checkpoint')} after its {best} {rule.metric}" if rule.patience else ""
    hopeless = f"when it will miss that with {rule.forecast:.0%} certainty".replace("%", " %") if rule.forecast else ""
    when = " or ".join(filter(None, (value, hopeless, rest)))
    if gained.best is None:
        return f"{when}; no checkpoint has {rule.metric} yet"
    so_far = f"{gained.best.value:.6g} at step {gained.best.step:,}, {counted(gained.since, 'checkpoint')} ago"
    return f"{when}; so far {so_far}"


def budget_line(record: JobRecord, left_seconds: int) -> str:
    """Return how many hours of the budget of a job or its sweep are left; "" without a budget."""
    allowed = halvings.budget_of(record.spec) / HOUR
    return f"{left_seconds / HOUR:.2f} of {allowed:g} device hours are left" if allowed else ""


def halving_line(record: JobRecord) -> str:
    """Return at which rung a job of a sweep is, and how many jobs go on; "" without successive halving."""
    rule = record.spec.halving
    if rule is None:
        return ""
    steps = ", ".join(f"{step:,}" for step in rule.rungs)
    where = ", no longer compared" if rule.left_at is not None else f" of those at steps {steps}"
    best = f"the best 1 in {rule.factor} by {rule.metric}"
    return f"rung {rung_of(rule, record.spec.target_step) + 1}{where}; {best}"


def _facts(
    cli: Cli, record: JobRecord, going: TrainingProgress, waits: Reason | None, lineage: Sequence[Generation]
) -> list[tuple[str, str]]:
    spec, needs, out = record.spec, record.spec.needs, cli.out
    devices = f"{needs.devices_min}-{needs.devices_max}" if needs.devices_max > needs.devices_min else needs.devices_min
    mixture = spec.mixture
    data = f"{mixture.extra_share:.0%} more of {mixture.domain}" if mixture and mixture.domain else "full corpus"
    version = f", version {mixture.corpus}" if mixture and mixture.corpus else ", the version of its first launch"
    return [
        ("job", spec.name),
        ("role", spec.role),
        ("state", type(record.state).__name__.lower()),
        ("why", why(record.state, waits.to_json() if waits else None, out.zone, cli.now)),
        *(() if spec.whole else facts(going, cli.now, out.zone)),
        ("has run", ("yes" if record.done_step else "not yet") if spec.whole else ""),
        ("single session", f"at most {whole_of(spec)}; it cannot be resumed" if spec.whole else ""),
        ("checkpoint", record.checkpoint or "none yet"),
        ("priority", f"{spec.weight:g}"),
        ("queue position", str(record.position)),
        ("pools", ", ".join(spec.pools) or "any"),
        (
            "needs",
            f"{devices} x {needs.vram_gib:g} GiB, {needs.dtype}" if needs.vram_gib else f"{devices} x any device",
        ),
        ("accelerator", {"tpu": "a TPU", "any": "a TPU or any other"}.get(needs.accelerator, "")),
        ("data", data + version if mixture else ""),
        ("initialised from", start_line(spec.start_from, lineage)),
        ("generation", f"{lineage[-1].number}, since {out.instant(lineage[-1].began_at)}" if lineage[1:] else ""),
        ("after", spec.gate.words() if spec.gate and not spec.start_from else ""),
        ("not before", out.instant(spec.not_before)),
        ("deadline", out.instant(spec.deadline)),
        ("command", " ".join(spec.command)),
        ("code", code_line(spec.code) if spec.code else ""),
        ("image", " with Python ".join(filter(None, (spec.image, spec.image_python)))),
        ("packages", lock_line(spec.requirements) if spec.requirements else ""),
        ("secrets", ", ".join(spec.secrets)),
        *((f"input {one.name}", input_line(one)) for one in spec.inputs),
        ("launches", f"{record.attempts}, {record.failures} failed in a row" if record.attempts else "none yet"),
        ("added", out.instant(record.created_at)),
    ]
