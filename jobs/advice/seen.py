"""Measured step times, which gradually replace the formulas of memory.py. A user's own are stored in advice.json."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, get_type_hints

from jobs.advice.memory import Memory, Pace, Part, pace_of
from jobs.advice.shape import GIB, Card, Setup, cards, find_shape, recognised
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.payload.whole_file import write_whole
from jobs.problem import NotFound

FORMAT = 1
_FILE_BYTES_MAX = 8 << 20
_HALF = 5  # measured steps that weigh as much as the formulas
_FLAT = 1.5  # step times up to this multiple of the fastest one do not depend on the sequence length
_SEEN_SIGMA = 0.05  # relative error between measured sequence lengths
_ELSEWHERE_SIGMA = 0.2  # relative error of a ratio that was measured on other GPUs


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured steps of one set-up: ``seconds`` of a micro-batch, ``peak`` bytes of device memory in use."""

    card: str
    model: str
    method: str
    stack: str
    checkpointing: bool
    batch: int
    seq: int
    seconds: float
    steps: int
    peak: int = 0
    at: int = 0
    source: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch."""
        return self.batch * self.seq


def read_seen(path: Path) -> tuple[Measurement, ...]:
    """Return the measurements of a file. Raises NotFound if a measurement is invalid or faster than its GPU can be."""
    try:
        document = read_json(read_bounded(path, _FILE_BYTES_MAX))
        if isinstance(document, dict) and "setups" in document:
            return tuple(_row(row) for row in _calibrated(document))
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        return tuple(_row(row) for row in document["seen"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "schedctl advise --calibrate writes such files"
        raise NotFound(str(path), f"it cannot be used: {error}", remedy) from None


def write_seen(path: Path, samples: Iterable[Measurement]) -> None:
    """Write measurements to a file that ``read_seen`` reads, also for other users."""
    write_whole(path, json.dumps({"format": FORMAT, "seen": [asdict(row) for row in samples]}, indent=1) + "\n")


def _calibrated(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a file of calibrate.py. Raises ValueError for an unknown card."""
    name = str(document["card"].get("name", ""))
    card = recognised(name)
    if card is None:
        raise ValueError(f"{name or 'its card'} is not a known card")
    return [
        {
            "card": card[0].name,
            "model": row["model"],
            "method": row["method"],
            "stack": _stack(row),
            "checkpointing": row["checkpointing"],
            "batch": point["batch"],
            "seq": point["seq"],
            "seconds": point["seconds"],
            "steps": point["steps"],
            "peak": point["allocated"] + point["context"],
            "source": "calibrate.py",
        }
        for row in document["setups"]
        for point in row["points"]
    ]


def _stack(row: dict[str, Any]) -> str:
    if row["trainer"] == "finetune":
        return "finetune-compiled" if row["compile"] else "finetune"
    return "transformers" if row["autocast"] else "transformers-bare"


def _row(row: Any) -> Measurement:
    if not isinstance(row, dict):
        raise TypeError("a row is not an object")
    types = get_type_hints(Measurement)
    sample = Measurement(**{name: value for name, value in row.items() if name in types})
    for name, kind in types.items():
        value = getattr(sample, name)
        allowed = (int, float) if kind is float else kind
        if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
            raise ValueError(f"{name} = {value!r}")
    if not (0 < sample.seconds < inf and 0 < sample.steps < 10**9 and 0 <= sample.peak < 1 << 50):
        raise ValueError(
            f"{sample.model} on {sample.card}: {sample.seconds} s, {sample.steps} steps, {sample.peak} bytes"
        )
    if not (0 < sample.batch <= 1 << 20 and 0 < sample.seq <= 1 << 24):
        raise ValueError(f"{sample.model} on {sample.card}: {sample.batch} x {sample.seq} tokens")
    if beyond := too_quick(sample):
        raise ValueError(beyond)
    return sample


def too_quick(sample: Measurement) -> str:
    """Return why a measurement exceeds the card's peak rate; "" if it does not, or model or card are unknown."""
    card = cards().get(sample.card)
    try:
        needed = 4 * find_shape(sample.model).parameters * sample.tokens
    except NotFound:
        return ""
    if card is None or needed / sample.seconds <= card.tflops * 1e12:
        return ""
    text = f"{sample.model} on {sample.card}: {sample.tokens / sample.seconds:,.0f} tokens a second"
    return f"{text} are more than this card can compute"


def same(setup: Setup, samples: Sequence[Measurement], card: Card | None) -> list[Measurement]:
    """Return the measurements of this model and method on the card, or on any card if it is None."""
    return [
        row
        for row in samples
        if (row.model, row.method, row.stack) == (setup.shape.name, setup.method, setup.stack.name)
        and row.checkpointing == setup.checkpointing
        and (card is None or row.card == card.name)
    ]


def pace_seen(setup: Setup, card: Card, samples: Sequence[Measurement]) -> Pace:
    """Return the pace by measurements on this GPU; without them, by formula and the ratio measured on other GPUs."""
    prior = pace_of(setup, card)
    here = same(setup, samples, card)
    if here:
        steps = sum(row.steps for row in here)
        share = steps / (steps + _HALF)
        floor, line = _fitted(setup, card, here, prior)
        sigma = share * _SEEN_SIGMA + (1 - share) * prior.sigma
        return _scaled(prior, setup, floor**share, line**share, sigma, steps)
    others = [row for row in same(setup, samples, None) if row.card in cards()]
    if not others:
        return prior
    ratio = median(row.seconds / _pace_alone(setup, cards()[row.card], row).micro(row.tokens) for row in others)
    return _scaled(prior, setup, ratio, ratio, min(prior.sigma, _ELSEWHERE_SIGMA), 0)


def _fitted(setup: Setup, card: Card, rows: Sequence[Measurement], prior: Pace) -> tuple[float, float]:
    """Return the measured factors on the floor of the step time and on its line, which grows with the tokens."""
    quickest = min(row.seconds for row in rows)
    flat = [row for row in rows if row.seconds <= _FLAT * quickest]
    floor = median(row.seconds for row in flat) / prior.floor
    steep = [row for row in rows if row.seconds > _FLAT * quickest]
    if not steep:
        longest = max(rows, key=lambda row: row.tokens)
        return floor, longest.seconds / _line(setup, card, longest)
    return floor, median(row.seconds / _line(setup, card, row) for row in steep)


def _line(setup: Setup, card: Card, row: Measurement) -> float:
    pace = _pace_alone(setup, card, row)
    return pace.fixed + pace.per_token * row.tokens


def _pace_alone(setup: Setup, card: Card, row: Measurement) -> Pace:
    alone = replace(setup, seq=row.seq, batch=row.batch, accumulate=1, devices=1, parallel="none")
    return pace_of(alone, card)


def _scaled(prior: Pace, setup: Setup, floor: float, line: float, sigma: float, steps: int) -> Pace:
    scaled = replace(
        prior,
        floor=prior.floor * floor,
        fixed=prior.fixed * line,
        per_token=prior.per_token * line,
        sigma=sigma,
        samples=steps,
    )
    more = scaled.micro(setup.tokens) - prior.micro(setup.tokens)
    return replace(scaled, step=prior.step + setup.accumulate * more)


def memory_seen(memory: Memory, setup: Setup, card: Card, samples: Sequence[Measurement]) -> Memory:
    """Return the memory; if more was measured with as many tokens or fewer, add the excess as a part."""
    rows = [row for row in same(setup, samples, card) if row.peak and row.tokens <= setup.tokens]
    if not rows:
        return memory
    worst = max(row.peak for row in rows)
    if worst <= memory.total:
        return memory
    more = Part("as seen", worst - memory.total, f"{worst / GIB:.1f} GiB were measured with as many tokens or fewer")
    return Memory((*memory.parts, more), memory.instant)
