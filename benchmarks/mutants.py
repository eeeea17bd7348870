"""Put small bugs into the product, one at a time, and list those that no test notices.

    python benchmarks/mutants.py scheduler/core jobs/payload/lane --sample 100

It works in a copy of the work tree. Which tests enter which functions is learned by running them once; it is kept in
out/mutants.json, and later only test files that have changed are run again. What a person has found to change nothing
stands in benchmarks/mutants_equivalent.txt, each with its reason, and is not tried. Exits with 1 when a mutant lived.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.mutation.mutate import mutants_of
from tests.lab.mutation.trial import Trials

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.lab.mutation.mutate import Mutant
    from tests.lab.mutation.trial import Verdict

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "out" / "mutants.json"
EQUIVALENT = ROOT / "benchmarks" / "mutants_equivalent.txt"
TESTS = ("tests/unit", "tests/property", "tests/integration")
# They need servers, a browser or minutes, and see nothing that the others do not reach.
LEFT_OUT = (
    *("bridge", "kaggle", "sagemaker", "skypilot", "slurm", "targets"),
    *("web/test_web_browser.py", "web/test_approved_pictures.py", "test_s3_store.py", "test_s3_presigned.py"),
)
COPY = "MUTANTS_COPY"


def main() -> int:
    """Try mutants in a copy of the work tree."""
    if COPY in os.environ:
        return _try_mutants(_options())
    _options()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        environ = {**os.environ, "PYTHONPATH": str(tree), "TMPDIR": folder, COPY: str(CACHE)}
        command = [sys.executable, str(tree / "benchmarks" / Path(__file__).name), *sys.argv[1:]]
        return subprocess.run(command, cwd=tree, env=environ, check=False).returncode


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="files or folders of the product")
    parser.add_argument("--sample", type=int, default=0, help="how many mutants are tried; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of tests for each mutant at most")
    parser.add_argument("--limit", type=float, default=3_600.0, help="seconds after which no other mutant is tried")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="test files or folders to try them with")
    return parser.parse_args()


def _try_mutants(options: argparse.Namespace) -> int:
    known = {line.split("  # ")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}
    mutants = [one for one in _mutants(options.paths) if one.key not in known]
    if options.sample and options.sample < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    mutants.sort(key=lambda one: (one.path, one.start))
    out = os.fdopen(os.dup(1), "w")  # pytest takes the other
    words: Counter[str] = Counter()
    began = time.monotonic()

    def tell(verdict: Verdict) -> bool:
        words[verdict.word] += 1
        if verdict.word in {"alive", "unreached"}:
            print(f"{verdict.word} ({verdict.tests} tests): {verdict.mutant}", file=out, flush=True)
        return time.monotonic() - began < float(options.limit)

    trials = Trials(ROOT, mutants, Path(os.environ[COPY]), options.seconds, tell)
    left_out = [f"--ignore=tests/integration/{name}" for name in LEFT_OUT]
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:logging"]
    quiet += ["-m", "not postgres", "-o", "tmp_path_retention_policy=none", "-o", "addopts=--import-mode=importlib"]
    code = pytest.main([*quiet, *left_out, *options.tests], [trials])
    if trials.left_out:
        print(f"left out: {len(trials.left_out)} tests that fail in a forked process", file=out)
    killed = words["killed"] + words["hung"]
    print(f"{killed} of {words.total()} killed: {dict(words)}; {len(mutants)} wanted", file=out, flush=True)
    return code or int(killed < words.total())


def _mutants(paths: Iterable[str]) -> list[Mutant]:
    files = sorted(
        {file for path in paths for file in ([Path(path)] if path.endswith(".py") else Path(path).rglob("*.py"))}
    )
    return [mutant for file in files for mutant in mutants_of(str(file), file.read_bytes())]


if __name__ == "__main__":
    sys.exit(main())
