"""One job's table becomes a JobSpec; every wrong key is noted as a problem, not only the first."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from jobs import readers
from jobs.cycle import parse_cycle
from jobs.instant import parse_instant
from jobs.problem import Problem, as_toml, did_you_mean
from jobs.readers import Wrong
from jobs.spec import (
    GATE_KINDS,
    HELD_OUT,
    Code,
    Evaluation,
    Gate,
    Input,
    JobSpec,
    Mixture,
    Needs,
    QualityGate,
    Requirements,
    Share,
    Stall,
    StartFrom,
    StopRule,
)

T = TypeVar("T")

# Quality gates: what a version must show to be accepted, as ``[[gates]]`` of a job say it. docs/gates.md explains.
# Not to be mixed up with ``gate``, which makes a job wait for its parent.
GATES_MAX = 50
_METRIC = re.compile(r"[a-z0-9][a-z0-9_@-]{0,59}(\.[a-z0-9][a-z0-9_-]{0,39})?")
_GATE_KEYS = ("metric", "kind", "minimum", "maximum", "by", "margin", "aim")
_MARGIN_MAX = 1e9


def read_gates(value: Any) -> tuple[QualityGate, ...]:
    """Read the ``[[gates]]`` of a job. Raises Wrong for what cannot be judged by, before any hour is spent."""
    if not isinstance(value, list) or len(value) > GATES_MAX:
        raise Wrong(f"this must be a list of at most {GATES_MAX} tables", 'write [[gates]] and metric = "..." below it')
    gates = tuple(_gate(table) for table in value)
    for place, gate in enumerate(gates):
        if gate in gates[:place]:
            raise Wrong(f"the gate {gate.kind} on {gate.metric} stands twice", "remove one")
    return gates


def _gate(table: Any) -> QualityGate:
    if not isinstance(table, dict):
        raise Wrong("a gate is a table", 'write [[gates]] and metric = "..." below it')
    for key in table:
        if key not in _GATE_KEYS:
            raise Wrong(f"there is no {key} of a gate", did_you_mean(str(key), _GATE_KEYS))
    metric = table.get("metric")
    if not isinstance(metric, str) or not _METRIC.fullmatch(metric):
        raise Wrong("a gate names its metric", 'write metric = "component_atomicity", or "loss.python" for one domain')
    kind = _one_of(table.get("kind"), GATE_KINDS, f"the kind of the gate on {metric}")
    gate = QualityGate(
        metric,
        kind,
        minimum=_gate_number(table, "minimum"),
        maximum=_gate_number(table, "maximum"),
        by=_one_of(table.get("by", "point"), ("point", "lower"), f"by of the gate on {metric}"),
        margin=_gate_number(table, "margin") or 0.0,
        aim=_one_of(table.get("aim", "high"), ("high", "low"), f"aim of the gate on {metric}"),
    )
    _check_gate(gate, table)
    return gate


def _check_gate(gate: QualityGate, table: dict[str, Any]) -> None:
    ends = (gate.minimum, gate.maximum)
    if gate.kind == "threshold":
        if (gate.minimum is None) == (gate.maximum is None):
            raise Wrong(f"the threshold on {gate.metric} needs a minimum or a maximum", "write one of them")
        if "margin" in table or "aim" in table:
            raise Wrong(f"the threshold on {gate.metric} has a margin or an aim", "its minimum or maximum says it all")
        if gate.by == "lower" and (gate.minimum == 1 or gate.maximum == 0):
            raise Wrong(
                f"no number of items shows that {gate.metric} is perfect for certain",
                'write by = "point": then all items must pass',
            )
    elif any(end is not None for end in ends) or "by" in table:
        raise Wrong(f"{gate.kind} on {gate.metric} has a minimum, a maximum or by", 'these are of kind = "threshold"')
    if gate.margin < 0 or (gate.kind == "not_worse" and not gate.margin):
        raise Wrong(
            f"{gate.kind} on {gate.metric} needs a margin above 0",
            "write margin = 0.05 for five points; 0.01 would refuse four of five equal models",
        )


def _gate_number(table: dict[str, Any], key: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MARGIN_MAX:
        raise Wrong(f"{key} of a gate must be a number", "write it without quotation marks, like 0.95")
    return float(value) if math.isfinite(value) else None


def _one_of(value: Any, allowed: tuple[Any, ...], what: str) -> Any:
    if value not in allowed:
        raise Wrong(f"{what} is not known", f"use {', '.join(allowed)}")
    return value


_NOTHING = object()
_TRAINER = "trainers/finetune.py"  # whose command line the adviser reads
Keys = Mapping[str, Callable[[Any], Any]]
"""The keys of a table, each with its reader; what is left out is as its field is by default, and must be said if that
has none."""

_PLAIN: Keys = {
    "name": readers.name,
    "role": readers.role,
    "command": readers.words,
    "target_step": readers.number("target_step"),
    "steps_per_hour": readers.number("steps_per_hour"),
    "priority": readers.number("weight"),
    "pools": readers.strings,
    "seed": readers.number("seed"),
    "setup": readers.duration("setup"),
    "checkpoint": readers.duration("checkpoint"),
    "device_speedup": readers.speedup,
    "environment": readers.environment,
    "secrets": readers.secrets,
    "not_before": parse_instant,
    "deadline": parse_instant,
    "image": readers.image,
    "image_python": readers.python,
    "sweep": readers.name,
    "expects": parse_cycle,
    "gates": read_gates,
}
_INNER = ("after", "code", "evaluation", "inputs", "mixture", "needs", "requirements", "share", "stall", "start_from")
OLD_NAMES = {"weight": "priority", "gate": "after"}
"""Keys of a job by their old names, which still work."""

KEYS = (*_PLAIN, *_INNER, "stop", "whole", *OLD_NAMES)
_NEEDS: Keys = {"vram_gib": readers.number("needs.vram_gib"), "dtype": readers.dtype}
_AFTER: Keys = {"job": readers.text, "fraction": readers.number("after.fraction"), "step": readers.number("after.step")}
_START: Keys = {"job": readers.text, "at": readers.start_point}
_SHARE: Keys = {"with": readers.name, "percent": readers.number("share.percent")}
_MIXTURE: Keys = {"corpus": readers.corpus_version, "renew": readers.renew}
_DOMAIN: Keys = {"domain": readers.text, "extra_share": readers.number("mixture.extra_share")}  # both or none
_STALL: Keys = {
    "first_progress": readers.span_or_off,
    "no_progress": readers.span_or_off,
    "checkpoint": readers.span_or_off,
    "loss_nan": readers.count_or_off(1, 1_000_000),
    "same_error": readers.count_or_off(2, 1_000),
}
_STOP: Keys = {
    "metric": readers.text,
    "patience": readers.patience,
    "least": readers.number("stop.least"),
    "value": readers.number("stop.value"),
    "aim": readers.aim,
}
_EVALUATION: Keys = {
    "command": readers.words,
    "longest": readers.whole,
    "within": readers.span_or_off,
    "pools": readers.strings,
    "promote": readers.promote,
    "at": readers.parts,
    "usual": readers.usual,
}
_FIELDS = {
    "job": "parent",
    "with": "partner",
    "on": "weekday",
    "priority": "weight",
    **{key: f"{key}_seconds" for key in ("setup", "checkpoint", "first_progress", "no_progress", "longest", "within")},
}
"""The fields that are not called like their keys."""


_INPUT = re.compile(r"\{input:(\w*)\}", re.ASCII)
"""An input in a word of a command; its folder is filled in where the job runs."""


def merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's table over another one; a key by either of its names replaces the other name."""
    there = {OLD_NAMES.get(key, key) for key in after}
    return {**{key: value for key, value in before.items() if OLD_NAMES.get(key, key) not in there}, **after}


@dataclass(frozen=True, slots=True)
class Definition:
    """A reader of one job's table: ``label`` leads the keys it names, ``problems`` collects what is wrong."""

    file: str
    label: str
    problems: list[Problem]

    def job(self, table: Mapping[str, Any]) -> JobSpec | None:
        """Return the spec, or None when a problem was noted."""
        before = len(self.problems)
        table = {"role": "job", **table}
        self._refuse_unknown(table, KEYS, "")
        table = self._advised(self._whole(table))
        values = self._fields(JobSpec, table, _PLAIN) | {
            "needs": self._needs(table),
            "mixture": self._mixture(table),
            "gate": self._after(table),
            "start_from": self._built(StartFrom, table, "start_from", _START),
            "share": self._built(Share, table, "share", _SHARE),
            "stall": self._built(Stall, table, "stall", _STALL) or Stall(),
            "stop": self._built(StopRule, table, "stop", _STOP),
            "code": self._code(table),
            "inputs": self._inputs(table),
            "requirements": self._requirements(table),
            "whole": "whole" in table,
            "evaluation": self._evaluation(table),
        }
        self._check_together(values, table)
        self._check_inputs(values)
        if values["start_from"] is not None:
            values["gate"] = values["start_from"].gate
        return JobSpec(**values) if len(self.problems) == before else None

    def whole(self, kind: type[T], table: Mapping[str, Any], keys: Keys) -> T | None:
        """Return what a table of some ``keys`` alone defines, or None when a problem was noted."""
        before = len(self.problems)
        self._refuse_unknown(table, keys, "")
        values = self._fields(kind, table, keys)
        return kind(**values) if len(self.problems) == before else None

    def _after(self, table: Mapping[str, Any]) -> Gate | None:
        """Return what the job waits for; an older version called it ``gate``, and the job ``parent``."""
        key = "after" if "after" in table else "gate"
        dependency = table.get(key, {})
        if isinstance(dependency, dict) and "parent" in dependency:
            dependency = {"job" if name == "parent" else name: value for name, value in dependency.items()}
        if isinstance(dependency, dict) and "step" in dependency:
            if "fraction" in dependency:
                self._wrong(key, dependency, "it has both fraction and step", "keep one of them")
            dependency = {"fraction": 0.0, **dependency}
        return self._built(Gate, {key: dependency}, key, _AFTER)

    def _advised(self, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let the adviser say what is left out of a job of our own trainer: needs, speed, gains, what a save takes."""
        command, inputs = table.get("command"), table.get("inputs", {})
        left_out = {"needs", "steps_per_hour", "checkpoint"} - set(table)
        if not (left_out and isinstance(command, list) and isinstance(inputs, dict)):
            return table
        if not any(str(word).endswith(_TRAINER) for word in command):
            return table
        from jobs.advice.job import advised
        from jobs.problem import NotFound

        try:
            advice = advised([str(word) for word in command], {name: str(source) for name, source in inputs.items()})
        except NotFound as error:
            if "steps_per_hour" in left_out:
                self._wrong("steps_per_hour", None, f"is missing, and {error.what}: {error.why}", "add it")
            return {"steps_per_hour": 1, **table}  # the problem was noted, or it is said
        if advice is None:
            return table
        values: dict[str, Any] = {"steps_per_hour": advice.steps_per_hour} if "steps_per_hour" in left_out else {}
        if "checkpoint" in left_out:
            values["checkpoint"] = f"{advice.checkpoint_seconds}s"
        if "needs" in left_out:
            needs = advice.needs
            most = needs.devices_max
            values["needs"] = {
                "devices": [1, most] if most > 1 else 1, "vram_gib": needs.vram_gib, "dtype": needs.dtype
            }  # fmt: skip
            values["device_speedup"] = list(advice.device_speedup)
        return {**values, **table}

    def _check_together(self, values: Mapping[str, Any], table: Mapping[str, Any]) -> None:
        deadline, not_before, gate = values["deadline"], values["not_before"], values["gate"]
        if isinstance(deadline, int) and isinstance(not_before, int) and deadline <= not_before:
            self._wrong("deadline", table["deadline"], "is not after not_before", "correct one of them")
        if gate is not None and gate.parent == values["name"]:
            self._wrong("after.job", gate.parent, "a job cannot wait for itself", "name another job")
        if values["image_python"] and not values["image"]:
            why, remedy = "it is the Python of the job's own image", "name that too; a pool's is its own option"
            self._wrong("image_python", table["image_python"], why, remedy)
        if twice := sorted(set(values["secrets"]) & set(values["environment"])):
            self._wrong("secrets", table["secrets"], f"{twice[0]} is in environment as well", "give it in one of them")
        if bool(values["evaluation"]) != bool(values["gates"]):
            key, other = ("evaluation", "gates") if values["evaluation"] else ("gates", "evaluation")
            self._wrong(key, None, f"without {other} nothing comes of it", f"add {other}: docs/models.md shows both")
        if values["evaluation"] and values["evaluation"].test_set.source == HELD_OUT and not values["mixture"]:
            why, remedy = "a job without a mixture has no corpus", "add mixture = {}, or name a file of items"
            self._wrong("evaluation.set", HELD_OUT, why, remedy)
        stop = values["stop"]
        if stop is not None and not stop.patience and stop.value is None:
            why, remedy = "it never stops the job without patience or value", 'add patience = "3 checkpoints"'
            self._wrong("stop", table["stop"], why, remedy)
        if stop is not None and values["whole"]:
            self._wrong("stop", table["stop"], "a job that is run whole saves no checkpoints", "remove it")
        start = values["start_from"]
        if start is not None and gate is not None:
            key = "after" if "after" in table else "gate"
            self._wrong(key, table[key], "start_from waits for its job by itself", f"remove {key}")
        if start is not None and start.parent == values["name"]:
            why = "a job cannot start from itself"
            self._wrong("start_from.job", start.parent, why, "name another; schedctl queue restart starts from scratch")
        share = values["share"]
        if share is not None and share.partner == values["name"]:
            self._wrong("share.with", share.partner, "a job cannot share hours with itself", "name another job")

    def _check_inputs(self, values: Mapping[str, Any]) -> None:
        """Note the inputs that a command names and that the job does not have."""
        names = [each.name for each in values["inputs"]]
        evaluation = values["evaluation"]
        self._check_words("command", values["command"] or (), [*names, "model"] if values["whole"] else names)
        if evaluation is not None:
            self._check_words("evaluation.command", evaluation.command or (), [*names, "model", "set"])

    def _check_words(self, key: str, words: Sequence[str], inputs: Sequence[str]) -> None:
        for name in (name for word in words for name in _INPUT.findall(word) if name not in inputs):
            remedy = did_you_mean(name, inputs) if inputs else f'add inputs = {{ {name} = "/its/folder" }}'
            self._wrong(key, f"{{input:{name}}}", f"the job has no input {name!r}", remedy)

    def _needs(self, table: Mapping[str, Any]) -> Needs:
        inner = self._table(table, "needs", ("devices", *_NEEDS))
        least, most = self._read(inner, "devices", readers.device_range, (1, 1), "needs.")
        return Needs(devices_min=least, devices_max=most, **self._fields(Needs, inner, _NEEDS, "needs."))

    def _mixture(self, table: Mapping[str, Any]) -> Mixture | None:
        if table.get("mixture", "off") == "off":
            return None
        inner = self._table(table, "mixture", (*_MIXTURE, *_DOMAIN))
        of_domain = _DOMAIN if set(_DOMAIN) & set(inner) else {}
        own = {key: self._read(inner, key, parse, prefix="mixture.") for key, parse in of_domain.items()}
        return Mixture(**self._fields(Mixture, inner, _MIXTURE, "mixture."), **own)

    def _whole(self, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """A whole job has one step, which takes as long as it says: no session that is shorter can hold it."""
        seconds = self._read(table, "whole", readers.whole, None)
        if "whole" not in table:
            return table
        for key in ("target_step", "steps_per_hour"):
            if key in table:
                self._wrong(key, table[key], "a job that is run whole has one step, which is all of it", "leave it out")
        return {**table, "target_step": 1, "steps_per_hour": 3_600 / (seconds or 3_600)}

    def _code(self, table: Mapping[str, Any]) -> Code | None:
        """A path is relative to the file that names it; on the command line, to the current folder."""
        if isinstance(table.get("code"), dict):
            inner = self._table(table, "code", ("repository", "commit"))
            source = self._read(inner, "repository", readers.text, prefix="code.")
            revision = self._read(inner, "commit", readers.text, prefix="code.")
        else:
            source, revision = self._read(table, "code", readers.folder, ""), ""
        return Code(self._path(source), revision) if source else None

    def _requirements(self, table: Mapping[str, Any]) -> Requirements | None:
        """A path is relative to the same as that of the code."""
        source = self._read(table, "requirements", readers.requirements, "")
        return Requirements(self._path(source)) if source else None

    def _path(self, text: str) -> str:
        return str(Path(self.file).parent.joinpath(Path(text).expanduser()).resolve())

    def _inputs(self, table: Mapping[str, Any]) -> tuple[Input, ...]:
        """A folder is relative to the file that names it, like the code."""
        sources: dict[str, str] = self._read(table, "inputs", readers.inputs, {})
        return tuple(self._input(name, source) for name, source in sorted(sources.items()))

    def _input(self, name: str, source: str) -> Input:
        return Input(name, source if readers.is_remote(source) else self._path(source))

    def _evaluation(self, table: Mapping[str, Any]) -> Evaluation | None:
        """Its test set is a path like the code's, or comes from elsewhere like an input."""
        inner = self._table(table, "evaluation", (*_EVALUATION, "needs", "set", "votes"))
        if not inner:
            return None
        here = Definition(self.file, f"{self.label}.evaluation".lstrip("."), self.problems)
        source = here._read(inner, "set", readers.test_set)
        votes = here._read(inner, "votes", readers.votes, "")
        read = here._fields(Evaluation, inner, _EVALUATION)
        return Evaluation(
            **{**read, "within_seconds": read["within_seconds"] or None},
            test_set=self._input("set", source or ""),
            needs=here._needs(inner),
            votes=self._path(votes) if votes else "",
        )

    def _built(self, kind: type[T], table: Mapping[str, Any], key: str, keys: Keys) -> T | None:
        """Return what an inner table defines; None where there is none, or where it lacks something."""
        inner = self._table(table, key, keys)
        values = self._fields(kind, inner, keys, f"{key}.") if inner else {}
        needed = [name for name, default in _defaults(kind).items() if default is _NOTHING]
        return None if not inner or any(values[name] is None for name in needed) else kind(**values)

    def _fields(self, kind: type, table: Mapping[str, Any], keys: Keys, prefix: str = "") -> dict[str, Any]:
        """Return the fields of a ``kind`` that keys of a table set, also those by default."""
        defaults = _defaults(kind)
        old = {new: key for key, new in OLD_NAMES.items() if key in table and new not in table}
        return {
            (field := _FIELDS.get(key, key)): self._read(table, old.get(key, key), parse, defaults[field], prefix)
            for key, parse in keys.items()
        }

    def _table(self, table: Mapping[str, Any], key: str, keys: Collection[str]) -> Mapping[str, Any]:
        inner = table.get(key, {})
        if not isinstance(inner, dict):
            self._wrong(key, inner, "this must be a table", f"known keys are {', '.join(keys)}")
            return {}
        self._refuse_unknown(inner, keys, f"{key}.")
        return inner

    def _refuse_unknown(self, table: Mapping[str, Any], keys: Collection[str], prefix: str) -> None:
        for key in table:
            if key not in keys:
                self._wrong(f"{prefix}{key}", None, "there is no such key", did_you_mean(key, keys))

    def _read(
        self, table: Mapping[str, Any], key: str, parse: Callable[[Any], Any], default: Any = _NOTHING, prefix: str = ""
    ) -> Any:
        if key not in table:
            if default is _NOTHING:
                self._wrong(f"{prefix}{key}", None, "is missing", "add it")
                return None
            return default
        try:
            return parse(table[key])
        except ValueError as error:
            self._wrong(f"{prefix}{key}", table[key], str(error), getattr(error, "remedy", ""))
            return None if default is _NOTHING else default

    def _wrong(self, key: str, value: Any, why: str, remedy: str) -> None:
        full = f"{self.label}.{key}" if self.label else key
        text = "" if key == "secrets" else as_toml(value)  # a secret that was written there must not appear in a log
        self.problems.append(Problem(self.file, full, text, why, remedy))


def _defaults(kind: type[Any]) -> dict[str, Any]:
    """Return what each field of a dataclass is by default, ``_NOTHING`` for one that has no default."""
    return {
        field.name: field.default_factory()
        if field.default_factory is not MISSING
        else _NOTHING
        if field.default is MISSING
        else field.default
        for field in fields(kind)
    }
