"""`schedctl queue update`: another state of a job's own code and packages for its next sessions."""

from __future__ import annotations

from dataclasses import replace

from jobs.catalogue import job_from_table
from jobs.job_table import table_of
from jobs.plural import counted
from jobs.spec import HELD_OUT, TEST_SET, Code, JobSpec, Requirements
from scheduler.cli.commands.job_options import inputs_of
from scheduler.cli.commands.queue_add import warn_of_gates, warn_of_lock, warn_of_secrets
from scheduler.cli.commands.queue_show import code_line, input_line, lock_line
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.names import listed
from scheduler.core.job import Active
from scheduler.service.requests import code, concerns, environment, inputs, queue
from scheduler.service.requests import corpus as corpora
from scheduler.store import jobs
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import job_json


def update_inputs(cli: Cli, spec: JobSpec, words: list[str]) -> None:
    """Take inputs of a job again, named as ``NAME`` or ``NAME=SOURCE``; ``set`` is the test set of one that has one.

    Raises CatalogueError, TreeError, TreeGoes, StoreError, UnknownJob, UsageFault.
    """
    test_set = spec.evaluation.test_set if spec.evaluation else None
    taken_once = test_set is not None and test_set.source != HELD_OUT  # that of a corpus comes with each evaluation
    now_there = (*spec.inputs, *([replace(test_set, name=TEST_SET)] if test_set and taken_once else ()))
    sources = {given.name: given.source for given in now_there}
    wanted = inputs_of([word if "=" in word else f"{word}={sources.get(word, '')}" for word in words]) or {}
    changed = job_from_table({**table_of(spec), "inputs": {**sources, **wanted}}, "command line")
    app, keep_until = cli.app, cli.now + cli.app.policy.retention.grace_seconds
    concerns.require_trainable(app.settings, [changed], "command line")
    taken = [
        inputs.take(
            app.database, app.artifacts, given, keep_until, cli.out.say, app.hub_token, app.published, heal=True
        )
        for given in changed.inputs
        if given.name in wanted
    ]
    same = set(taken) <= set(now_there)
    record = inputs.change(app.database, spec.name, taken, cli.now, cli.who)
    cli.out.data({"job": job_json(record), "changed": not same})
    for given in taken:
        use = "evaluation" if spec.evaluation and given.name == TEST_SET else "session"
        cli.out.line(f"{spec.name} has {given.name} from its next {use} on: {input_line(given)}.")
    if any(given.name == TEST_SET for given in taken):
        warn_of_gates(cli, record.spec)
    cli.wake_daemon()


def update_corpus(cli: Cli, spec: JobSpec, version: str) -> None:
    """Let a job train on another version of the corpus. Raises NoSuchVersion, QueueError, TreeGoes, UnknownJob."""
    record, same = _with_corpus(cli, spec, version)
    cli.out.data({"job": job_json(record), "changed": not same})
    cli.out.line(f"{spec.name} has {_corpus_line(record, same=same)}.")
    if not same:
        _warn_of_corpus(cli, spec, record)
    cli.wake_daemon()


def _with_corpus(cli: Cli, spec: JobSpec, version: str) -> tuple[JobRecord, bool]:
    """Return the job on a version of the corpus, or on the newest, and whether it was on it before."""
    app = cli.app
    folder = app.training_data.folder
    found = folder.find(folder.current().version if version == "newest" else version)
    grace = app.policy.retention.grace_seconds
    record = corpora.take_up(app.database, spec.name, found, cli.now, cli.who, grace)
    return record, spec.mixture == record.spec.mixture


def _corpus_line(record: JobRecord, *, same: bool) -> str:
    mixture = record.spec.mixture
    return f"{_having(same, 'corpus')}: {mixture.corpus if mixture else ''}"


def _warn_of_corpus(cli: Cli, before: JobSpec, record: JobRecord) -> None:
    old, new = (spec.mixture.corpus if spec.mixture else "" for spec in (before, record.spec))
    if old and record.done_step:
        cli.out.say(
            "It goes on from its checkpoint. What the new version holds out may be among what it was trained on: "
            f"schedctl corpus diff {old} {new}"
        )


def update_secrets(cli: Cli, spec: JobSpec, names: list[str]) -> None:
    """Let the next sessions of a job have these secrets. Raises CatalogueError, QueueError, UnknownJob."""
    wanted = [name for name in names if name]
    changed = job_from_table({**table_of(spec), "secrets": wanted}, "command line")
    app = cli.app
    record, _ = queue.edit(app.database, spec.name, replace(spec, secrets=changed.secrets), cli.now, cli.who)
    cli.out.data({"job": job_json(record), "changed": record.spec.secrets != spec.secrets})
    cli.out.line(f"{spec.name} has {listed(wanted) if wanted else 'no secrets'} from its next session on.")
    warn_of_secrets(cli, record.spec)
    cli.wake_daemon()


def update_job(
    cli: Cli, name: str, code_wanted: Code | None, packages_wanted: Requirements | None, *, corpus: bool = False
) -> None:
    """Take the code of a job again, lock its requirements again, take up the newest ``corpus``, or several of these.

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
    same_corpus = True
    if corpus and app.training_data.folder.current().version:
        record, same_corpus = _with_corpus(cli, record.spec, "newest")
        said.append(_corpus_line(record, same=same_corpus))
    same = same_code and same_packages and same_corpus
    cli.out.data({"job": job_json(record), "changed": not same})
    for line in said:
        cli.out.line(f"{name} has {line}.")
    for doubt in concerns.of_jobs(app.settings, [record.spec], app.bundle, "command line"):
        cli.out.warn(str(doubt))
    warn_of_lock(cli, record.spec)
    _tell_what_follows(cli, record, same=same, same_code=same_code)
    if not same_corpus:
        _warn_of_corpus(cli, old, record)
    cli.wake_daemon()


def _tell_what_follows(cli: Cli, record: JobRecord, *, same: bool, same_code: bool) -> None:
    """Say what goes on as it was: the session that runs, and the steps that were made."""
    if not same and isinstance(record.state, Active):
        cli.out.say(
            f"{record.state.run} goes on with what it has. To change over now: schedctl runs stop {record.state.run}"
        )
    if not same_code and record.done_step:
        steps = counted(record.done_step, "step")
        cli.out.say(f"It goes on from its checkpoint, {steps} of which the code before made.")


def _having(same: bool, what: str) -> str:
    return f"the same {what} as before" if same else f"other {what}"
