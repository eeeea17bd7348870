"""`schedctl queue` edit, clone, update and restart: change a job's definition, code, packages, inputs or corpus."""

import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from sqlalchemy import Connection

from jobs.catalogue import job_from_table, job_from_toml
from jobs.definition import OLD_NAMES, table_of, toml_of
from jobs.payload.bounds import STEP_MAX, digits, read_json
from jobs.payload.store.manifest import Manifest, blob_key
from jobs.problem import Refusal
from jobs.size import counted
from jobs.spec import HELD_OUT, TEST_SET, Code, JobSpec, Requirements
from platforms.artifacts.base import BlobStore
from scheduler.cli.commands import job_options as options
from scheduler.cli.commands import queue_add
from scheduler.cli.commands.complete import Job
from scheduler.cli.commands.queue_show import code_line, input_line, lock_line, start_line
from scheduler.cli.shell.command import Yes, argument, command, confirm, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault, pair_of
from scheduler.cli.shell.names import free_name, listed
from scheduler.core.job import Active, Failed
from scheduler.service.requests import concerns, queue
from scheduler.service.requests.stored import change_inputs, keep_code, keep_lock, stored, take_input
from scheduler.store import checkpoints, generations, jobs
from scheduler.store.engine import Database
from scheduler.store.generations import Generation
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import job_json

_HEADING = """# The definition of {name}. Save it and leave the editor to change the job.
# docs/configuration.md tells every key, its range, and its default where it is left out.
"""

RECIPE = "recipe.json"  # component of a checkpoint: the options it was trained with
_BYTES_MAX = 1 << 20  # of a recipe; a larger one is ignored


@command(
    "schedctl queue edit ufm",
    "schedctl queue edit ufm --set target_step=8000 --set needs.vram_gib=15",
    "schedctl queue edit ufm --set deadline=",
)
def edit(
    cli: Cli,
    job: Job,
    file: Annotated[Path | None, argument("FILE", "The whole new definition (TOML).")] = None,
    settings: Annotated[
        list[str] | None, option("--set KEY=VALUE", "Change one key; empty: its default. May be repeated.")
    ] = None,
    force: Annotated[bool, option("--force", "Also a command that the recipe of the checkpoint contradicts.")] = False,
) -> None:
    """Change a job's definition by --set, from a file, or in $EDITOR.

    What a running session or the checkpoint contradicts is refused with the reason.
    """
    if file and settings:
        raise UsageFault("--set stands alone", "a FILE holds the whole definition", "Give one of them")
    with cli.app.database.read() as tx:
        old = jobs.get(tx, job).spec
    if file is not None:
        spec = queue_add.read_spec(file, {})
    elif settings:
        spec = job_from_table(changed_table(table_of(old), settings), f"queue edit {job}")
    else:
        spec = _from_editor(old)
    if spec.command != old.command and not force:
        _check_recipe(cli, old, spec)
    if any(getattr(spec, name) != getattr(old, name) for name in ("command", "inputs", "needs", "pools")):
        concerns.require_trainable(cli.app.settings, [spec], str(file or f"queue edit {job}"))
    keep_until = cli.now + cli.app.policy.retention.grace_seconds
    spec = stored(cli.app, spec, keep_until, cli.out.say, old)
    record, changed = queue.edit(cli.app.database, job, spec, cli.now, cli.who)
    cli.out.data({"job": job_json(record), "changed": changed})
    cli.out.line(f"{job} has another {listed(changed)}." if changed else f"{job} is unchanged.")
    if changed:
        queue_add.warn_of_job(cli, job)
        if "secrets" in changed:
            queue_add.warn_of_secrets(cli, record.spec)
        if {"evaluation", "gates"} & set(changed):
            queue_add.warn_of_gates(cli, record.spec)
        if isinstance(record.state, Failed):
            cli.out.say(f"It failed before. To try again: schedctl queue retry {job}")
        cli.wake_daemon()


def _check_recipe(cli: Cli, old: JobSpec, spec: JobSpec) -> None:
    """Raise Refusal if the new command contradicts the recipe of the job's checkpoint."""
    with cli.app.database.read() as tx:
        saved = jobs.get(tx, old.name).checkpoint
        manifest = checkpoints.get(tx, saved).manifest if saved else None
    wrong = contradictions(cli.app.artifacts, manifest, old.command, spec.command) if manifest else []
    if manifest and wrong:
        raise Refusal(
            f"cannot edit {old.name}",
            f"its checkpoint at step {manifest.step} was made otherwise: {'; '.join(wrong)}",
            f"Train under a new name: schedctl queue clone {old.name} --set name=NEW --set command=... "
            "To go on from it all the same, add --force; a script that checks its recipe will refuse",
        )


def changed_table(table: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Apply ``KEY=VALUE`` to a job's table and return it; an empty value removes a key. Raises UsageFault."""
    for words in settings:
        key, text = pair_of("--set", words, "KEY=VALUE", empty=True)
        outer, dot, inner = key.strip().partition(".")
        outer = OLD_NAMES.get(outer, outer)
        place = table.setdefault(outer, {}) if dot else table
        if not isinstance(place, dict):
            raise UsageFault(f"--set {words} cannot be used", f"{outer} is no table", f"Write {outer}=VALUE")
        name = inner if dot else outer
        if text.strip():
            place[name] = _value(text.strip())
        else:
            place.pop(name, None)
            if dot and not place:
                del table[outer]
    return table


def _value(text: str) -> Any:
    """Parse a value as TOML; invalid TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _from_editor(old: JobSpec) -> JobSpec:
    """Let the user edit a job's definition in $EDITOR, and return the result. Raises UsageFault, ProblemsFound."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        remedy = f"Say what changes: schedctl queue edit {old.name} --set target_step=8000, or give a FILE"
        raise UsageFault("nothing to change", "no --set was given, and here is no terminal for an editor", remedy)
    handle, written = tempfile.mkstemp(prefix=f"{old.name}-", suffix=".toml")
    path = Path(written)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(_HEADING.format(name=old.name) + toml_of(table_of(old)))
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(editor), written], check=False).returncode
    except OSError as error:
        path.unlink()
        why = error.strerror or str(error)
        raise UsageFault(f"no editor {editor}", why.lower(), "Set EDITOR, or use --set KEY=VALUE") from None
    if code:
        path.unlink()
        raise UsageFault("nothing changed", f"{editor} ended with {code}", "Try again, or use --set KEY=VALUE")
    spec = job_from_toml(path)  # after an error the file stays, so that the user can correct it
    path.unlink()
    return spec


@command("schedctl queue clone ufm", "schedctl queue clone ufm --set name=ufm-hot --set seed=7")
def clone(
    cli: Cli,
    job: Job,
    settings: Annotated[
        list[str] | None, option("--set KEY=VALUE", "What differs; empty: its default. May be repeated.")
    ] = None,
) -> None:
    """Add a job with the definition and code of another. It starts from step 0."""
    with cli.app.database.read() as tx:
        old = jobs.get(tx, job).spec
        names = {record.spec.name for record in jobs.everything(tx)}
    table = {**table_of(old), "name": free_name(job, names)}
    spec = job_from_table(changed_table(table, settings or []), f"queue clone {job}")
    queue_add.add_specs(cli, [spec], f"queue clone {job}", old=old)


# Compare the recipe of a checkpoint with the options of a new command.
def contradictions(artifacts: BlobStore, manifest: Manifest, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return how the options of the command ``after`` contradict the recipe of a checkpoint, one text per option.

    A recipe is a JSON object with values by option name; any other content is ignored. Options that ``before``, the
    job's present command, has with the same value are not compared. Raises StoreError.
    """
    written = next((component for component in manifest.components if component.name == RECIPE), None)
    if written is None or written.bytes > _BYTES_MAX:
        return []
    try:
        recipe = read_json(artifacts.read(blob_key(manifest.job, written.sha256), _BYTES_MAX))
    except ValueError:
        return []
    result = []
    for name, was in sorted(recipe.items()) if isinstance(recipe, dict) else ():
        old, new = _option(before, name), _option(after, name)
        if new is None and old is not None:
            result.append(f"{name} was {was} and is left out")
        elif new is not None and new != old and not _same(was, new):
            result.append(f"{name} was {was} and would be {new}")
    return result


def _option(words: Sequence[str], name: str) -> str | None:
    """Return the value of an option in a command, the last if it is repeated; "" for a flag, None if it is absent."""
    flag, field = f"--{name.replace('_', '-')}", None
    for place, word in enumerate(words):
        spelt, equals, value = word.replace("_", "-").partition("=")[0], *word.partition("=")[1:]
        if spelt == flag:
            following = words[place + 1] if place + 1 < len(words) else ""
            field = value if equals else "" if following.startswith("--") else following
    return field


def _same(was: Any, word: str) -> bool:
    try:
        return float(word) == float(was)
    except (TypeError, ValueError):
        return word == str(was) or (word == "" and was is True)


@command(
    "schedctl queue update ufm --code .",
    "schedctl queue update ufm --code ~/trainer --commit v2",
    "schedctl queue update ufm --corpus newest",
)
@options.allowing
def update(
    cli: Cli,
    job: Job,
    code: Annotated[Path | None, option("--code DIR", "Default: where it was taken from.")] = None,
    commit: Annotated[str, option("--commit", "That commit of it, not the files as they are now.")] = "",
    requirements: Annotated[Path | None, option("--requirements FILE", "The packages it needs, locked now.")] = None,
    inputs: Annotated[list[str] | None, option("--input NAME[=SOURCE]", "Take it again; may be repeated.")] = None,
    corpus: Annotated[str | None, option("--corpus VERSION", "Train on this version of the corpus; or newest.")] = None,
    secrets: Annotated[list[str] | None, option("--secret NAME", "All secrets it is given; may be repeated.")] = None,
) -> None:
    """Take a job's code and packages again for its next session, or what is named.

    It goes on from the checkpoint. With --input, that input instead, from where it was taken or from another SOURCE;
    with --corpus, that version of the corpus instead; with --secret, these secrets instead of those before ("" for
    none). A job whose mixture says renew = "update" takes up the newest corpus.
    """
    with cli.app.database.read() as tx:
        spec = jobs.get(tx, job).spec
    named = code is not None or commit or requirements is not None
    if sum(map(bool, (named, inputs, secrets, corpus is not None))) > 1:
        why = "code and packages, inputs, secrets and corpus are changed one after another"
        raise UsageFault("--input, --secret and --corpus stand alone", why, "Give one of them")
    if secrets:
        return update_secrets(cli, spec, secrets)
    renews = spec.mixture is not None and spec.mixture.renew == "update" and not named and not inputs
    if corpus is not None or (renews and spec.code is None and spec.requirements is None):
        return update_job(cli, job, None, None, corpus=corpus or "newest")
    if inputs:
        return update_inputs(cli, spec, inputs)
    packages = Requirements(str(requirements.expanduser().resolve())) if requirements else None
    wanted = Code(str(code.expanduser().resolve()), commit) if code else None
    if spec.code is not None and wanted is None and (commit or not named):
        wanted = Code(spec.code.source, commit)
    if not named:
        packages = spec.requirements
    if wanted is None and (packages is None or commit):
        raise UsageFault(f"{job} has no code", "it was added without any", "Give it with --code DIR")
    newest = "newest" if renews and cli.app.training_data.folder.current().version else ""
    return update_job(cli, job, wanted, packages, corpus=newest)


def update_inputs(cli: Cli, spec: JobSpec, words: list[str]) -> None:
    """Upload inputs of a job again. ``words`` are ``NAME`` or ``NAME=SOURCE``; ``set`` names the job's test set.

    Raises ProblemsFound, TreeError, Refused, StoreError, UnknownJob, UsageFault.
    """
    test_set = spec.evaluation.test_set if spec.evaluation else None
    # A test set that comes from the corpus is not an input: each evaluation makes it again.
    is_input = test_set is not None and test_set.source != HELD_OUT
    now_there = (*spec.inputs, *([replace(test_set, name=TEST_SET)] if test_set and is_input else ()))
    sources = {one.name: one.source for one in now_there}
    wanted = options.inputs_of([word if "=" in word else f"{word}={sources.get(word, '')}" for word in words]) or {}
    changed = job_from_table({**table_of(spec), "inputs": {**sources, **wanted}}, "command line")
    app, keep_until = cli.app, cli.now + cli.app.policy.retention.grace_seconds
    concerns.require_trainable(app.settings, [changed], "command line")
    updated = [
        take_input(app.database, app.artifacts, one, keep_until, cli.out.say, app.hub_token, app.published, heal=True)
        for one in changed.inputs
        if one.name in wanted
    ]
    same = set(updated) <= set(now_there)
    record = change_inputs(app.database, spec.name, updated, cli.now, cli.who)
    cli.out.data({"job": job_json(record), "changed": not same})
    for one in updated:
        use = "evaluation" if spec.evaluation and one.name == TEST_SET else "session"
        cli.out.line(f"{spec.name} has {one.name} from its next {use} on: {input_line(one)}.")
    if any(one.name == TEST_SET for one in updated):
        queue_add.warn_of_gates(cli, record.spec)
    cli.wake_daemon()


def update_secrets(cli: Cli, spec: JobSpec, names: list[str]) -> None:
    """Set the secrets of the next sessions of a job. Raises ProblemsFound, Refusal, UnknownJob."""
    wanted = [name for name in names if name]
    changed = job_from_table({**table_of(spec), "secrets": wanted}, "command line")
    app = cli.app
    record, _ = queue.edit(app.database, spec.name, replace(spec, secrets=changed.secrets), cli.now, cli.who)
    cli.out.data({"job": job_json(record), "changed": record.spec.secrets != spec.secrets})
    cli.out.line(f"{spec.name} has {listed(wanted) if wanted else 'no secrets'} from its next session on.")
    queue_add.warn_of_secrets(cli, record.spec)
    cli.wake_daemon()


def update_job(
    cli: Cli, name: str, code_wanted: Code | None, packages_wanted: Requirements | None, *, corpus: str = ""
) -> None:
    """Update the code, the locked requirements or the ``corpus`` version of a job; None or "" leaves each unchanged.

    Raises CodeError, RequirementsError, NoSuchVersion, Refusal, Refused, StoreError, UnknownJob.
    """
    app = cli.app
    grace = app.policy.retention.grace_seconds
    keep_until = cli.now + grace
    with app.database.read() as tx:
        before = jobs.get(tx, name)
    record, old, messages = before, before.spec, []
    same_code, same_packages = True, True
    if packages_wanted is not None:
        wanted = replace(old, requirements=packages_wanted)
        locked = keep_lock(app.database, app.artifacts, wanted, app.pools, keep_until)
        same_packages = old.requirements == locked
        if locked is not None:
            messages.append(f"{_having(same_packages, 'packages')}: {lock_line(locked)}")
        if not same_packages:
            record = queue.change(app.database, name, cli.now, cli.who, requirements=locked)
    if code_wanted is not None:
        packed = keep_code(app.database, app.artifacts, code_wanted, keep_until, heal=cli.out.say)
        same_code = old.code is not None and old.code.digest == packed.digest
        messages.append(f"{_having(same_code, 'code')}: {code_line(packed)}")
        if old.code != packed:
            record = queue.change(app.database, name, cli.now, cli.who, code=packed)
    same_corpus = True
    if corpus:
        folder = app.training_data.folder
        corpus = folder.find(folder.current().version if corpus == "newest" else corpus)
        record = queue.take_up(app.database, name, corpus, cli.now, cli.who, grace)
        same_corpus = old.mixture == record.spec.mixture
        messages.append(f"{_having(same_corpus, 'corpus')}: {corpus}")
    same = same_code and same_packages and same_corpus
    cli.out.data({"job": job_json(record), "changed": not same})
    for line in messages:
        cli.out.line(f"{name} has {line}.")
    for doubt in concerns.of_jobs(app.settings, [record.spec], app.bundle, "command line"):
        cli.out.warn(str(doubt))
    queue_add.warn_of_lock(cli, record.spec)
    if not same and isinstance(record.state, Active):
        cli.out.say(
            f"{record.state.run} goes on with what it has. To change over now: schedctl runs stop {record.state.run}"
        )
    if not same_code and record.done_step:
        steps = counted(record.done_step, "step")
        cli.out.say(f"It goes on from its checkpoint, {steps} of which the code before made.")
    if not same_corpus and old.mixture is not None and old.mixture.corpus and record.done_step:
        cli.out.say(
            "It goes on from its checkpoint. What the new version holds out may be among what it was trained on: "
            f"schedctl corpus diff {old.mixture.corpus} {corpus}"
        )
    cli.wake_daemon()


def _having(same: bool, what: str) -> str:
    return f"the same {what} as before" if same else f"other {what}"


@command("schedctl queue restart ufm", "schedctl queue restart ufm --from 4000 --yes")
def begin(
    cli: Cli,
    job: Job,
    start: Annotated[str, option("--from STEP", "Which checkpoint of the job it starts from; or newest.")] = "newest",
    yes: Yes = False,
) -> None:
    """Begin a job again from step 0, as its next generation, after a confirmation. What it saved before stays."""
    step = digits(start, STEP_MAX)
    if start != "newest" and step is None:
        raise UsageFault(f"--from {start} cannot be read", "it is a step of the parent, or newest", "Write --from 4000")
    with cli.app.database.read() as tx:
        done = jobs.get(tx, job).done_step
    stays = "what it saved stays, and it does not go on from that"
    confirm(cli, f"Begin {job} again at step 0? It is at step {done}; {stays}.", yes=yes)
    record, generation, waiting = restart(cli.app.database, job, step, cli.now, cli.who)
    cli.out.data({"job": job_json(record), "generation": asdict(generation)})
    sentence = start_line(record.spec.start_from, [generation])
    cli.out.line(f"{job} begins its generation {generation.number}{f', from {sentence}' if sentence else ''}.")
    if waiting:
        cli.out.say(f"Its steps count from 0 again, so {listed(waiting)} may wait for it again.")
    cli.wake_daemon()


def restart(
    database: Database, name: str, step: int | None, now: int, by: str
) -> tuple[JobRecord, Generation, list[str]]:
    """Start the next generation of a job at step 0; checkpoints of earlier generations stay.

    The generation is initialised from the parent's checkpoint at ``step``, or with None from the newest at its launch.
    Return the job, its new generation, and the jobs that wait for it again. Raises UnknownJob, Refusal.
    """
    with database.write() as tx:
        record = jobs.get(tx, name)
        if isinstance(record.state, Active):
            raise Refusal(
                f"cannot restart {name}",
                f"it has a lane in {record.state.run}",
                f"Hold it first, and restart it when that has ended: schedctl queue hold {name}",
            )
        if not record.attempts:
            raise Refusal(f"cannot restart {name}", "it has not begun yet", f"See why: schedctl plan explain {name}")
        parent = _parent(tx, record, step)
        waiting = [
            other.spec.name
            for other in jobs.everything(tx, {"queued"})
            if other.spec.gate is not None and other.spec.gate.parent == name and other.checkpoint is None
        ]
        generation = jobs.restart(tx, name, now, by)
        mixture = record.spec.mixture
        if mixture is not None and mixture.corpus and mixture.renew == "restart":
            # Without a version here, the next launch chooses the version.
            jobs.change_spec(tx, name, now, by, mixture=replace(mixture, corpus=""))
        if parent is not None:
            generations.pin(tx, generation, parent.job, parent.step, parent.key, now, by)
        return jobs.get(tx, name), generations.current(tx, name) or generation, waiting


def _parent(tx: Connection, record: JobRecord, step: int | None) -> Manifest | None:
    """Return the parent's checkpoint at ``step``; None if ``step`` is None. Raises Refusal, UnknownJob."""
    start, name = record.spec.start_from, record.spec.name
    if start is not None:
        jobs.get(tx, start.parent)
    if step is None:
        return None
    if start is None:
        raise Refusal(
            f"cannot restart {name} from step {step}",
            "it starts from no other job",
            f"Name one first: schedctl queue edit {name} --set start_from.job=NAME",
        )
    good = [saved.manifest for saved in checkpoints.unexpired(tx, start.parent) if saved.state == "good"]
    chosen = next((manifest for manifest in good if manifest.step == step), None)
    if chosen is None:
        steps = ", ".join(str(manifest.step) for manifest in good[:10]) or "none"
        raise Refusal(f"cannot restart {name}", f"{start.parent} has no checkpoint at step {step}", f"It has: {steps}")
    return chosen
