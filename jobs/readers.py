"""One value of a job's table: each function returns what is meant, or raises Wrong with what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from jobs.duration import parse_duration
from jobs.ranges import RANGES
from jobs.spec import HELD_OUT, PROMOTE_WORDS, RENEW_WORDS, ROLES, START_WORDS

_DTYPES = ("fp32", "fp16", "bf16", "int8")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_SECRET = re.compile(
    r"(\w*_)?(PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|TOKEN|(API|SECRET|PRIVATE)_?KEY|ACCESS_?KEY(_?ID)?)",
    re.IGNORECASE | re.ASCII,
)
# Words of a vocabulary, and how many there may be.
_NO_SECRET = re.compile(r"(\w*_)?(BOS|EOS|PAD|UNK|SEP|CLS|MASK|START|STOP|END|MAX)_TOKEN", re.IGNORECASE | re.ASCII)
_CORPUS = re.compile(r"[0-9a-f]{16}")
# A secret's name is its file's as well: in capitals, none is that of a setting or of an account (kaggle, aws, web).
_SECRET_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
# What a session, its interpreter, its linker or its shell goes by.
_RESERVED = re.compile(
    r"(SCHED|LD|DYLD|LC|BASH)_.*|PYTHON.*|PATH|HOME|SHELL|USER|LOGNAME|LANG|TZ|TMPDIR|TERM|IFS|ENV|VIRTUAL_ENV|"
    r"CUDA_VISIBLE_DEVICES"
)
_SECRETS_MAX = 10
_INPUT = re.compile(r"[a-z][a-z0-9_]{0,39}")
_SCHEMES = ("hf", "kaggle-dataset", "kaggle-model", "s3")
_SCHEME = re.compile(r"([a-z][a-z0-9-]+):")
REPOSITORY = re.compile(
    r"hf:(?P<datasets>datasets/)?(?!datasets/)(?P<name>([\w-][\w.-]*/)?[\w-][\w.-]*)"
    r"(@(?P<revision>[\w-][\w./-]*))?(#(?P<patterns>[!-~]+))?",
    re.ASCII,
)
_KAGGLE = re.compile(r"kaggle-model:([\w-]+/){4}[1-9]\d{0,8}|kaggle-dataset:[\w-]+/[\w-]+(/[1-9]\d{0,8})?", re.ASCII)
_IMAGE = re.compile(r"([A-Za-z0-9][!-~]{0,254})?")
_PATIENCE = re.compile(r"(\d{1,4}) checkpoints?", re.ASCII)
_PYTHON = re.compile(r"(3\.\d{1,2})?", re.ASCII)
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,62}(/|$)")
_INPUTS_MAX = 20
_WORDS_MAX = 1_000
_TEXT_MAX = 20_000  # characters of one text; a launch document carries them all
_SPAN_MIN, _SPAN_MAX = 60, 30 * 86_400
_WHOLE_MAX = 100 * 3_600  # no platform has longer sessions


class Wrong(ValueError):
    """Why a value cannot be used, and what would be right."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


def text(value: Any) -> str:
    """Read a text that says something."""
    if not isinstance(value, str) or not value.strip():
        raise Wrong("this must be a text", "put it in quotation marks")
    return storable(value)


def folder(value: Any) -> str:
    """Read a path; empty for none at all."""
    if not isinstance(value, str):
        raise Wrong("this must be a folder, or a repository and a commit", 'write it like code = "."')
    return storable(value)


def requirements(value: Any) -> str:
    """Read the path of a file that asks for packages; empty for none."""
    if not isinstance(value, str):
        raise Wrong("this must be a file that asks for packages", 'write it like requirements = "requirements.txt"')
    return storable(value)


def storable(value: str) -> str:
    """Return a text that every session can be given. Raises Wrong."""
    if len(value) > _TEXT_MAX:
        raise Wrong(f"a text of {len(value):,} characters", f"write at most {_TEXT_MAX:,}; put more into a file")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise Wrong("this holds a character that no command can be given", "remove it; texts are UTF-8 without NUL")
    return value


def matching(form: re.Pattern[str], why: str, remedy: str) -> Callable[[Any], str]:
    """Return a reader of texts of one form."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise Wrong(why, remedy)
        return value

    return read


def one_of(allowed: Sequence[str], why: str, remedy: str) -> Callable[[Any], str]:
    """Return a reader of one of several words."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise Wrong(why, remedy)
        return str(value)

    return read


name = matching(_NAME, "this is no usable name", "use up to 40 characters of a-z, 0-9, dots and hyphens")
role = one_of(ROLES, "there is no such role", "use job, main, manager or evaluate")
dtype = one_of(_DTYPES, "there is no such number format", f"use {', '.join(_DTYPES)}")
renew = one_of(
    RENEW_WORDS, "a job takes up another corpus when it is restarted or updated", 'write "restart" or "update"'
)
promote = one_of(
    PROMOTE_WORDS, "an accepted version is promoted by itself or by a person", 'write "automatic" or "person"'
)
aim = one_of(("low", "high"), "this says whether a lower or a higher metric is better", 'write "low" or "high"')
corpus_version = matching(_CORPUS, "this is no version of a corpus", "write its 16 characters: schedctl corpus show")
python = matching(_PYTHON, "this is no version of Python", 'write it like "3.12"')
image = matching(
    _IMAGE,
    "this must be a container image",
    'write it like "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1-py312" or "sdk:pytorch:2.10"',
)


def strings(value: Any) -> tuple[str, ...]:
    """Read a list of texts."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise Wrong("this must be a list of texts", 'write it like ["a", "b"]')
    return tuple(map(storable, few(value)))


def few(value: list[Any]) -> list[Any]:
    """Return a list that is not too long. Raises Wrong."""
    if len(value) > _WORDS_MAX:
        raise Wrong(f"a list of {len(value):,}", f"write at most {_WORDS_MAX:,}")
    return value


def words(value: Any) -> tuple[str, ...]:
    """Read a command."""
    if not value or not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Wrong("a command is a list of words", 'write it like ["{python}", "train.py", "--fast"]')
    for word in map(storable, few(value)):
        for name in re.findall(r"\{(\w*)\}", word):
            if name not in {"python", "payload"}:
                raise Wrong(f"nothing is filled in for {{{name}}}", "use {python}, {payload} or {input:NAME}")
    return tuple(value)


def environment(value: Any) -> dict[str, str]:
    """Read the variables a command is given."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise Wrong("this must be a table of texts", 'write it like { WANDB_MODE = "offline" }')
    for name in few(list(value)):
        storable(value[name])
        if not _VARIABLE.match(name) or name.startswith("SCHED_"):
            raise Wrong(f"{name} is no variable a job may set", "use letters, digits and _, not beginning with SCHED_")
        if value[name] and _SECRET.fullmatch(name) and not _NO_SECRET.fullmatch(name):
            raise Wrong(
                f"{name} looks like a secret, which would stand in the database and go to every platform",
                f'write secrets = ["{name.upper()}"] instead, whose value stays outside the job; see docs/security.md',
            )
    return dict(value)


def secrets(value: Any) -> tuple[str, ...]:
    """Read the names of the secrets that a command is given as variables."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Wrong("this must be a list of names", 'write it like ["HF_TOKEN", "WANDB_API_KEY"]')
    if len(value) > _SECRETS_MAX:
        raise Wrong(f"{len(value)} secrets", f"name at most {_SECRETS_MAX}")
    for name in value:
        if not _SECRET_VARIABLE.fullmatch(name):  # the text may be the secret itself, so it is not repeated
            raise Wrong("this is no list of names of secrets", "use capital letters, digits and _; never the value")
        if _RESERVED.fullmatch(name):
            raise Wrong(f"{name} is a variable that sessions or their programs go by", "choose another name")
    return tuple(dict.fromkeys(value))


def inputs(value: Any) -> dict[str, str]:
    """Read where a job's inputs come from, by name."""
    if not isinstance(value, dict) or not all(isinstance(source, str) and source.strip() for source in value.values()):
        remedy = 'write it like { base = "hf:org/name@main", tests = "/data/tests" }'
        raise Wrong("this must be a table of folders and repositories", remedy)
    if len(value) > _INPUTS_MAX:
        raise Wrong(f"{len(value)} inputs", f"give at most {_INPUTS_MAX}")
    for name, source in value.items():
        storable(source)
        if not _INPUT.fullmatch(name) or name == "parent":
            raise Wrong(f"{name!r} cannot be an input's name", "use a-z, 0-9 and _; parent is reserved")
        scheme = _SCHEME.match(source)
        if scheme and scheme[1] == "job":
            remedy = "write start_from instead, see docs/configuration.md"
            raise Wrong(f"{source!r} is another job's checkpoint, which cannot be an input", remedy)
        if scheme and scheme[1] not in _SCHEMES:
            raise Wrong(
                f"nothing is known of {scheme[1]}:",
                f"give a folder, or what begins with {', '.join(f'{prefix}:' for prefix in _SCHEMES)}",
            )
        if scheme and scheme[1].startswith("kaggle-") and not _KAGGLE.fullmatch(source):
            remedy = "write kaggle-model:owner/model/framework/variation/version or kaggle-dataset:owner/name/version"
            raise Wrong(f"{source!r} names nothing at Kaggle", remedy)
        if scheme and scheme[1] == "s3" and not _BUCKET.match(source):
            raise Wrong(f"{source!r} is no folder of a bucket", "write s3://bucket/folder")
        if scheme and scheme[1] == "hf" and not REPOSITORY.fullmatch(source):
            remedy = "write hf:org/name or hf:datasets/org/name, and @ a branch, tag or commit, and # patterns of files"
            raise Wrong(f"{source!r} is no repository of the Hub", remedy)
    return dict(value)


def test_set(value: Any) -> str:
    """Read where a test set comes from: a file, a folder, or what an input may be."""
    if not isinstance(value, str) or not value.strip():
        raise Wrong("this must be a file of items, or a folder with one", 'write it like set = "tests/held-out.jsonl"')
    return value if value == HELD_OUT else inputs({"set": value})["set"]


def parts(value: Any) -> tuple[float, ...]:
    """Read parts of a way, each above 0 and at most 1."""
    read = number("after.fraction")
    read_parts = tuple(sorted({read(part) for part in few(value)})) if isinstance(value, list) else ()
    if not read_parts or not read_parts[0]:
        raise Wrong("this must be a list of parts of the target", "write it like [0.5, 1.0]; 1.0 is when it is done")
    return read_parts


def patience(value: Any) -> int:
    """Read a number of checkpoints, as a number or as ``3 checkpoints``."""
    match = _PATIENCE.fullmatch(value) if isinstance(value, str) else None
    count = int(match[1]) if match else value
    if type(count) is not int or not 1 <= count <= 1_000:
        raise Wrong("this must be a number of checkpoints", 'write one from 1 to 1000, like "3 checkpoints"')
    return count


def votes(value: Any) -> str:
    """Read the path of a file of votes, on this machine."""
    if not isinstance(value, str) or not value.strip() or is_remote(value):
        raise Wrong("this must be a file of this machine", 'write it like votes = "votes/ufm.jsonl"')
    return value


def usual(value: Any) -> float:
    """Read the share of votes that are worse without any harm."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= 0.999:
        raise Wrong("this must be a share from 0.001 to 0.999", "write 0.5 where votes compare two versions")
    return float(value)


def is_remote(source: str) -> bool:
    """Return whether an input comes from elsewhere than a folder of this machine."""
    return bool(_SCHEME.match(source))


def device_range(value: Any) -> tuple[int, int]:
    """Read a number of devices, or the least and the most."""
    least, most = value if isinstance(value, list) and len(value) == 2 else (value, value)
    if not all(type(count) is int and count >= 1 for count in (least, most)) or least > most:
        raise Wrong("this is no number of devices", "write 1, or a range such as [1, 2]")
    if not RANGES["needs.devices"].holds(most):
        raise Wrong("this number is out of range", f"write one from {RANGES['needs.devices']}")
    return least, most


def start_point(value: Any) -> float | str:
    """Read how far a parent must be before a job starts from it."""
    if value in START_WORDS:
        return str(value)
    if isinstance(value, str):
        raise Wrong("there is no such start", f"use {', '.join(START_WORDS)}, or a fraction of the parent's target")
    fraction: float = number("after.fraction")(value)
    if not fraction:
        raise Wrong("at 0 % there is nothing to start from", 'write "newest" for its first checkpoint')
    return fraction


def speedup(value: Any) -> tuple[float, ...]:
    """Read the gains of several devices over one."""
    read = number("device_speedup")
    if not isinstance(value, list) or not value:
        raise Wrong("this must be a list of numbers", "write it like [1.0, 1.8]")
    gains = tuple(read(gain) for gain in few(value))
    if gains[0] != 1.0:
        raise Wrong("the first gain is that of one device over itself", "begin with 1.0")
    return gains


def span_or_off(value: Any) -> int:
    """Read a duration of a minute to thirty days, or zero for off."""
    if value == "off":
        return 0
    seconds = parse_duration(value)
    if not _SPAN_MIN <= seconds <= _SPAN_MAX:
        raise Wrong("this span is out of range", 'write one from "1m" to "30d", or "off"')
    return seconds


def whole(value: Any) -> int:
    """Read how long a job takes at most that is run in one piece, in seconds."""
    seconds = parse_duration(value)
    if not _SPAN_MIN <= seconds <= _WHOLE_MAX:
        raise Wrong("this time is out of range", 'write one from "1m" to "100h"')
    return seconds


def count_or_off(least: int, most: int) -> Callable[[Any], int]:
    """Return a reader of whole numbers, zero for off."""

    def read(value: Any) -> int:
        if value == "off":
            return 0
        if type(value) is not int or not least <= value <= most:
            raise Wrong("this must be a whole number", f'write one from {least} to {most}, or "off"')
        return value

    return read


def number(key: str) -> Callable[[Any], Any]:
    """Return a reader of what :mod:`jobs.ranges` allows under ``key``."""
    rule = RANGES[key]

    def read(value: Any) -> Any:
        if rule.whole and type(value) is not int:
            raise Wrong("this must be a whole number", f"write one from {rule}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - NaN
            raise Wrong("this must be a number", "write it without quotation marks")
        if not rule.holds(value):
            raise Wrong("this number is out of range", f"write one from {rule}")
        return value if rule.whole else float(value)

    return read


def duration(key: str) -> Callable[[Any], int]:
    """Return a reader of times, in seconds, that :mod:`jobs.ranges` allows under ``key``."""
    rule = RANGES[key]

    def read(value: Any) -> int:
        seconds = parse_duration(value)
        if not rule.holds(seconds):
            raise Wrong("this time is out of range", f"write one from {rule}")
        return seconds

    return read
