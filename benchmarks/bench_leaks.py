"""How well the leak check tells leaked items from others, and how long it takes.

Precision and recall over the pairs of `tests/lab/leak_pairs.py`, in a corpus that holds the boilerplate often;
processor time for a million rows against 10,000 items (`--rows` for fewer, scaled up).

    python benchmarks/bench_leaks.py [--rows 100000]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Iterator
from itertools import accumulate

from jobs.corpus.leaks import ItemIndex
from tests.lab.leak_pairs import pairs, quality

PRECISION, RECALL, SECONDS = 0.9, 0.95, 60.0
ITEMS, ITEM_WORDS, ROW_WORDS, WORDS = 10_000, 80, 100, 30_000


def speed(rows: int) -> tuple[float, float, float]:
    """Return seconds of processor time for the index, for a million rows, and the MiB that it took."""
    dice = random.Random(5)
    words = [f"w{place}" for place in range(WORDS)]
    weights = list(accumulate(1 / (place + 5) for place in range(WORDS)))  # few words are most of a text

    def text(count: int) -> str:
        return " ".join(dice.choices(words, cum_weights=weights, k=count))

    items = {str(place): text(ITEM_WORDS) for place in range(ITEMS)}
    lines = [json.dumps({"source": "a", "text": text(ROW_WORDS)}) for _ in range(rows)]
    code = f"def work(a, b):\n    return {text(20)}\n"
    lines[::4] = [json.dumps({"source": "a", "text": code + text(60)}) for _ in lines[::4]]  # a quarter looks like code
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    index = ItemIndex(items)
    indexed = time.process_time()

    def read() -> Iterator[tuple[str, str]]:
        for line in lines:
            row = json.loads(line)
            yield row["source"], row["text"]

    index.seen_in(read())
    end = time.process_time()
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return indexed - begin, (end - indexed) * 1_000_000 / rows, memory


def main() -> int:
    """Print the figures; return 1 if one misses what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    precision, recall, wrong = quality()
    count = len(pairs())
    print(f"{count} pairs: precision {precision:.3f} (asked {PRECISION}), recall {recall:.3f} (asked {RECALL})")
    for (kind, leaked), times in sorted(wrong.items()):
        print(f"  {kind:24} {'leaked' if leaked else 'clean':7} {times} wrong")
    indexed, seconds, memory = speed(rows)
    print(f"{ITEMS:,} items: indexed in {indexed:.1f} s, {memory:.0f} MiB")
    print(f"1,000,000 rows: {seconds:.1f} s of processor time on one core (asked {SECONDS:.0f} s on two)")
    return precision < PRECISION or recall < RECALL or seconds > SECONDS


if __name__ == "__main__":
    raise SystemExit(main())
