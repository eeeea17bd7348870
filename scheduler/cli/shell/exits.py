"""Exit codes of ``schedctl``, and the report of an error: what failed, why, and the next command."""

from __future__ import annotations

import errno
import json
import os
import sys
import tomllib
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.problem import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.payload.redact import Redactor
    from scheduler.cli.shell.context import GlobalOptions


class Exit(IntEnum):
    """Exit codes of ``schedctl``; ``exits.toml`` explains them."""

    OK = 0
    BUG = 1
    USAGE = 2
    CONFIG = 3
    DATABASE = 4
    NOT_FOUND = 5
    REFUSED = 6
    PLATFORM = 7
    LEADERSHIP = 8
    VIOLATIONS = 9
    INTERRUPTED = 130
    BROKEN_PIPE = 141


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def meanings() -> dict[Exit, str]:
    """Return what each exit code means."""
    return {Exit[name]: entry["meaning"] for name, entry in _table().items()}


@cache
def codes() -> dict[str, Exit]:
    """Return the exit code of each error class, by its full name, so that the classes need not be imported."""
    return {kind: Exit[name] for name, entry in _table().items() for kind in entry.get("errors", ())}


class UsageFault(UserError):
    """The arguments of the command line are invalid or contradict each other."""


def pair_of(option: str, words: str, form: str, *, empty: bool = False) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``; ``empty`` allows an empty value. Raises UsageFault showing ``form``."""
    name, equals, value = words.partition("=")
    if not (name and equals and (value or empty)):
        raise UsageFault(f"{option} {words} cannot be read", "it has two parts", f"Write it as {form}")
    return name, value


class PlatformFault(UserError):
    """This machine or a platform does not support what the command needs."""


class Violations(UserError):
    """A check found a violation."""


def code_of(error: BaseException) -> Exit:
    """Return the exit code of an error; BUG if neither its class nor a base class is in :func:`codes`."""
    for kind in type(error).__mro__:
        code = codes().get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            return code
    return Exit.BUG


def report(error: BaseException, options: GlobalOptions, arguments: Sequence[str] = ()) -> int:
    """Write an error to standard error, as JSON with ``--json``, and return the exit code.

    ``arguments`` is the command line: a password in a URL there is hidden in the report.
    """
    error = _root_cause(error, options)
    code = code_of(error)
    if code is Exit.INTERRUPTED:
        return code
    if code is Exit.BROKEN_PIPE:
        # The interpreter flushes standard output once more at exit; that must not raise or print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    redact = redactor_for(options, arguments)
    if options.debug:
        import traceback

        sys.stderr.write(redact("".join(traceback.format_exception(error))))
    if options.json:
        sys.stderr.write(redact(json.dumps({"error": _document(error, code)})) + "\n")
    else:
        from scheduler.cli.shell.output import clean

        lines = _message(error).splitlines() or [type(error).__name__]
        if code is Exit.BUG:
            hint = "" if options.debug else " Please report it with the output of the same command with --debug."
            lines = [f"unexpected {type(error).__name__}: {_message(error)}.{hint}"]
        is_help = len(lines) > 1 and code is Exit.USAGE  # the help of a group called without a command
        sys.stderr.writelines(redact(clean(line if is_help else f"schedctl: {line}")) + "\n" for line in lines)
    return code


def document_of(error: BaseException, options: GlobalOptions) -> dict[str, Any]:
    """Return an error as the document that ``--json`` writes, for callers that send it to a program."""
    error = _root_cause(error, options)
    reported = getattr(error, "document", None)  # set by a command that has already reported its error
    return reported if isinstance(reported, dict) else _document(error, code_of(error))


def redactor_for(options: GlobalOptions, arguments: Sequence[str] = ()) -> Redactor:
    """Return a redactor of the secrets in settings, environment and ``arguments``; unreadable settings are ignored."""
    from config.errors import ConfigError
    from config.known_secrets import KnownSecrets
    from config.layers import read_layers

    try:
        values = read_layers(options.config).values
    except (ConfigError, OSError):
        values = {}  # the error about unreadable settings shows no values that could be secret
    return KnownSecrets(values, os.environ, arguments)


def _root_cause(error: BaseException, options: GlobalOptions) -> BaseException:
    """Return the database damage that caused an unexpected error; without damage, return the error itself."""
    # A damaged time beyond the range of the calendar raises OSError with EOVERFLOW.
    if code_of(error) is not Exit.BUG and getattr(error, "errno", None) != errno.EOVERFLOW:
        return error
    from config.paths import load_paths
    from scheduler.store.engine import open_database
    from scheduler.store.errors import DatabaseCorrupt

    try:
        cause = open_database(load_paths(options.config).database_url, read_only=True).explain(error)
    except DatabaseCorrupt as damage:
        return damage
    except Exception:  # noqa: BLE001 - settings or database cannot be used: the first error is reported instead
        return error
    return error if cause is None else cause


def _document(error: BaseException, code: Exit) -> dict[str, Any]:
    problems = getattr(error, "problems", ())
    fields = ("file", "line", "key", "value", "why", "remedy")
    return {
        "exit_code": int(code),
        "kind": type(error).__name__,
        "message": _message(error),
        "remedy": getattr(error, "remedy", None) or None,
        "problems": [{name: getattr(problem, name) for name in fields} for problem in problems],
    }


def _message(error: BaseException) -> str:
    """Return the message of an error; for a usage error it ends with the command that shows the help."""
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        words = str(error)
        return words[:-1] if words.endswith("?.") else words
    context = getattr(error, "ctx", None)
    if context is None or type(error).__name__ == "NoArgsIsHelpError":
        return str(format_message()).rstrip()
    from scheduler.cli.shell.parser_words import sentence

    words = sentence(error)
    return f"{words}{'' if words.endswith('?') else '.'} See: {context.command_path} --help"
