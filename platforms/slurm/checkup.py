"""A look at a cluster before anything depends on it: what `schedctl doctor slurm` asks. Nothing is submitted."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from platforms.base import Checked
from platforms.slurm.books import NoBooks
from platforms.slurm.commands import Commands
from platforms.slurm.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from platforms.slurm.settings import Settings

_SKEW_SECONDS = 60
_UP = frozenset({"idle", "mixed", "allocated", "completing"})


def checks(
    settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the checks of one pool by name; ``now`` is real UTC seconds. What fails raises PlatformError."""
    del environ, probe
    # Without the option the folder is in the pool's state folder, which the daemon makes.
    chosen = read_settings(settings, Path(), sys.executable)
    commands = Commands(chosen)
    found: dict[str, Callable[[], Checked]] = {
        "controller": partial(_controller, commands),
        "nodes": partial(_nodes, commands, settings.get("partition", "")),
        "a job like ours": partial(_job, commands, chosen),
        "clock": partial(_clock, commands, now),
        "account": partial(_account, commands),
    }
    if "folder" in settings:
        found["folder"] = partial(_folder, commands, settings["folder"])
    return found


def _controller(commands: Commands) -> Checked:
    told = " ".join(commands.ask("ask the controller", "scontrol ping </dev/null && scontrol --version").split())
    if " UP" not in told:
        return Checked("bad", told or "it says nothing", "Ask the cluster's administrator")
    return Checked("ok", told)


def _nodes(commands: Commands, partition: str) -> Checked:
    which = f"--partition={shlex.quote(partition)}" if partition else ""
    told = commands.ask("look at the nodes", f"sinfo --noheader {which} --format='%T %D %G %l' </dev/null").split("\n")
    rows = [line.split() for line in told if line.strip()]
    if not rows:
        return Checked("bad", f"there are no nodes in {partition or 'any partition'}", "Correct the option partition")
    up = sum(int(row[1]) for row in rows if row[0].rstrip("*~#!%$@^-+") in _UP)
    words = "; ".join(f"{row[1]} {row[0]} ({row[2]}, at most {row[3]})" for row in rows)
    if not up:
        return Checked("warning", words, "Jobs wait until a node comes back")
    return Checked("ok", words)


def _job(commands: Commands, chosen: Settings) -> Checked:
    words = shlex.join(["--time=10", *chosen.words(chosen.nodes)])
    script = f'sbatch --test-only {words} --wrap=true </dev/null 2>&1; echo "== $?"'
    told, _, code = commands.ask("test a job", script).rpartition("== ")
    words = " ".join(told.replace("sbatch: ", "").split())
    if code.strip() != "0":
        return Checked("bad", words, "Correct the options of the pool: docs/slurm.md")
    return Checked("ok", words)


def _folder(commands: Commands, folder: str) -> Checked:
    kind = commands.ask("look at the folder", 'mkdir -p -- "$root" && [ -w "$root" ] && stat -f -c %T "$root"').strip()
    if kind in {"ext2/ext3", "xfs", "btrfs", "tmpfs", "overlayfs"}:
        remedy = "Nothing on a cluster of one machine; else choose a folder of a shared file system"
        return Checked("warning", f"{folder} is on {kind}, which nodes seldom share", remedy)
    return Checked("ok", f"{folder} on {kind}; whether nodes share it is seen with the first job")


def _account(commands: Commands) -> Checked:
    try:
        found = commands.books()
    except NoBooks:
        return Checked("ok", "the cluster keeps no accounts: what the pool may use are its declared quotas")
    if found is None:
        return Checked("ok", "no limit of GPU minutes")
    words = f"{found.used} of {found.limit} GPU minutes used, {found.running} promised to running jobs"
    return Checked(
        "ok" if found.left > 0 else "warning", words, "" if found.left > 0 else "Jobs wait until it has more"
    )


def _clock(commands: Commands, now: float) -> Checked:
    off = round(now - int(commands.ask("ask for the time", "date +%s")))
    if abs(off) > _SKEW_SECONDS:
        return Checked("bad", f"this machine's clock is {off:+d} s off the cluster's", "Synchronise both with NTP")
    return Checked("ok", f"agrees with the cluster's to {max(1, abs(off))} s")
