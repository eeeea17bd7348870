"""A look at a cluster before anything depends on it: what `schedctl doctor slurm` asks. Nothing is submitted."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from platforms.base import Checked, Unreachable
from platforms.slurm.books import NoBooks
from platforms.slurm.commands import Commands
from platforms.slurm.rest_checkup import check_folder, rest_checks
from platforms.slurm.settings import NAME, read_settings
from platforms.slurm.skew import skew

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from platforms.slurm.settings import Settings

_SKEW_SECONDS = 60
_GPUS = re.compile(r"(?P<name>gpu(:[A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*)?):(?P<count>\d+)")
_UP = frozenset({"idle", "mixed", "allocated", "completing"})


def checks(
    settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the checks of one pool by name; ``now`` is real UTC seconds. What fails raises PlatformError."""
    del environ, probe
    # Without the option the folder is in the pool's state folder, which the daemon makes.
    chosen = read_settings(settings, Path(), sys.executable)
    if chosen.slurmrestd:
        return rest_checks(chosen, now)
    commands = Commands(chosen)
    found: dict[str, Callable[[], Checked]] = {
        "controller": partial(_controller, commands),
        "nodes": partial(_nodes, commands, settings.get("partition", "")),
        "a job like ours": partial(_job, commands, chosen),
        "clock": partial(_clock, commands, now),
        "account": partial(_account, commands),
    }
    if "folder" in settings:
        found["folder"] = partial(check_folder, commands, settings["folder"])
    return found


@dataclass(frozen=True, slots=True)
class Cluster:
    """A partition: its name, what the option gres calls its GPUs ("": it has none), and how many a node has."""

    partition: str
    gres: str
    devices: int


def cluster_of(settings: Mapping[str, str]) -> Cluster:
    """Return the default partition that these options lead to, or the first with a node that is up.

    Raises PlatformError.
    """
    commands = Commands(read_settings(settings, Path(), sys.executable))
    told = commands.ask("look at the nodes", "sinfo --noheader --format='%P|%T|%G' </dev/null")
    rows = [line.split("|", 2) for line in told.splitlines() if line.count("|") > 1]
    up = sorted((row for row in rows if _is_up(row[1])), key=lambda row: not row[0].endswith("*"))
    if not up:
        raise Unreachable(NAME, "look at the nodes", "no node of the cluster is up", "See: sinfo")
    gpus = _GPUS.match(up[0][2])
    return Cluster(up[0][0].rstrip("*"), gpus["name"] if gpus else "", int(gpus["count"]) if gpus else 0)


def _is_up(state: str) -> bool:
    return state.rstrip("*~#!%$@^-+") in _UP


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
    up = sum(int(row[1]) for row in rows if _is_up(row[0]))
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


def _account(commands: Commands) -> Checked:
    try:
        found = commands.books()
    except NoBooks:
        return Checked("ok", "the cluster keeps no accounts: what the pool may use are its declared quotas")
    words, spent = [], False
    for name, limit in (("the account", found.account), (f"the QOS {found.qos.name}", found.qos.minutes)):
        if limit is not None:
            words.append(f"{name}: {limit.used} of {limit.limit} GPU minutes used, {limit.running} promised to jobs")
            spent |= limit.left <= 0
    words += [f"{cap.whose} may have {cap.limit} {cap.what} at once, {cap.used} now" for cap in found.qos.caps]
    if spent:
        return Checked("warning", "; ".join(words), "Jobs wait until it has more")
    return Checked("ok", "; ".join(words) or "no limit of GPU minutes, and the QOS has none of its own")


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
