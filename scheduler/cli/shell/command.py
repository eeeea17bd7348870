"""Command and group: what all of ``schedctl``'s commands share. Help has an example, options may stand anywhere."""

from __future__ import annotations

import sys
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

_JOB_FILE = ('name = "tiny"', 'command = ["{python}", "train.py"]', "target_step = 500", "steps_per_hour = 1000")

_SCRIPT = (
    "from trainer_kit import Training",
    "training = Training()",
    "step = 0",
    "while step < training.target_step and not training.should_stop:",
    "    step += 1",
    "    training.progress(step)",
    "training.checkpoint(step, lambda folder: None, {})",
)

_RENAMED = {"--weight": "--priority", "--whole": "--max-time"}
"""Options by their old names."""
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]

REASON = ("--reason", "--why")
"""The names of the option for a reason."""
Reason = Annotated[str, typer.Option(*REASON, metavar="TEXT", help="It is kept and shown.")]


class CliCommand(TyperCommand):
    """A command that also takes the options of ``schedctl`` itself, and before them its ``tables``'."""

    tables: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, params: list[Any] | None = None, **options: Any) -> None:
        shared = [*_options(*self.tables), *_options("config", "json", "no_color", "debug")]
        super().__init__(*args, params=[*(params or ()), *shared], **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args``; warn of options by the names that they had before."""
        own = args[: args.index("--")] if "--" in args else args
        options = {option for param in self.params for option in param.opts}
        for word in dict.fromkeys(word.partition("=")[0] for word in own):
            if _RENAMED.get(word) in options:
                sys.stderr.write(
                    f"schedctl: warning: {word} is now called {_RENAMED[word]}; the old name still works\n"
                )
        return super().parse_args(ctx, args)


class Tables(CliCommand):
    """A command that shows tables."""

    tables = ("wide",)


class Listing(CliCommand):
    """A command that shows one table, whose columns can be chosen."""

    tables = ("wide", "columns")


class Later(TyperCommand):
    """Stands in a group for the command ``where`` it is: ``module:function``, or a module with a group ``app``."""

    where: ClassVar[str]

    def load(self) -> Any:
        """Return the command."""
        module, _, function = self.where.partition(":")
        place: Any = import_module(f"scheduler.cli.commands.{module}")
        target = getattr(place, function or "app")
        loaded = get_command(getattr(target, "app", target))
        loaded.name = self.name
        return loaded


def whole(command: Any) -> Any:
    """Return a command of a group, loaded if it is elsewhere."""
    return command.load() if isinstance(command, Later) else command


class CommandGroup(TyperGroup):
    """A group of commands; it takes the shared options as well. ``alone`` is the command that it is by itself.

    ``old_names`` are those by which an older version called some of them; they work, and a warning names the new one.
    """

    alone = ""
    old_names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *args: Any, params: list[Any] | None = None, **options: Any) -> None:
        options["suggest_commands"] = False  # its own are by spelling alone
        super().__init__(*args, params=[*(params or ()), *_options("config", "json", "no_color", "debug")], **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args``; without any command among them they are those of the command ``alone``."""
        if self.alone and not {"-h", "--help"} & set(args) and (not args or args[0].startswith("-")):
            named = any(word in self.commands for word in args)
            args = args if named else [self.alone, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with; an unknown one is answered with names like it.

        A command that asks for a confirmation (--yes) is suggested only for the beginning of its own name: "start" does
        not suggest "restart".
        """
        if args[0] == "ls" and "list" in self.commands:
            args = ["list", *args[1:]]
        if new := self.old_names.get(args[0]):
            typer.echo(f"schedctl: warning: `{ctx.command_path} {args[0]}` is now called `{new}`; use that", err=True)
            args = [new, *args[1:]]
        try:
            name, one, rest = super().resolve_command(ctx, args)
        except Exception as error:
            from difflib import get_close_matches

            near = {name: whole(self.commands[name]) for name in get_close_matches(args[0], self.commands)}
            asking = [n for n, one in near.items() if any(p.name == "yes" for p in getattr(one, "params", ()))]
            close = [name for name in near if name not in asking or name[0] == args[0][0]]
            if close and hasattr(error, "message"):
                error.message = f"{error.message.rstrip('.')}. Did you mean {', '.join(map(repr, close))}?"
            raise
        return name, whole(one), rest


@dataclass(frozen=True)
class Several:
    """Options that several commands have, by their names, as typer reads them. A command takes them as a dict."""

    options: Mapping[str, Any]

    def parameters(self) -> list[Parameter]:
        """Return each as a parameter of its own."""
        kind = Parameter.POSITIONAL_OR_KEYWORD
        return [Parameter(name, kind, default=None, annotation=hint) for name, hint in self.options.items()]


def group(
    summary: str,
    alone: str = "",
    commands: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    old_names: Mapping[str, str] = MappingProxyType({}),
) -> typer.Typer:
    """Return a new group with ``commands`` as of :func:`later`; by itself it is the one ``alone``, or shows help."""
    kind = type("CommandGroup", (CommandGroup,), {"alone": alone, "old_names": old_names})
    app = typer.Typer(help=summary, cls=kind, no_args_is_help=not alone, add_completion=False, rich_markup_mode=None)
    app.callback()(lambda: None)  # else the parser takes a group of one command for that command
    later(app, commands)
    return app


def command(
    *examples: str, job_file: str = "", script: str = "", kind: type[CliCommand] = CliCommand
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what makes a function a command for :func:`later`; ``examples`` are what a user would type.

    Its first parameter is the :class:`Cli`, or the parser's context, called ``ctx``. The others are options.
    ``job_file`` is the name by which they call a job's definition, ``script`` that of a script: what it holds is shown
    below them. ``kind`` is :class:`Listing` for a list, :class:`Tables` for several.
    """
    lines = ["Example:" if len(examples) == 1 else "Examples:", *(f"  {e}" for e in examples)]
    if job_file:
        lines += [f"where {job_file} holds:", *(f"    {line}" for line in _JOB_FILE)]
    if script:
        lines += [f"where {script} holds:", *(f"    {line}" for line in _SCRIPT)]
    # A line with \b alone keeps the lines of a paragraph apart in the help.
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    registered = app.command(cls=kind, epilog="\b\n" + "\n".join(lines))

    def register(function: Callable[..., None]) -> Callable[..., None]:
        setattr(function, "app", app)  # noqa: B010 - a type checker knows no attributes of functions
        first, *own = signature(function, eval_str=True).parameters.values()
        if first.name == "ctx":
            return registered(function)
        several = {
            one.name: values
            for one in own
            for values in getattr(one.annotation, "__metadata__", ())
            if isinstance(values, Several)
        }

        @wraps(function)
        def called(ctx: typer.Context, **arguments: Any) -> None:
            gathered = {name: {key: arguments.pop(key) for key in values.options} for name, values in several.items()}
            function(ctx.obj, **arguments, **gathered)

        # This is what typer makes the parser of.
        context = first.replace(name="ctx", annotation=typer.Context)
        options = [each for one in own for each in (several[one.name].parameters() if one.name in several else [one])]
        called.__signature__ = Signature([context, *options])  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in (context, *options)}
        registered(called)
        return function

    return register


def later(app: typer.Typer, commands: Mapping[str, tuple[str, str]], **more: Any) -> None:
    """Put commands into a group that are loaded when used: by name, where as of :class:`Later`, and the summary."""
    for name, (where, summary) in commands.items():
        app.command(name, cls=type("Later", (Later,), {"where": where}), help=summary, **more)(lambda: None)


def parsed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return ``read`` as what parses an option: the message of its ValueError is what is wrong with the option."""

    def value_of(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return value_of


def _remember(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    if value:
        setattr(ctx.obj.options, str(param.name), value)
    return value


def _shared(option: str, words: str, **more: Any) -> Any:
    """Return an option that every call keeps in its :class:`Options`, not in the command's own parameters."""
    return typer.Option(option, help=words, callback=_remember, expose_value=False, **more)


@lru_cache(maxsize=1)
def _all_options() -> tuple[Any, ...]:
    """Return the shared options as the parser wants them, made by typer from a signature like any other."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def declare(
        config: Annotated[
            Path | None, _shared("--config", "Read settings from FILE (or set SCHEDCTL_CONFIG).", metavar="FILE")
        ] = None,
        json: Annotated[bool, _shared("--json", "Write JSON to standard output.")] = False,
        no_color: Annotated[bool, _shared("--no-color", "Use no colours.")] = False,
        debug: Annotated[bool, _shared("--debug", "Show where an error happened.")] = False,
        wide: Annotated[bool, _shared("--wide", "Every column, one line a row, however long.")] = False,
        columns: Annotated[
            str,
            _shared(
                "--columns", "Only these columns, in this order, by their titles.", metavar="A,B", show_default=False
            ),
        ] = "",
    ) -> None:
        del config, json, no_color, debug, wide, columns

    return tuple(get_command(app).params)


def _options(*names: str) -> list[Any]:
    return [param for param in _all_options() if param.name in names]


def confirm(cli: Cli, question: str, *, yes: bool) -> None:
    """Ask a person at the terminal whether to go on, unless ``yes``. Raises Refusal without their consent."""
    if yes:
        return
    remedy = "To do it without being asked, add --yes"
    if cli.options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal("nothing was changed", f'this is not a terminal, so no one can answer: "{question}"', remedy)
    sys.stderr.write(cli.redact(f"{question} [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Refusal("nothing was changed", "the answer was not yes", remedy)
