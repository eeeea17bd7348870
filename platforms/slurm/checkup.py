"""The checks of `schedctl doctor slurm`: controller, nodes, clock, account and folder. No job is submitted."""

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from platforms.base import Checked, Unreachable, check_clock
from platforms.slurm.commands import NoBooks, SlurmCommands, skew
from platforms.slurm.settings import NAME, SlurmSettings, read_settings

_GPUS = re.compile(r"(?P<name>gpu(:[A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*)?):(?P<count>\d+)")
_LIMIT = re.compile(r"(?:(?P<days>[0-9]{1,9})-)?(?P<clock>[0-9]{1,9}(?::[0-9]{1,9}){0,2})")
_ROW = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)(?P<star>\*?)\|(?P<state>[^|]+)\|(?P<count>\d{1,7})\|(?P<limit>[^|]*)\|(?P<gres>[^|]*)"
    r"\|(?P<reason>.*)"
)
_WAIT = "Jobs wait until these nodes are back; ask the cluster's administrator, or see: sinfo -R"
_UP = frozenset({"idle", "mixed", "allocated", "completing", "planned"})


def checks(
    settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the checks of one pool by name; ``now`` is real UTC seconds. A check may raise PlatformError."""
    del environ, probe
    # Without this option the folder is in the pool's state folder, which the daemon creates.
    chosen = read_settings(settings, Path(), sys.executable)
    commands = SlurmCommands(chosen)
    result: dict[str, Callable[[], Checked]] = {
        "controller": partial(_controller, commands),
        "nodes": partial(_nodes, commands, settings.get("partition", "")),
        "a job like ours": partial(_job, commands, chosen),
        "clock": partial(_clock, commands, now),
        "account": partial(_account, commands),
    }
    if "folder" in settings:
        result["folder"] = partial(_folder, commands, settings["folder"])
    return result


@dataclass(frozen=True, slots=True)
class SlurmNodes:
    """A group of identical nodes of a partition in the same state.

    ``gres`` is the value of the option gres for their GPUs, "" without GPUs. ``devices`` is the number of GPUs per
    node. ``seconds_max`` is the partition's time limit, None for none; ``reason`` is why they are out of service.
    """

    partition: str
    is_default: bool
    state: str
    count: int
    gres: str
    devices: int
    seconds_max: int | None
    reason: str

    @property
    def is_up(self) -> bool:
        """Whether jobs can start there, now or after other jobs end."""
        return self.state.rstrip("*~#!%$@^-+") in _UP

    def __str__(self) -> str:
        gpus = f"{self.devices} x {self.gres}" if self.gres else "no GPUs"
        limit = "no time limit" if self.seconds_max is None else f"at most {self.seconds_max // 60} min"
        why = f': "{self.reason}"' if self.reason and not self.is_up else ""
        return f"{self.count} {self.state} in {self.partition} ({gpus}, {limit}){why}"


def nodes_of(settings: Mapping[str, str]) -> list[SlurmNodes]:
    """Return the nodes that a pool with these options can use, default partition first. Raises PlatformError."""
    return _read_nodes(SlurmCommands(read_settings(settings, Path(), sys.executable)), settings.get("partition", ""))


def cluster_of(settings: Mapping[str, str]) -> SlurmNodes:
    """Return the first nodes that are up, preferably of the default partition. Raises PlatformError."""
    up = next((nodes for nodes in nodes_of(settings) if nodes.is_up), None)
    if up is None:
        raise Unreachable(NAME, "look at the nodes", "no node of the cluster is up", "See: sinfo")
    return up


def _read_nodes(commands: SlurmCommands, partition: str) -> list[SlurmNodes]:
    which = f"--partition={shlex.quote(partition)}" if partition else ""
    answer = commands.ask("look at the nodes", f"sinfo --noheader {which} --format='%P|%T|%D|%l|%G|%E' </dev/null")
    nodes = []
    for line in answer.splitlines():
        row = _ROW.fullmatch(line.strip())
        if row is None:
            continue
        gpus = _GPUS.search(row["gres"])
        gres, devices = (gpus["name"], int(gpus["count"])) if gpus else ("", 0)
        reason = "" if row["reason"] == "none" else row["reason"].strip()
        limit = _seconds_of(row["limit"])
        nodes.append(
            SlurmNodes(row["name"], bool(row["star"]), row["state"], int(row["count"]), gres, devices, limit, reason)
        )
    return sorted(nodes, key=lambda each: not each.is_default)


def _seconds_of(limit: str) -> int | None:
    """Return a time limit as sinfo prints it, ``1-00:00:00`` or ``30:00``, in seconds; None for no limit."""
    match = _LIMIT.fullmatch(limit)
    if match is None:
        return None
    seconds = 0
    for part in match["clock"].split(":"):
        seconds = seconds * 60 + int(part)
    return int(match["days"] or 0) * 86_400 + seconds


def _controller(commands: SlurmCommands) -> Checked:
    listing = " ".join(commands.ask("ask the controller", "scontrol ping </dev/null && scontrol --version").split())
    if " UP" not in listing:
        return Checked("bad", listing or "it says nothing", "Ask the cluster's administrator")
    return Checked("ok", listing)


def _nodes(commands: SlurmCommands, partition: str) -> Checked:
    nodes = _read_nodes(commands, partition)
    if not nodes:
        return Checked("bad", f"there are no nodes in {partition or 'any partition'}", "Correct the option partition")
    words = "; ".join(map(str, nodes))
    if not any(each.is_up for each in nodes):
        return Checked("warning", words, _WAIT)
    return Checked("ok", words)


def _job(commands: SlurmCommands, chosen: SlurmSettings) -> Checked:
    words = shlex.join(["--time=10", *chosen.words(chosen.nodes)])
    script = f'sbatch --test-only {words} --wrap=true </dev/null 2>&1; echo "== $?"'
    output, _, code = commands.ask("test a job", script).rpartition("== ")
    words = " ".join(output.replace("sbatch: ", "").split())
    if code.strip() == "0":
        return Checked("ok", words)
    # Slurm gives the same answer if nodes are out of service and if no node matches the options.
    nodes = [each for each in _read_nodes(commands, chosen.partition) if chosen.partition or each.is_default]
    out = [each for each in nodes if not each.is_up]
    if not out:
        return Checked("bad", words, "Correct the options of the pool: docs/slurm.md")
    words = f"{words}; out of service: {'; '.join(map(str, out))}"
    if len(out) == len(nodes):
        return Checked("warning", f"{words}. The options cannot be tested until then", _WAIT)
    return Checked("bad", words, f"{_WAIT}. If other nodes are meant, correct the options: docs/slurm.md")


def _account(commands: SlurmCommands) -> Checked:
    try:
        books = commands.books()
    except NoBooks:
        return Checked("ok", "the cluster keeps no accounts: what the pool may use are its declared quotas")
    words, spent = [], False
    for name, limit in (("the account", books.account), (f"the QOS {books.qos.name}", books.qos.minutes)):
        if limit is not None:
            words.append(f"{name}: {limit.used} of {limit.limit} GPU minutes used, {limit.running} promised to jobs")
            spent |= limit.left <= 0
    words += [f"{cap.whose} may have {cap.limit} {cap.what} at once, {cap.used} now" for cap in books.qos.caps]
    if spent:
        return Checked("warning", "; ".join(words), "Jobs wait until it has more")
    return Checked("ok", "; ".join(words) or "no limit of GPU minutes, and the QOS has none of its own")


def _clock(commands: SlurmCommands, now: float) -> Checked:
    answer = commands.ask("ask for the time", 'scontrol show config </dev/null | sed -n "1s/.* //p"; date +%s').split()
    there = int(answer[-1])
    clock = check_clock(there, now, "the cluster")
    if clock.grade != "ok":
        return clock
    if off := skew(answer[0], there, there, 0):
        words = f"the controller's clock is {off:+d} s off; what it tells is corrected by that"
        return Checked("warning", words, "Synchronise both with NTP")
    return clock


def _folder(commands: SlurmCommands, folder: str) -> Checked:
    """Check that the pool's folder is on a shared file system. Raises PlatformError."""
    kind = commands.ask("look at the folder", 'mkdir -p -- "$root" && [ -w "$root" ] && stat -f -c %T "$root"').strip()
    if kind in {"ext2/ext3", "xfs", "btrfs", "tmpfs", "overlayfs"}:
        remedy = "Nothing on a cluster of one machine; else choose a folder of a shared file system"
        return Checked("warning", f"{folder} is on {kind}, which nodes seldom share", remedy)
    return Checked("ok", f"{folder} on {kind}; whether nodes share it is seen with the first job")
