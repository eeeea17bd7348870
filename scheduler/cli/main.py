"""Entry point of ``schedctl``. Frequent commands run without loading the command parser."""

from __future__ import annotations

import gc
import sys

from scheduler.cli import prompt

TYPE_CHECKING = False  # typing alone would double the time of a prompt
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from scheduler.cli.shell.context import GlobalOptions


def run() -> NoReturn:
    """Run ``schedctl`` with the process's arguments and exit with its code (see scheduler.cli.shell.exits)."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # Characters that the terminal cannot encode must not make a command fail.
            reconfigure(errors="replace")
    code = main(sys.argv[1:])
    gc.freeze()  # else Python looks for garbage among all objects before it ends
    sys.exit(code)


def main(words: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors are written to standard error, never raised."""
    options: GlobalOptions | None = None
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    try:
        plain = prompt.parse(list(words))
        if plain is not None:
            code = prompt.show_line(*plain)
            sys.stdout.flush()
            return code
        from contextlib import closing

        from scheduler.cli import remote
        from scheduler.cli.guesses import in_our_words
        from scheduler.cli.shell.context import Cli, GlobalOptions

        words = in_our_words(words)
        if host := remote.host_for(words):
            return remote.run_there(host, words)
        options = GlobalOptions()
        quick = plainly_asked(words)
        if quick is not None:
            options, arguments, states = quick
            with closing(Cli(options)) as cli:
                if arguments == _DAEMON:
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
# Rows are many and hold few reference cycles: Python's default threshold costs a twelfth of a weekly report.
_OBJECTS_BEFORE_COLLECTION = 200_000
_LISTS = (["queue", "list"], ["jobs"], ["queue"], ["jobs", "list"])


def plainly_asked(words: Sequence[str]) -> tuple[GlobalOptions, list[str], list[str]] | None:
    """Return the options, the command and the states to list, for a plain ``queue list`` or ``daemon``.

    None for any other command line, also for help and errors: the parser handles them.
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
