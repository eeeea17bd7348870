"""`schedctl queue update`: another state of a job's own code and packages for its next sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jobs.catalogue import job_from_table
from jobs.job_table import table_of
from jobs.plural import counted
from scheduler.cli.commands.queue_add import inputs_of, warn_of_lock
from scheduler.cli.commands.queue_show import code_line, input_line, lock_line
from scheduler.core.job import Active
from scheduler.service.requests import code, concerns, environment, inputs
from scheduler.store import jobs
from scheduler.views.documents import job_json

if TYPE_CHECKING:
    from jobs.spec import Code, JobSpec, Requirements
    from scheduler.cli.shell.context import Cli


def update_inputs(cli: Cli, spec: JobSpec, words: list[str]) -> None:
    """Take inputs of a job anew, named as ``NAME`` or ``NAME=SOURCE``.

    Raises CatalogueError, TreeError, TreeGoes, StoreError, UnknownJob, UsageFault.
    """
    sources = {given.name: given.source for given in spec.inputs}
    wanted = inputs_of([word if "=" in word else f"{word}={sources.get(word, '')}" for word in words]) or {}
    changed = job_from_table({**table_of(spec), "inputs": {**sources, **wanted}}, "command line")
    app, keep_until = cli.app, cli.now + cli.app.policy.retention.grace_seconds
    taken = [
        inputs.take(app.database, app.artifacts, given, keep_until, cli.out.say, app.published, heal=True)
        for given in changed.inputs
        if given.name in wanted
    ]
    same = set(taken) <= set(spec.inputs)
    record = inputs.change(app.database, spec.name, taken, cli.now, cli.who)
    if cli.options.json:
        cli.out.data({"job": job_json(record), "changed": not same})
    else:
        for given in taken:
            cli.out.line(f"{spec.name} has {given.name} from its next session on: {input_line(given)}.")
    cli.wake_daemon()


def update_job(cli: Cli, name: str, code_wanted: Code | None, packages_wanted: Requirements | None) -> None:
    """Take the code of a job anew, lock its requirements anew, or both.

    Raises CodeError, RequirementsError, TreeGoes, StoreError, UnknownJob.
    """
    app = cli.app
    keep_until = cli.now + app.policy.retention.grace_seconds
    with app.database.read() as tx:
        before = jobs.get(tx, name)
    record, old, said = before, before.spec, []
    same_code, same_packages = True, True
    if packages_wanted is not None:
        wanted = replace(old, requirements=packages_wanted)
        locked = environment.keep(app.database, app.artifacts, wanted, app.pools, keep_until)
        same_packages = old.requirements == locked
        if locked is not None:
            said.append(f"{_having(same_packages, 'packages')}: {lock_line(locked)}")
        if not same_packages:
            record = environment.change(app.database, name, locked, cli.now, cli.who)
    if code_wanted is not None:
        taken = code.keep(app.database, app.artifacts, code_wanted, keep_until, heal=cli.out.say)
        same_code = old.code is not None and old.code.digest == taken.digest
        said.append(f"{_having(same_code, 'code')}: {code_line(taken)}")
        if old.code != taken:
            record = code.change(app.database, name, taken, cli.now, cli.who)
    same = same_code and same_packages
    if cli.options.json:
        cli.out.data({"job": job_json(record), "changed": not same})
    else:
        for line in said:
            cli.out.line(f"{name} has {line}.")
    for doubt in concerns.of_jobs(app.settings, [record.spec], app.bundle, "command line"):
        cli.out.warn(str(doubt))
    warn_of_lock(cli, record.spec)
    if not same and isinstance(record.state, Active):
        cli.out.say(
            f"{record.state.run} goes on with what it has. To change over now: schedctl runs stop {record.state.run}"
        )
    if not same_code and record.done_step:
        steps = counted(record.done_step, "step")
        cli.out.say(f"It goes on from its checkpoint, {steps} of which the code before made.")
    cli.wake_daemon()


def _having(same: bool, what: str) -> str:
    return f"the same {what} as before" if same else f"other {what}"
