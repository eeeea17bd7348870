"""Answers that are none: what becomes of a good body on its way, one fault at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUES: list[Any] = [None, 5, -1, 2**70, 1e308, True, "", "E", "ING", [], ["x"], {}, {"x": None}]
_ODD: tuple[Any, ...] = (None, True, "", [], {})
BODIES = [
    b"",
    b"{}",
    b"[]",
    b"[{}]",
    b"null",
    b"true",
    b"5",
    b'"RUNNING"',
    b"{",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"status": NaN}',
    b'{"code": 500}',
    b'{"code": "x", "message": 5}',
    b'{"status": ""}',
    b'{"status": "E"}',
    b'{"status": null}',
    b'{"status": 2}',
    b'{"error": "", "errorMessage": ""}',
    b"<html><body>Sign in</body></html>",
]


def twists(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield every body with one fault in it: nothing of the kind, or a field that is gone, renamed or another."""
    yield from BODIES
    whole = json.dumps(answer).encode()
    yield whole[: len(whole) // 2]
    yield whole + b"}"
    for changed in _changed(answer):
        yield json.dumps(changed).encode()
    for name in answer:
        yield whole[:-1] + f", {json.dumps(name)}: null}}".encode()  # there twice


def wordless(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield every body that lacks something: nothing of the kind, half of it, or a field that is gone or of no type."""
    yield from BODIES
    whole = json.dumps(answer).encode()
    yield whole[: len(whole) // 2]
    for changed in _lacking(answer):
        yield json.dumps(changed).encode()


def _lacking(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            rest = {other: kept for other, kept in value.items() if other != name}
            yield rest
            yield from ({**rest, name: odd} for odd in _ODD if type(odd) is not type(part))
            for changed in _lacking(part):
                yield {**rest, name: changed}


def _changed(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            rest = {other: kept for other, kept in value.items() if other != name}
            yield rest
            yield {**rest, f"{name}Old": part}
            # A text in the place of a refusal's would be one.
            for odd in VALUES if name not in {"error", "errorMessage"} else [5, True, [], {}]:
                yield {**rest, name: odd}
            for changed in _changed(part):
                yield {**rest, name: changed}
    elif isinstance(value, list) and value:
        for odd in VALUES:
            yield [odd, *value[1:]]
        for changed in _changed(value[0]):
            yield [changed, *value[1:]]
