"""A/B tests of training approaches: which models are trained twice, with what changed, and on which day.

Read from ``[[ab]]`` of a catalogue::

    [[ab]]
    name = "lr"
    models = ["ufm", "ucm"]
    change = { environment = { LR = "1e-4" } }
    seeds = [1, 2, 3]
    target_step = 1000
    on = "friday"
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from jobs.cycle import DAYS
from jobs.definition import Definition
from jobs.nouns.keys import Key, Rule, Wrong
from jobs.nouns.values import zone
from jobs.problem import Problem, as_toml, did_you_mean
from jobs.readers import NAME, SEED, STEPS, TEXT, matching

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
    """One question: whether ``models`` are better when they are trained with ``change``, keys of their definitions.

    Each is trained as it is (arm a) and changed (arm b), with each of ``seeds``, to ``target_step``, on a ``weekday``
    (Monday is 0) in ``zone``.
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
        """Return the name of one run's job: ``ufm-lr-b2``."""
        return f"{model}-{self.name}-{arm}{seed}"

    @property
    def sweep(self) -> str:
        """What its jobs have in common."""
        return f"ab-{self.name}"


def arm_of(job: str, test: str) -> tuple[str, str, int] | None:
    """Return model, arm and seed of a run's job; None where it is none of the test's."""
    match = _ARM.fullmatch(job)
    return (match[1], match[3], int(match[4])) if match and match[2] == test else None


def read_ab_tests(document: Mapping[str, Any], file: str, problems: list[Problem]) -> list[AbTest]:
    """Return the tests of a parsed catalogue; what is wrong with others goes into ``problems``."""
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
