"""Oddities: values, documents and answers that nothing honest would send, drawn from a seed."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from platforms.base import Observed, QuotaReading, SessionState, StopChannel

if TYPE_CHECKING:
    from random import Random

# In JSON, because some of it no Python value can say.
ODD = (
    *("null", "true", "false", "[]", "{}", "0", "-1", "1", "-0.0", "5e-324"),
    *("1e-310", "1e308", "-1e308", "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "9e18", "0.1"),
    *(str(2**63), str(-(2**63) - 1), str(2**64), str(10**12), "9" * 400, "-" + "9" * 400, "9" * 5_000, '"9"'),
    *('""', '"x"', '"1e9"', '"\\u0000"', '"\\ud800"', '"\\u202e\\u001b[2J"', json.dumps("y" * 100_000)),
    *("[" * 200 + "]" * 200, '{"a":' * 90 + "1" + "}" * 90, "[1,2,3]", '{"step":1}', '[{"manifest":1}]', "[null]"),
    *('[{"manifest":"jobs/victim/manifests/000000000500-000001.json","why":"no"}]', json.dumps(["d"] * 1_000)),
    *('{"manifest":"jobs/victim/manifests/000000000500-000001.json"}', '"../../etc/passwd"', '"finished"', '"lost"'),
)
NAMES = (
    "step",
    "job",
    "run",
    "event",
    "self",
    "level",
    "exc_info",
    "msg",
    "stack",
    "metrics",
    "loss\n",
    "",
    "é",
    "x" * 900,
)
ODD_PYTHON: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 10**12, 2**63, -(2**63), 10**400, 10**5_000, 1.5, math.nan, math.inf, 1e308, 5e-324),
    *("", "x", "\0", "\ud800", "y" * 100_000, b"bytes", [], {}, object(), Exception("odd"), ("a", 1)),
)
_WHOLE = (
    b"",
    b"null",
    b"[]",
    b"7",
    b'"x"',
    b"{",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a":' * 3_000,
    b"NaN",
    b"{}",
    b"9" * 9_000,
)


def document(rng: Random, honest: dict[str, Any]) -> bytes:
    """Return an honest document with something odd in it, or something that is no such document."""
    draw = rng.random()
    if draw < 0.05:
        return rng.choice(_WHOLE)
    parts = {name: json.dumps(value) for name, value in honest.items()}
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        name = rng.choice((*parts, rng.choice(NAMES)))
        if rng.random() < 0.1:
            parts.pop(name, None)
        else:
            parts[name] = rng.choice(ODD)
    text = ",".join(f"{json.dumps(name)}:{value}" for name, value in parts.items())
    data = f"{{{text}}}".encode()
    if draw < 0.1:
        place = rng.randrange(len(data))
        data = data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    return data


def metrics(rng: Random) -> str:
    """Return metrics, in JSON, with odd names and odd values."""
    chosen = {rng.choice(NAMES): rng.choice((*ODD, "0.5", "2")) for _ in range(rng.randint(1, 6))}
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in chosen.items()) + "}"


def answer(rng: Random, honest: Observed) -> Any:
    """Return an honest answer with something odd in it, or something that is no answer."""
    if rng.random() < 0.1:
        return rng.choice(ODD_PYTHON)
    changes: dict[str, Any] = {}
    for name in rng.sample([field.name for field in fields(Observed)], rng.choice((1, 1, 2, 3))):
        states = (*SessionState, "running", "paused")
        usual = {"state": states, "stop_channel": (*StopChannel, "never"), "key": (honest.key, "another")}
        changes[name] = rng.choice((*ODD_PYTHON, *usual.get(name, ()), *usual.get(name, ())))
    return replace(honest, **changes)


def readings(rng: Random, honest: QuotaReading) -> Any:
    """Return an honest reading with something odd in it, or something that is none."""
    if rng.random() < 0.1:
        return rng.choice(ODD_PYTHON)
    changes = {
        name: rng.choice((*ODD_PYTHON, honest.start, honest.end))
        for name in rng.sample([field.name for field in fields(QuotaReading)], rng.choice((1, 1, 2)))
    }
    return [replace(honest, **changes)]
