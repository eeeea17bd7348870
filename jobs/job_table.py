"""A job's definition as the table that people write, and as TOML: the way back from a JobSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from jobs.duration import show_duration
from jobs.spec import Evaluation, JobSpec, Mixture, Needs, Stall, StopRule


def table_of(spec: JobSpec) -> dict[str, Any]:
    """Return the table that :func:`jobs.catalogue.job_from_table` makes ``spec`` of; what is not set is left out."""
    table: dict[str, Any] = {
        "name": spec.name,
        "role": spec.role,
        "command": list(spec.command),
        **_work(spec),
        "priority": spec.weight,
        "needs": _needs(spec.needs),
        "device_speedup": list(spec.device_speedup),
        "setup": show_duration(spec.setup_seconds),
        "checkpoint": show_duration(spec.checkpoint_seconds),
        "seed": spec.seed,
    }
    if spec.mixture is not None:
        table["mixture"] = _mixture(spec.mixture)
    if spec.start_from is not None:
        table["start_from"] = {"job": spec.start_from.parent, "at": spec.start_from.at}
    elif spec.gate is not None:
        gate = spec.gate
        point = {"fraction": gate.fraction} if gate.step is None else {"step": gate.step}
        table["after"] = {"job": gate.parent, **point}
    if spec.share is not None:
        table["share"] = {"with": spec.share.partner, "percent": spec.share.percent}
    perhaps = {
        "pools": list(spec.pools),
        "environment": dict(spec.environment),
        "image": spec.image,
        "image_python": spec.image_python,
        "secrets": list(spec.secrets),
        "sweep": spec.sweep,
        "expects": spec.expects,
        "stall": _stall(spec.stall),
        "stop": _stop(spec.stop) if spec.stop else {},
    }
    table |= {key: value for key, value in perhaps.items() if value}
    if spec.code is not None:
        code = spec.code
        table["code"] = {"repository": code.source, "commit": code.revision} if code.revision else code.source
    if spec.inputs:
        table["inputs"] = {each.name: each.source for each in spec.inputs}
    if spec.requirements is not None:
        table["requirements"] = spec.requirements.source
    if spec.evaluation is not None:
        table |= {"evaluation": _evaluation(spec.evaluation), "gates": [gate.document() for gate in spec.gates]}
    for key, instant in (("not_before", spec.not_before), ("deadline", spec.deadline)):
        if instant is not None:
            table[key] = datetime.fromtimestamp(instant, UTC).isoformat()
    return table


def _needs(needs: Needs) -> dict[str, Any]:
    alike = needs.devices_min == needs.devices_max
    return {
        "devices": needs.devices_min if alike else [needs.devices_min, needs.devices_max],
        "vram_gib": needs.vram_gib,
        "dtype": needs.dtype,
    }


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "command": list(evaluation.command),
        "set": evaluation.test_set.source,
        "longest": show_duration(evaluation.longest_seconds),
        "needs": _needs(evaluation.needs),
        "pools": list(evaluation.pools),
        "promote": evaluation.promote,
        "at": list(evaluation.at),
        "within": show_duration(evaluation.within_seconds) if evaluation.within_seconds else "off",
        **({"votes": evaluation.votes, "usual": evaluation.usual} if evaluation.votes else {}),
    }


def whole_of(spec: JobSpec) -> str:
    """Return the longest that a job which is run whole takes on the reference device: ``3h``."""
    return show_duration(round(3_600 / spec.steps_per_hour))


def _work(spec: JobSpec) -> dict[str, Any]:
    if spec.whole:
        return {"whole": whole_of(spec)}
    return {"target_step": spec.target_step, "steps_per_hour": spec.steps_per_hour}


def _mixture(mixture: Mixture) -> dict[str, Any]:
    own = {} if mixture.domain is None else {"domain": mixture.domain, "extra_share": mixture.extra_share}
    perhaps = {"corpus": mixture.corpus, "renew": mixture.renew if mixture.renew != "restart" else ""}
    return own | {key: value for key, value in perhaps.items() if value}


def _stall(stall: Stall) -> dict[str, Any]:
    spans = ("first_progress", "no_progress", "checkpoint")
    values: dict[str, Any] = {name: getattr(stall, f"{name}_seconds") for name in spans}
    written = {name: show_duration(span) if span else "off" for name, span in values.items() if span is not None}
    counts = {name: getattr(stall, name) for name in ("loss_nan", "same_error")}
    return written | {name: n or "off" for name, n in counts.items() if n != getattr(Stall(), name)}


def _stop(rule: StopRule) -> dict[str, Any]:
    usual = StopRule("")
    return {name: value for name, value in asdict(rule).items() if value != getattr(usual, name)}


def toml_of(table: Mapping[str, Any]) -> str:
    """Return a table of a job as a TOML document."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _value(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            # TOML's basic strings are JSON's, but for the one control character that JSON leaves as it is.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return f"{{ {', '.join(f'{_key(key)} = {_value(inner)}' for key, inner in value.items())} }}"
        case _:
            return repr(value)
