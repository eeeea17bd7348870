"""Commands that users of Slurm, Kubernetes, Docker, SkyPilot, Git and W&B try first, and ours in place of them."""

import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from scheduler.cli.shell.exits import UsageFault

ALIASES: dict[str, str] = {
    "jobs": "queue",
    "logs": "runs logs",
    "cancel": "queue cancel",
    "gpus": "pools list --columns pool,accelerator,devices,memory,usage,sessions",
}
"""Aliases of commands."""

_NOT_OFFERED = ("queue remove", "queue hold", "cancel", "pause")  # they stop work: suggested, never run


@cache
def meanings() -> dict[str, str]:
    """Return the guesses, separated by commas, by our command for them; guesses.toml explains the form."""
    return dict(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))


def in_our_words(words: Sequence[str]) -> list[str]:
    """Return the arguments with options of other programs (``-o json``, ``-V``) and ``help`` translated to ours."""
    written = list(words)
    end = written.index("--") if "--" in written else len(written)
    ours, after = written[:end], written[end:]
    for at, word in reversed(list(enumerate(ours))):
        if word in {"-ojson", "-o=json", "--output=json"}:
            ours[at] = "--json"
        elif word in {"-o", "--output"} and ours[at + 1 : at + 2] == ["json"]:
            ours[at : at + 2] = ["--json"]
    if ours[:1] == ["-V"]:
        ours[0] = "--version"
    elif ours[:1] == ["help"] or ours[1:] == ["help"]:
        ours = [*(word for word in ours if word != "help"), "--help"]
    return ours + after


def meant(args: Sequence[str], config: str) -> list[str] | None:
    """Return our command line for a known guess, if the user confirms it at the terminal; None for no known guess.

    ``config`` is the path of the settings file. Raises UsageFault with the command to type if it is not confirmed, has
    alternatives or placeholders left, or stops work.
    """
    guess = _longest(args)
    if guess is None:
        return None
    commands, length = guess
    wrong, rest = f'There is no command "{" ".join(args[:length])}"', list(args[length:])
    if commands.startswith("!"):
        why, remedy = commands[1:].split(" | ")
        raise UsageFault(wrong, why, remedy.format(config=config))
    from shlex import join

    choices = commands.split(" | ")
    # Among several alternatives, one without JOB applies to everything: it takes no name.
    typed = [_filled(one, rest if "JOB" in one or not choices[1:] else ()) for one in choices]
    suggestions = [f"schedctl {join(command)}" for command in typed]
    is_whole = not choices[1:] and not any(word.isupper() for word in typed[0])
    if is_whole and not commands.startswith(_NOT_OFFERED) and _agreed(suggestions[0]):
        return typed[0]
    raise UsageFault(wrong, "schedctl has another word for it", f"Use: {', or: '.join(suggestions)}")


def _longest(args: Sequence[str]) -> tuple[str, int] | None:
    """Return the entry of :func:`meanings` for the longest guess that ``args`` begin with, and its length in words."""
    command_of = {guess: command for command, guesses in meanings().items() for guess in guesses.split(", ")}
    for length in (3, 2, 1):
        words = list(args[:length])
        for guess in (" ".join(words), " ".join([*words[:-1], "JOB"])):
            if len(words) == length and guess in command_of:
                return command_of[guess], length - guess.endswith(" JOB")
    return None


def _filled(command: str, rest: Sequence[str]) -> list[str]:
    """Return the words of a command with its placeholders replaced by ``rest``, as far as there are values."""
    words, arguments = command.split(), list(rest)
    for at, word in enumerate(words):
        if word.isupper() and arguments and not arguments[0].startswith("-"):
            words[at] = arguments.pop(0)
    return [*words, *arguments]


def _agreed(command: str) -> bool:
    """Ask whether to run the command; False if this is not a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"Did you mean: {command}? Run it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
