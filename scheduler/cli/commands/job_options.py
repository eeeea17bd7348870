"""The options by which `submit` and `queue add` describe a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.readers import is_remote
from scheduler.cli.commands.complete import pool_names
from scheduler.cli.shell.exits import UsageFault

Name = Annotated[str | None, typer.Option("--name", help="Name of the job. Default for a script: that of its folder.")]
TargetStep = Annotated[int | None, typer.Option("--target-step", help="Train up to this step.")]
StepsPerHour = Annotated[
    float | None, typer.Option("--steps-per-hour", help="An estimate of its speed, until it is measured.")
]
Role = Annotated[str | None, typer.Option("--role", help="main or manager, in a family of models. Default: job.")]
Priority = Annotated[
    float | None,
    typer.Option("--priority", "--weight", help="Value of one training hour relative to other jobs, which have 1."),
]
Pools = Annotated[
    list[str] | None,
    typer.Option("--pool", help="A pool it may use; may be repeated. Default: any.", autocompletion=pool_names),
]
Gpus = Annotated[int | None, typer.Option("--gpus", min=1, metavar="N", help="The number of GPUs it needs.")]
VramGib = Annotated[float | None, typer.Option("--vram-gib", help="Memory that it needs on each GPU, in GiB.")]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="KEY=VALUE", help="An environment variable of its command; may be repeated."),
]
Deadline = Annotated[str | None, typer.Option("--deadline", help="Finish before, 2026-12-01T09:00:00Z.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=SOURCE", help="A folder or hf:ORG/NAME@REVISION that it reads; may be repeated."
    ),
]
Requirements = Annotated[
    str | None,
    typer.Option(
        "--requirements", metavar="FILE", help="The packages it needs. Default: requirements.txt of a script's folder."
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="A secret that its sessions get; may be repeated."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the job, its plan and what would be uploaded; change nothing.")
]
Expect = Annotated[
    str, typer.Option("--expect", metavar="DIGEST", help="Add only what a dry run showed: its fingerprint.")
]


def table_of(*, gpus: int | None, vram_gib: float | None, **given: Any) -> dict[str, Any]:
    """Return options as the table of a job file, without what was not given. Raises UsageFault."""
    needs = {"devices": gpus, "vram_gib": vram_gib}
    table = given | {
        "needs": {key: value for key, value in needs.items() if value is not None} or None,
        "environment": pairs_of("--env", "KEY=VALUE", given["environment"]),
        "inputs": inputs_of(given["inputs"]),
        "requirements": given["requirements"] and _from_here(given["requirements"]),
    }
    return {key: value for key, value in table.items() if value is not None}


def inputs_of(words: list[str] | None) -> dict[str, str] | None:
    """Return ``NAME=SOURCE`` options as a job file has them; folders are those seen from here. Raises UsageFault."""
    found = pairs_of("--input", "NAME=SOURCE", words)
    for name, source in (found or {}).items():
        if not source:
            raise UsageFault(f"--input {name}=", "it names no folder", "Write it as NAME=SOURCE")
    return found and {name: source if is_remote(source) else _from_here(source) for name, source in found.items()}


def pairs_of(option: str, form: str, words: list[str] | None) -> dict[str, str] | None:
    """Return the values of a repeated option such as ``--env KEY=VALUE``, None without any. Raises UsageFault."""
    if not words:
        return None
    parts = [word.partition("=") for word in words]
    for name, equals, value in parts:
        if not (name and equals):
            raise UsageFault(f"{option} {name}{value} cannot be read", "it has two parts", f"Write it as {form}")
    return {name: value for name, _, value in parts}


def _from_here(path: str) -> str:
    return str(Path(path).expanduser().resolve())
