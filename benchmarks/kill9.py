"""Kill -9 at random moments of real rehearsals, and audit what is left: nothing run twice, nothing lost.

    python benchmarks/kill9.py [RUNS] [FIRST_SEED]

Prints, and writes to benchmarks/out/kill9.json: kill9_runs (with a kill at least), kill9_kills, kill9_adopted,
kill9_duplicates, kill9_losses, kill9_failures, adoption_seconds_max and its median (from the start of the new daemon),
resume_seconds_max (from the command that starts it), and the load of the machine, which stretches both. Exits with 1
when anything was found; a seed that did can be tried again alone: ``python benchmarks/kill9.py 1 SEED``.
An interruption lets the rehearsals that run come to their end, and leaves the figures of all that did.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tests.lab.crashes.campaign import attack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.lab.crashes.campaign import Outcome

RUNS = 50
AT_ONCE = 2
OUT = Path(__file__).parent / "out" / "kill9.json"


def main(words: Sequence[str]) -> int:
    """Run the campaign."""
    runs = int(words[0]) if words else RUNS
    first = int(words[1]) if len(words) > 1 else 1
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="kill9-") as folder, ThreadPoolExecutor(AT_ONCE) as threads:
        running = [threads.submit(_run, Path(folder), seed) for seed in range(first, first + runs)]
        try:
            for ended in as_completed(running):
                outcomes.append(ended.result())
                _write(outcomes)
        except KeyboardInterrupt:
            print("interrupted: waiting for the rehearsals that run", file=sys.stderr)
            left = [future for future in running if not future.cancel()]
            outcomes = [future.result() for future in left]
            _write(outcomes)
    print(OUT.read_text())
    return 0 if len(outcomes) == runs and all(outcome.clean for outcome in outcomes) else 1


def _write(outcomes: Sequence[Outcome]) -> None:
    OUT.parent.mkdir(exist_ok=True)
    fresh = OUT.with_suffix(".new")
    fresh.write_text(json.dumps(figures_of(outcomes), indent=2) + "\n")
    fresh.replace(OUT)


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the figures of a campaign."""
    adoptions = [seconds for outcome in outcomes for seconds in outcome.adoption_seconds]
    resumes = [seconds for outcome in outcomes for seconds in outcome.resume_seconds]
    return {
        "kill9_runs": sum(bool(outcome.kills) for outcome in outcomes),
        "kill9_kills": sum(len(outcome.kills) for outcome in outcomes),
        "kill9_adopted": sum(outcome.adopted for outcome in outcomes),
        "kill9_duplicates": sum(len(outcome.findings.duplicates) for outcome in outcomes),
        "kill9_losses": sum(len(outcome.findings.losses) for outcome in outcomes),
        "kill9_failures": sum(len(outcome.failures) + len(outcome.findings.other) for outcome in outcomes),
        "adoption_seconds_max": round(max(adoptions, default=0.0), 2),
        "adoption_seconds_median": round(median(adoptions), 2) if adoptions else 0.0,
        "resume_seconds_max": round(max(resumes, default=0.0), 2),
        "load_per_core": round(os.getloadavg()[2] / (os.cpu_count() or 1), 2),
    }


def _run(folder: Path, seed: int) -> Outcome:
    outcome = attack(folder / str(seed), seed)
    print(f"seed {seed}: {', '.join(outcome.kills)}", file=sys.stderr)
    for finding in (*outcome.findings.all, *outcome.failures):
        print(f"seed {seed}: FOUND {finding}", file=sys.stderr)
    return outcome


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
