"""Entry point of ``schedctl``. The most frequent commands run without the command parser, whose import is slow."""

from __future__ import annotations

import gc
import sys

from scheduler.cli import prompt

TYPE_CHECKING = False  # importing typing would double the time of `schedctl prompt`
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from scheduler.cli.shell.context import GlobalOptions


def run() -> NoReturn:
    """Run ``schedctl`` with the arguments of this process, and exit with the code of scheduler.cli.shell.exits."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # Characters that the terminal cannot encode must not make a command fail.
            reconfigure(errors="replace")
    code = main(sys.argv[1:])
    gc.freeze()  # otherwise Python searches all objects for garbage before it ends
    sys.exit(code)


def main(words: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors are written to standard error, never raised."""
    options: GlobalOptions | None = None
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    try:
        prompt_arguments = prompt.parse(list(words))
        if prompt_arguments is not None:
            code = prompt.show_line(*prompt_arguments)
            sys.stdout.flush()
            return code
        from contextlib import closing

        from scheduler.cli import remote
        from scheduler.cli.guesses import translate_options
        from scheduler.cli.shell.context import Cli, GlobalOptions

        words = translate_options(words)
        if host := remote.host_for(words):
            return remote.run_there(host, words)
        options = GlobalOptions()
        plain_command = parse_plain_command(words)
        if plain_command is not None:
            options, command, states = plain_command
            with closing(Cli(options)) as cli:
                if command == _DAEMON:
                    from scheduler.cli.run_daemon import run_daemon

                    run_daemon(cli)
                else:
                    from scheduler.cli.commands.queue_list import list_queue

                    list_queue(cli, states)
            code = 0
        else:
            from scheduler.cli.root import invoke

            code = invoke(words, options)
        sys.stdout.flush()
    except SystemExit:
        raise  # the parser exits this way after it has printed shell completions
    except BaseException as error:  # noqa: BLE001 - the one place where every error becomes an exit code
        # The parser may have failed before it reached --json.
        from scheduler.cli.shell.context import GlobalOptions
        from scheduler.cli.shell.exits import report

        options = options or GlobalOptions()
        options.json |= "--json" in words
        return report(error, options, words)
    return code


_DAEMON = ["daemon"]
# Database rows have few reference cycles: at Python's default, collections take a twelfth of a weekly report's time.
_OBJECTS_BEFORE_COLLECTION = 200_000
_LISTS = (["queue", "list"], ["jobs"], ["queue"], ["jobs", "list"])


def parse_plain_command(words: Sequence[str]) -> tuple[GlobalOptions, list[str], list[str]] | None:
    """Return the options, the command and the states to list, for a plain ``queue list`` or ``daemon``.

    Return None for any other command line, and for help and errors, which the parser handles.
    """
    from pathlib import Path

    from scheduler.cli.shell.context import GlobalOptions

    options = GlobalOptions()
    states: list[str] = []
    command: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        match name:
            case "--json" | "--no-color" | "--debug" if not equals:
                setattr(options, name.removeprefix("--").replace("-", "_"), True)
            case "--config" | "--state":
                text = value if equals else next(rest, "")
                if not text or (name == "--state" and command not in _LISTS):
                    return None
                if name == "--config":
                    options.config = Path(text)
                else:
                    states.append(text)
            case _:
                command.append(word)
    return (options, command, states) if command in (*_LISTS, _DAEMON) else None
