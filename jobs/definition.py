"""Convert the table of a job to a JobSpec and back. Every invalid key is reported, not only the first."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any

from jobs import spec as specs
from jobs.duration import show_duration
from jobs.nouns.keys import TableKey, Wrong, is_remote, keys_of, paths
from jobs.problem import Problem, as_toml, did_you_mean

_IN_FULL = (specs.JobSpec, specs.Needs, specs.Evaluation, specs.StartFrom)  # their default values are written too


def table_of(spec: specs.JobSpec) -> dict[str, Any]:
    """Return the table of a job, without unset keys; :func:`job_from_table` makes ``spec`` of it again."""
    table = written_table(spec)
    if spec.gate is not None and spec.gate.step is None:
        table["after"]["fraction"] = spec.gate.fraction
    if spec.mixture is not None and spec.mixture.domain is not None:
        table["mixture"]["extra_share"] = spec.mixture.extra_share
    if spec.evaluation is not None and not spec.evaluation.votes:
        del table["evaluation"]["usual"]
    if spec.start_from is not None:
        table.pop("after", None)
    if spec.whole:
        del table["target_step"], table["steps_per_hour"]
        table["whole"] = whole_of(spec)
    return table


def whole_of(spec: specs.JobSpec) -> str:
    """Return the maximum time of a single-session job on the reference device: ``3h``."""
    return show_duration(round(3_600 / spec.steps_per_hour))


def written_table(record: Any) -> dict[str, Any]:
    """Return the table that people would write for a dataclass whose fields have rules."""
    kind: Any = type(record)
    empty: tuple[Any, ...] = ("", [], {}) if isinstance(record, specs.JobSpec) else ("", {})
    table = {}
    for one in keys_of(kind):
        value = one.of(record)
        if value == one.default and not isinstance(record, _IN_FULL):
            continue
        if one.rule is not None:
            value = one.rule.show(value)
        elif value is not None:
            value = list(map(written_table, value)) if one.many else written_table(value)
        if value is not None and (one.default is None or value not in empty):
            table[one.key] = value
    return table


def toml_of(table: Mapping[str, Any]) -> str:
    """Return the table of a job as TOML."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _value(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            # A basic string of TOML is a string of JSON, except for the control character that JSON does not escape.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return f"{{ {', '.join(f'{_key(key)} = {_value(inner)}' for key, inner in value.items())} }}"
        case _:
            return repr(value)


TABLES_MAX = 50  # entries of a list of tables, such as [[gates]]
_OF_STEPS = {"target_step", "steps_per_hour"}  # keys that single-session jobs must not have
_TRAINER = "trainers/finetune.py"  # the trainer whose command line the adviser can read
OLD_NAMES = {one.old: one.key for one in keys_of(specs.JobSpec) if one.old}
"""Keys of a job by their old names, which still work."""

KEYS = (*(one.key for one in keys_of(specs.JobSpec)), *OLD_NAMES)
_ANOTHER = "name another; schedctl queue restart starts from scratch"
_INPUT = re.compile(r"\{input:(\w*)\}", re.ASCII)
"""A placeholder in a command for the folder of an input."""


def merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table ``before``, updated by ``after``; the old and the new name of a key replace each other."""
    replaced = {OLD_NAMES.get(key, key) for key in after}
    return {**{key: value for key, value in before.items() if OLD_NAMES.get(key, key) not in replaced}, **after}


@dataclass(frozen=True, slots=True)
class Definition:
    """Reads the table of one job. ``label`` is put before keys in errors, ``problems`` collects the errors."""

    file: str
    label: str
    problems: list[Problem]

    def job(self, table: Mapping[str, Any]) -> specs.JobSpec | None:
        """Return the spec; None if there were errors."""
        before = len(self.problems)
        table = {"role": "job", **table}
        if whole := "whole" in table:
            for key in sorted(_OF_STEPS & set(table)):
                self._wrong(key, table[key], "a job that is run whole has one step, which is all of it", "leave it out")
            table |= dict.fromkeys(_OF_STEPS, 1)
        values = self._values(specs.JobSpec, table)
        if whole:  # its only step takes the whole time, so that it never gets a shorter session
            values |= {"steps_per_hour": 3_600 / (values["whole"] or 3_600), "whole": True}
        self._check_together(values, table)
        self._check_commands(values)
        self._check_halving(values)
        if values["start_from"] is not None:
            values["gate"] = values["start_from"].gate
        return specs.JobSpec(**values) if len(self.problems) == before else None

    def advised_job(self, table: Mapping[str, Any]) -> specs.JobSpec | None:
        """Return the spec with the adviser's values for keys that are not set; None if there were errors."""
        before = len(self.problems)
        spec = self.job(self._advised(table))
        return spec if len(self.problems) == before else None

    def record(self, kind: Any, table: Any, path: str = "") -> Any:
        """Return the dataclass ``kind`` that a table describes; None if there were errors."""
        if not isinstance(table, dict):
            keys = ", ".join(one.key for one in keys_of(kind))
            self._wrong(path, table, "this must be a table", f"known keys are {keys}")
            return None
        before = len(self.problems)
        record = kind(**self._values(kind, table, f"{path}." if path else ""))
        for key, why, remedy in _faults(record, table) if len(self.problems) == before else ():
            self._wrong(f"{path}.{key}".rstrip("."), None, why, remedy)
        return record if len(self.problems) == before else None

    def _advised(self, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a table, with the adviser's values for missing keys if the job uses our trainer."""
        command, inputs = table.get("command"), table.get("inputs", {})
        left_out = {"needs", "steps_per_hour", "checkpoint"} - set(table) - (_OF_STEPS if "whole" in table else set())
        if not (left_out and isinstance(command, list) and isinstance(inputs, dict)):
            return table
        if not any(str(word).endswith(_TRAINER) for word in command):
            return table
        from jobs.advice.job import estimate
        from jobs.problem import NotFound

        try:
            advice = estimate([str(word) for word in command], {name: str(source) for name, source in inputs.items()})
        except NotFound as error:
            if "steps_per_hour" not in left_out:
                return table
            self._wrong("steps_per_hour", None, f"is missing, and {error.what}: {error.why}", "add it")
            return {"steps_per_hour": 1, **table}
        if advice is None:
            return table
        values: dict[str, Any] = {"checkpoint": advice.checkpoint_seconds}
        if "steps_per_hour" in left_out:
            values["steps_per_hour"] = advice.steps_per_hour
        if "needs" in left_out:
            values |= {"needs": written_table(advice.needs), "device_speedup": list(advice.device_speedup)}
        return {**values, **table}

    def _check_together(self, values: Mapping[str, Any], table: Mapping[str, Any]) -> None:
        deadline, not_before, gate = values["deadline"], values["not_before"], values["gate"]
        if isinstance(deadline, int) and isinstance(not_before, int) and deadline <= not_before:
            self._wrong("deadline", table["deadline"], "is not after not_before", "correct one of them")
        if values["image_python"] and not values["image"]:
            why, remedy = "it is the Python of the job's own image", "name that too; a pool's is its own option"
            self._wrong("image_python", table["image_python"], why, remedy)
        if twice := sorted(set(values["secrets"]) & set(values["environment"])):
            self._wrong("secrets", table["secrets"], f"{twice[0]} is in environment as well", "give it in one of them")
        alone = [key for key in ("evaluation", "gates") if table.get(key, "off") not in ("off", {}, [])]
        if len(alone) == 1:
            key, other = alone[0], "gates" if "evaluation" in alone else "evaluation"
            self._wrong(key, None, f"without {other} nothing comes of it", f"add {other}: docs/models.md shows both")
        if values["evaluation"] and values["evaluation"].test_set.source == specs.HELD_OUT and not values["mixture"]:
            why, remedy = "a job without a mixture has no corpus", "add mixture = {}, or name a file of items"
            self._wrong("evaluation.set", specs.HELD_OUT, why, remedy)
        stop = values["stop"]
        if stop is not None and values["whole"]:
            self._wrong("stop", table["stop"], "a job that is run whole saves no checkpoints", "remove it")
        for place, quality in enumerate(values["gates"]):
            if quality in values["gates"][:place]:
                self._wrong("gates", None, f"the gate {quality.kind} on {quality.metric} stands twice", "remove one")
        start, share = values["start_from"], values["share"]
        if start is not None and gate is not None:
            key = "after" if "after" in table else "gate"
            self._wrong(key, table[key], "start_from waits for its job by itself", f"remove {key}")
        for key, other, why, remedy in (
            ("after.job", gate and gate.parent, "a job cannot wait for itself", "name another job"),
            ("share.with", share and share.partner, "a job cannot share hours with itself", "name another job"),
            ("start_from.job", start and start.parent, "a job cannot start from itself", _ANOTHER),
        ):
            if other and other == values["name"]:
                self._wrong(key, other, why, remedy)

    def _check_halving(self, values: Mapping[str, Any]) -> None:
        halving, target = values["halving"], values["target_step"]
        if halving is None:
            return
        if values["budget_seconds"] is not None:
            self._wrong("budget", None, "the sweep has a budget, which is halving.budget", "remove this one")
        if not values["sweep"] or values["whole"] or values["stop"] or values["evaluation"]:
            why = "a candidate is a job of a sweep that saves checkpoints, without stop and evaluation"
            self._wrong("halving", None, why, "add sweep, or remove what contradicts it")
        elif target not in halving.rungs:
            rungs = ", ".join(map(str, halving.rungs))
            self._wrong("target_step", target, "it is no rung of halving", f"write one of {rungs}")

    def _check_commands(self, values: Mapping[str, Any]) -> None:
        """Report inputs that the job's commands use and the job lacks, and a TPU for our trainer."""
        needs = values["needs"]
        if needs and needs.accelerator != "gpu" and any(word.endswith(_TRAINER) for word in values["command"] or ()):
            why, remedy = "finetune needs torch with CUDA, and does not run on a TPU", "leave it out"
            self._wrong("needs.accelerator", needs.accelerator, why, remedy)
        names = [each.name for each in values["inputs"]]
        evaluation = values["evaluation"]
        for key, words, inputs in (
            ("command", values["command"] or (), [*names, "model"] if values["whole"] else names),
            ("evaluation.command", evaluation.command if evaluation else (), [*names, "model", "set"]),
        ):
            for name in (name for word in words for name in _INPUT.findall(word) if name not in inputs):
                remedy = did_you_mean(name, inputs) if inputs else f'add inputs = {{ {name} = "/its/folder" }}'
                self._wrong(key, f"{{input:{name}}}", f"the job has no input {name!r}", remedy)

    def _values(self, kind: type, table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Return the values of all fields of a dataclass: from a table, else their defaults."""
        keys = keys_of(kind)
        accepted = [name for one in keys for name in (one.key, one.old) if name]
        for key in table:
            if key not in accepted:
                self._wrong(f"{prefix}{key}", None, "there is no such key", did_you_mean(key, accepted))
        values: dict[str, Any] = {}
        for one in keys:
            value = self._value(one, table, prefix)
            values |= dict(zip(one.names, value if one.names[1:] else (value,), strict=True))
        return values

    def _value(self, one: TableKey, table: Mapping[str, Any], prefix: str) -> Any:
        key = one.old if one.old in table and one.key not in table else one.key
        default = None if one.default is MISSING else one.default
        if key not in table:
            if one.default is MISSING:
                self._wrong(f"{prefix}{key}", None, "is missing", "add it")
            return default
        value = table[key]
        try:
            if one.inner is not None and (one.rule is None or isinstance(value, dict)):
                return self._inner(one, value, f"{prefix}{key}")
            assert one.rule is not None  # noqa: S101 - a key has a rule, or is a table
            return self._with_absolute_paths(one.rule.read(value)) if one.rule.place else one.rule.read(value)
        except ValueError as error:
            self._wrong(f"{prefix}{key}", value, getattr(error, "why", str(error)), getattr(error, "remedy", ""))
            return default

    def _inner(self, one: TableKey, value: Any, path: str) -> Any:
        """Return the record of a table, or a tuple for a list; "off", and {} if keys are required, mean the default."""
        if one.many:
            if not isinstance(value, list) or len(value) > TABLES_MAX:
                why = f"this must be a list of at most {TABLES_MAX} tables"
                raise Wrong(why, f"write [[{one.key}]] and its keys below it")
            records = [self.record(one.inner, inner, f"{path}.{n}") for n, inner in enumerate(value, 1)]
            return tuple(record for record in records if record is not None)
        if value == "off" and one.default is None:
            return None
        needed = any(each.default is MISSING for each in keys_of(one.inner))
        record = self.record(one.inner, value, path) if value or not needed or not isinstance(value, dict) else None
        return one.default if record is None else record

    def _with_absolute_paths(self, value: Any) -> Any:
        """Return a value with absolute paths; paths in a job file are relative to the file."""
        match value:
            case tuple():
                return tuple(map(self._with_absolute_paths, value))
            case specs.Input(source=source) if is_remote(source):
                return value
            case specs.Code() | specs.Input() | specs.Requirements():
                return replace(value, source=self._with_absolute_paths(value.source))
        return value and str(Path(self.file).parent.joinpath(Path(value).expanduser()).resolve())

    def _wrong(self, key: str, value: Any, why: str, remedy: str) -> None:
        full = f"{self.label}.{key}" if self.label else key
        # A secret that was written into ``secrets`` by mistake must not get into a log.
        text = "" if key == "secrets" else as_toml(value)
        self.problems.append(Problem(self.file, full, text, why, remedy))


def _faults(record: Any, table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of an inner table that contradict each other, with reason and remedy."""
    match record:
        case specs.Gate() if {"fraction", "step"} <= set(table):
            yield "", "it has both fraction and step", "keep one of them"
        case specs.Gate() if not {"fraction", "step"} & set(table):
            yield "fraction", "is missing", "add it"
        case specs.Mixture() if len(lacking := {"domain", "extra_share"} - set(table)) == 1:
            yield lacking.pop(), "is missing", "add it"
        case specs.StopRule(value=None) if record.forecast or not record.patience:
            never = "", "it never stops the job without patience or value", 'add patience = "3 checkpoints"'
            missing = "value", "is missing: the forecast is whether it will be reached", "add it"
            yield missing if record.forecast else never
        case specs.QualityGate(kind="threshold", metric=metric):
            if (record.minimum is None) == (record.maximum is None):
                yield "", f"the threshold on {metric} needs a minimum or a maximum", "write one of them"
            elif {"margin", "aim"} & set(table):
                yield "", f"the threshold on {metric} has a margin or an aim", "its minimum or maximum says it all"
            elif record.by == "lower" and (record.minimum == 1 or record.maximum == 0):
                why = f"no number of items shows that {metric} is perfect for certain"
                yield "", why, 'write by = "point": then all items must pass'
        case specs.QualityGate(kind=kind, metric=metric):
            if {"minimum", "maximum", "by"} & set(table):
                why = f"{kind} on {metric} has a minimum, a maximum or by"
                yield "", why, 'these are of kind = "threshold"'
            elif record.margin < 0 or (kind == "not_worse" and not record.margin):
                yield (
                    "",
                    f"{kind} on {metric} needs a margin above 0",
                    "write margin = 0.05 for five points; 0.01 would refuse four of five equal models",
                )


RANGES = {key: one.rule.range for key, one in paths(specs.JobSpec).items() if one.rule and one.rule.range}
"""The range of each number of a job, by key; files may also write durations and instants as text."""


def bounded(spec: specs.JobSpec) -> tuple[specs.JobSpec, tuple[str, ...]]:
    """Return ``spec`` with all numbers moved into their ranges, and a text about each number that was changed."""
    words: list[str] = []
    spec = _bounded(spec, "", words)
    if words and spec.needs.devices_min > spec.needs.devices_max:
        spec = replace(spec, needs=replace(spec.needs, devices_max=spec.needs.devices_min))
    return spec, tuple(words)


def _bounded(record: Any, prefix: str, words: list[str]) -> Any:
    """Return a record with its numbers, and those of its tables, moved into their ranges."""
    kind: Any = type(record)
    changed = {}
    for one in keys_of(kind):
        rule, off = (one.rule.range, one.rule.off) if one.rule else (None, None)
        for name in one.names:
            value: Any = getattr(record, name)
            if value is None or value == off or one.many:
                continue
            values = value if isinstance(value, tuple) else (value,)
            if rule is not None and not all(map(rule.holds, values)):
                key = f"{prefix}{one.key}"
                words += [f"{key} = {as_toml(v, 20)} is not in the range {rule}" for v in values if not rule.holds(v)]
                near = tuple(map(rule.nearest, values))
                changed[name] = near if isinstance(value, tuple) else near[0]
            elif one.inner is not None and (inner := _bounded(value, f"{prefix}{one.key}.", words)) is not value:
                changed[name] = inner
    return replace(record, **changed) if changed else record
