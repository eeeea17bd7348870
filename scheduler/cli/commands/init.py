"""`schedctl init`: find GPUs, clusters and credentials, write settings with a pool for each, create the database."""

import os
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from config.layers import own_file, shipped
from jobs.grouping import grouped
from jobs.payload.whole_file import write_whole
from platforms.slurm.checkup import SlurmNodes
from scheduler.cli.shell.command import command, option
from scheduler.cli.shell.context import Cli
from scheduler.host.belongings import Belongings, Gpu

_CAP_SECONDS = 86_400  # assumed for a partition without a time limit
_SHORTEST_SECONDS = 3_600  # shorter sessions would mostly be start, minimum length and stop margin


@command("schedctl init", "schedctl init --demo", "schedctl --config ./config.toml init")
def init(
    cli: Cli, demo: Annotated[bool, option("--demo", "Also write models to play with, beside the settings.")] = False
) -> None:
    """Find what this machine has, write its settings and make the database.

    It finds GPUs, Slurm's partitions, Kaggle's and Amazon's credentials and the zone. Settings and a database that are
    there stay.
    """
    from scheduler.host.belongings import look
    from scheduler.store.engine import upgrade

    machine = look(os.environ, Path.home())
    file = own_file(cli.options.config, os.environ)
    written = not file.exists()
    if written:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, settings_of(machine, demo=demo))
    if demo and not (models := file.with_name("models.toml")).exists():
        shutil.copyfile(shipped("models.toml"), models)
    cli.options.config = file
    before, _ = upgrade(cli.paths.database_url)
    cli.out.data({"config": str(file), "written": written, "database_new": before is None, "found": asdict(machine)})
    gpus = (f"{count} x {gpu.name}, {gpu.memory_gib:g} GiB" for gpu, count in Counter(machine.gpus).items())
    cli.out.facts(
        ("GPUs", ", ".join(gpus) or "none"),
        ("Kaggle", machine.kaggle or "no credentials"),
        ("AWS", machine.aws or "no credentials"),
        ("Slurm", "; ".join(map(str, machine.slurm)) or "no cluster answers"),
        ("zone", machine.zone),
        ("settings", f"{file}{'' if written else ', which was there'}"),
        ("database", cli.paths.database_url.removeprefix("sqlite:///") if before is None else "was there"),
    )
    cli.out.say("Train a script of yours: schedctl submit --help. Then let it run: schedctl daemon")


def settings_of(machine: Belongings, *, demo: bool) -> str:
    """Return settings for the machine as TOML with comments; ``demo`` adds the demo models."""
    texts: dict[str, str] = tomllib.loads(shipped("init.toml").read_text(encoding="utf-8"))
    kinds: dict[Gpu | None, list[str]] = grouped((gpu, str(number)) for number, gpu in enumerate(machine.gpus))
    text = texts["head"].format(zone=machine.zone, models='"models.toml"' if demo else "")
    text += "".join(_local_pool(texts, number, *kind) for number, kind in enumerate((kinds or {None: []}).items(), 1))
    text += texts["demo"] if demo else ""
    text += "".join(_slurm_pools(texts["slurm_pool"], machine.slurm))
    text += texts["kaggle_pool"].format(where=machine.kaggle) if machine.kaggle else ""
    text += texts["aws_pool"].format(where=machine.aws) if machine.aws else ""
    return text + (texts["mail"].format(mail=machine.mail) if machine.mail else "")


def _local_pool(texts: Mapping[str, str], number: int, gpu: Gpu | None, devices: Sequence[str]) -> str:
    """Return the pool of this machine's GPUs of one kind, or of its processor if ``gpu`` is None."""
    return texts["local_pool"].format(
        what=f"{len(devices)} x {gpu.name}, found by nvidia-smi" if gpu else "no GPU was found",
        number=number if number > 1 else "",
        accelerator=gpu.name if gpu else "this machine",
        devices=texts["devices"].format(len(devices), gpu.memory_gib, ",".join(devices)) if gpu else "",
    )


def _slurm_pools(text: str, nodes: Sequence[SlurmNodes]) -> Iterator[str]:
    """Yield a commented-out pool for each kind of node in each partition that allows sessions of one hour or more."""
    kinds: dict[tuple[str, str, int], list[SlurmNodes]] = {}
    for each in nodes:
        if (each.seconds_max or _CAP_SECONDS) < _SHORTEST_SECONDS:
            continue
        kinds.setdefault((each.partition, each.gres, each.devices), []).append(each)
    for number, ((partition, gres, devices), alike) in enumerate(kinds.items(), 1):
        seconds = alike[0].seconds_max or _CAP_SECONDS
        yield text.format(
            nodes="; ".join(map(str, alike)),
            number=number if number > 1 else "",
            accelerator=gres.removeprefix("gpu:") or "processors",
            devices=max(1, devices),
            cap=f"{seconds // 60}m" if seconds % 3600 else f"{seconds // 3600}h",
            options=f'partition = "{partition}"' + (f', gres = "{gres}"' if gres else ""),
        )
