"""`schedctl queue restart`: a job begins again as its next generation."""

from __future__ import annotations

from dataclasses import asdict, replace

from sqlalchemy import Connection

from jobs.payload.bounds import STEP_MAX, digits
from jobs.payload.store.manifest import Manifest
from scheduler.cli.commands.queue_show import start_line
from scheduler.cli.shell.confirm import confirm
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.names import listed
from scheduler.core.job import Active
from scheduler.service.requests.queue import QueueError
from scheduler.store import checkpoints, generations, jobs
from scheduler.store.engine import Database
from scheduler.store.generations import Generation
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import job_json


def restart_job(cli: Cli, name: str, start: str, *, yes: bool) -> None:
    """Begin a job again from ``start``: a step of its parent, or newest.

    Raises UnknownJob, QueueError, UsageFault, and Refusal when nobody agreed.
    """
    step = digits(start, STEP_MAX)
    if start != "newest" and step is None:
        raise UsageFault(f"--from {start} cannot be read", "it is a step of the parent, or newest", "Write --from 4000")
    with cli.app.database.read() as tx:
        done = jobs.get(tx, name).done_step
    question = (
        f"Begin {name} again at step 0? It is at step {done}; what it saved stays, and it does not go on from that."
    )
    confirm(cli, question, yes=yes)
    record, generation, waiting = restart(cli.app.database, name, step, cli.now, cli.who)
    cli.out.data({"job": job_json(record), "generation": asdict(generation)})
    told = start_line(record.spec.start_from, [generation])
    cli.out.line(f"{name} begins its generation {generation.number}{f', from {told}' if told else ''}.")
    if waiting:
        cli.out.say(f"Its steps count from 0 again, so {listed(waiting)} may wait for it again.")
    cli.wake_daemon()


# A job begins anew as its next generation, from the weights that its definition names.
def restart(
    database: Database, name: str, step: int | None, now: int, by: str
) -> tuple[JobRecord, Generation, list[str]]:
    """Let a job count its steps from 0 again; what it saved so far stays, as its last generation's.

    It starts from its parent's checkpoint at ``step``; None: the newest when it is launched. Returns the job, its new
    generation, and the jobs whose gate it closes by that. Raises UnknownJob, QueueError.
    """
    with database.write() as tx:
        record = jobs.get(tx, name)
        if isinstance(record.state, Active):
            raise QueueError(
                f"cannot restart {name}: it has a lane in {record.state.run}. Hold it first, and restart it when that "
                f"has ended: schedctl queue hold {name}"
            )
        if not record.attempts:
            raise QueueError(
                f"cannot restart {name}: it has not begun yet. See what it waits for: schedctl plan explain {name}"
            )
        parent = _parent(tx, record, step)
        waiting = [
            other.spec.name
            for other in jobs.everything(tx, {"queued"})
            if other.spec.gate is not None and other.spec.gate.parent == name and other.checkpoint is None
        ]
        generation = jobs.restart(tx, name, now, by)
        mixture = record.spec.mixture
        if mixture is not None and mixture.corpus and mixture.renew == "restart":
            jobs.change_spec(tx, name, now, by, mixture=replace(mixture, corpus=""))  # the one of its first launch
        if parent is not None:
            generations.pin(tx, generation, parent.job, parent.step, parent.key, now, by)
        return jobs.get(tx, name), generations.current(tx, name) or generation, waiting


def _parent(tx: Connection, record: JobRecord, step: int | None) -> Manifest | None:
    """Return the checkpoint at ``step`` that a job shall start from, None when none was named."""
    start, name = record.spec.start_from, record.spec.name
    if start is not None:
        jobs.get(tx, start.parent)
    if step is None:
        return None
    if start is None:
        raise QueueError(
            f"cannot restart {name} from step {step}: it starts from no other job. Name one first: "
            f"schedctl queue edit {name} --set start_from.job=NAME"
        )
    good = [saved.manifest for saved in checkpoints.unexpired(tx, start.parent) if saved.state == "good"]
    found = next((manifest for manifest in good if manifest.step == step), None)
    if found is None:
        steps = ", ".join(str(manifest.step) for manifest in good[:10]) or "none"
        raise QueueError(f"cannot restart {name}: {start.parent} has no checkpoint at step {step}. It has: {steps}")
    return found
