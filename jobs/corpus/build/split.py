"""Which duplicate clusters are kept from training."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

# A domain with fewer clusters cannot spare one for measuring.
_CLUSTERS_TO_SPARE = 10


def held_out_clusters(
    cluster_of: Sequence[str],
    text_bytes: Sequence[int],
    domains_of: Sequence[Sequence[str]],
    fraction: float,
    seed: int,
) -> frozenset[str]:
    """Clusters that hold about `fraction` of the bytes, chosen by digest of seed and name.

    The first three arguments are per text. Every domain of ten clusters or more gets one to measure on, if
    any of them fits the target; the rest is filled up in digest order. That order does not depend on what
    else is in the corpus, so a corpus that grows keeps nearly all of its held-out texts held out. Clusters
    that would overshoot the target by more than a tenth are passed over, but a corpus of two clusters or more
    always gets something held out (if `fraction` is above 0).
    """
    sizes: Counter[str] = Counter()
    members: defaultdict[str, set[str]] = defaultdict(set)
    for cluster, size, domains in zip(cluster_of, text_bytes, domains_of, strict=True):
        sizes[cluster] += size
        for domain in domains:
            members[domain].add(cluster)
    if fraction == 0 or len(sizes) < 2:
        return frozenset()
    order = sorted(sizes, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    limit = 1.1 * fraction * sizes.total()
    chosen: set[str] = set()
    taken = 0
    wishes = [members[name] for name in sorted(members) if len(members[name]) >= _CLUSTERS_TO_SPARE]
    for wanted in wishes:
        if chosen.isdisjoint(wanted):
            found = next((name for name in order if name in wanted and taken + sizes[name] <= limit), None)
            if found:
                chosen.add(found)
                taken += sizes[found]
    for name in order:
        if taken >= limit * 0.9 / 1.1:
            break
        if name not in chosen and taken + sizes[name] <= limit:
            chosen.add(name)
            taken += sizes[name]
    return frozenset(chosen or {min(sizes, key=lambda name: (sizes[name], name))})
