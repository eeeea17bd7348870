"""One job's table becomes a JobSpec; every wrong key is noted as a problem, not only the first."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from jobs.duration import parse_duration
from jobs.instant import parse_instant
from jobs.problem import Problem, did_you_mean, shown
from jobs.spec import Gate, JobSpec, Mixture, Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEYS = (
    "checkpoint",
    "command",
    "deadline",
    "device_speedup",
    "environment",
    "gate",
    "mixture",
    "name",
    "needs",
    "not_before",
    "pools",
    "role",
    "seed",
    "setup",
    "steps_per_hour",
    "target_step",
    "weight",
)
_DTYPES = ("fp32", "fp16", "bf16", "int8")
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,39}$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_SECRET = re.compile(
    r"(\w*_)?(PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|TOKEN|(API|SECRET|PRIVATE)_?KEY|ACCESS_?KEY(_?ID)?)",
    re.IGNORECASE | re.ASCII,
)
# Words of a vocabulary, and how many there may be.
_NO_SECRET = re.compile(r"(\w*_)?(BOS|EOS|PAD|UNK|SEP|CLS|MASK|START|STOP|END|MAX)_TOKEN", re.IGNORECASE | re.ASCII)
_STEP_MAX = 10**12 - 1  # a manifest's name has twelve digits
_SEED_MAX = 2**63 - 1
_DEFAULTS = {known.name: known.default for known in fields(JobSpec)}
_NOTHING = object()


class _Wrong(ValueError):
    """Why a value cannot be used, and what would be right."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Definition:
    """A reader of one job's table: ``label`` leads the keys it names, ``problems`` collects what is wrong."""

    file: str
    label: str
    problems: list[Problem]

    def job(self, table: Mapping[str, Any]) -> JobSpec | None:
        """Return the spec, or None when a problem was noted."""
        before = len(self.problems)
        self._refuse_unknown(table, _KEYS, "")
        values = {
            "name": self._read(table, "name", _name),
            "role": self._read(table, "role", _role),
            "command": self._read(table, "command", _words),
            "target_step": self._read(table, "target_step", _whole(1, _STEP_MAX)),
            "steps_per_hour": self._read(table, "steps_per_hour", _number(0, exclusive=True)),
            "weight": self._read(table, "weight", _number(0, exclusive=True), 1.0),
            "needs": self._needs(table),
            "mixture": self._mixture(table),
            "gate": self._gate(table),
            "pools": self._read(table, "pools", _strings, ()),
            "seed": self._read(table, "seed", _whole(0, _SEED_MAX), 0),
            "setup_seconds": self._read(table, "setup", parse_duration, _DEFAULTS["setup_seconds"]),
            "checkpoint_seconds": self._read(table, "checkpoint", parse_duration, _DEFAULTS["checkpoint_seconds"]),
            "device_speedup": self._read(table, "device_speedup", _speedup, (1.0,)),
            "environment": self._read(table, "environment", _environment, {}),
            "not_before": self._read(table, "not_before", parse_instant, None),
            "deadline": self._read(table, "deadline", parse_instant, None),
        }
        self._check_together(values, table)
        return JobSpec(**values) if len(self.problems) == before else None

    def _check_together(self, values: Mapping[str, Any], table: Mapping[str, Any]) -> None:
        deadline, not_before, gate = values["deadline"], values["not_before"], values["gate"]
        if isinstance(deadline, int) and isinstance(not_before, int) and deadline <= not_before:
            self._note("deadline", table["deadline"], _Wrong("is not after not_before", "correct one of them"))
        if gate is not None and gate.parent == values["name"]:
            self._note("gate.parent", gate.parent, _Wrong("a job cannot wait for itself", "name another job"))

    def _needs(self, table: Mapping[str, Any]) -> Needs:
        inner = self._table(table, "needs", ("devices", "vram_gib", "dtype"))
        least, most = self._read(inner, "devices", _device_range, (1, 1), "needs.")
        return Needs(
            devices_min=least,
            devices_max=most,
            vram_gib=self._read(inner, "vram_gib", _number(0), 0.0, "needs."),
            dtype=self._read(inner, "dtype", _dtype, "fp32", "needs."),
        )

    def _mixture(self, table: Mapping[str, Any]) -> Mixture:
        inner = self._table(table, "mixture", ("domain", "extra_share"))
        if not inner:
            return Mixture()
        return Mixture(
            domain=self._read(inner, "domain", _text, prefix="mixture."),
            extra_share=self._read(inner, "extra_share", _number(0, 1), prefix="mixture."),
        )

    def _gate(self, table: Mapping[str, Any]) -> Gate | None:
        inner = self._table(table, "gate", ("parent", "fraction"))
        if not inner:
            return None
        return Gate(
            parent=self._read(inner, "parent", _text, prefix="gate."),
            fraction=self._read(inner, "fraction", _number(0, 1), prefix="gate."),
        )

    def _table(self, table: Mapping[str, Any], key: str, known: tuple[str, ...]) -> Mapping[str, Any]:
        inner = table.get(key, {})
        if not isinstance(inner, dict):
            self._note(key, inner, _Wrong("this must be a table", f"known keys are {', '.join(known)}"))
            return {}
        self._refuse_unknown(inner, known, f"{key}.")
        return inner

    def _refuse_unknown(self, table: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
        for key in table:
            if key not in known:
                self._note(f"{prefix}{key}", None, _Wrong("there is no such key", did_you_mean(key, known)))

    def _read(
        self,
        table: Mapping[str, Any],
        key: str,
        parse: Callable[[Any], Any],
        default: Any = _NOTHING,
        prefix: str = "",
    ) -> Any:
        if key not in table:
            if default is _NOTHING:
                self._note(f"{prefix}{key}", None, _Wrong("is missing", "add it"))
                return None
            return default
        try:
            return parse(table[key])
        except ValueError as error:
            self._note(f"{prefix}{key}", table[key], error)
            return None if default is _NOTHING else default

    def _note(self, key: str, value: Any, error: ValueError) -> None:
        remedy = error.remedy if isinstance(error, _Wrong) else ""
        full = f"{self.label}.{key}" if self.label else key
        self.problems.append(Problem(self.file, full, shown(value), str(error), remedy))


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong("this must be a text", "put it in quotation marks")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.match(value):
        raise _Wrong("this is no usable name", "use up to 40 small letters, digits, dots and hyphens")
    return value


def _role(value: Any) -> Literal["main", "manager"]:
    if value == "main":
        return "main"
    if value == "manager":
        return "manager"
    raise _Wrong("there is no such role", "use main or manager")


def _dtype(value: Any) -> str:
    if value not in _DTYPES:
        raise _Wrong("there is no such number format", f"use {', '.join(_DTYPES)}")
    return str(value)


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise _Wrong("this must be a list of texts", 'write it like ["a", "b"]')
    return tuple(value)


def _words(value: Any) -> tuple[str, ...]:
    if not value or not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _Wrong("a command is a list of words", 'write it like ["{python}", "train.py", "--fast"]')
    for word in value:
        for name in re.findall(r"\{(\w*)\}", word):
            if name not in {"python", "payload"}:
                raise _Wrong(f"nothing is filled in for {{{name}}}", "use {python} or {payload}")
    return tuple(value)


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _Wrong("this must be a table of texts", 'write it like { WANDB_MODE = "offline" }')
    for name in value:
        if not _VARIABLE.match(name) or name.startswith("SCHED_"):
            raise _Wrong(f"{name} is no variable a job may set", "use letters, digits and _, not beginning with SCHED_")
        if value[name] and _SECRET.fullmatch(name) and not _NO_SECRET.fullmatch(name):
            raise _Wrong(
                f"{name} looks like a secret, which would stand in the database and go to every platform",
                "name it in pass_environment of a local pool, or put what it opens into the training data; "
                "see docs/security.md",
            )
    return dict(value)


def _device_range(value: Any) -> tuple[int, int]:
    least, most = value if isinstance(value, list) and len(value) == 2 else (value, value)
    if not all(type(count) is int and count >= 1 for count in (least, most)) or least > most:
        raise _Wrong("this is no number of devices", "write 1, or a range such as [1, 2]")
    return least, most


def _speedup(value: Any) -> tuple[float, ...]:
    read = _number(0, exclusive=True)
    if not isinstance(value, list) or not value:
        raise _Wrong("this must be a list of numbers", "write it like [1.0, 1.8]")
    gains = tuple(read(gain) for gain in value)
    if gains[0] != 1.0:
        raise _Wrong("the first gain is that of one device over itself", "begin with 1.0")
    return gains


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _Wrong("this must be a whole number", f"write one from {least} to {most}")
        return value

    return read


def _number(least: float, most: float = math.inf, *, exclusive: bool = False) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _Wrong("this must be a number", "write it without quotation marks")
        if not least <= value <= most or (exclusive and value == least):
            bounds = f"from {least} to {most}" if most < math.inf else f"{'above' if exclusive else 'from'} {least}"
            raise _Wrong("this number is out of range", f"write one {bounds}")
        return float(value)

    return read
