"""Which duplicate clusters are kept from training."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence


def held_out_clusters(
    cluster_of: Sequence[str], text_bytes: Sequence[int], fraction: float, seed: int
) -> frozenset[str]:
    """Clusters that hold about `fraction` of the bytes, chosen by digest of seed and name.

    `cluster_of` and `text_bytes` are per text. The order of choice does not depend on what else is in the
    corpus, so a corpus that grows keeps nearly all of its held-out texts held out. A cluster that would
    overshoot the target by more than a tenth is passed over, but a corpus of two clusters or more always gets
    something to measure on (if `fraction` is above 0).
    """
    sizes: Counter[str] = Counter()
    for cluster, size in zip(cluster_of, text_bytes, strict=True):
        sizes[cluster] += size
    if fraction == 0 or len(sizes) < 2:
        return frozenset()
    target = fraction * sizes.total()
    chosen: set[str] = set()
    taken = 0
    for cluster in sorted(sizes, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest()):
        if taken + sizes[cluster] <= 1.1 * target:
            chosen.add(cluster)
            taken += sizes[cluster]
        if taken >= 0.9 * target:
            break
    if not chosen:
        chosen.add(min(sizes, key=lambda name: (sizes[name], name)))
    return frozenset(chosen)
