"""The probe of an adapter: whether the server answers with it, or only says that it has loaded it.

A server may list an adapter that fits no module, and answer for it as the bare base would. So one fixed prompt is put
at temperature 0 to both. The adapter's answer must differ from the base's, in words or in what they were worth, and be
the one that was written down when the version was accepted, where ``probe.json`` of the release has one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from platforms.targets.base import BadRelease, Release
from platforms.targets.loopback import Answer, Loopback

NAME = "probe.json"
_PROMPT = "Write one atomic component that validates a file name."
_TOKENS = 16
_SAME = 1e-6  # log-probabilities of one model and prompt differ by less, where nothing else runs beside them
_TOLERANCE = 0.05
MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Said:
    """The first tokens of an answer and their log-probabilities."""

    tokens: tuple[str, ...]
    worth: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """What is asked, and what was answered at acceptance; None where nobody wrote that down."""

    prompt: str = _PROMPT
    expected: Said | None = None
    tolerance: float = _TOLERANCE


def probe_of(release: Release) -> Probe:
    """Return the probe that a release brings along, or the usual one. Raises BadRelease, OSError."""
    if NAME not in release.files:
        return Probe()
    try:
        told = json.loads((release.folder / NAME).read_bytes()[:MAX_BYTES])
        expected = _said(told["tokens"], told["logprobs"])
        prompt, tolerance = told["prompt"], float(told.get("tolerance", _TOLERANCE))
        if expected is None or not isinstance(prompt, str) or not 0 <= tolerance < 1:
            raise ValueError(NAME)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        why = f"{NAME} has not prompt, tokens and logprobs of the same length"
        raise BadRelease("(none yet)", "probe it", why, "Export the version anew") from None
    return Probe(prompt, expected, tolerance)


def fault(server: Loopback, probe: Probe, adapter: str, base: str) -> str:
    """Return why ``adapter`` cannot be trusted to be in use; "" when it can. Raises TargetUnreachable."""
    bare, found = (_ask(server, probe, name) for name in (base, adapter))
    if found is None or bare is None:
        return f"the server gives no tokens with log-probabilities for {adapter if found is None else base}"
    if found.tokens == bare.tokens and _near(found.worth, bare.worth, _SAME):
        return f"{adapter} is loaded but not applied: it answers as {base} does"
    expected = probe.expected
    if expected is not None:
        count = min(len(expected.tokens), len(found.tokens))
        same = expected.tokens[:count] == found.tokens[:count] and count == len(expected.tokens)
        if not (same and _near(found.worth[:count], expected.worth, probe.tolerance)):
            return f"{adapter} does not answer as it did when it was accepted"
    return ""


def _ask(server: Loopback, probe: Probe, name: str) -> Said | None:
    wanted = len(probe.expected.tokens) if probe.expected else _TOKENS
    question = {"model": name, "prompt": probe.prompt, "max_tokens": wanted, "temperature": 0, "logprobs": 1}
    return _read(server.call("POST", "/v1/completions", question))


def _read(answer: Answer) -> Said | None:
    try:
        told = answer.document["choices"][0]["logprobs"]
        return _said(told["tokens"], told["token_logprobs"]) if answer.status == 200 else None
    except (KeyError, IndexError, TypeError):
        return None


def _said(tokens: Any, worth: Any) -> Said | None:
    if not (isinstance(tokens, list) and isinstance(worth, list) and 0 < len(tokens) == len(worth) <= 1_000):
        return None
    if not all(isinstance(token, str) for token in tokens):
        return None
    numbers = tuple(float(one) for one in worth if isinstance(one, int | float) and math.isfinite(one))
    return Said(tuple(tokens), numbers) if len(numbers) == len(tokens) else None


def _near(these: tuple[float, ...], those: tuple[float, ...], within: float) -> bool:
    return len(these) == len(those) and all(abs(one - other) <= within for one, other in zip(these, those, strict=True))
