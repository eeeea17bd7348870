"""A look at a cluster before anything depends on it: what `schedctl doctor slurm` asks. Nothing is submitted."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from platforms.base import Checked
from platforms.slurm.commands import Commands
from platforms.slurm.settings import read_settings
from platforms.slurm.skew import skew

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
    words = shlex.join(["--nodes=1", "--ntasks=1", "--time=10", *chosen.words(1)])
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


def _clock(commands: Commands, now: float) -> Checked:
    asked = 'scontrol show config </dev/null | sed -n "1s/.* //p"; date +%s'
    told = commands.ask("ask for the time", asked).split()
    there = int(told[-1])
    ahead = round(there - now)
    if abs(ahead) > _SKEW_SECONDS:
        return Checked("bad", f"the cluster's clock is {ahead:+d} s off this machine's", "Synchronise both with NTP")
    if off := skew(told[0], there, there, 0):
        words = f"the controller's clock is {off:+d} s off; what it tells is corrected by that"
        return Checked("warning", words, "Synchronise both with NTP")
    return Checked("ok", f"agrees with the cluster's to {max(1, abs(ahead))} s")
