"""`schedctl man`: the manual page, made of the parsers themselves, so that it tells of just this version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from scheduler.cli.shell.command import command
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_PURPOSE = "packs model training into scarce GPU quotas"


@command(app, "schedctl man")
def man(ctx: typer.Context) -> None:
    """Print the manual page in troff. ``man -l -`` shows it."""
    cli: Cli = ctx.obj
    lines = page(ctx)
    cli.out.data({"page": "\n".join(lines)})
    for line in lines:
        cli.out.line(line)


def page(ctx: typer.Context) -> list[str]:
    """Return the lines of the manual page."""
    from importlib.metadata import version

    return list(_page(ctx.find_root(), version("uff-scheduler")))


def _page(whole: Any, number: str) -> Iterator[str]:
    root = whole.command
    yield f'.TH SCHEDCTL 1 "" "uff-scheduler {_roff(number)}" "User Commands"'
    yield from (".SH NAME", f"schedctl \\- {_roff(_PURPOSE)}")
    yield from (".SH SYNOPSIS", ".B schedctl", "[\\fIOPTION\\fR]... \\fICOMMAND\\fR [\\fIARGUMENT\\fR]...")
    yield from (".SH OPTIONS", *_options(root))
    yield ".SH COMMANDS"
    for name in root.list_commands(whole):
        found = root.get_command(whole, name)
        inner = getattr(found, "commands", {})
        if not inner or found.invoke_without_command:
            yield from _command(f"schedctl {name}", found)
        for word, each in inner.items():
            yield from _command(f"schedctl {name} {word}", each)
    yield ".SH EXIT STATUS"
    for code, meaning in MEANINGS.items():
        yield from (".TP", f".B {int(code)}", _roff(meaning))
    yield ".SH SEE ALSO"
    yield from ("The documents of the project, above all quickstart, configuration and service.", ".br")
    yield "\\fBschedctl config show\\fR lists all settings with where they come from."


def _command(words: str, found: Any) -> Iterator[str]:
    arguments = " ".join(_argument(each) for each in found.params if each.param_type_name == "argument")
    yield f'.SS "{_roff(words)}{" " + arguments if arguments else ""}"'
    for number, paragraph in enumerate((found.help or "").split("\n\n")):
        text = " ".join(paragraph.replace("\b", "").split())
        if text:
            yield from (*([".PP"] if number else []), _roff(text))
    yield from _options(found)


def _argument(found: Any) -> str:
    name = f"\\fI{_roff(found.metavar or str(found.name).upper())}\\fR"
    name = name if found.required else f"[{name}]"
    return name + ("..." if found.nargs == -1 else "")


def _options(found: Any) -> Iterator[str]:
    for each in found.params:
        if each.param_type_name != "option" or each.hidden:
            continue
        names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in (*each.opts, *each.secondary_opts))
        value = "" if each.is_flag or each.count else f" \\fI{_roff(each.metavar or str(each.name).upper())}\\fR"
        yield from (".TP", names + value, _roff(" ".join((each.help or "").split())) or "\\&")


def _roff(text: str) -> str:
    """Return a text as troff takes it: no letter of it is a request or an escape."""
    found = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{found}" if found.startswith((".", "'")) else found
