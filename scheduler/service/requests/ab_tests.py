"""A/B tests: the jobs of both arms, and the comparison of their evaluations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection

from jobs.catalogue import AbTest, arm_of, job_from_table
from jobs.definition import table_of
from jobs.nouns.window import DAY, Calendar
from jobs.problem import Refusal
from jobs.scores import Score, Scores
from jobs.spec import JobSpec, QualityGate
from scheduler.judge.gates import Finding, comparison_finding
from scheduler.service.outside.ports import Ports
from scheduler.service.versions.model_sync import NoScores, scores_of
from scheduler.store import evaluations, jobs, versions

ARMS = ("a", "b")
Pair = tuple["Scores", "Scores"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of one arm: its job, the job's state, and the name and state of its version; "" without a version."""

    model: str
    arm: str
    seed: int
    job: str
    state: str
    version: str = ""
    judged: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a test: all arms, the number of complete runs, findings by metric, and what is missing."""

    arms: tuple[Arm, ...]
    runs: int
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]


def specs_of(tx: Connection, test: AbTest, now: int) -> list[JobSpec]:
    """Return the jobs of both arms for the next days of the test.

    Raises UnknownJob, Refusal for a model that is not evaluated, ProblemsFound for invalid changes.
    """
    week = Calendar("week", test.zone, test.weekday)
    begin = week.window_at(now + 7 * DAY - 1).start
    begin = begin if begin >= now else week.window_at(now).end
    end = Calendar("day", test.zone).window_at(begin).end
    arms = []
    for model in test.models:
        spec = jobs.get(tx, model).spec
        if spec.evaluation is None:
            raise Refusal(
                f"the definition of {model} does not say how it is evaluated, so that nothing tells its arms apart",
                remedy=f"Add evaluation and gates to it: schedctl queue edit {model}; docs/models.md shows them",
            )
        table = table_of(spec)
        judged = {key: value for key, value in table["evaluation"].items() if key not in {"votes", "usual"}}
        for seed in test.seeds:
            for arm in ARMS:
                own = {
                    "name": test.job(model, arm, seed),
                    "seed": seed,
                    "sweep": test.sweep,
                    "target_step": test.target_step,
                    "not_before": begin,
                    "deadline": end,
                    "evaluation": {**judged, "promote": "person", "at": [1.0]},
                }
                changed = _merged(table, test.change) if arm == "b" else table
                arms.append(job_from_table({**changed, **own}, f"ab {test.name}"))
    return arms


def result(ports: Ports, test: AbTest) -> Result:
    """Return the result of the scored runs of a test. Raises StoreError."""
    with ports.database.read() as tx:
        arms = [_arm(tx, record.spec.name, arm) for record, arm in _records(tx, test)]
        gates = [gate for model in test.models if (record := jobs.find(tx, model)) for gate in record.spec.gates]
    scored: dict[str, dict[str, Scores]] = {}
    missing = []
    for one in arms:
        try:
            scored.setdefault(f"{one.model}, seed {one.seed}", {})[one.arm] = _scores(ports, one)
        except NoScores as error:
            missing.append(f"{one.job}: {error}")
    pairs = {}
    for run, both in sorted(scored.items()):
        first, second = both.get("a"), both.get("b")
        if first is None or second is None:
            continue
        if (first.test_set, first.scorer) == (second.test_set, second.scorer):
            pairs[run] = (first, second)
        else:
            missing.append(f"{run}: its arms were scored by other scorers or on other sets, and cannot be compared")
    aims = {gate.metric: "low" if gate.maximum is not None else gate.aim for gate in gates}
    return Result(tuple(arms), len(pairs), tuple(compare_arms(pairs, aims)), tuple(missing))


def _records(tx: Connection, test: AbTest) -> list[tuple[Any, tuple[str, str, int]]]:
    return [
        (record, arm)
        for record in jobs.everything(tx)
        if record.spec.sweep == test.sweep and (arm := arm_of(record.spec.name, test.name)) is not None
    ]


def _arm(tx: Connection, job: str, parts: tuple[str, str, int]) -> Arm:
    state = type(jobs.get(tx, job).state).__name__.lower()
    trained = versions.everything(tx, job)
    if not trained:
        return Arm(*parts, job, state)
    return Arm(*parts, job, state, trained[-1].name, trained[-1].state)


def _scores(ports: Ports, arm: Arm) -> Scores:
    """Return the scores of the newest version of a run. Raises NoScores if it has none."""
    with ports.database.read() as tx:
        trained = versions.everything(tx, arm.job)
        tried = evaluations.of_version(tx, trained[-1]) if trained else []
    if not tried:
        raise NoScores(f"it is {arm.state} and not evaluated yet")
    if tried[-1].state != "scored":
        raise NoScores(tried[-1].error or f"{tried[-1].job} scores it")
    return scores_of(ports, tried[-1], trained[-1])


def _merged(table: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table updated by another one, recursively; other values are replaced."""
    merged = dict(table)
    for key, value in change.items():
        before = merged.get(key)
        merged[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


# Comparison of two ways of training, with runs as clusters.
#
# A run is one model trained both ways with one seed. All items of a run depend on its seed, so they are one piece of
# evidence: treating items as independent would call half of all equal approaches different.
def compare_arms(pairs: Mapping[str, Pair], aims: Mapping[str, Literal["high", "low"]]) -> list[Finding]:
    """Return a finding for each metric: whether arm b is better than arm a. ``pairs`` has both scores of each run.

    A metric is left out if some run lacks it for the same items. ``aims`` is the good direction by metric, high by
    default.
    """
    if not pairs:
        return []
    metrics = set.intersection(*(set(one.by_metric) for pair in pairs.values() for one in pair))
    comparisons = []
    for metric in sorted(metrics):
        first, second = ({run: pair[arm].by_metric[metric] for run, pair in pairs.items()} for arm in (0, 1))
        if all(first[run].keys() == second[run].keys() for run in pairs):
            gate = QualityGate(metric, "better", aim=aims.get(metric, "high"))
            comparisons.append(comparison_finding(gate, _together(second), _together(first)))
    return comparisons


def _together(runs: Mapping[str, Mapping[str, Score]]) -> dict[str, Score]:
    """Return the scores of all runs as items of one set, with each run as a cluster."""
    return {
        f"{run}/{item}": replace(score, item=f"{run}/{item}", cluster=run)
        for run, scores in runs.items()
        for item, score in scores.items()
    }
