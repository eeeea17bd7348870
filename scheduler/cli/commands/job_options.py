"""The options with which `submit` and `queue add` describe a job, and the job table made from them."""

import shlex
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.nouns.keys import TableKey, is_remote, paths
from jobs.spec import JobSpec
from scheduler.cli.commands.complete import pool_names
from scheduler.cli.shell.command import OptionGroup, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault, pair_of

DryRun = Annotated[bool, option("--dry-run", "Show the job, its plan and what would be uploaded; change nothing.")]
Expect = Annotated[str, option("--expect DIGEST", "Add only what a dry run showed: its fingerprint.")]

_AllowSecrets = Annotated[bool, option("--allow-secrets", "What looks like a secret is none: note it, and upload it.")]


def allowing(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with ``--allow-secrets``: it records each secret that is found as allowed, and runs again."""

    @wraps(command)
    def again(cli: Cli, *, allow_secrets: bool = False, **arguments: Any) -> None:
        from jobs.secret_scan import SecretsFound

        while True:
            try:
                return command(cli, **arguments)
            except SecretsFound as found:
                if not allow_secrets:
                    raise
                cli.out.say(found.allow())

    own, kind = signature(command), Parameter.KEYWORD_ONLY
    allow = Parameter("allow_secrets", kind, default=False, annotation=_AllowSecrets)
    again.__signature__ = own.replace(parameters=[*own.parameters.values(), allow])  # type: ignore[attr-defined]
    return again


_KEYS = {one.flags[0].lstrip("-").replace("-", "_"): (key, one) for key, one in paths(JobSpec).items() if one.option}
"""Keys of a job file by the name of the option that sets them."""

NOTHING: dict[str, Any] = {}  # default of a command's parameter: no option is given


def described(*others: str) -> OptionGroup:
    """Return the options that describe a job, except ``others``, which the command declares itself or does not have."""
    return OptionGroup({name: option_of(one) for name, (_, one) in _KEYS.items() if name not in others})


def option_of(one: TableKey) -> Any:
    """Return the typer annotation of the option that sets a key of a job file."""
    kind: Any = one.rule.kind if one.rule else str
    if isinstance(one.default, tuple | dict) and kind is str:
        kind = list[str]
    words, metavar = (one.option.help, one.option.metavar) if one.option else ("", None)
    complete = pool_names if one.key == "pools" else None
    return Annotated[kind | None, typer.Option(*one.flags, help=words, metavar=metavar, autocompletion=complete)]


def table_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as the table of a job file. Raises UsageFault."""
    if options["patience"] is not None and options["stop_on"] is None:
        raise UsageFault("--patience says nothing by itself", "no metric is named", "Add --stop-on held_out_loss")
    values = options | {
        "patience": options["stop_on"] and (options["patience"] or 3),
        "command": words_of(options.get("command")),
        "env": pairs_of("--env", "KEY=VALUE", options["env"]),
        "input": inputs_of(options["input"]),
        "requirements": options["requirements"] and _from_here(options["requirements"]),
    }
    table: dict[str, Any] = {}
    for name, value in values.items():
        if value is not None:
            outer, _, inner = _KEYS[name][0].partition(".")
            table |= {outer: {**table.get(outer, {}), inner: value} if inner else value}
    return table


def words_of(command: str | None) -> list[str] | None:
    """Return a command split into words as a shell splits it; None for None. Raises UsageFault."""
    try:
        return None if command is None else shlex.split(command)
    except ValueError as error:
        raise UsageFault("--command cannot be read", str(error).lower(), "Quote it as in a shell") from None


def inputs_of(words: list[str] | None) -> dict[str, str] | None:
    """Return sources by name from ``NAME=SOURCE``, local paths absolute; None without options. Raises UsageFault."""
    sources = pairs_of("--input", "NAME=SOURCE", words)
    for name, source in (sources or {}).items():
        if not source:
            raise UsageFault(f"--input {name}=", "it names no folder", "Write it as NAME=SOURCE")
    return sources and {name: source if is_remote(source) else _from_here(source) for name, source in sources.items()}


def pairs_of(option: str, form: str, words: list[str] | None) -> dict[str, str] | None:
    """Return the values of a repeated option by key, as ``--env KEY=VALUE``; None without any. Raises UsageFault."""
    if not words:
        return None
    return dict(pair_of(option, word, form, empty=True) for word in words)


def _from_here(path: str) -> str:
    return str(Path(path).expanduser().resolve())
