"""Bounds: validate values from outside by type and range.

Untrusted documents may contain booleans for numbers, infinities, numbers of four hundred digits, terminal control
sequences, or text that no database stores. An invalid field is dropped; the other fields of its document are used.
"""

import json
import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

STEP_MAX = 10**12 - 1  # the name of a manifest has twelve digits for the step
ATTEMPT_MAX = 10**6 - 1  # and six for the attempt
LANE_MAX = 999
INSTANT_MAX = 253_402_300_799  # UTC seconds: the last instant of the calendar
SPAN_MAX = 10**9  # seconds: thirty years
BYTES_MAX = 2**50
SPEED_MIN, SPEED_MAX = 1e-6, 1e6  # steps per second
MEASURE_MAX = 1e18  # the largest absolute value of a loss or a metric
TELEMETRY = {  # metrics of training steps, with their highest plausible values
    "tokens_per_second": 1e12, "step_seconds_p90": float(SPAN_MAX), "padding": 1.0, "gradient_norm": MEASURE_MAX,
    "gpu_busy": 1.0, "gpu_watts": 1e6, "gpu_throttled": 1.0,
}  # fmt: skip
TEXT_MAX = 4_000  # characters
MEASURES_MAX = 100  # metrics of one checkpoint
NAME_MAX = 200  # characters
DATA_ENTRIES_MAX = 30  # of each list that describes training data: forms, reasons and samples
SAMPLE_MAX = 400  # characters
REFUSALS_MAX = 20  # rejections that are recorded for one document

_EXCERPT_MAX = 200  # characters
_DIGITS_MAX = 20  # more digits than 64 bits need; Python refuses to parse some thousands
_Value = TypeVar("_Value")


class Unfit(ValueError):
    """A value has the wrong type or is out of range."""


class Rejection(NamedTuple):
    """A rejected value: its field, the reason, and the beginning of the value."""

    field: str
    why: str
    excerpt: str


def read_json(data: bytes | str) -> Any:
    """Parse JSON of any content. Raises ValueError for invalid JSON; integers that are too long become infinite."""
    try:
        return json.loads(data, parse_int=lambda digits: int(digits) if len(digits) <= _DIGITS_MAX else math.inf)
    except RecursionError:
        raise ValueError("nested too deep") from None


def digits(text: object, high: int) -> int | None:
    """Return the integer from 0 to ``high`` that a text of ASCII digits stands for; None for anything else.

    ``str.isdigit`` alone is not enough: it accepts characters and lengths that ``int()`` refuses.
    """
    if not isinstance(text, str) or len(text) > _DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= high else None


def whole(value: Any, low: int = 0, high: int = STEP_MAX) -> int:
    """Return a whole number within ``low`` .. ``high``. Raises Unfit."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unfit("not a whole number")
    if not low <= value <= high:
        raise Unfit(f"not within {low} .. {high}")
    return int(value)


def number(value: Any, low: float = 0.0, high: float = MEASURE_MAX) -> float:
    """Return a finite number within ``low`` .. ``high``. Raises Unfit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit("not a number")
    # compares without conversion, so it works for integers of any length; NaN is never within the range
    if not low <= value <= high:
        raise Unfit(f"not within {low:g} .. {high:g}")
    return float(value)


def measure(value: Any) -> float:
    """Return a loss or a metric: finite, of either sign. Raises Unfit."""
    return number(value, -MEASURE_MAX, MEASURE_MAX)


def speed(value: Any) -> float:
    """Return steps per second: zero, or a plausible speed. Raises Unfit."""
    return 0.0 if number(value, 0.0, SPEED_MAX) == 0 else number(value, SPEED_MIN, SPEED_MAX)


def text(value: Any, limit: int = TEXT_MAX) -> str:
    """Return text, cleaned and cut to ``limit`` characters. Raises Unfit for anything else."""
    if not isinstance(value, str):
        raise Unfit("not a text")
    return clean(value, limit)


def clean(value: str, limit: int = TEXT_MAX) -> str:
    """Return text without control characters and lone surrogates, safe for terminals, files and databases."""
    cut = value[:limit]
    if cut.isprintable():
        return cut
    return "".join(map(_printable, cut))


def word(value: Any, allowed: Collection[str]) -> str:
    """Return a text that is one of ``allowed``. Raises Unfit."""
    if not isinstance(value, str) or value not in allowed:
        raise Unfit(f"not one of {', '.join(sorted(allowed))}")
    return value


def measures(values: Any) -> dict[str, float]:
    """Return the valid metrics by name, at most MEASURES_MAX; leave out the others."""
    result: dict[str, float] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        if len(result) >= MEASURES_MAX:
            break
        if isinstance(name, str) and 0 < len(name) <= NAME_MAX and name.isprintable():
            try:
                result[name] = measure(value)
            except Unfit:
                continue
    return result


def training_data(value: Any) -> dict[str, Any]:
    """Return the validated description of training data: records by form, [reason, count, first place] of skipped ones.

    ``cut`` is the number of records longer than a row; ``padding`` is the share of padding among the tokens of all
    rows; ``samples`` are texts with the learned parts marked. Raises Unfit.
    """
    if not isinstance(value, dict):
        raise Unfit("not an object")
    forms, reasons = value.get("records"), value.get("left_out")
    if not isinstance(forms, dict) or not isinstance(reasons, list):
        raise Unfit("without the counts of records by form, or without the list of skipped records")
    samples = value.get("samples") or []
    if not isinstance(samples, list):
        raise Unfit("without a list of samples")
    if max(len(forms), len(reasons), len(samples)) > DATA_ENTRIES_MAX:
        raise Unfit(f"has more than {DATA_ENTRIES_MAX} forms, reasons or samples")
    if not all(isinstance(reason, list | tuple) and len(reason) == 3 for reason in reasons):
        raise Unfit("a skipped record lacks its reason, count or place")
    return {
        "records": {text(form, NAME_MAX): whole(count) for form, count in forms.items()},
        "left_out": [[text(why, NAME_MAX), whole(count), text(place, NAME_MAX)] for why, count, place in reasons],
        "cut": whole(value.get("cut", 0)),
        "rows": whole(value.get("rows", 0)),
        "tokens": whole(value.get("tokens", 0)),
        "padding": None if value.get("padding") is None else number(value["padding"], 0.0, 1.0),
        "samples": [text(sample, SAMPLE_MAX) for sample in samples],
    }


def without_secrets(data: Mapping[str, Any], hide: Callable[[str], str]) -> dict[str, Any]:
    """Return the result of :func:`training_data` with ``hide`` applied to its texts."""
    return {
        **data,
        "records": {hide(form): count for form, count in data["records"].items()},
        "left_out": [[hide(why), count, hide(place)] for why, count, place in data["left_out"]],
        "samples": [hide(sample) for sample in data["samples"]],
    }


def brief(value: Any) -> str:
    """Return the beginning of any value as text for a person, however long or deeply nested it is."""
    try:
        text = _SHORT.repr(value)
    except Exception as error:  # noqa: BLE001 - a foreign __repr__, or an integer too long to print
        text = f"{type(value).__name__} that cannot be shown ({type(error).__name__})"
    return clean(text, _EXCERPT_MAX)


class Reader:
    """Reads the fields of one document. Invalid fields are added to ``refused`` and count as missing."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.refused: list[Rejection] = []

    def read(self, name: str, reader: Callable[..., _Value], *bounds: Any) -> _Value | None:
        """Return a field validated by ``reader``; None if it is missing, null or invalid."""
        value = self._document.get(name)
        if value is None:
            return None
        try:
            return reader(value, *bounds)
        except Unfit as error:
            self.refuse(name, str(error), value)
            return None

    def text(self, name: str, limit: int = TEXT_MAX) -> str:
        """Return a text field; empty if it is missing."""
        return self.read(name, text, limit) or ""

    def refuse(self, name: str, why: str, value: Any) -> None:
        """Record that a field was rejected, up to REFUSALS_MAX fields."""
        if len(self.refused) < REFUSALS_MAX:
            self.refused.append(Rejection(name, why, brief(value)))


def _printable(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def _short() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _EXCERPT_MAX
    return short


_SHORT = _short()
