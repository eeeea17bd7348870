"""The options by which `submit` and `queue add` describe a job."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.readers import is_remote
from jobs.secret_scan import SecretsFound
from scheduler.cli.commands.complete import pool_names
from scheduler.cli.shell.command import Several
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault


class JobOptions:
    """The options that describe a job, by the keys of a job file."""

    name: Annotated[
        str | None, typer.Option("--name", help="Name of the job. Default for a script: that of its folder.")
    ]
    command: Annotated[str | None, typer.Option("--command", help="Training command, as one would type it in a shell.")]
    target_step: Annotated[int | None, typer.Option("--target-step", help="Train up to this step.")]
    whole: Annotated[
        str | None,
        typer.Option(
            "--max-time",
            "--whole",
            metavar="TIME",
            help="Run it in one session that takes at most so long, such as 3h; it cannot resume.",
        ),
    ]
    steps_per_hour: Annotated[
        float | None, typer.Option("--steps-per-hour", help="An estimate of its speed, until it is measured.")
    ]
    role: Annotated[str | None, typer.Option("--role", help="main or manager, in a family of models. Default: job.")]
    priority: Annotated[
        float | None,
        typer.Option("--priority", "--weight", help="Value of one training hour relative to other jobs, which have 1."),
    ]
    pools: Annotated[
        list[str] | None,
        typer.Option(
            "--pool",
            metavar="POOL",
            help="A pool it may use; may be repeated. Default: any.",
            autocompletion=pool_names,
        ),
    ]
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, metavar="N", help="The number of GPUs it needs.")]
    vram_gib: Annotated[float | None, typer.Option("--vram-gib", help="Memory that it needs on each GPU, in GiB.")]
    environment: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="KEY=VALUE", help="An environment variable of its command; may be repeated."),
    ]
    deadline: Annotated[str | None, typer.Option("--deadline", help="Finish before, 2026-12-01T09:00:00Z.")]
    not_before: Annotated[str | None, typer.Option("--not-before", help="Start no earlier than this.")]
    stop_on: Annotated[
        str | None,
        typer.Option(
            "--stop-on", metavar="METRIC", help="Stop early when this metric of its checkpoints improves no more."
        ),
    ]
    patience: Annotated[
        int | None,
        typer.Option("--patience", metavar="N", help="After so many checkpoints without an improvement. Default: 3."),
    ]
    code: Annotated[
        str | None, typer.Option("--code", metavar="DIR", help="The folder its command runs in, kept as it is now.")
    ]
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=SOURCE", help="A folder or hf:ORG/NAME@REVISION that it reads; may be repeated."
        ),
    ]
    requirements: Annotated[
        str | None,
        typer.Option(
            "--requirements",
            metavar="FILE",
            help="The packages it needs. Default: requirements.txt of a script's folder.",
        ),
    ]
    secrets: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME", help="A secret that its sessions get; may be repeated."),
    ]


DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the job, its plan and what would be uploaded; change nothing.")
]
Expect = Annotated[
    str, typer.Option("--expect", metavar="DIGEST", help="Add only what a dry run showed: its fingerprint.")
]

AllowSecrets = Annotated[
    bool, typer.Option("--allow-secrets", help="What looks like a secret is none: note it, and upload it.")
]


def allowing(cli: Cli, work: Callable[[], None], *, wanted: bool) -> None:
    """Do the work; with ``wanted``, allow the secrets that it finds, and do it again. Raises SecretsFound, OSError."""
    while True:
        try:
            return work()
        except SecretsFound as found:
            if not wanted:
                raise
            cli.out.say(found.allow())


_INSIDE = {"gpus", "vram_gib", "stop_on", "patience"}  # they stand in tables of their own
NOTHING: dict[str, Any] = {}  # what a call without any of them has


def described(*names: str) -> Several:
    """Return these of the options that describe a job, for a command that has them."""
    return Several(JobOptions, names)


def table_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as the table of a job file, without what was not given. Raises UsageFault."""
    needs = {"devices": options["gpus"], "vram_gib": options["vram_gib"]}
    if options["patience"] is not None and options["stop_on"] is None:
        raise UsageFault("--patience says nothing by itself", "no metric is named", "Add --stop-on held_out_loss")
    table = options | {
        "stop": options["stop_on"] and {"metric": options["stop_on"], "patience": options["patience"] or 3},
        "needs": {key: value for key, value in needs.items() if value is not None} or None,
        "command": words_of(options.get("command")),
        "environment": pairs_of("--env", "KEY=VALUE", options["environment"]),
        "inputs": inputs_of(options["inputs"]),
        "requirements": options["requirements"] and _from_here(options["requirements"]),
    }
    return {key: value for key, value in table.items() if value is not None and key not in _INSIDE}


def words_of(command: str | None) -> list[str] | None:
    """Return the words of a command as a shell would. Raises UsageFault."""
    try:
        return None if command is None else shlex.split(command)
    except ValueError as error:
        raise UsageFault("--command cannot be read", str(error).lower(), "Quote it as in a shell") from None


def inputs_of(words: list[str] | None) -> dict[str, str] | None:
    """Return ``NAME=SOURCE`` options as a job file has them; folders are those seen from here. Raises UsageFault."""
    sources = pairs_of("--input", "NAME=SOURCE", words)
    for name, source in (sources or {}).items():
        if not source:
            raise UsageFault(f"--input {name}=", "it names no folder", "Write it as NAME=SOURCE")
    return sources and {name: source if is_remote(source) else _from_here(source) for name, source in sources.items()}


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
