"""Exact and near duplicates: digests of normalised text, MinHash signatures, clusters by LSH banding."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from zlib import crc32

SHINGLE_WORDS = 5
SIGNATURE_SIZE = 64
BAND_ROWS = 4
SIMILARITY = 0.7
_POINTS = tuple(range(0, 1 << 32, (1 << 32) // SIGNATURE_SIZE))
METHOD = {"shingle_words": SHINGLE_WORDS, "signature_size": SIGNATURE_SIZE, "similarity": SIMILARITY}
# Members of one bucket that are compared with a newcomer; keeps boilerplate from making the pass quadratic.
_COMPARED = 32


def normalised(text: str) -> bytes:
    """UTF-8 of the text with every run of white space as one space."""
    return " ".join(text.split()).encode("utf-8")


def identity(words: bytes) -> str:
    """Name of a normalised text: the first 32 hex digits of its SHA-256."""
    return hashlib.sha256(words).hexdigest()[:32]


def signature(words: bytes) -> bytes:
    """MinHash signature of a normalised text: 64 numbers of 32 bits.

    Every shingle of five words is hashed once onto a circle; entry i is the first hash at or after the i-th
    of 64 fixed points. Two texts agree in an entry exactly when that first hash of their union is shared, so
    the expected share of equal entries is their Jaccard similarity, as with 64 separate hash functions.
    """
    tokens = words.split(b" ")
    windows = zip(*(tokens[start:] for start in range(min(SHINGLE_WORDS, len(tokens)))), strict=False)
    hashes = sorted(set(map(crc32, map(b" ".join, windows))))
    count = len(hashes)
    return array("I", (hashes[bisect_left(hashes, point) % count] for point in _POINTS)).tobytes()


def clusters(signatures: Sequence[bytes]) -> list[int]:
    """For each text the smallest index in its cluster; texts estimated at least 0.7 alike share a cluster.

    Clusters are transitive. Two texts are compared when four consecutive signature entries in a fixed
    position agree, which finds 98 of 100 pairs of similarity 0.7. Time grows linearly with the texts.
    """
    parent = list(range(len(signatures)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    band_bytes = BAND_ROWS * 4
    for start in range(0, SIGNATURE_SIZE * 4, band_bytes):
        buckets: dict[bytes, list[int]] = {}
        for index, value in enumerate(signatures):
            bucket = buckets.setdefault(value[start : start + band_bytes], [])
            unrelated = True
            for other in bucket[:_COMPARED]:
                mine, theirs = root(index), root(other)
                if mine == theirs:
                    unrelated = False
                elif _similarity(value, signatures[other]) >= SIMILARITY:
                    # The smaller index is the root, whatever the order of merges.
                    parent[max(mine, theirs)] = min(mine, theirs)
                    unrelated = False
            # One member stands for all that are already in its cluster.
            if unrelated:
                bucket.append(index)
    return [root(index) for index in range(len(signatures))]


def _similarity(one: bytes, other: bytes) -> float:
    mine, theirs = memoryview(one).cast("I"), memoryview(other).cast("I")
    return sum(map(int.__eq__, mine, theirs)) / SIGNATURE_SIZE
