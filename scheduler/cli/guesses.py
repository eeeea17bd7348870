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

# They stop work: suggested, never run.
_NOT_OFFERED = ("queue remove", "queue hold", "cancel", "pause", "pools close", "runs stop")
_FORMS = {"json": "--json", "yaml": "--json", "wide": "--wide"}  # JSON is valid YAML


@cache
def meanings() -> dict[str, str]:
    """Return the guesses, separated by commas, by our command for them; guesses.toml explains the form."""
    return dict(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))


def in_our_words(words: Sequence[str]) -> list[str]:
    """Return the arguments with options of other programs (``-o yaml``, ``-V``) and ``help`` translated to ours."""
    written = list(words)
    end = written.index("--") if "--" in written else len(written)
    ours, after = written[:end], written[end:]
    for at, word in reversed(list(enumerate(ours))):
        for form, option in _FORMS.items():
            if word in {f"-o{form}", f"-o={form}", f"--output={form}"}:
                ours[at] = option
            elif word in {"-o", "--output"} and ours[at + 1 : at + 2] == [form]:
                ours[at : at + 2] = [option]
    if ours[:1] in (["-V"], ["-v"]):
        ours[0] = "--version"
    elif ours[:1] == ["help"] or ours[1:] == ["help"]:
        ours = [*(word for word in ours if word != "help"), "--help"]
    return ours + after


def meant(args: Sequence[str], config: str) -> list[str] | None:
    """Return our command line for a known guess, if the user confirms it at the terminal; None for no known guess.

    ``config`` is the path of the settings file. Raises UsageFault with the command to type if it is not confirmed, has
    alternatives or placeholders left, or stops work.
    """
    from shlex import join, quote

    guess = _longest(args)
    if guess is None:
        return None
    commands, words, rest = guess
    wrong = f'There is no command "{" ".join(words)}"'
    if commands.startswith("!"):
        why, remedy = commands[1:].split(" | ")
        job = next((word for word in rest if not word.startswith("-")), "JOB")
        raise UsageFault(wrong, why, remedy.format(config=config).replace("JOB", quote(job)))
    choices = commands.split(" | ")
    # Among several alternatives, one that needs no name applies to everything.
    typed = [_filled(one, rest if "JOB" in one or "@N" in one or not choices[1:] else ()) for one in choices]
    suggestions = [f"schedctl {join(command)}" for command in typed]
    is_whole = not choices[1:] and not any(word.isupper() for word in typed[0])
    if is_whole and not commands.startswith(_NOT_OFFERED) and _agreed(suggestions[0]):
        return typed[0]
    raise UsageFault(wrong, "schedctl has another word for it", f"Use: {', or: '.join(suggestions)}")


def _longest(args: Sequence[str]) -> tuple[str, list[str], list[str]] | None:
    """Return the entry of :func:`meanings` for the longest guess that ``args`` begin with, its words, and the rest."""
    command_of = {guess: command for command, guesses in meanings().items() for guess in guesses.split(", ")}
    for length in range(min(3, len(args)), 0, -1):
        typed, rest = list(args[:length]), list(args[length:])
        *first, last = ["queue" if args[0] == "jobs" else args[0], *typed[1:]]
        if command := command_of.get(" ".join([*first, last])):
            return command, typed, rest
        if not last.startswith("-") and (command := command_of.get(" ".join([*first, "JOB"]))):
            return command, typed, [typed[-1], *rest]
    return None


def _filled(command: str, rest: Sequence[str]) -> list[str]:
    """Return the words of a command with its placeholders replaced by ``rest``, as far as there are values."""
    words, arguments = command.split(), list(rest)
    if words[-1] == "JOB" and arguments and arguments[0].startswith("-"):
        if arguments[0] == "--all":
            words.pop()
        elif not arguments[-1].startswith("-"):
            arguments.insert(0, arguments.pop())  # the name is last: tail -n 5 JOB
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
