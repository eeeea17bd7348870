"""Keys of jobs: annotations of dataclass fields, from which the keys of files and the options of commands are derived.

A field that people write has a :class:`Rule`. It has a :class:`Key` if its key differs from the field's name without
unit, and an :class:`Option` if the command line can set it. A field whose type is a dataclass is a table. People do not
write other fields.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, get_args, get_type_hints

from jobs.duration import YEAR_3000, parse_cycle, parse_duration, parse_instant, show_duration


class Wrong(ValueError):
    """Why a value is invalid, and what would be right."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Range:
    """A range of valid numbers from ``least`` to ``most``, both included, in ``unit``; ``whole``: integers only."""

    least: float
    most: float
    unit: str = ""
    whole: bool = False

    def holds(self, value: object) -> bool:
        """Return whether ``value`` is a number in the range; booleans and NaN are not."""
        number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return number and self.least <= value <= self.most  # type: ignore[operator] # compared exactly, however large

    def nearest(self, value: Any) -> Any:
        """Return the nearest number in the range; the least one for NaN."""
        if self.holds(value):
            return value
        return self.most if value > self.most else self.least

    def __str__(self) -> str:
        if self.unit == "seconds":
            return f"{show_duration(round(self.least))} to {show_duration(round(self.most))}"
        return f"{self.least:,} to {self.most:,} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Rule:
    """How people write a value: ``read`` parses it or raises ValueError, ``show`` is the inverse.

    ``kind`` is its type on the command line. With ``place`` the value is a path, relative to its file. The text "off"
    means the value ``off``, which may be outside ``range``. With ``also``, the name of a second field that the value
    sets, ``read`` returns a pair.
    """

    read: Callable[[Any], Any]
    show: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value
    kind: type = str
    range: Range | None = None
    off: int | None = None
    place: bool = False
    also: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a field, and the key of older versions, which still works."""

    name: str
    old: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """The command-line option of a field: its help, and its flags if they differ from the key."""

    help: str
    flags: str = ""
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class TableKey:
    """A key that people write, and the ``names`` of the fields that it sets.

    The value has a rule, or is a table with the keys of the dataclass ``inner``, or a list of such tables (``many``).
    ``default`` is MISSING for a required key.
    """

    key: str
    old: str
    names: tuple[str, ...]
    rule: Rule | None
    inner: Any
    many: bool
    default: Any
    option: Option | None

    @property
    def flags(self) -> list[str]:
        """The flags of the key's option; empty if the command line cannot set it."""
        if self.option is None:
            return []
        names = (name for name in (self.key, self.old) if name)
        return self.option.flags.split() or [f"--{name.replace('_', '-')}" for name in names]

    def of(self, record: Any) -> Any:
        """Return the value of the key in a record, in the form that ``rule.show`` expects."""
        values = tuple(getattr(record, name) for name in self.names)
        return values if len(values) > 1 else values[0]


@cache
def keys_of(kind: Any) -> tuple[TableKey, ...]:
    """Return the keys of a dataclass in the order of its fields."""
    hints, plain = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    entries = {entry.name: entry for entry in fields(kind)}
    result = []
    for name, hint in hints.items():
        marks: dict[type, Any] = {type(mark): mark for mark in getattr(hint, "__metadata__", ())}
        rule, key = marks.get(Rule), marks.get(Key) or Key(name.removesuffix("_seconds"))
        parts: tuple[Any, ...] = (plain[name], *get_args(plain[name]))
        inner = next((part for part in parts if hasattr(part, "__dataclass_fields__") and keys_of(part)), None)
        if rule is None and inner is None and not marks:
            continue
        names = (name, rule.also) if rule and rule.also else (name,)
        defaults = [_default(entries[each]) for each in names]
        default = tuple(defaults) if len(names) > 1 else defaults[0]
        many = isinstance(default, tuple) and inner is not None and rule is None
        result.append(TableKey(key.name, key.old, names, rule, inner, many, default, marks.get(Option)))
    return tuple(result)


def paths(kind: Any) -> dict[str, TableKey]:
    """Return the keys of a dataclass and of its tables by dotted path, such as ``needs.dtype``."""
    tables = {"": kind} | {f"{key.key}.": key.inner for key in keys_of(kind) if key.inner and not key.many}
    return {f"{prefix}{key.key}": key for prefix, inner in tables.items() for key in keys_of(inner)}


def _default(entry: Field[Any]) -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


# Patterns are compiled when they are first used, because every command imports this module.
_CONFIDENTIAL = (
    r"(?ai:(\w*_)?(PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|TOKEN|(API|SECRET|PRIVATE)_?KEY|ACCESS_?KEY(_?ID)?))"
)
# Names that look confidential, but mean tokens of a vocabulary, or their largest number.
_VOCABULARY = r"(?ai:(\w*_)?(BOS|EOS|PAD|UNK|SEP|CLS|MASK|START|STOP|END|MAX)_TOKEN)"
# Variables that a session, its interpreter, linker or shell uses.
_RESERVED = (
    r"(SCHED|LD|DYLD|LC|BASH)_.*|PYTHON.*|PATH|HOME|SHELL|USER|LOGNAME|LANG|TZ|TMPDIR|TERM|IFS|ENV|VIRTUAL_ENV|"
    r"CUDA_VISIBLE_DEVICES"
)
_SECRETS_MAX = 10
_SCHEMES = ("hf", "kaggle-dataset", "kaggle-model", "s3")
_SCHEME = r"([a-z][a-z0-9-]+):"
REPOSITORY = (
    r"(?a)hf:(?P<datasets>datasets/)?(?!datasets/)(?P<name>([\w-][\w.-]*/)?[\w-][\w.-]*)"
    r"(@(?P<revision>(?!\S*\.\.)[\w-][\w./-]*))?(#(?P<patterns>[!-~]+))?"
)
_KAGGLE = r"(?a)kaggle-model:([\w-]+/){4}[1-9]\d{0,8}|kaggle-dataset:[\w-]+/[\w-]+(/[1-9]\d{0,8})?"
_INPUTS_MAX = 20
_WORDS_MAX = 1_000
_TEXT_MAX = 20_000  # characters of one text; a launch document contains all texts
_STEP_MAX = 10**12 - 1  # the name of a manifest has twelve digits for the step


def storable(value: str) -> str:
    """Return the text if it can be passed to a session. Raises Wrong."""
    if len(value) > _TEXT_MAX:
        raise Wrong(f"a text of {len(value):,} characters", f"write at most {_TEXT_MAX:,}; put more into a file")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise Wrong("this holds a character that no command can be given", "remove it; texts are UTF-8 without NUL")
    return value


def few(value: list[Any]) -> list[Any]:
    """Return the list if it is not too long. Raises Wrong."""
    if len(value) > _WORDS_MAX:
        raise Wrong(f"a list of {len(value):,}", f"write at most {_WORDS_MAX:,}")
    return value


def is_remote(source: str) -> bool:
    """Return whether the source of an input has a scheme, and so is not a folder of this machine."""
    return re.match(_SCHEME, source) is not None


def matching(form: str, why: str, remedy: str) -> Rule:
    """Return the rule for texts that match the regular expression ``form``."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(form, value):
            raise Wrong(why, remedy)
        return storable(value)

    return Rule(read)


def one_of(why: str, *words: str) -> Rule:
    """Return the rule for one of several words."""
    quoted = [f'"{word}"' for word in words]

    def read(value: Any) -> str:
        if value not in words:
            raise Wrong(why, f"write {', '.join(quoted[:-1])} or {quoted[-1]}")
        return str(value)

    return Rule(read)


def number(least: float, most: float, unit: str = "", *, whole: bool = False) -> Rule:
    """Return the rule for numbers from ``least`` to ``most``."""
    bounds = Range(least, most, unit, whole)

    def read(value: Any) -> Any:
        if whole and type(value) is not int:
            raise Wrong("this must be a whole number", f"write one from {bounds}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - NaN
            raise Wrong("this must be a number", "write it without quotation marks")
        if not bounds.holds(value):
            raise Wrong("this number is out of range", f"write one from {bounds}")
        return value if whole else float(value)

    return Rule(read, kind=int if whole else float, range=bounds)


def span(least: int, most: int) -> Rule:
    """Return the rule for durations from ``least`` to ``most`` seconds."""
    bounds = Range(least, most, "seconds", whole=True)

    def read(value: Any) -> int:
        seconds = parse_duration(value)
        if not bounds.holds(seconds):
            ends = f'"{show_duration(least)}" to "{show_duration(most)}"'
            raise Wrong("this time is out of range", f"write one from {ends}")
        return seconds

    return Rule(read, lambda seconds: None if seconds is None else show_duration(seconds), range=bounds)


def or_off(rule: Rule, off: int | None = 0) -> Rule:
    """Return a rule like ``rule`` that also accepts "off", which is stored as ``off``."""

    def read(value: Any) -> Any:
        if value == "off":
            return off
        try:
            return rule.read(value)
        except Wrong as error:
            raise Wrong(error.why, f'{error.remedy}, or "off"') from None

    return replace(rule, read=read, show=lambda value: "off" if value == off else rule.show(value), off=off)


def words(value: Any) -> tuple[str, ...]:
    """Return the words of a command. Raises Wrong."""
    if not value or not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Wrong("a command is a list of words", 'write it like ["{python}", "train.py", "--fast"]')
    for word in map(storable, few(value)):
        for name in re.findall(r"\{(\w*)\}", word):
            if name not in {"python", "payload"}:
                raise Wrong(f"nothing is filled in for {{{name}}}", "use {python}, {payload} or {input:NAME}")
    return tuple(value)


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise Wrong("this must be a list of texts", 'write it like ["a", "b"]')
    return tuple(map(storable, few(value)))


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise Wrong("this must be a table of texts", 'write it like { WANDB_MODE = "offline" }')
    for name in few(list(value)):
        storable(value[name])
        if not re.match(r"^[A-Za-z_][A-Za-z0-9_]*$", name) or name.startswith("SCHED_"):
            raise Wrong(
                f"{name} is not a variable that a job may set",
                "use A to Z, a to z, 0 to 9 and _, not beginning with SCHED_",
            )
        if value[name] and re.fullmatch(_CONFIDENTIAL, name) and not re.fullmatch(_VOCABULARY, name):
            raise Wrong(
                f"{name} looks like a secret, which would stand in the database and go to every platform",
                f'write secrets = ["{name.upper()}"] instead, whose value stays outside the job; see docs/security.md',
            )
    return dict(value)


def _secrets(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Wrong("this must be a list of names", 'write it like ["HF_TOKEN", "WANDB_API_KEY"]')
    if len(value) > _SECRETS_MAX:
        raise Wrong(f"{len(value)} secrets", f"name at most {_SECRETS_MAX}")
    for name in value:
        # The name of a secret is also a file name: in capitals it cannot clash with settings or accounts (kaggle, aws).
        if not re.fullmatch(r"[A-Z][A-Z0-9_]{0,99}", name):  # the text may be the secret, so the message omits it
            raise Wrong("this is not a list of names of secrets", "use A to Z, 0 to 9 and _; never the value")
        if re.fullmatch(_RESERVED, name):
            raise Wrong(f"{name} is a variable that sessions or their programs use themselves", "choose another name")
    return tuple(dict.fromkeys(value))


def inputs(value: Any) -> Mapping[str, str]:
    """Return the sources of a job's inputs by name, if they are valid. Raises Wrong."""
    if not isinstance(value, dict) or not all(isinstance(source, str) and source.strip() for source in value.values()):
        remedy = 'write it like { base = "hf:org/name@main", tests = "/data/tests" }'
        raise Wrong("this must be a table of folders and repositories", remedy)
    if len(value) > _INPUTS_MAX:
        raise Wrong(f"{len(value)} inputs", f"give at most {_INPUTS_MAX}")
    for name, source in value.items():
        storable(source)
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) or name == "parent":
            raise Wrong(f"{name!r} cannot be an input's name", "use a-z, 0-9 and _; parent is reserved")
        match = re.match(_SCHEME, source)
        scheme = match[1] if match else ""
        if scheme == "job":
            remedy = "write start_from instead, see docs/configuration.md"
            raise Wrong(f"{source!r} is another job's checkpoint, which cannot be an input", remedy)
        if scheme and scheme not in _SCHEMES:
            schemes = ", ".join(f"{prefix}:" for prefix in _SCHEMES)
            raise Wrong(f"nothing is known of {scheme}:", f"give a folder, or what begins with {schemes}")
        if scheme.startswith("kaggle-") and not re.fullmatch(_KAGGLE, source):
            remedy = "write kaggle-model:owner/model/framework/variation/version or kaggle-dataset:owner/name/version"
            raise Wrong(f"{source!r} names nothing at Kaggle", remedy)
        if scheme == "s3" and not re.match(r"s3://[a-z0-9][a-z0-9.-]{1,62}(/|$)", source):
            raise Wrong(f"{source!r} is no folder of a bucket", "write s3://bucket/folder")
        if scheme == "hf" and not re.fullmatch(REPOSITORY, source):
            remedy = "write hf:org/name or hf:datasets/org/name, and @ a branch, tag or commit, and # patterns of files"
            raise Wrong(f"{source!r} is no repository of the Hub", remedy)
    return value


def _parts(value: Any) -> tuple[float, ...]:
    parts = tuple(sorted({FRACTION.read(part) for part in few(value)})) if isinstance(value, list) else ()
    if not parts or not parts[0]:
        raise Wrong("this must be a list of parts of the target", "write it like [0.5, 1.0]; 1.0 is when it is done")
    return parts


def _patience(value: Any) -> int:
    match = re.fullmatch(r"([0-9]{1,4}) checkpoints?", value) if isinstance(value, str) else None
    count = int(match[1]) if match else value
    if type(count) is not int or not 1 <= count <= 1_000:
        raise Wrong("this must be a number of checkpoints", 'write one from 1 to 1000, like "3 checkpoints"')
    return count


def _rungs(value: Any) -> tuple[int, ...]:
    rungs = tuple(map(STEPS.read, value)) if isinstance(value, list) else ()
    if len(rungs) < 2 or sorted(set(rungs)) != list(rungs):
        raise Wrong("this must be a list of at least two steps that go up", "write it like [100, 300, 900]")
    return rungs


def _usual(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= 0.999:
        raise Wrong("this must be a share from 0.001 to 0.999", "write 0.5 where votes compare two versions")
    return float(value)


def _device_range(value: Any) -> tuple[int, int]:
    least, most = value if isinstance(value, list) and len(value) == 2 else (value, value)
    if not all(type(count) is int and count >= 1 for count in (least, most)) or least > most:
        raise Wrong("this is no number of devices", "write 1, or a range such as [1, 2]")
    if not _DEVICES.holds(most):
        raise Wrong("this number is out of range", f"write one from {_DEVICES}")
    return least, most


def _start(value: Any) -> float | str:
    points = ("newest", "done", "accepted")
    if isinstance(value, str) and value not in points:
        raise Wrong("there is no such start", f"use {', '.join(points)}, or a fraction of the parent's target")
    start: float | str = value if isinstance(value, str) else FRACTION.read(value)
    if not start:
        raise Wrong("at 0 % there is nothing to start from", 'write "newest" for its first checkpoint')
    return start


def _speedup(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise Wrong("this must be a list of numbers", "write it like [1.0, 1.8]")
    gains = tuple(_GAIN.read(gain) for gain in few(value))
    if gains[0] != 1.0:
        raise Wrong("the first gain is that of one device over itself", "begin with 1.0")
    return gains


_DEVICES = Range(1, 1_024, "devices", whole=True)
_GAIN = number(0.01, 1_024, "times one device")
COMMAND = Rule(words)
CYCLE = Rule(parse_cycle)
DEVICES = Rule(
    _device_range, lambda ends: ends[0] if ends[0] == ends[1] else list(ends), int, _DEVICES, also="devices_max"
)
ENVIRONMENT = Rule(_environment, show=dict)
FRACTION = number(0, 1, "of the parent's target")
INSTANT = Rule(
    parse_instant,
    show=lambda seconds: None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(),
    range=Range(0, YEAR_3000 - 1, "UTC seconds", whole=True),
)
NAME = matching(
    r"[a-z0-9][a-z0-9._-]{0,39}", "this is no usable name", "use up to 40 characters of a-z, 0-9, dots and hyphens"
)
PARTS = Rule(_parts)
PATIENCE = Rule(_patience, kind=int)
RUNGS = Rule(_rungs)
SECRETS = Rule(_secrets)
SEED = number(0, 2**63 - 1, whole=True)
SESSION = span(60, 100 * 3_600)  # no platform has longer sessions
SHARE_OF_VOTES = Rule(_usual)
SPEEDUP = Rule(_speedup, range=_GAIN.range)
START = Rule(_start)
STEPS = number(1, _STEP_MAX, "steps", whole=True)
STRINGS = Rule(_strings)
TEXT = matching(r"(?s).*\S.*", "this must be a text", "put it in quotation marks")
PATH = replace(TEXT, place=True)
VOTES = replace(
    matching(
        rf"(?s)(?!{_SCHEME}).*\S.*", "this must be a file of this machine", 'write it like votes = "votes/ufm.jsonl"'
    ),
    place=True,
)
