"""Concerns about gates: a test set that cannot be read, or is too small for a gate ever to decide by it.

Found when a job is added and when settings are checked, before anybody trains for weeks towards a verdict that no
scores can give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from jobs.nouns.keys import is_remote
from jobs.payload.scorers.items import BadItems, Item, read_items
from jobs.spec import HELD_OUT, JobSpec, QualityGate
from scheduler.judge.evidence import ALPHA, clusters_needed
from scheduler.judge.gates import surely_needed

_REMEDY = "add items to the set, or ask for less"


def of_gates(spec: JobSpec) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, value, why and what to do of all that keeps a job's gates from deciding as they are meant to.

    What is not on this machine, or is made of a corpus with each evaluation, is passed over.
    """
    wanted = spec.evaluation
    if wanted is None or wanted.test_set.source == HELD_OUT or is_remote(wanted.test_set.source):
        return
    place = Path(wanted.test_set.source)
    try:
        files = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
        if len(files) != 1:
            why = f"it must have one file of JSON lines (.jsonl), and has {len(files)}"
            yield "evaluation.set", str(place), why, "name the file itself"
            return
        items = read_items(files[0]).items.values()
    except (BadItems, OSError) as error:
        reason = str(error) if isinstance(error, BadItems) else (error.strerror or str(error)).lower()
        yield "evaluation.set", str(place), reason, "no version of this model can be judged by it as it is"
        return
    for gate in spec.gates:
        if why := _too_small(gate, items, spec.gates):
            yield "gates", f"{gate.kind} on {gate.metric}", why, _REMEDY


def _too_small(gate: QualityGate, items: Iterable[Item], gates: Iterable[QualityGate]) -> str:
    """Return why the items cannot be enough for a gate; "" where they may be."""
    _, dot, domain = gate.metric.partition(".")
    own = [item for item in items if not dot or item.domain == domain]
    of_domain = f" of domain {domain}" if dot else ""
    if not own:
        return f"the test set has no item{of_domain}"
    least = smallest_set(gate, sum(1 for one in gates if one.kind == "no_harm"))
    threshold = gate.kind == "threshold"
    count = len(own) if threshold else len({item.cluster for item in own})
    if count >= least:
        return ""
    what = "items" if threshold else "clusters"
    never = "refuse a version" if gate.kind == "no_harm" else "let one pass"
    return f"the test set has {count} {what}{of_domain}, and with fewer than {least} it can never {never}"


# How large a test set must be, told before anybody trains for a gate that it can never pass.
def smallest_set(gate: QualityGate, guards: int = 1) -> int:
    """Return the size of a test set below which a gate can never decide as it is meant to.

    A threshold by its bound needs so many items to pass, a comparison so many clusters (independent items); a guard,
    one of ``guards``, can never refuse with fewer clusters.
    """
    if gate.kind == "threshold":
        if gate.by == "point":
            return 1
        if gate.minimum is not None:
            return surely_needed(gate.minimum)
        return surely_needed(1 - (gate.maximum or 0.0))
    return clusters_needed(ALPHA / guards if gate.kind == "no_harm" else ALPHA)
