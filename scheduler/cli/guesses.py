"""Translate commands of Slurm, Kubernetes, Docker, SkyPilot, Git and W&B, which users try first, into ours."""

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
"""Our commands by alias. The help lists the aliases beside the commands."""

# Commands that stop work are suggested to the user, but never run in place of a guess.
_ONLY_SUGGESTED = ("queue remove", "queue hold", "cancel", "pause", "pools close", "runs stop")
_OUTPUT_OPTIONS = {"json": "--json", "yaml": "--json", "wide": "--wide"}  # JSON is valid YAML


@cache
def guesses_by_command() -> dict[str, str]:
    """Return for each of our commands the guesses that mean it, separated by commas; guesses.toml has the format."""
    return dict(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))


def translate_options(words: Sequence[str]) -> list[str]:
    """Return the arguments with ``help`` and options of other programs (``-o yaml``, ``-V``) replaced by ours."""
    written = list(words)
    end = written.index("--") if "--" in written else len(written)
    ours, after = written[:end], written[end:]
    for at, word in reversed(list(enumerate(ours))):
        for form, option in _OUTPUT_OPTIONS.items():
            if word in {f"-o{form}", f"-o={form}", f"--output={form}"}:
                ours[at] = option
            elif word in {"-o", "--output"} and ours[at + 1 : at + 2] == [form]:
                ours[at : at + 2] = [option]
    if ours[:1] in (["-V"], ["-v"]):
        ours[0] = "--version"
    elif ours[:1] == ["help"] or ours[1:] == ["help"]:
        ours = [*(word for word in ours if word != "help"), "--help"]
    return ours + after


def resolve_guess(args: Sequence[str], config: str) -> list[str] | None:
    """Return our command line for a known guess that the user confirms at the terminal; None if no guess is known.

    ``config`` is the path of the settings file. Raises UsageFault with the command to type if the user does not
    confirm, or if our command has alternatives, has placeholders without a value, or stops work.
    """
    from shlex import join, quote

    guess = _longest_match(args)
    if guess is None:
        return None
    commands, words, arguments = guess
    problem = f'There is no command "{" ".join(words)}"'
    if commands.startswith("!"):
        why, remedy = commands[1:].split(" | ")
        job = next((word for word in arguments if not word.startswith("-")), "JOB")
        raise UsageFault(problem, why, remedy.format(config=config).replace("JOB", quote(job)))
    choices = commands.split(" | ")
    filled = []
    for choice in choices:
        # An alternative without a name, such as `pause`, applies to everything: it gets no arguments.
        has_name = "JOB" in choice or "@N" in choice or len(choices) == 1
        filled.append(_fill_placeholders(choice, arguments if has_name else ()))
    suggestions = [f"schedctl {join(command)}" for command in filled]
    is_complete = len(choices) == 1 and not any(word.isupper() for word in filled[0])
    if is_complete and not commands.startswith(_ONLY_SUGGESTED) and _ask_to_run(suggestions[0]):
        return filled[0]
    raise UsageFault(problem, "schedctl has another word for it", f"Use: {', or: '.join(suggestions)}")


def _longest_match(args: Sequence[str]) -> tuple[str, list[str], list[str]] | None:
    """Return our command for the longest guess that ``args`` begin with, the words of the guess, and the arguments."""
    command_of = {guess: command for command, guesses in guesses_by_command().items() for guess in guesses.split(", ")}
    for length in range(min(3, len(args)), 0, -1):
        typed, rest = list(args[:length]), list(args[length:])
        *first, last = ["queue" if args[0] == "jobs" else args[0], *typed[1:]]
        if command := command_of.get(" ".join([*first, last])):
            return command, typed, rest
        if not last.startswith("-") and (command := command_of.get(" ".join([*first, "JOB"]))):
            return command, typed, [typed[-1], *rest]
    return None


def _fill_placeholders(command: str, rest: Sequence[str]) -> list[str]:
    """Return the words of a command with its placeholders replaced by the values in ``rest``; others are appended."""
    words, arguments = command.split(), list(rest)
    if words[-1] == "JOB" and arguments and arguments[0].startswith("-"):
        if arguments[0] == "--all":
            words.pop()
        elif not arguments[-1].startswith("-"):
            arguments.insert(0, arguments.pop())  # other programs take the name last: tail -n 5 JOB
    for at, word in enumerate(words):
        if word.isupper() and arguments and not arguments[0].startswith("-"):
            words[at] = arguments.pop(0)
    return [*words, *arguments]


def _ask_to_run(command: str) -> bool:
    """Ask the user whether to run the command, and return the answer; False if there is no terminal to ask at."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"Did you mean: {command}? Run it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
