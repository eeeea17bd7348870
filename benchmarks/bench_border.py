"""Tell the daemon odd things until it has heard COUNT of them: no cycle may crash, and memory must stay bounded.

    python benchmarks/bench_border.py [COUNT] [--seed N]

Prints what was found and exits 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.lab.border.fuzz import MEMORY_MAX, fuzz
from tests.lab.simulation.database import Laboratory


def main() -> int:
    """Fuzz, print, and say by the exit code whether all promises were kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    began = time.perf_counter()
    with Laboratory() as laboratory:
        world = fuzz(laboratory, chosen.count, chosen.seed)
        broken = world.check()
    grown = max(world.memory) - world.memory[len(world.memory) // 10]
    seconds = time.perf_counter() - began
    print(f"{world.told} odd documents and answers in {seconds:.0f} s (seed {chosen.seed})")
    print(
        f"crashes of a cycle: {len(world.crashes)}; memory grew by {grown / 2**20:.1f} MiB (at most {MEMORY_MAX >> 20})"
    )
    print(f"the victim saved {world.saved} steps; said: {dict(world.log.said.most_common(12))}")
    for line in broken:
        print(f"BROKEN: {line}")
    return int(bool(broken) or grown > MEMORY_MAX)


if __name__ == "__main__":
    sys.exit(main())
