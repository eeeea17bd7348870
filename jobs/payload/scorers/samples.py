"""Scores from the sample logs of lm-eval and inspect-ai, which run separately and are not imported.

lm-eval writes ``samples_TASK_*.jsonl`` with ``--log_samples``; its task must read the test set, so that documents have
ids. inspect-ai writes a log with ``--log-format json``, with the set's ids. Each of their metrics becomes a metric.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..bounded_file import read_bounded
from ..bounds import MEASURE_MAX
from .given import NotGiven, ScorerInput
from .items import Item, ScoreLine, is_name, records

METRIC = ""  # the logs name the metrics
LOG_BYTES_MAX = 1 << 28
_LINE_BYTES_MAX = 4 << 20
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # grades of inspect-ai: correct, partly, incorrect, no answer
_EXAMPLE_MAX = 300
Samples = dict[str, dict[str, list[tuple[float, str]]]]  # (value, example) by metric and item


def score(items: Sequence[Item], candidate: ScorerInput, metric: str) -> Iterator[ScoreLine]:
    """Score each item by the mean of its samples; an item without samples scores 0."""
    if not candidate.options.samples:
        raise NotGiven("there are no samples; give --samples FILE or FOLDER, of lm-eval or inspect-ai")
    samples: Samples = {}
    for path in _files(Path(candidate.options.samples)):
        (_inspect if path.suffix == ".json" else _lm_eval)(path, samples)
    if not samples:
        raise NotGiven(
            f"{candidate.options.samples} has no sample with an id and a score; log samples with the ids of the set"
        )
    for name, of_item in sorted(samples.items()):
        for item in items:
            values = of_item.get(item.id, [(0.0, "not among the samples")])
            mean = math.fsum(value for value, _ in values) / len(values)
            yield ScoreLine(item.id, item.cluster, name + metric, mean, values[0][1][:_EXAMPLE_MAX])


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted([*path.rglob("samples_*.jsonl"), *path.rglob("*_*.json")]) if path.is_dir() else []
    # lm-eval writes files of results, which have no samples, beside them.
    return [file for file in files if not file.name.startswith("results_")]


def _lm_eval(path: Path, values: Samples) -> None:
    """Add lm-eval's samples to ``values``; if a metric has several filters, only the first one counts."""
    filters: dict[str, str] = {}
    for _, record in records(path, _LINE_BYTES_MAX):
        document = record.get("doc") if record else None
        if not record or not isinstance(document, dict) or not is_name(document.get("id")):
            continue
        for name in record["metrics"] if isinstance(record.get("metrics"), list) else ():
            filter_name = str(record.get("filter", ""))
            if isinstance(name, str) and filters.setdefault(name, filter_name) == filter_name:
                _add(values, name, str(document["id"]), record.get(name), str(record.get("filtered_resps", "")))


def _inspect(path: Path, values: Samples) -> None:
    """Add the samples of a successful inspect-ai log to ``values``. Raises NotGiven."""
    try:
        log = json.loads(read_bounded(path, LOG_BYTES_MAX))
    except OSError as error:
        raise NotGiven(f"{path.name} cannot be read: {error.strerror}; log fewer samples per file") from None
    except (ValueError, RecursionError) as error:
        raise NotGiven(f"{path.name} is not a log of inspect-ai: {error}"[:200]) from None
    if not isinstance(log, dict) or not isinstance(log.get("samples"), list):
        raise NotGiven(f"{path.name} is not a log of inspect-ai with samples; run it with --log-format json")
    if log.get("status") != "success":
        raise NotGiven(f"{path.name} is of an evaluation that did not end well: {str(log.get('status'))[:50]}")
    for sample in log["samples"]:
        scores = sample.get("scores") if isinstance(sample, dict) else None
        if isinstance(scores, dict) and is_name(sample.get("id")):
            for name, score_value in scores.items():
                if isinstance(score_value, dict):
                    _add(values, name, sample["id"], score_value.get("value"), str(score_value.get("answer", "")))


def _add(values: Samples, name: str, item: str, value: Any, example: str) -> None:
    """Add a value under a valid metric name; a value that is not a finite number counts as 0."""
    number = _GRADES.get(value) if isinstance(value, str) else value
    good = isinstance(number, bool | int | float) and abs(number) <= MEASURE_MAX
    example_text = example if good else f"{value!r:.100} is not a score"
    metric = re.sub(r"[^a-z0-9_@-]+", "_", name.lower()).strip("_@-")[:60] or "score"
    values.setdefault(metric, {}).setdefault(item, []).append((float(number or 0.0) if good else 0.0, example_text))
