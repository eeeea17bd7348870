"""Concerns: warnings about settings and jobs that are valid but cannot work as intended.

They are found before a launch: an unknown platform, a number without a unit, an undeclared pool, a command that no
session will find. Each is reported with its place in the file and with a correction.
"""

import os
import re
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from config.layers import exposed_secrets, read_layers
from config.section import keys_of, table_in
from config.settings import Settings
from jobs.advice.job import TRAINER, options_of
from jobs.code.git import CodeError
from jobs.code.pack import names
from jobs.definition import OLD_NAMES
from jobs.duration import show_duration
from jobs.environment.tool import RequirementsError, read_demands
from jobs.nouns.keys import is_remote
from jobs.nouns.pool import Pool
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.payload.scorers.items import BadItems, Item, items_at
from jobs.payload.trainers.tuning.base import check_length
from jobs.payload.trainers.tuning.errors import TrainingRefused
from jobs.payload.trainers.tuning.options import rows_at_once
from jobs.problem import Problem, ProblemsFound, as_toml, did_you_mean
from jobs.spec import HELD_OUT, JobSpec, QualityGate
from jobs.toml_file import placed, read_toml
from platforms.artifacts.base import StoreError
from platforms.base import BadOption, Misconfigured, PlatformError
from platforms.plugin import traits
from platforms.registry import all_names
from platforms.targets.base import BadTargetOption, TargetError
from scheduler.judge.evidence import ALPHA, clusters_needed
from scheduler.judge.gates import surely_needed
from scheduler.service.outside.ports import ServedAt

_SCRIPT = re.compile(r".*\.(py|sh|pl|R|jl)")
_RUNNERS = re.compile(r"(\{python\}|.*/)?(python[0-9.]*|bash|sh|torchrun|accelerate)?")
_NO_TEXT = "schedctl corpus add FOLDER, or set corpus.sources"
_TRAINERS = frozenset({"{payload}/trainers/charlm.py", "{payload}/trainers/finetune.py"})  # they read the corpus
_CONFIG_BYTES_MAX = 1 << 20


def of_platforms(settings: Settings) -> list[Problem]:
    """Return a problem for each enabled pool of an unknown platform."""
    return [
        _problem(
            settings.origin("pools"),
            f"pools.{pool.name}.platform",
            pool.platform,
            "there is no such platform",
            did_you_mean(pool.platform, all_names()),
        )
        for pool in settings.pools
        if pool.enabled and pool.platform not in all_names()
    ]


def of_store(settings: Settings, make: Callable[[], object]) -> list[Problem]:
    """Return the problem of an artifact store with invalid options; ``make`` opens it. Folders are not checked."""
    if settings.artifacts.kind != "directory":
        try:
            make()
        except StoreError as error:
            return [Problem(settings.origin("artifacts.options"), "artifacts.options", "", error.why, error.remedy)]
    return []


def of_options(
    settings: Settings, make: Callable[[str, Path], object], targets: Mapping[str, ServedAt]
) -> tuple[list[Problem], list[Problem]]:
    """Return the problems of pools and targets: those with invalid options, and those that cannot be created now.

    The second list is for pools and targets that lack credentials or a library, which does not affect others.
    ``make`` creates the adapter of a named pool in a folder and raises PlatformError.
    """
    invalid: list[Problem] = []
    unavailable: list[Problem] = []
    for pool in settings.pools:
        if pool.enabled and pool.platform in all_names():
            try:
                with TemporaryDirectory() as folder:
                    make(pool.name, Path(folder))
            except (PlatformError, OSError) as error:  # without space for a folder the other checks still run
                failure = (
                    error if isinstance(error, PlatformError) else Misconfigured(pool.platform, "load", str(error))
                )
                why = f"nothing can be started there: {failure.why}"
                problem = Problem(settings.origin("pools"), f"pools.{pool.name}", "", why, failure.remedy)
                (invalid if isinstance(error, BadOption) else unavailable).append(problem)
    for name, target in targets.items():
        try:
            target.open()
        except TargetError as error:
            why = f"nothing can be deployed there: {error.why}"
            problem = Problem(settings.origin("targets"), f"targets.{name}", "", why, error.remedy)
            (invalid if isinstance(error, BadTargetOption) else unavailable).append(problem)
    return invalid, unavailable


def of_privacy(config: Path | None) -> list[Problem]:
    """Return a problem for each setting with an old name or with a secret that other users of this machine can read."""
    layers = read_layers(config)
    return [*exposed_secrets(layers), *layers.renamed]


def of_units(settings: Settings) -> list[Problem]:
    """Return a problem for each duration or limit without a unit, which is read as seconds."""
    return list(_numbers_without_unit(settings, Settings, settings.written, ""))


def of_names(files: Iterable[Path]) -> list[Problem]:
    """Return a problem for each key with an old name in model files and job files."""
    result = []
    for file in files:
        document = read_toml(file) if file.is_file() else {}  # a pipe was already read, and cannot be read twice
        tables = {f"jobs.{entry.get('name')}.": entry for entry in _tables(document.get("jobs"))}
        for label, table in {"": document, "defaults.": document.get("defaults"), **tables}.items():
            for old, new in OLD_NAMES.items():
                if isinstance(table, dict) and old in table:
                    why = f"this key is now called {new}"
                    result.append(
                        _problem(str(file), f"{label}{old}", table[old], why, "rename it; the old name works")
                    )
    return result


def of_jobs(settings: Settings, specs: Iterable[JobSpec], bundle: Path, file: str = "") -> list[Problem]:
    """Return the problems of these jobs, such as missing files. ``file`` is their file; "": the models files."""
    pools = {pool.name: pool for pool in settings.pools if pool.enabled}
    result: list[Problem] = []
    for spec, where, label in _defined(settings, specs, file):
        result += [
            _problem(where, f"{label}pools", name, "no such pool is enabled", did_you_mean(name, pools))
            for name in spec.pools
            if name not in pools
        ]
        result += [
            _problem(where, f"{label}inputs", one.source, "there is no such folder", "check the path")
            for one in spec.inputs
            if not is_remote(one.source) and not Path(one.source).is_dir()
        ]
        if (wanted := spec.requirements) is not None and not wanted.digest:
            try:
                read_demands(Path(wanted.source))
            except RequirementsError as error:
                result.append(_problem(where, f"{label}requirements", wanted.source, error.why, error.remedy))
        here = any(traits(pool.platform).runs_here for pool in _eligible(settings, spec))
        try:
            inside = names(spec.code) if spec.code is not None else None
        except CodeError as error:
            assert spec.code is not None  # noqa: S101 - for the type checker: only code raises it
            result.append(_problem(where, f"{label}code", spec.code.source, error.why, error.remedy))
            continue
        result += [_problem(where, f"{label}{key}", value, why, remedy) for key, value, why, remedy in of_gates(spec)]
        if spec.mixture is None and _TRAINERS.intersection(spec.command) and "--data" not in spec.command:
            word = next(word for word in spec.command if word in _TRAINERS)
            why = "it trains on the corpus, but this job has no mixture of it"
            result.append(_problem(where, f"{label}command", word, why, "add mixture = {}"))
        named = settings.corpus.sources or (settings.artifacts.root / "corpus").is_dir()
        if spec.mixture is not None and not named:
            result.append(Problem(where, f"{label}mixture", "", "there is no text to train on", _NO_TEXT))
        version = spec.mixture.corpus if spec.mixture is not None else ""
        if version and not (settings.artifacts.root / "corpus" / version).is_dir():
            why = "there is no such version of the corpus here"
            result.append(_problem(where, f"{label}mixture.corpus", version, why, "see: schedctl corpus show"))
        for word, why, remedy in _missing_files(spec, bundle, inside, here=here):
            result.append(_problem(where, f"{label}command", word, why, remedy))
    return result


def require_trainable(settings: Settings, specs: Iterable[JobSpec], file: str = "") -> None:
    """Raise ProblemsFound if finetune.py cannot train one of the jobs on every number of devices that it may get.

    The arguments are those of ``of_jobs``.
    """
    wrong = [
        _problem(where, f"{label}command", word, why, remedy)
        for spec, where, label in _defined(settings, specs, file)
        for word, why, remedy in of_trainer(spec, _eligible(settings, spec))
    ]
    if wrong:
        raise ProblemsFound(wrong)


def _defined(settings: Settings, specs: Iterable[JobSpec], file: str) -> Iterator[tuple[JobSpec, str, str]]:
    """Yield each job with its file and the prefix of its keys there."""
    catalogues = {
        str(entry.get("name")): str(path)
        for path in (reversed(settings.models) if not file else ())  # the first definition of a job counts
        for entry in _tables(read_toml(path).get("jobs"))
    }
    anywhere = ", ".join(map(str, settings.models))
    for spec in specs:
        yield spec, file or catalogues.get(spec.name, anywhere), "" if file else f"jobs.{spec.name}."


def _eligible(settings: Settings, spec: JobSpec) -> list[Pool]:
    return [pool for pool in settings.pools if pool.enabled and (not spec.pools or pool.name in spec.pools)]


def _missing_files(
    spec: JobSpec, bundle: Path, inside: frozenset[str] | None, *, here: bool
) -> Iterator[tuple[str, str, str]]:
    first, *rest = spec.command
    for word in spec.command:
        if word.startswith("{payload}/") and not (bundle / "payload" / word.removeprefix("{payload}/")).exists():
            yield word, "the shipped payload has no such file", "see docs/configuration.md for what it has"
    if "{" not in first:
        if "/" in first and not first.startswith("/"):
            yield from _missing_file(first, inside)
        elif first.startswith("/"):
            if here and not os.access(first, os.X_OK):
                yield first, "this machine has no such program", "check the path and its mode"
        elif here and shutil.which(first) is None:
            yield first, "this machine has no such command", "install it, write its whole path, or use {python}"
    if rest and _RUNNERS.fullmatch(first) and _SCRIPT.fullmatch(rest[0]) and "{" not in rest[0]:
        if not rest[0].startswith("/"):
            yield from _missing_file(rest[0], inside)
        elif here and not Path(rest[0]).exists():
            yield rest[0], "this machine has no such file", "check the path"


def _missing_file(word: str, inside: frozenset[str] | None) -> Iterator[tuple[str, str, str]]:
    """Yield (word, reason, remedy) if a file is not in a session's working folder, which has only the job's code."""
    if inside is None:
        remedy = 'write the whole path, or name its folder: code = "."'
        yield word, "a session starts in an empty folder, which does not have it", remedy
    elif os.path.normpath(word) not in inside:
        yield word, "the job's code has no such file", "check the path; git or .schedignore may leave it out"


def _numbers_without_unit(settings: Settings, kind: type, table: Mapping[str, Any], label: str) -> Iterator[Problem]:
    for key, (name, annotation) in keys_of(kind).items():
        value, inner = table.get(key), table_in(annotation)
        if inner is not None and isinstance(value, dict):
            yield from _numbers_without_unit(settings, inner, value, f"{label}{key}.")
        elif inner is not None:
            for entry in _tables(value):
                yield from _numbers_without_unit(settings, inner, entry, f"{label}{key}.{entry.get('name')}.")
        elif "_seconds" in name or name == "limit":
            bare = isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal())
            if bare and not isinstance(value, bool) and int(value or 0) > 0:
                where, meant = f"{label}{key}", f"it has no unit and means {show_duration(int(value or 0))}"
                remedy = f'write "{value}h", "{value}m" or "{value}s"'
                yield _problem(settings.origin(where), where, value, meant, remedy)


def _tables(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list | tuple) else []


def _problem(file: str, key: str, value: object, why: str, remedy: str) -> Problem:
    """Return a problem, with its line in the file if that can be located."""
    return placed(Problem(file, key, as_toml(value), why, remedy))


# Jobs of finetune.py that cannot train: rows too long for the model, or a batch that some number of devices cannot
# share. They are rejected when a job is added or changed and when settings are checked. The check reads the command,
# and the model's config.json if it is on this machine. A session would reject them too, but perhaps days later.
def of_trainer(spec: JobSpec, pools: Iterable[Pool]) -> Iterator[tuple[str, str, str]]:
    """Yield (option, reason, remedy) for options of finetune.py with which a session cannot train."""
    start = next((place for place, word in enumerate(spec.command) if word.endswith(TRAINER)), None)
    if start is None:
        return
    flags = options_of(spec.command[start + 1 :])
    try:
        length, batch, accumulate, devices_max = (
            int(flags.get(name) or usual)
            for name, usual in (("--length", 1024), ("--batch", 4), ("--accumulate", 8), ("--devices", 0))
        )
        at_once = int(flags["--rows-at-once"]) if flags.get("--rows-at-once") else None
    except ValueError:
        return
    if min(length, batch, accumulate, at_once or 1) < 1 or devices_max < 0:
        return
    model = flags.get("--model", "")
    if model.startswith("input:"):
        model = {one.name: one.source for one in spec.inputs}.get(model.removeprefix("input:"), "")
    try:
        config = (
            read_json(read_bounded(Path(model.partition("#")[0]) / "config.json", _CONFIG_BYTES_MAX)) if model else None
        )
    except (OSError, ValueError):
        config = None  # the model is not on this machine, or the session will report the error
    if isinstance(config, dict):
        try:
            check_length(length, config, model)
        except TrainingRefused as error:
            yield "--length", str(error), "change it in the command"
    options = Namespace(batch=batch, accumulate=accumulate, rows_at_once=at_once, stage=flags.get("--stage") or "sft")
    # --devices counts per node, so several nodes may use more; a batch that fits them fits fewer devices, too.
    counts = {min(count, devices_max or count) for pool in pools for count in _counts(spec, pool)}
    for devices in sorted(counts):
        try:
            rows_at_once(options, devices)
        except ValueError as error:
            yield "--batch", str(error), "change it in the command, or the devices that needs asks for"
            return


def _counts(spec: JobSpec, pool: Pool) -> list[int]:
    """Return the numbers of devices that a lane of the job may get on a pool."""
    most = max(spec.needs.devices_min, spec.needs.devices_max)
    offered = pool.device_counts or range(1, pool.devices_per_session + 1)
    return [count for count in offered if spec.needs.devices_min <= count <= most]


# Concerns about gates: a test set that cannot be read, or is so small that a gate can never pass or fail.
#
# They are reported when a job is added and when settings are checked, before weeks of training are spent in vain.
_REMEDY = "add items to the set, or change the limit of the gate"


def of_gates(spec: JobSpec) -> Iterator[tuple[str, str, str, str]]:
    """Yield (key, value, reason, remedy) for each problem that makes a gate of the job useless.

    Test sets that are not on this machine, or that are made from a corpus, are skipped.
    """
    wanted = spec.evaluation
    if wanted is None or wanted.test_set.source == HELD_OUT or is_remote(wanted.test_set.source):
        return
    place = Path(wanted.test_set.source)
    try:
        items = items_at(place).items.values()
    except (BadItems, OSError) as error:
        reason = str(error) if isinstance(error, BadItems) else (error.strerror or str(error)).lower()
        yield "evaluation.set", str(place), reason, "correct the set, without which no version can be evaluated"
        return
    for gate in spec.gates:
        if why := _too_small(gate, items, spec.gates):
            yield "gates", f"{gate.kind} on {gate.metric}", why, _REMEDY


def _too_small(gate: QualityGate, items: Iterable[Item], gates: Iterable[QualityGate]) -> str:
    """Return why there are too few items for a gate; "" if they may be enough."""
    _, dot, domain = gate.metric.partition(".")
    own = [item for item in items if not dot or item.domain == domain]
    of_domain = f" of domain {domain}" if dot else ""
    if not own:
        return f"the test set has no item{of_domain}"
    least = smallest_set(gate, sum(1 for one in gates if one.kind == "no_harm"))
    threshold = gate.kind == "threshold"
    count = len(own) if threshold else len({item.cluster for item in own})
    if count >= least:
        return ""
    what = "items" if threshold else "clusters"
    never = "refuse a version" if gate.kind == "no_harm" else "accept one"
    return f"the test set has {count} {what}{of_domain}, and with fewer than {least} it can never {never}"


# The minimum size of a test set.
def smallest_set(gate: QualityGate, guards: int = 1) -> int:
    """Return the minimum size of a test set for a gate.

    For a threshold by bound: the items that it needs to pass at all. For a comparison: the clusters (independent
    items) that it needs to pass at all. For one of ``guards`` guards: the clusters that it needs to fail at all.
    """
    if gate.kind == "threshold":
        if gate.by == "point":
            return 1
        if gate.minimum is not None:
            return surely_needed(gate.minimum)
        return surely_needed(1 - (gate.maximum or 0.0))
    return clusters_needed(ALPHA / guards if gate.kind == "no_harm" else ALPHA)
