"""Base classes of ``schedctl``'s commands and groups: shared options, examples in the help, lazy loading."""

import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from jobs.problem import Refusal
from scheduler.cli.shell.context import Cli

_RENAMED = {"--weight": "--priority", "--whole": "--max-time"}
"""New names of renamed options, by old name; both work."""


def option(spelling: str, help_text: str, **more: Any) -> Any:
    """Return a typer option. ``spelling`` is as the help shows it, ``--limit -n N``; ``more`` are typer's keywords."""
    words = spelling.split()
    names = [word for word in words if word.startswith("-")]
    return typer.Option(*names, help=help_text, metavar=" ".join(words[len(names) :]) or None, **more)


def argument(metavar: str, help_text: str, **more: Any) -> Any:
    """Return a positional argument that the help calls ``metavar``; ``more`` are keywords of ``typer.Argument``."""
    return typer.Argument(metavar=metavar or None, help=help_text, **more)


Yes = Annotated[bool, option("--yes -y", "Do it without asking.")]
Reason = Annotated[str, option("--reason --why TEXT", "It is kept and shown.")]


class CliCommand(TyperCommand):
    """A command that also accepts the options of ``schedctl`` itself, and the table options named in ``tables``."""

    tables: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, params: list[Any] | None = None, **options: Any) -> None:
        shared = [*_options(*self.tables), *_options("config", "json", "no_color", "debug")]
        super().__init__(*args, params=[*(params or ()), *shared], **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args``; warn on standard error of options given by their old names."""
        own = args[: args.index("--")] if "--" in args else args
        ctx.meta["args"] = list(args)  # the message about an unknown option repeats the whole command line
        options = {option for param in self.params for option in param.opts}
        for word in dict.fromkeys(word.partition("=")[0] for word in own):
            if _RENAMED.get(word) in options:
                sys.stderr.write(
                    f"schedctl: warning: {word} is now called {_RENAMED[word]}; the old name still works\n"
                )
        return super().parse_args(ctx, args)


class Tables(CliCommand):
    """A command with several tables: it accepts ``--wide``."""

    tables = ("wide",)


class Listing(CliCommand):
    """A command with one table: it accepts ``--wide`` and ``--columns``."""

    tables = ("wide", "columns")


class LazyCommand(TyperCommand):
    """A command of which only the summary is known: its module is imported on first use, so that others start faster.

    ``where`` is ``module:function`` in scheduler.cli.commands, or ``module`` if the module holds a group ``app``.
    """

    where: ClassVar[str]

    def load(self) -> Any:
        """Import and return the command."""
        module, _, function = self.where.partition(":")
        imported: Any = import_module(f"scheduler.cli.commands.{module}")
        target = getattr(imported, function or "app")
        command = get_command(getattr(target, "app", target))
        command.name = self.name
        return command


def load_command(command: Any) -> Any:
    """Return a command of a group; if only its summary is known, its module is imported first."""
    return command.load() if isinstance(command, LazyCommand) else command


class CommandGroup(TyperGroup):
    """A group of commands that also accepts the shared options.

    ``alone`` is the command that runs if none is named; empty: show the help. ``old_names`` maps old names of commands
    to the current ones; they still work, with a warning.
    """

    alone = ""
    old_names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *args: Any, params: list[Any] | None = None, **options: Any) -> None:
        options["suggest_commands"] = False  # the parser's own suggestions ignore --yes; see resolve_command
        super().__init__(*args, params=[*(params or ()), *_options("config", "json", "no_color", "debug")], **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args``; if none of them is a command, they are the arguments of the command ``alone``."""
        if self.alone and not {"-h", "--help"} & set(args) and (not args or args[0].startswith("-")):
            named = any(word in self.commands for word in args)
            args = args if named else [self.alone, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with. The error for an unknown command suggests similar names.

        If no name is similar, `queue ufm` suggests `queue show ufm`. A command that asks for a confirmation (--yes) is
        suggested only if its first character is the same: "start" does not suggest "restart".
        """
        if args[0] == "ls" and "list" in self.commands:
            args = ["list", *args[1:]]
        if new := self.old_names.get(args[0]):
            typer.echo(f"schedctl: warning: `{ctx.command_path} {args[0]}` is now called `{new}`; use that", err=True)
            args = [new, *args[1:]]
        try:
            name, command, arguments = super().resolve_command(ctx, args)
        except Exception as error:
            from difflib import get_close_matches

            similar = {name: load_command(self.commands[name]) for name in get_close_matches(args[0], self.commands)}
            confirmed = [n for n, one in similar.items() if any(p.name == "yes" for p in getattr(one, "params", ()))]
            close = [name for name in similar if name not in confirmed or name[0] == args[0][0]]
            shows = [f"{ctx.command_path} {verb} {args[0]}" for verb in ("explain", "show") if verb in self.commands]
            if (likely := [repr(name) for name in close] or shows[:1]) and hasattr(error, "message"):
                error.message = f"{error.message.rstrip('.')}. Did you mean {', '.join(likely)}?"
            raise
        return name, load_command(command), arguments


@dataclass(frozen=True)
class OptionGroup:
    """Options that several commands share: typer annotations by name. A command receives their values as one dict."""

    options: Mapping[str, Any]

    def parameters(self) -> list[Parameter]:
        """Return one parameter per option, for the signature that typer reads."""
        kind = Parameter.POSITIONAL_OR_KEYWORD
        return [Parameter(name, kind, default=None, annotation=hint) for name, hint in self.options.items()]


@lru_cache(maxsize=1)
def command_table() -> dict[str, Any]:
    """Return ``commands.toml``: the commands of each group, and sample files for the help."""
    return tomllib.loads(Path(__file__).parents[1].joinpath("commands.toml").read_text(encoding="utf-8"))


def group(
    title: str,
    commands: Mapping[str, tuple[str, str]],
    alone: str = "",
    old_names: Mapping[str, str] = MappingProxyType({}),
) -> typer.Typer:
    """Return a group with ``commands`` as in add_lazy_commands, and ``alone`` and ``old_names`` as in CommandGroup."""
    kind = type("CommandGroup", (CommandGroup,), {"alone": alone, "old_names": old_names})
    app = typer.Typer(help=title, cls=kind, no_args_is_help=not alone, add_completion=False, rich_markup_mode=None)
    app.callback()(lambda: None)  # without a callback typer turns a group of one command into that command
    add_lazy_commands(app, commands)
    return app


def command(
    *examples: str, job_file: str = "", script: str = "", kind: type[CliCommand] = CliCommand
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a function a command for :func:`add_lazy_commands`; the help shows ``examples``.

    The function's first parameter is the :class:`Cli`, or the parser's context if it is called ``ctx``. The others are
    options. ``job_file`` and ``script`` are the names of a job definition and of a script in the examples: the help
    shows sample contents for them; empty if no example uses one. ``kind`` is the class of the command:
    :class:`Listing` for one table, :class:`Tables` for several.
    """
    lines = ["Example:" if len(examples) == 1 else "Examples:", *(f"  {e}" for e in examples)]
    for file, sample in ((job_file, "job"), (script, "script")):
        if file:
            lines += [
                f"where {file} holds:",
                *(f"    {line}" for line in command_table()["samples"][sample].splitlines()),
            ]
    # A line that holds only \b stops the parser from wrapping the lines that follow it in the help.
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    registered = app.command(cls=kind, epilog="\b\n" + "\n".join(lines))

    def register(function: Callable[..., None]) -> Callable[..., None]:
        setattr(function, "app", app)  # noqa: B010 - the type checker refuses to assign attributes of functions
        first, *own = signature(function, eval_str=True).parameters.values()
        if first.name == "ctx":
            return registered(function)
        groups = {
            parameter.name: hint
            for parameter in own
            for hint in getattr(parameter.annotation, "__metadata__", ())
            if isinstance(hint, OptionGroup)
        }

        @wraps(function)
        def run_command(ctx: typer.Context, **arguments: Any) -> None:
            values = {name: {key: arguments.pop(key) for key in group.options} for name, group in groups.items()}
            function(ctx.obj, **arguments, **values)

        # typer builds the parser from the signature and the annotations.
        context = first.replace(name="ctx", annotation=typer.Context)
        options = [each for one in own for each in (groups[one.name].parameters() if one.name in groups else [one])]
        run_command.__signature__ = Signature([context, *options])  # type: ignore[attr-defined]
        run_command.__annotations__ = {option.name: option.annotation for option in (context, *options)}
        registered(run_command)
        return function

    return register


def add_lazy_commands(app: typer.Typer, commands: Mapping[str, tuple[str, str]], **more: Any) -> None:
    """Add commands to a group. ``commands`` maps a name to ``where`` (as in :class:`LazyCommand`) and the summary."""
    for name, (where, summary) in commands.items():
        app.command(name, cls=type("LazyCommand", (LazyCommand,), {"where": where}), help=summary, **more)(lambda: None)


def parsed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return ``read`` as a parser of option values: a ValueError becomes a usage error with the same message."""

    def value_of(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return value_of


def _remember(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Store a shared option in the call's GlobalOptions; a default does not overwrite a value given before."""
    if value:
        setattr(ctx.obj.options, str(param.name), value)
    return value


def _shared(spelling: str, help_text: str) -> Any:
    """Return an option whose value goes to the call's GlobalOptions, not to the command's own parameters."""
    return option(spelling, help_text, callback=_remember, expose_value=False)


@lru_cache(maxsize=1)
def _all_options() -> tuple[Any, ...]:
    """Return the shared options as parser objects, built by typer from the signature of ``declare``."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def declare(
        config: Annotated[
            Path | None, _shared("--config FILE", "Read settings from FILE (or set SCHEDCTL_CONFIG).")
        ] = None,
        json: Annotated[bool, _shared("--json", "Write JSON to standard output.")] = False,
        no_color: Annotated[bool, _shared("--no-color", "Use no colours.")] = False,
        debug: Annotated[bool, _shared("--debug", "Show where an error happened.")] = False,
        wide: Annotated[bool, _shared("--wide", "Every column, one line a row, however long.")] = False,
        columns: Annotated[str, _shared("--columns A,B", "Only these columns, in this order, by their titles.")] = "",
    ) -> None:
        del config, json, no_color, debug, wide, columns

    return tuple(get_command(app).params)


def _options(*names: str) -> list[Any]:
    return [param for param in _all_options() if param.name in names]


def confirm(cli: Cli, question: str, *, yes: bool) -> None:
    """Ask for confirmation at the terminal, unless ``yes``. Raises Refusal if it is denied or there is no terminal."""
    if yes:
        return
    remedy = "To do it without being asked, add --yes"
    if cli.options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal("nothing was changed", f'this is not a terminal, so no one can answer: "{question}"', remedy)
    sys.stderr.write(cli.redact(f"{question} [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Refusal("nothing was changed", "the answer was not yes", remedy)
