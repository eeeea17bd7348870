"""The catalogue: model definitions in TOML become job specs, or errors that name file, key, value and remedy.

A catalogue has ``[defaults]`` for all jobs, ``[domains]`` with their keywords, and any number of ``[[jobs]]`` and of
``[[ab]]`` (see :class:`AbTest`)::

    [[jobs]]
    name = "ufm"
    role = "manager"
    command = ["{python}", "{payload}/trainers/charlm.py"]
    target_step = 6000
    steps_per_hour = 3000
    priority = 4
    mixture = { domain = "ufm", extra_share = 0.3 }
    after = { job = "uff-main", fraction = 0.2 }

A job file for ``schedctl queue add`` is one table of ``[[jobs]]`` without its heading.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from jobs.definition import Definition, merged
from jobs.duration import DAYS
from jobs.nouns.keys import NAME, SEED, STEPS, TEXT, Key, Rule, Wrong, matching
from jobs.nouns.values import zone
from jobs.problem import Problem, ProblemsFound, as_toml, did_you_mean
from jobs.spec import HELD_OUT, Gate, JobSpec, Share
from jobs.toml_file import placed, read_toml

_TABLES = ("ab", "defaults", "domains", "jobs")
_OF_STEPS = ("target_step", "steps_per_hour")  # defaults that do not apply to single-session jobs


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The jobs of models files in order, the keywords of each domain, and the A/B tests."""

    jobs: tuple[JobSpec, ...] = ()
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ab: "tuple[AbTest, ...]" = ()

    @property
    def test_sets(self) -> tuple[str, ...]:
        """The sources of the test sets of all jobs, sorted; without test sets that are made from a corpus."""
        sources = {spec.evaluation.test_set.source for spec in self.jobs if spec.evaluation is not None}
        return tuple(sorted(sources - {HELD_OUT}))


def read_catalogue(paths: Iterable[Path]) -> Catalogue:
    """Return the catalogue of all models files, whose names must be unique. Raises ProblemsFound with all problems."""
    problems: list[Problem] = []
    jobs: list[tuple[str, JobSpec]] = []
    keywords: dict[str, tuple[str, ...]] = {}
    tests: dict[str, AbTest] = {}
    for path in paths:
        try:
            document = read_toml(path)
        except ProblemsFound as error:
            problems.extend(error.problems)
            continue
        file = str(path)
        jobs.extend((file, spec) for spec in _jobs(document, file, problems))
        keywords.update(_domains(document, file, problems))
        tests.update((test.name, test) for test in read_ab_tests(document, file, problems))
    problems.extend(_duplicates(jobs))
    problems.extend(_gates(jobs))
    problems.extend(_shares(jobs))
    problems.extend(_unknown_domains(jobs, keywords))
    if problems:
        raise ProblemsFound([placed(problem) for problem in problems])
    return Catalogue(tuple(spec for _, spec in jobs), keywords, tuple(tests.values()))


def job_from_toml(path: Path) -> JobSpec:
    """Return the job of a job file. Raises ProblemsFound. The queue checks that the job it waits for exists."""
    return job_from_table(read_toml(path), str(path))


def job_from_table(table: Mapping[str, Any], file: str) -> JobSpec:
    """Return the job of a TOML table; errors name ``file``. Raises ProblemsFound."""
    if "jobs" in table:
        remedy = "name it under models in the settings instead"
        raise ProblemsFound([Problem(file, "jobs", "", "this is a catalogue, not one job", remedy)])
    problems: list[Problem] = []
    spec = Definition(file, "", problems).advised_job(table)
    if spec is None:
        raise ProblemsFound([placed(problem) for problem in problems])
    return spec


def _jobs(document: Mapping[str, Any], file: str, problems: list[Problem]) -> list[JobSpec]:
    problems.extend(
        Problem(file, key, "", "there is no such table", did_you_mean(key, _TABLES))
        for key in document
        if key not in _TABLES
    )
    defaults, entries = document.get("defaults", {}), document.get("jobs", [])
    if not isinstance(defaults, dict):
        problems.append(Problem(file, "defaults", as_toml(defaults), "this must be a table", "write [defaults]"))
        defaults = {}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append(Problem(file, "jobs", as_toml(entries), "this must be a list of tables", "write [[jobs]]"))
        entries = []
    result = []
    for index, entry in enumerate(entries):
        name = entry.get("name")
        label = f"jobs.{name if isinstance(name, str) and name else index}"
        own = {key: value for key, value in defaults.items() if "whole" not in entry or key not in _OF_STEPS}
        spec = Definition(file, label, problems).advised_job(merged(own, entry))
        if spec is not None:
            result.append(spec)
    return result


def _domains(document: Mapping[str, Any], file: str, problems: list[Problem]) -> dict[str, tuple[str, ...]]:
    table = document.get("domains", {})
    if not isinstance(table, dict):
        problems.append(Problem(file, "domains", as_toml(table), "this must be a table", "write [domains]"))
        return {}
    result: dict[str, tuple[str, ...]] = {}
    for name, words in table.items():
        if isinstance(words, list) and words and all(isinstance(word, str) and word.strip() for word in words):
            result[name] = tuple(words)
        else:
            remedy = 'write them like ["gpu", "memory"]'
            problems.append(Problem(file, f"domains.{name}", as_toml(words), "this must be a list of words", remedy))
    return result


def _duplicates(jobs: Iterable[tuple[str, JobSpec]]) -> list[Problem]:
    first_paths: dict[str, str] = {}
    problems = []
    for file, spec in jobs:
        if spec.name in first_paths:
            why = f"a job of this name is already defined in {first_paths[spec.name]}"
            problems.append(Problem(file, f"jobs.{spec.name}", "", why, "give each its own name"))
        first_paths.setdefault(spec.name, file)
    return problems


def _gates(jobs: Sequence[tuple[str, JobSpec]]) -> list[Problem]:
    gates = {spec.name: spec.gate for _, spec in jobs}
    problems = []
    for file, spec in jobs:
        chain = chain_of(spec.name, gates)
        if chain[-1] not in gates and len(chain) == 2:
            why, remedy = "there is no such job", did_you_mean(chain[1], gates)
        elif chain[1:] and chain[-1] == spec.name:
            why, remedy = f"the gates wait for each other: {' -> '.join(chain)}", "remove one of them"
        else:
            continue
        problems.append(Problem(file, f"jobs.{spec.name}.gate.parent", as_toml(chain[1]), why, remedy))
    return problems


def chain_of(name: str, gates: Mapping[str, Gate | None]) -> list[str]:
    """Return a job and the jobs that it waits for, in order; the last waits for no job, is unknown, or is repeated."""
    chain = [name]
    while (gate := gates.get(chain[-1])) is not None and chain[-1] not in chain[:-1]:
        chain.append(gate.parent)
    return chain


def _shares(jobs: Sequence[tuple[str, JobSpec]]) -> list[Problem]:
    shares = {spec.name: spec.share for _, spec in jobs}
    return [
        Problem(file, f"jobs.{spec.name}.share", as_toml(spec.share.partner), why, remedy)
        for file, spec in jobs
        if spec.share is not None and spec.share.partner != spec.name and (problem := wrong_share(spec.name, shares))
        for why, _, remedy in [problem.partition(". ")]
    ]


def _unknown_domains(jobs: Iterable[tuple[str, JobSpec]], domains: Mapping[str, object]) -> list[Problem]:
    return [
        Problem(
            file,
            f"jobs.{spec.name}.mixture.domain",
            as_toml(spec.mixture.domain),
            "there are no keywords of this domain",
            did_you_mean(spec.mixture.domain, domains) if domains else "add it to [domains]",
        )
        for file, spec in jobs
        if spec.mixture is not None and spec.mixture.domain is not None and spec.mixture.domain not in domains
    ]


def wrong_share(name: str, shares: Mapping[str, Share | None]) -> str:
    """Return why the share of a job among all ``shares`` is impossible, and a remedy; "" if it is possible."""
    share = shares.get(name)
    if share is None:
        return ""
    partner = share.partner
    if partner not in shares:
        return f"there is no job {partner} to share hours with. Add {partner} first"
    other = shares[partner]
    if other is not None:
        root = other.partner if other.partner != name else partner
        return f"{partner} shares its hours with {other.partner} already. Let one of them keep the rest, as {root}"
    total = sum(each.percent for each in shares.values() if each is not None and each.partner == partner)
    if total >= 100:
        return f"those who share with {partner} take {total:g} % together. Leave {partner} something of its hours"
    return ""


# A/B tests of training approaches.
SEEDS_MIN = 3
_SEEDS_MAX, _MODELS_MAX = 50, 50
_OURS = {"name", "seed", "sweep", "target_step", "not_before", "deadline", "evaluation", "gates"}
_ARM = re.compile(r"(.+)-([a-z0-9_]+)-([ab])(\d+)")


def _models(value: Any) -> tuple[str, ...]:
    names = tuple(map(NAME.read, value)) if isinstance(value, list) else ()
    if not 0 < len(names) <= _MODELS_MAX or len(set(names)) < len(names):
        raise Wrong("this must be a list of models, each once", 'write it like models = ["ufm"]')
    return names


def _change(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise Wrong("this must be a table of what is changed", 'write it like { environment = { LR = "1e-4" } }')
    if own := sorted(_OURS & set(value)):
        raise Wrong(f"{own[0]} is the test's own or judges both arms", "change how it is trained")
    return value


def _seeds(value: Any) -> tuple[int, ...]:
    seeds = tuple(map(SEED.read, value)) if isinstance(value, list) else ()
    if not SEEDS_MIN <= len(seeds) <= _SEEDS_MAX or len(set(seeds)) < len(seeds):
        raise Wrong(f"this must be a list of {SEEDS_MIN} seeds or more, each once", "write it like [1, 2, 3, 4, 5]")
    return seeds


def _day(value: Any) -> int:
    if value not in DAYS:
        raise Wrong("this must be a day of the week", did_you_mean(str(value), DAYS))
    return DAYS.index(value)


@dataclass(frozen=True, slots=True)
class AbTest:
    """An A/B test: whether ``models`` are better if trained with ``change``, keys of their definitions.

    Each model is trained unchanged (arm a) and changed (arm b), with each of ``seeds``, to ``target_step``, on a
    ``weekday`` (Monday is 0) in ``zone``.
    """

    name: Annotated[
        str,  # no dash: it stands between model and arm in the names of jobs
        matching(
            "[a-z0-9][a-z0-9_]{0,11}", "a name has 1 to 12 characters of a-z, 0-9 and _", 'write it like name = "lr"'
        ),
    ]
    models: Annotated[tuple[str, ...], Rule(_models)]
    change: Annotated[Mapping[str, Any], Rule(_change)]
    seeds: Annotated[tuple[int, ...], Rule(_seeds)]
    target_step: Annotated[int, STEPS]
    weekday: Annotated[int, Rule(_day), Key("on")]
    zone: Annotated[str, Rule(lambda value: zone(TEXT.read(value)))] = "UTC"

    def job(self, model: str, arm: str, seed: int) -> str:
        """Return the job name of one run: ``ufm-lr-b2``."""
        return f"{model}-{self.name}-{arm}{seed}"

    @property
    def sweep(self) -> str:
        """The name of the sweep to which all jobs of the test belong."""
        return f"ab-{self.name}"


def arm_of(job: str, test: str) -> tuple[str, str, int] | None:
    """Return the model, arm and seed of a job; None if the job is not of this test."""
    match = _ARM.fullmatch(job)
    return (match[1], match[3], int(match[4])) if match and match[2] == test else None


def read_ab_tests(document: Mapping[str, Any], file: str, problems: list[Problem]) -> list[AbTest]:
    """Return the A/B tests of a models file; errors are added to ``problems``."""
    entries = document.get("ab", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append(Problem(file, "ab", as_toml(entries), "this must be a list of tables", "write [[ab]]"))
        return []
    result: list[AbTest] = []
    for index, entry in enumerate(entries):
        here = Definition(file, f"ab.{entry.get('name', index)}", problems)
        test = here.record(AbTest, dict(sorted(entry.items())))
        if test is not None:
            if any(other.name == test.name for other in result):
                problems.append(
                    Problem(file, here.label, "", "a test of this name stands above", "give each its own name")
                )
            result.append(test)
    return result
