"""Accounting: what Slurm itself has written down of a pool's jobs, to hold our ledger against."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from jobs.payload.bounds import INSTANT_MAX, digits
from platforms.slurm.commands import Commands
from platforms.slurm.settings import read_settings

# Slurm writes to a database, to a file, or nowhere; each line tells a job's name and its first and last second.
_ACCOUNTING = """
conf=$(scontrol show config </dev/null) || exit 1
file=$(sed -n 's/^JobCompLoc *= *//p' <<<"$conf")
if grep -q '^AccountingStorageType *= *accounting_storage/slurmdbd' <<<"$conf"; then
    sacct --noheader --parsable2 --allocations --duplicates --user="$(id -un)" --starttime=now-30days \\
        --format=WorkDir,JobName,Start,End </dev/null |
        awk -F '|' -v root="$root/" 'index($1, root) == 1 { print "|" $2 "|" $3 "|" $4 }'
elif grep -q '^JobCompType *= *jobcomp/filetxt' <<<"$conf" && [ -r "$file" ]; then
    grep -F " WorkDir=$root/" "$file" | sed -E 's/.* Name=([^ ]+) .* StartTime=([^ ]+) EndTime=([^ ]+) .*/|\\1|\\2|\\3/'
else
    echo none
fi
"""
_LINE = re.compile(r"\|([^|]+)\|([^|]+)\|([^|]+)")


def accounting_of(options: Mapping[str, str]) -> dict[str, list[tuple[int, int]]] | None:
    """Return by launch key the first and last real UTC second of each job of the pool's folder that Slurm has.

    None: it keeps no accounting. Raises PlatformError.
    """
    told = Commands(read_settings(options, Path(), sys.executable)).ask("read the accounting", _ACCOUNTING)
    if told.strip() == "none":
        return None
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in told.splitlines():
        if (known := _LINE.fullmatch(line)) and None not in (both := [_instant(each) for each in known.groups()[1:]]):
            first, last = (int(each or 0) for each in both)
            found[known[1]].append((first, last))
    return dict(found)


def _instant(text: str) -> int | None:
    """Return a second as Slurm writes it: by the clock of this machine's zone, or counted, or not known."""
    if (counted := digits(text, INSTANT_MAX)) is not None:
        return counted
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return None
