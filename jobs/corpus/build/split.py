"""Which duplicate clusters are kept from training."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

# A domain with fewer clusters cannot spare one for measuring.
_CLUSTERS_TO_SPARE = 10
# However few texts there are, most of them are for training.
_MOST_CLUSTERS = 0.1
_MOST_BYTES = 0.15


def held_out_clusters(
    cluster_of: Sequence[str],
    text_bytes: Sequence[int],
    domains_of: Sequence[Sequence[str]],
    fraction: float,
    seed: int,
    wanted: int = 0,
) -> frozenset[str]:
    """Clusters that hold about `fraction` of the bytes, `wanted` of them at least, chosen by digest of seed and name.

    The first three arguments are per text. Every domain of ten clusters or more gets one to measure on, if
    any of them fits the target; the rest is filled up in digest order. That order does not depend on what
    else is in the corpus, so a corpus that grows keeps nearly all of its held-out texts held out. Clusters
    that would overshoot the target by more than a tenth are passed over, but a corpus of two clusters or more
    always gets something held out (if `fraction` is above 0). So that there are `wanted` clusters, more is held
    out, but no more than a tenth of all clusters, nor 0.15 of all bytes.
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
    for wished in wishes:
        if chosen.isdisjoint(wished):
            found = next((name for name in order if name in wished and taken + sizes[name] <= limit), None)
            if found:
                chosen.add(found)
                taken += sizes[found]
    enough = min(wanted, int(_MOST_CLUSTERS * len(sizes)))
    for most, by_bytes in ((limit, True), (_MOST_BYTES * sizes.total(), False)):
        for name in order:
            if taken >= limit * 0.9 / 1.1 if by_bytes else len(chosen) >= enough:
                break
            if name not in chosen and taken + sizes[name] <= most:
                chosen.add(name)
                taken += sizes[name]
    return frozenset(chosen or {min(sizes, key=lambda name: (sizes[name], name))})
