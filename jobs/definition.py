"""One job's table becomes a JobSpec; every wrong key is noted as a problem, not only the first."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.duration import parse_duration
from jobs.instant import parse_instant
from jobs.problem import Problem, did_you_mean, shown
from jobs.ranges import RANGES
from jobs.spec import Code, Gate, JobSpec, Mixture, Needs, Stall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEYS = (
    "checkpoint",
    "code",
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
    "stall",
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
_WORDS_MAX = 1_000
_TEXT_MAX = 20_000  # characters of one text; a launch document carries them all
_SPAN_MIN, _SPAN_MAX = 60, 30 * 86_400
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
            "target_step": self._read(table, "target_step", _number("target_step")),
            "steps_per_hour": self._read(table, "steps_per_hour", _number("steps_per_hour")),
            "weight": self._read(table, "weight", _number("weight"), 1.0),
            "needs": self._needs(table),
            "mixture": self._mixture(table),
            "gate": self._gate(table),
            "pools": self._read(table, "pools", _strings, ()),
            "seed": self._read(table, "seed", _number("seed"), 0),
            "setup_seconds": self._read(table, "setup", _duration("setup"), _DEFAULTS["setup_seconds"]),
            "checkpoint_seconds": self._read(
                table, "checkpoint", _duration("checkpoint"), _DEFAULTS["checkpoint_seconds"]
            ),
            "device_speedup": self._read(table, "device_speedup", _speedup, (1.0,)),
            "environment": self._read(table, "environment", _environment, {}),
            "not_before": self._read(table, "not_before", parse_instant, None),
            "deadline": self._read(table, "deadline", parse_instant, None),
            "stall": self._stall(table),
            "code": self._code(table),
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
            vram_gib=self._read(inner, "vram_gib", _number("needs.vram_gib"), 0.0, "needs."),
            dtype=self._read(inner, "dtype", _dtype, "fp32", "needs."),
        )

    def _mixture(self, table: Mapping[str, Any]) -> Mixture:
        inner = self._table(table, "mixture", ("domain", "extra_share"))
        if not inner:
            return Mixture()
        return Mixture(
            domain=self._read(inner, "domain", _text, prefix="mixture."),
            extra_share=self._read(inner, "extra_share", _number("mixture.extra_share"), prefix="mixture."),
        )

    def _gate(self, table: Mapping[str, Any]) -> Gate | None:
        inner = self._table(table, "gate", ("parent", "fraction"))
        if not inner:
            return None
        return Gate(
            parent=self._read(inner, "parent", _text, prefix="gate."),
            fraction=self._read(inner, "fraction", _number("gate.fraction"), prefix="gate."),
        )

    def _code(self, table: Mapping[str, Any]) -> Code | None:
        """A path is relative to the file that names it; on the command line, to the current folder."""
        if isinstance(table.get("code"), dict):
            inner = self._table(table, "code", ("repository", "commit"))
            source = self._read(inner, "repository", _text, prefix="code.")
            revision = self._read(inner, "commit", _text, prefix="code.")
        else:
            source, revision = self._read(table, "code", _folder, ""), ""
        return (
            Code(str(Path(self.file).parent.joinpath(Path(source).expanduser()).resolve()), revision)
            if source
            else None
        )

    def _stall(self, table: Mapping[str, Any]) -> Stall:
        inner = self._table(table, "stall", ("first_progress", "no_progress", "checkpoint", "loss_nan", "same_error"))
        spans = ("first_progress", "no_progress", "checkpoint")
        counts = {"loss_nan": (1, 1_000_000), "same_error": (2, 1_000)}
        return Stall(
            **{f"{name}_seconds": self._read(inner, name, _span_or_off, None, "stall.") for name in spans},
            **{
                name: self._read(inner, name, _count_or_off(*bounds), getattr(Stall(), name), "stall.")
                for name, bounds in counts.items()
            },
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
    return _storable(value)


def _folder(value: Any) -> str:
    """Read a path; empty for none at all."""
    if not isinstance(value, str):
        raise _Wrong("this must be a folder, or a repository and a commit", 'write it like code = "."')
    return _storable(value)


def _storable(value: str) -> str:
    """Return a text that every session can be given. Raises _Wrong."""
    if len(value) > _TEXT_MAX:
        raise _Wrong(f"a text of {len(value):,} characters", f"write at most {_TEXT_MAX:,}; put more into a file")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise _Wrong("this holds a character that no command can be given", "remove it; texts are UTF-8 without NUL")
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
    return tuple(map(_storable, _few(value)))


def _few(value: list[Any]) -> list[Any]:
    if len(value) > _WORDS_MAX:
        raise _Wrong(f"a list of {len(value):,}", f"write at most {_WORDS_MAX:,}")
    return value


def _words(value: Any) -> tuple[str, ...]:
    if not value or not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _Wrong("a command is a list of words", 'write it like ["{python}", "train.py", "--fast"]')
    for word in map(_storable, _few(value)):
        for name in re.findall(r"\{(\w*)\}", word):
            if name not in {"python", "payload"}:
                raise _Wrong(f"nothing is filled in for {{{name}}}", "use {python} or {payload}")
    return tuple(value)


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _Wrong("this must be a table of texts", 'write it like { WANDB_MODE = "offline" }')
    for name in _few(list(value)):
        _storable(value[name])
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
    if not RANGES["needs.devices"].holds(most):
        raise _Wrong("this number is out of range", f"write one from {RANGES['needs.devices']}")
    return least, most


def _speedup(value: Any) -> tuple[float, ...]:
    read = _number("device_speedup")
    if not isinstance(value, list) or not value:
        raise _Wrong("this must be a list of numbers", "write it like [1.0, 1.8]")
    gains = tuple(read(gain) for gain in _few(value))
    if gains[0] != 1.0:
        raise _Wrong("the first gain is that of one device over itself", "begin with 1.0")
    return gains


def _span_or_off(value: Any) -> int:
    """Read a duration of a minute to thirty days, or zero for off."""
    if value == "off":
        return 0
    seconds = parse_duration(value)
    if not _SPAN_MIN <= seconds <= _SPAN_MAX:
        raise _Wrong("this span is out of range", 'write one from "1m" to "30d", or "off"')
    return seconds


def _count_or_off(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if value == "off":
            return 0
        if type(value) is not int or not least <= value <= most:
            raise _Wrong("this must be a whole number", f'write one from {least} to {most}, or "off"')
        return value

    return read


def _number(key: str) -> Callable[[Any], Any]:
    rule = RANGES[key]

    def read(value: Any) -> Any:
        if rule.whole and type(value) is not int:
            raise _Wrong("this must be a whole number", f"write one from {rule}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - NaN
            raise _Wrong("this must be a number", "write it without quotation marks")
        if not rule.holds(value):
            raise _Wrong("this number is out of range", f"write one from {rule}")
        return value if rule.whole else float(value)

    return read


def _duration(key: str) -> Callable[[Any], int]:
    rule = RANGES[key]

    def read(value: Any) -> int:
        seconds = parse_duration(value)
        if not rule.holds(seconds):
            raise _Wrong("this time is out of range", f"write one from {rule}")
        return seconds

    return read
