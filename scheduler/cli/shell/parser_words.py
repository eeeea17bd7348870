"""Our messages for usage errors; they replace the messages of the command-line parser."""

import re
import shlex
from difflib import get_close_matches
from typing import Any

_NUMBER = re.compile(r"-\d+(\.\d+)?")
_KINDS = {"integer": "a whole number", "float": "a number", "number": "a number", "boolean": "true or false"}
# Our message for each pattern of a parser's message.
_MESSAGES = {
    r"Got unexpected extra argument\S* \((.*)\)": '{command} has no use for the argument "{0}"',
    r"Option '(.*)' requires (?:an argument|\d+ arguments)": "{0} needs a value",
    r"Option '(.*)' does not take a value": "{0} takes no value",
    r"No such command '(.*?)'(.*)": 'There is no command "{0}"{1}',
}


def sentence(error: Any) -> str:
    """Return our message for a usage error of the parser, without a full stop at the end.

    The message has a suggestion if one is known. ``error`` must have its parser context (``ctx``).
    """
    command = error.ctx.command_path
    match type(error).__name__:
        case "NoSuchOption":
            return _option(error, command)
        case "MissingParameter":
            return _missing(error, command)
        case "BadParameter":
            return f"{_hint(error)} cannot be used: {_value(error.message)}"
    message = str(error.message).rstrip(".")
    for theirs, ours in _MESSAGES.items():
        if match := re.fullmatch(theirs, message):
            return ours.format(*match.groups(), command=command)
    return message


def _option(error: Any, command: str) -> str:
    """Return the message for an unknown option; it suggests a similar option or what the user may have meant."""
    name = str(error.option_name)
    options = [option for param in error.ctx.command.params for option in param.opts if option.startswith("--")]
    close = get_close_matches(name, options, n=1, cutoff=0.75)
    problem = f"{command} has no option {name}"
    if close:
        return f"{problem}. Did you mean {close[0]}?"
    if _NUMBER.fullmatch(name) or re.fullmatch("[0-9]+", name[1:]):
        return f"{problem}. A number below zero is written after --, as in: -- {name}"
    if command.endswith(" submit"):
        return f"{problem}. Options of the script go after --: {command} {_moved(error.ctx.meta['args'], name)}"
    return problem


def _moved(args: list[str], name: str) -> str:
    """Return the arguments of ``submit`` with the option ``name`` and its value moved after ``--``, to the script."""
    end = args.index("--") if "--" in args else len(args)
    at = next(at for at, word in enumerate(args) if word.startswith(name))
    is_alone = "=" in args[at] or at + 1 == end or args[at + 1].startswith("-") or args[at + 1].endswith((".py", ".sh"))
    after = at + (1 if is_alone else 2)
    return shlex.join([*args[:at], *args[after:end], "--", *args[end + 1 :], *args[at:after]])


def _missing(error: Any, command: str) -> str:
    """Return the message for a missing argument or option, with its help text."""
    param = error.param
    if param is None:
        return f"{command} needs more arguments"
    name = param.opts[0] if param.param_type_name == "option" else param.metavar or str(param.name).upper()
    help_ = f": {param.help.rstrip('.')}" if getattr(param, "help", "") else ""
    return f"{command} needs {name}{help_}"


def _hint(error: Any) -> str:
    """Return the name of the argument or option whose value is invalid."""
    if error.param_hint is not None:
        return str(error.param_hint).strip("'")
    param = error.param
    if param is None:
        return "a value"
    return str(param.opts[0] if param.param_type_name == "option" else param.metavar or param.name)


def _value(message: str) -> str:
    """Return our message for the parser's message about an invalid value."""
    message = message.rstrip(".")
    if match := re.match(r"Input should be a valid (integer|number|boolean)", message):
        return f"this is not {_KINDS[match[1]]}"
    if match := re.fullmatch(r"Input should be (greater|less) than or equal to (.*)", message):
        return f"this must be {'at least' if match[1] == 'greater' else 'at most'} {match[2]}"
    if match := re.fullmatch(r"(.*) is not a valid (integer|float|boolean)(?: range)?", message):
        return f"{match[1]} is not {_KINDS[match[2]]}"
    if match := re.fullmatch(r"(.*) is not one of (.*)", message):
        words = re.findall(r"'([^']*)'", match[2])
        close = get_close_matches(match[1].strip("'"), words, n=1)
        return f"{match[1]} is not one of {', '.join(words)}{f'. Did you mean {close[0]}?' if close else ''}"
    return message.replace("is not in the range", "is outside the range")
